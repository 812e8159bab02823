"""What `doctor` looks at, in the order in which things break: address, TLS, clock, token, store, scrape, hooks, runs,
and what this machine could execute.

    reached? -> may we read? -> everything that needs reading

Every finding says what was seen and, when it needs a person, what to do. `note` is worth knowing and no fault. Nothing
is changed on the server: the scopes of a token are told by calls that are refused for their content or do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from time import time
from typing import TYPE_CHECKING, Any

from triage_monitor.errors import ConfigError

if TYPE_CHECKING:
    import httpx

TIMEOUT_SECONDS = 10.0


class State(StrEnum):
    OK = "ok"
    NOTE = "note"
    PROBLEM = "PROBLEM"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table; `fix` is empty when there is nothing to do."""

    area: str
    state: State
    what: str
    fix: str = ""


def good(area: str, what: str) -> Finding:
    return Finding(area, State.OK, what)


def note(area: str, what: str, fix: str = "") -> Finding:
    return Finding(area, State.NOTE, what, fix)


def problem(area: str, what: str, fix: str) -> Finding:
    return Finding(area, State.PROBLEM, what, fix)


class Probe:
    """Calls to one address with the environment's token and certificates. `ask` raises what httpx raises."""

    def __init__(self, url: str, env: Mapping[str, str]) -> None:
        import httpx

        from triage_monitor.trainer.tls import tls_of, token_of
        from triage_monitor.trainer.transport import checked_url

        self.url = checked_url(url)
        self.token = token_of(None, env)
        context = tls_of(env) or httpx.create_ssl_context(trust_env=False)
        self.client = httpx.Client(base_url=self.url, timeout=TIMEOUT_SECONDS, trust_env=False, verify=context)

    def ask(self, method: str, path: str, body: object = None, *, anonymous: bool = False) -> httpx.Response:
        headers = {} if anonymous or self.token is None else {"Authorization": f"Bearer {self.token}"}
        return self.client.request(method, path, json=body, headers=headers)

    def get(self, path: str) -> httpx.Response:
        return self.ask("GET", path)


def reason_of(answer: httpx.Response) -> str:
    """The sentence of a problem document, or the status."""
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"it answered {answer.status_code}"


def examine(
    url: str, prometheus: str | None, env: Mapping[str, str], now: Callable[[], float] = time
) -> Iterator[Finding]:
    """Every finding as it is made. `now` is this machine's clock. ConfigError for addresses or files that are none."""
    import httpx

    probe = Probe(url, env)
    with probe.client:
        try:
            yield from _examined(probe, prometheus, now)
        except httpx.HTTPError as error:
            what = f"it answered once and then no more: {error or type(error).__name__}"
            yield problem("address", what, "see the server's log")


def _examined(probe: Probe, prometheus: str | None, now: Callable[[], float]) -> Iterator[Finding]:
    from triage_monitor.cli.checkup_access import access, reached
    from triage_monitor.cli.checkup_machine import native
    from triage_monitor.cli.checkup_prometheus import alert_rules
    from triage_monitor.cli.checkup_runs import runs
    from triage_monitor.cli.checkup_server import hooks, scrape, store, version

    skew = yield from reached(probe, now)
    if skew is None:
        return
    scopes = yield from access(probe)
    if "read" in scopes:
        yield from store(probe)
        yield from version(probe)
        yield from scrape(probe)
    rules = None
    if prometheus is not None:
        rules = yield from alert_rules(prometheus)
    if "read" in scopes:
        yield from hooks(probe, scopes, rules)
        yield from runs(probe)
    else:
        yield note("rest", "not looked at: it needs the scope read")
    yield native()


def as_json(url: str, findings: list[Finding]) -> dict[str, Any]:
    shown = [{"area": item.area, "state": item.state.lower(), "what": item.what, "fix": item.fix} for item in findings]
    return {"url": url, "problems": sum(item.state is State.PROBLEM for item in findings), "findings": shown}


def table(findings: list[Finding]) -> Iterator[str]:
    """A line a finding, its fix below it."""
    width = max(len(item.area) for item in findings)
    for item in findings:
        yield f"{item.state:<8} {item.area:<{width}}  {item.what}"
        if item.fix:
            yield f"{'':<8} {'':<{width}}  -> {item.fix}"
    problems = sum(item.state is State.PROBLEM for item in findings)
    yield f"{problems} problem(s)" if problems else "nothing to do"


def json_of(answer: httpx.Response) -> Any:
    """ConfigError when the answer is no JSON: then the address is another program's."""
    try:
        return answer.json()
    except ValueError:
        raise ConfigError(f"{answer.request.url} does not answer in JSON; is this the right address?") from None
