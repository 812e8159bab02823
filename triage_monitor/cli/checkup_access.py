"""Address, TLS, clock and token: whether `doctor`, and so a trainer or Prometheus, gets in at all."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Generator
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from triage_monitor.cli.checkup import Finding, Probe, good, note, problem, reason_of
from triage_monitor.config import is_loopback

if TYPE_CHECKING:
    import httpx

SKEW_SECONDS = 30.0
EXPIRY_DAYS = 14.0
SCOPES = ("ingest", "read", "control")


def reached(probe: Probe, now: Callable[[], float]) -> Generator[Finding, None, float | None]:
    """This machine's clock minus the server's in seconds, once it answers as what it should be; else None."""
    import httpx

    before = now()
    try:
        with probe.client.stream("GET", "/healthz") as answer:
            answer.read()
            secure = answer.extensions["network_stream"].get_extra_info("ssl_object")
            certificate = secure.getpeercert() if secure is not None else None
    except httpx.HTTPError as error:
        yield problem("address", f"no answer from {probe.url}: {_cause(error)}", _remedy(probe, str(error)))
        return None
    after = now()
    if answer.status_code != 200 or not _is_ours(answer):
        yield problem("address", f"{probe.url} answers, but not as a sidecar does", "check host and port")
        return None
    yield good("address", f"{probe.url} answers in {1000 * (after - before):.0f} ms")
    yield _tls(probe, None if secure is None else str(secure.version()), certificate or {}, after)
    skew = (before + after) / 2 - served_at(answer)
    if abs(skew) > SKEW_SECONDS:
        words = f"this machine's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server's"
        yield problem("clock", words, "run NTP on both: ages, token expiry and signed hooks go by the clock")
    else:
        yield good("clock", "the clocks agree within a second" if abs(skew) <= 1.5 else f"{abs(skew):.0f} s apart")
    return skew


def served_at(answer: httpx.Response) -> float:
    """The server's clock as its Date header tells it, Unix seconds."""
    return parsedate_to_datetime(answer.headers["date"]).timestamp()


def _is_ours(answer: httpx.Response) -> bool:
    try:
        return bool(answer.json() == {"status": "ok"}) and "date" in answer.headers
    except ValueError:
        return False


def _cause(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__


def _remedy(probe: Probe, error: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in error:
        return "name its authority in TRIAGE_CA_FILE, and call it by a name that stands in the certificate"
    if "CERTIFICATE_REQUIRED" in error or "alert" in error.lower():
        return "it asks for a client certificate: set TRIAGE_CERT_FILE and TRIAGE_KEY_FILE"
    if "WRONG_VERSION" in error or "disconnected" in error or "record layer" in error.lower():
        other = "http" if probe.url.startswith("https") else "https"
        return f"it may speak {other}: change the address"
    return "is `triage-monitor serve` running there, on this port, and not on loopback only?"


def _tls(probe: Probe, protocol: str | None, certificate: dict[str, object], now: float) -> Finding:
    if protocol is None:
        if is_loopback(probe.client.base_url.host):
            return good("tls", "none, and none needed on loopback")
        return note("tls", "none: tokens and log-probs pass in clear", "set tls.cert_file, or keep the network closed")
    days = (ssl.cert_time_to_seconds(str(certificate["notAfter"])) - now) / 86_400
    if days < EXPIRY_DAYS:
        return problem("tls", f"{protocol}; the certificate ends in {days:.1f} days", "renew it and restart")
    return good("tls", f"{protocol}, certificate good for {days:.0f} days")


def access(probe: Probe) -> Generator[Finding, None, frozenset[str]]:
    """The scopes that our calls have."""
    unknown = probe.ask("GET", "/v1/runs", anonymous=True)
    if unknown.status_code == 421:
        yield problem("access", reason_of(unknown), "add the name to auth.allowed_hosts, or call it by its address")
        return frozenset()
    if unknown.status_code == 200:
        yield _open(probe)
    elif probe.token is None:
        yield problem("access", "it asks for a token and none is set", "export TRIAGE_TOKEN=...")
        return frozenset()
    answers = {"read": probe.get("/v1/runs"), "ingest": _empty_ack(probe), "control": _empty_hook(probe)}
    if answers["read"].status_code == 401:
        fix = "take a good one: `triage-monitor token add NAME --scope read` on the server"
        yield problem("access", reason_of(answers["read"]), fix)
        return frozenset()
    scopes = frozenset(name for name, answer in answers.items() if answer.status_code not in (401, 403))
    if unknown.status_code != 200:
        yield good("access", f"the token may {', '.join(name for name in SCOPES if name in scopes) or 'nothing'}")
    if "read" not in scopes:
        yield problem("access", "this token may not read, so little can be checked", "use one with the scope read")
    return scopes


def _open(probe: Probe) -> Finding:
    if is_loopback(probe.client.base_url.host):
        return good("access", "no token asked for; it is called on loopback")
    words = "whoever reaches this address may read and change everything"
    return problem("access", words, "set auth.tokens_file; `triage-monitor token add` makes the file")


def _empty_ack(probe: Probe) -> httpx.Response:
    """An acknowledgement without content: refused for that where the scope is there."""
    return probe.ask("POST", "/v1/runs/doctor/params/ack", {})


def _empty_hook(probe: Probe) -> httpx.Response:
    """A notification of no alert does nothing."""
    return probe.ask("POST", "/v1/hooks/alertmanager", {"alerts": []})
