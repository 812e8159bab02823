"""Who may call what: one ASGI middleware before every route.

    Host known? -> not sent by another site? -> token good? -> scope enough? -> route

Denied by default: what is not named in `needed` wants `read` to look and `control` to change, whether or not a route
answers there. Without a token file the last two questions fall away and everybody is `anonymous`; the first two stay,
because a web page can reach loopback (by a form, or by a name that it lets resolve to 127.0.0.1).

Refusals are problem documents (401 and 403 with the challenge of RFC 6750) and are counted by reason. An answer that
takes long (a long poll, an event stream) is checked again before each part of it, so a revoked token ends it. Tokens
come in the Authorization header only: a query would put them into logs.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from socket import gethostname
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triage_monitor.config_access import Secret
from triage_monitor.service.body import read_small, small_bodies
from triage_monitor.service.guesses import Guesses
from triage_monitor.service.problems import Problem
from triage_monitor.service.signature import SIGNATURE_HEADER, TIMESTAMP_HEADER, is_signed
from triage_monitor.service.tokens import TOKEN, TokenEntry, TokenSet
from triage_monitor.service.tokens import Scope as May

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
PUBLIC = frozenset({"/", "/healthz", "/readyz"})
PUBLIC_FILES = re.compile(r"/static(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+")
HOOKS = "/v1/hooks/"
ANONYMOUS = "anonymous"
_RUN = r"/v1/runs/[^/]+"
_INGEST = {
    "PUT": re.compile(rf"{_RUN}/updates/[^/]+/shards/[^/]+"),
    "POST": re.compile(rf"{_RUN}/(attempts|params/ack)"),
}
_PARAMS = re.compile(rf"{_RUN}/params")
_DEFAULT_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request comes from. Anonymous is everybody while there is no token file."""

    name: str
    may: frozenset[May]


EVERYBODY = Caller(ANONYMOUS, frozenset(May))
NOBODY = Caller(ANONYMOUS, frozenset())


def caller_of(request: Request) -> Caller:
    """The caller that the middleware let in."""
    caller: Caller = request.scope["state"]["caller"]
    return caller


def needed(method: str, path: str, *, open_metrics: bool = False) -> frozenset[May]:
    """The scopes of which a caller must have one; empty when everybody may."""
    looks = method in SAFE_METHODS
    if looks and (path in PUBLIC or PUBLIC_FILES.fullmatch(path) or (path == "/metrics" and open_metrics)):
        return frozenset()
    if looks:
        return frozenset({May.READ, May.INGEST} if _PARAMS.fullmatch(path) else {May.READ})
    if method in _INGEST and _INGEST[method].fullmatch(path):
        return frozenset({May.INGEST})
    return frozenset({May.CONTROL})


@dataclass(frozen=True, slots=True)
class Rules:
    """What a sidecar was told about access. `hosts` are lower-case names beside addresses and `localhost`."""

    tokens: TokenSet | None = None
    open_metrics: bool = False
    hosts: tuple[str, ...] = ()
    hook_secret: Secret | None = None


Admitted = tuple[Caller, TokenEntry | None, Receive]


class _Ended(Exception):
    """Unwinds an answer whose token ceased to be good while it was being sent."""


class Access:
    """What was refused and why, and the decision itself; one for each application."""

    def __init__(
        self, rules: Rules, wall: Callable[[], float], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.rules = rules
        self.refused: Counter[str] = Counter()
        self._wall = wall
        self._hook_bodies = small_bodies()
        self._guesses = Guesses(monotonic)
        self._hosts = (*(host.lower().rstrip(".") for host in rules.hosts), "localhost", gethostname().lower())

    def check_place(self, scope: Scope, headers: Headers) -> None:
        """Problem 421 for a Host that is not ours, 403 for a change that another site sent."""
        if scope["path"] == "/healthz":
            return  # probes name whatever they like, and learn nothing
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            detail = "this host name is not served here; auth.allowed_hosts lists those that are, beside addresses"
            raise Problem(421, "host", detail)
        if scope["method"] in SAFE_METHODS:
            return
        sites, origins = headers.getlist("sec-fetch-site"), headers.getlist("origin")
        foreign = any(site.strip().lower() not in ("same-origin", "none") for site in sites)
        if foreign or len(origins) > 1 or any(not _is_same(origin, hosts[0]) for origin in origins):
            raise Problem(403, "cross_site", "a change must not come from another site")

    def _is_ours(self, authority: str) -> bool:
        name = _host_of(authority)
        if name is None:
            return False
        try:
            ip_address(name)
            return True  # no name, nothing to rebind
        except ValueError:
            pass
        return any(
            host in ("*", name) or (host.startswith("*.") and name.endswith(host[1:]) and name != host[1:])
            for host in self._hosts
        )

    async def admit(self, scope: Scope, headers: Headers, receive: Receive) -> Admitted:
        """Who this is and what may be read on as the body. Raises the Problem that refuses."""
        path, tokens, secret = scope["path"], self.rules.tokens, self.rules.hook_secret
        wanted = needed(scope["method"], path, open_metrics=self.rules.open_metrics)
        if secret is not None and path.startswith(HOOKS) and (tokens is None or SIGNATURE_HEADER in headers):
            try:
                receive = await self._signed_body(secret, headers, scope, receive)
            except Problem as problem:
                raise self._counted(scope, problem) from None
            return Caller("signed hook", frozenset({May.CONTROL})), None, receive
        if tokens is None:
            return EVERYBODY, None, receive
        try:
            entry = self._entry(tokens, headers, wanted)
        except Problem as problem:
            if wanted:
                raise self._counted(scope, problem) from None
            return NOBODY, None, receive  # a probe or a page may come with any token, or none
        return Caller(entry.name, entry.scopes), entry, receive

    def _counted(self, scope: Scope, problem: Problem) -> Problem:
        """The refusal, or 429 for an address that presents wrong tokens again and again."""
        if problem.reason not in ("unknown_token", "malformed_token", "bad_signature"):
            return problem
        client = scope.get("client")
        wait = self._guesses.failed(client[0] if client else "")
        if wait is None:
            return problem
        detail = (
            f"too many wrong tokens came from this address; a right one is taken at any time, a wrong one in {wait} s"
        )
        return Problem(429, "token_attempts", detail, headers={"Retry-After": str(wait)})

    def _entry(self, tokens: TokenSet, headers: Headers, wanted: frozenset[May]) -> TokenEntry:
        given = headers.getlist("authorization")
        if not given:
            raise _unauthorized("no_token", "send a bearer token in the Authorization header")
        scheme, _, token = given[0].strip().partition(" ")
        token = token.strip()
        if len(given) > 1 or scheme.lower() != "bearer" or TOKEN.fullmatch(token) is None:
            detail = "the Authorization header must be one: Bearer and the token as it was printed"
            raise _unauthorized("malformed_token", detail, "invalid_request")
        entry = tokens.find(token)
        if entry is None:
            raise _unauthorized("unknown_token", "this token is not known, or no longer", "invalid_token")
        if not tokens.is_good(entry):
            raise _unauthorized("expired_token", "this token has expired", "invalid_token")
        if wanted and not wanted & entry.scopes:
            names = " or ".join(sorted(wanted))
            challenge = f'Bearer realm="triage-monitor", error="insufficient_scope", scope="{sorted(wanted)[0]}"'
            detail = f"this call needs the scope {names}, which the token does not have"
            raise Problem(403, "scope", detail, headers={"WWW-Authenticate": challenge})
        return entry

    async def _signed_body(self, secret: Secret, headers: Headers, scope: Scope, receive: Receive) -> Receive:
        """Reads the body, checks its signature, and hands it on to be read again."""
        times, signatures = headers.getlist(TIMESTAMP_HEADER), headers.getlist(SIGNATURE_HEADER)
        if len(times) != 1 or len(signatures) != 1:
            detail = f"a hook must be signed: {TIMESTAMP_HEADER} and {SIGNATURE_HEADER}, once each"
            raise _unauthorized("no_signature", detail)
        body = await read_small(Request(scope, receive), self._hook_bodies)
        if not is_signed(secret, times[0], signatures[0], body, self._wall()):
            raise _unauthorized("bad_signature", "the signature is not of this body and time under the hooks' secret")
        return _replayed(body, receive)

    def tokens_file(self) -> str:
        """For readiness: `none`, `ok`, or why the last good set is still in force."""
        tokens = self.rules.tokens
        if tokens is None:
            return "none"
        tokens.look()
        return tokens.failure or "ok"

    def is_good(self, entry: TokenEntry) -> bool:
        tokens = self.rules.tokens
        return tokens is not None and tokens.is_good(entry)


class AccessMiddleware:
    """Asks `Access` before it lets a request through; nothing but HTTP passes."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        answer = _Answer(send, scope)
        headers = Headers(scope=scope)
        try:
            self._access.check_place(scope, headers)
            caller, entry, receive = await self._access.admit(scope, headers, receive)
        except Problem as problem:
            self._access.refused[problem.reason] += 1
            await problem.response()(scope, receive, answer.send)
            return
        scope.setdefault("state", {})["caller"] = caller
        if entry is not None and scope["method"] in SAFE_METHODS:
            answer.check = lambda: self._access.is_good(entry)
        try:
            await self._app(scope, receive, answer.send)
        except _Ended:
            self._access.refused["revoked"] += 1
            if not answer.started:
                late = _unauthorized("unknown_token", "the token was revoked while it waited", "invalid_token")
                answer.check = None
                await late.response()(scope, receive, answer.send)
            else:
                await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Answer:
    """What goes back, with the headers that every answer has; raises `_Ended` when `check` says no."""

    def __init__(self, send: Send, scope: Scope) -> None:
        self._send = send
        self._scope = scope
        self.started = False
        self.check: Callable[[], bool] | None = None

    async def send(self, message: Message) -> None:
        if self.check is not None and not self.check():
            raise _Ended
        if message["type"] == "http.response.start":
            self.started = True
            headers = MutableHeaders(scope=message)
            for name, value in _DEFAULT_HEADERS.items():
                headers.setdefault(name, value)
            if self.check is not None:
                headers.setdefault("Cache-Control", "no-store")
        await self._send(message)


def _unauthorized(reason: str, detail: str, error: str | None = None) -> Problem:
    challenge = 'Bearer realm="triage-monitor"' + ("" if error is None else f', error="{error}"')
    return Problem(401, reason, detail, headers={"WWW-Authenticate": challenge})


def _host_of(authority: str) -> str | None:
    """The name or address of `host[:port]`, lower case, without brackets; None when it is none."""
    try:
        parts = urlsplit(f"//{authority}")
        parts.port  # noqa: B018  raises for a port that is none
    except ValueError:
        return None
    if parts.netloc != authority or parts.username is not None or not parts.hostname:
        return None
    return parts.hostname.rstrip(".")


def _is_same(origin: str, authority: str) -> bool:
    """True when an Origin names the server that was called: same host and same port."""
    try:
        parts = urlsplit(origin)
        default = {"http": 80, "https": 443}.get(parts.scheme)
        called = urlsplit(f"//{authority}")
        return (
            default is not None
            and parts.hostname == called.hostname
            and (parts.port or default) == (called.port or default)
        )
    except ValueError:
        return False


def _replayed(body: bytes, receive: Receive) -> Receive:
    waiting: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
