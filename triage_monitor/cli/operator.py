"""The operator's commands against a running server: `runs`, `params`.

triage-monitor runs
triage-monitor params qwen-nvfp4 --set gate.enabled=true --set gate.w_min=0.4

They send the bearer token in TRIAGE_TOKEN, and use TRIAGE_CA_FILE, TRIAGE_CERT_FILE and TRIAGE_KEY_FILE for https.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from triage_monitor.errors import ConfigError, InputError, TriageError

if TYPE_CHECKING:
    import ssl

    import httpx

Server = Annotated[str, typer.Option("--url", envvar="TRIAGE_URL", help="The server's address.")]
DEFAULT_URL = "http://127.0.0.1:8750"
TIMEOUT_SECONDS = 10.0
RETRY_SECONDS = (0.2, 0.8, 2.0)


def register(app: typer.Typer) -> None:
    @app.command(epilog="Example: triage-monitor runs --url http://127.0.0.1:8750")
    def runs(url: Server = DEFAULT_URL, as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
        """List the runs of a server."""
        found = call("GET", url, "/v1/runs", holds="runs").json()
        if as_json:
            print(json.dumps(found))
            return
        print(f"{'run':<32} {'stage':<15} {'attempt':>7} {'step':>9} {'params':>6}  held by")
        for run in found["runs"]:
            step = "-" if run["last_step"] is None else run["last_step"]
            held = run["held_by"] or "-"
            print(
                f"{run['run']:<32} {run['stage']:<15} {run['attempt']:>7} {step:>9} {run['params_version']:>6}  {held}"
            )

    @app.command(epilog="Example: triage-monitor params my-run --set gate.enabled=true --set gate.w_min=0.4")
    def params(
        run: Annotated[str, typer.Argument(help="The run's name.")],
        changes: Annotated[list[str] | None, typer.Option("--set", help="dotted.name=value, any number.")] = None,
        reason: Annotated[str, typer.Option(help="Why; goes into the audit trail.")] = "",
        freeze: Annotated[bool, typer.Option("--freeze", help="The policy changes nothing until --release.")] = False,
        release: Annotated[bool, typer.Option("--release", help="Let the policy act again.")] = False,
        url: Server = DEFAULT_URL,
    ) -> None:
        """Show a run's parameter set as JSON, or change it by hand; the policy then holds still until --release."""
        if freeze and release:
            raise InputError("option", "--freeze and --release exclude each other", column="--freeze")
        if changes:
            print(json.dumps(set_params(url, run, changes, reason), indent=2))
        elif not (release or freeze):
            print(json.dumps(call("GET", url, f"{run_path(run)}/params", holds="issuer").json(), indent=2))
        for kind, wanted in (("freeze", freeze), ("release", release)):
            if wanted:
                body = {"kind": kind, **({"reason": reason} if reason else {})}
                print(json.dumps(call("POST", url, f"{run_path(run)}/actions", body, _fresh_key()).json(), indent=2))


def set_params(url: str, run: str, changes: list[str], reason: str) -> dict[str, Any]:
    """Reads the set, changes it, and puts it back only if nobody else did in the meantime."""
    from triage_monitor.parameters import TriageParams

    wanted = dict(_assignment(text) for text in changes)
    present = call("GET", url, f"{run_path(run)}/params", holds="issuer")
    after = TriageParams.from_dict(present.json()).with_changes(wanted).to_dict()
    after["reason"] = reason or "set by hand: " + ", ".join(changes)
    headers = {"If-Match": present.headers["ETag"]}
    answer: dict[str, Any] = call("PUT", url, f"{run_path(run)}/params", after, headers).json()
    return answer


def _assignment(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise InputError("assignment", f"'{text}' is not of the form name=value", column="--set")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def run_path(run: str) -> str:
    """A name is one part of the path, whatever stands in it."""
    return f"/v1/runs/{quote(run, safe='')}"


def _fresh_key() -> dict[str, str]:
    from uuid import uuid4

    return {"Idempotency-Key": uuid4().hex}


def call(
    method: str,
    url: str,
    path: str,
    body: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
    *,
    holds: str = "",
) -> httpx.Response:
    """One call; InputError for what the server refuses, TriageError when it does not answer, or not with a JSON object
    that `holds` what a monitor's does."""
    import httpx

    bearer, context = access()
    sent = {**(headers or {}), **bearer}

    def ask() -> httpx.Response:
        return httpx.request(
            method,
            url.rstrip("/") + path,
            json=body,
            headers=sent,
            timeout=TIMEOUT_SECONDS,
            trust_env=False,
            verify=context,
        )

    try:
        answer = _repeated(ask) if "Idempotency-Key" in sent else ask()
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise ConfigError(f"--url {url}: {error}") from error
    except httpx.HTTPError as error:
        raise TriageError(
            f"no answer from {url}: {error or type(error).__name__}; is `triage-monitor serve` running?"
        ) from error
    if answer.is_error:
        kind = InputError if answer.status_code < 500 else None
        detail = _detail(answer)
        raise kind("refused", detail) if kind is not None else TriageError(detail)
    document = _json(answer)
    if not answer.is_success or not isinstance(document, dict) or (holds and holds not in document):
        what = f"with {answer.status_code} and {answer.headers.get('content-type', 'no type')[:60]}"
        raise TriageError(f"{url} answers {what}, not as a monitor: is that its address, and no proxy's?")
    return answer


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except (ValueError, RecursionError):
        return None


def access() -> tuple[dict[str, str], ssl.SSLContext]:
    """What the environment says about token and TLS."""
    import os

    import httpx

    from triage_monitor.trainer.tls import tls_of, token_of

    token = token_of(None, os.environ)
    bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
    return bearer, tls_of(os.environ) or httpx.create_ssl_context(trust_env=False)


def _repeated(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """An action may be asked for again under its key: while nobody answers or the server says later, not otherwise."""
    import time

    import httpx

    for delay in RETRY_SECONDS:
        with suppress(httpx.TransportError):
            answer = ask()
            if answer.status_code not in (502, 503, 504, 507):
                return answer
        time.sleep(delay)
    return ask()


def _detail(answer: httpx.Response) -> str:
    document = _json(answer)
    known = isinstance(document, dict) and "detail" in document
    return str(document["detail"]) if known else f"the server answered {answer.status_code}"
