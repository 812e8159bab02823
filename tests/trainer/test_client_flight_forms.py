"""By Flight over TLS, by halves and as summaries: what HTTP promises, by the other way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from service.flight_calls import with_flight
from service.papers import Papers
from trainer.client_help import FAST, an_update, eventually
from trainer.test_client_sides import OF_LEARNER, OF_SAMPLER, part
from trainer.test_client_sides import an_update as a_sided_update

from triage_monitor import Monitor
from triage_monitor.errors import ConfigError
from triage_monitor.trainer.flight import FlightLink
from triage_monitor.trainer.tls import tls_context
from triage_monitor.trainer.transport import Timeouts

Ways = tuple[str, str]  # the addresses by HTTP and by Flight


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ways]:
    with with_flight(tmp_path_factory.mktemp("plain")) as (server, url):
        yield server.address, url


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, papers: Papers) -> Iterator[Ways]:
    """Both doors ask for a certificate of the caller's too."""
    env = {"TRIAGE_TLS__CERT_FILE": papers.server, "TRIAGE_TLS__CLIENT_CA_FILE": papers.ca}
    with with_flight(tmp_path_factory.mktemp("encrypted"), env) as (server, url):
        yield server.address, url


@pytest.fixture
def by_flight(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each step went by Flight and was answered."""
    sent: Counter[int] = Counter()
    plain_put = FlightLink.put

    def put(self: FlightLink, command: Any, body: bytes) -> Any:
        answer = plain_put(self, command, body)
        sent[command["step"]] += answer.status > 0
        return answer

    monkeypatch.setattr(FlightLink, "put", put)
    return sent


def sent_one(ways: Ways, flight_url: str | None = None, **more: Any) -> Monitor:
    monitor = Monitor(ways[0], run="mon", flight_url=flight_url or ways[1], **{**FAST, **more})
    assert monitor.submit(step=1, **an_update(1))
    monitor.close(more.get("call_timeout", 20.0))
    return monitor


def test_both_parties_certificates_open_the_encrypted_door(
    encrypted: Ways, papers: Papers, by_flight: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert encrypted[0].startswith("https://") and encrypted[1].startswith("grpc+tls://")
    monkeypatch.setenv("TRIAGE_CA_FILE", papers.ca)
    monkeypatch.setenv("TRIAGE_CERT_FILE", papers.client)
    assert sent_one(encrypted).stats["acknowledged"] == 1
    assert by_flight == {1: 1}
    seen = httpx.get(f"{encrypted[0]}/v1/runs/mon", verify=tls_context(papers.ca, papers.client)).json()
    assert seen["last_update"]["step"] == 1


def test_a_plain_caller_at_the_encrypted_door_is_not_let_in_and_the_trainer_goes_on(
    encrypted: Ways, papers: Papers, by_flight: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIAGE_CA_FILE", papers.ca)
    monkeypatch.setenv("TRIAGE_CERT_FILE", papers.client)
    refused = sent_one(encrypted, encrypted[1].replace("grpc+tls", "grpc"), call_timeout=1.0)
    assert (refused.stats["acknowledged"], refused.stats["dropped"]) == (0, {"closed": 1})
    assert not by_flight[1]


@pytest.mark.parametrize(("authority", "certificate"), [(True, False), (False, True)])
def test_a_missing_paper_of_either_party_keeps_the_door_shut(
    encrypted: Ways, papers: Papers, authority: bool, certificate: bool
) -> None:
    """The link alone: over HTTP the same papers are missing, and the monitor would never come so far."""
    env = ({"TRIAGE_CA_FILE": papers.ca} if authority else {}) | (
        {"TRIAGE_CERT_FILE": papers.client} if certificate else {}
    )
    link = FlightLink(encrypted[1], None, Timeouts(3.0, 3.0, 3.0), env)
    answer = link.put({"run": "mon", "step": 9, "shard": 0}, b"")
    assert answer.status == 0 and answer.reason in ("unreachable", "timeout")
    link.close()


def test_absent_certificate_files_are_refused_when_the_monitor_is_built(
    encrypted: Ways, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIAGE_CA_FILE", str(tmp_path / "absent.pem"))
    with pytest.raises(ConfigError, match=r"absent\.pem"):
        Monitor(encrypted[0], run="r", flight_url=encrypted[1])


def reported(ways: Ways, run: str, step: int) -> list[dict[str, Any]]:
    found = httpx.get(f"{ways[0]}/v1/runs/{run}/updates", params={"from": step, "to": step})
    updates = found.json()["updates"] if found.status_code == 200 else []
    return [{name: update[name] for name in ("indicators", "counts", "quantiles")} for update in updates]


@pytest.mark.parametrize("both", [True, False])
def test_halves_by_flight_make_the_whole_that_went_by_http(plain: Ways, by_flight: Counter[int], both: bool) -> None:
    """Both halves by Flight, or the learner's by HTTP beside the sampler's."""
    update, run = a_sided_update(3), f"halves-{both}"
    with Monitor(plain[0], run=f"whole-{both}", **FAST) as whole:
        whole.submit(step=3, **update)
        assert whole.close(20)
    told = {"run": run, "launch_id": "one-launch", **FAST}
    with Monitor(plain[0], side="sampler", flight_url=plain[1], **told) as sampler:
        assert sampler.submit(step=3, **part(update, OF_SAMPLER)) and sampler.close(20)
    with Monitor(plain[0], side="learner", flight_url=plain[1] if both else None, **told) as learner:
        assert learner.submit(step=3, **part(update, OF_LEARNER)) and learner.close(20)
    assert by_flight == {3: 2 if both else 1}
    assert eventually(lambda: bool(reported(plain, run, 3)))
    assert reported(plain, run, 3) == reported(plain, f"whole-{both}", 3)


def test_a_half_sent_twice_is_a_duplicate_and_another_one_a_conflict_as_by_http(plain: Ways) -> None:
    update = part(a_sided_update(5), OF_SAMPLER)
    for seed, outcome in ((5, {}), (5, {}), (6, {"conflict": 1})):
        other = update if seed == 5 else part(a_sided_update(6), OF_SAMPLER)
        told = {"run": "again", "launch_id": "one-launch", "attempt": 0, **FAST}
        with Monitor(plain[0], side="sampler", flight_url=plain[1], **told) as sampler:
            sampler.submit(step=0, **other)
            sampler.close(20)
            assert sampler.stats["dropped"] == outcome
            assert sampler.stats["acknowledged"] == (0 if outcome else 1)


def test_summaries_go_by_http_beside_raw_updates_by_flight_and_count_alike(
    plain: Ways, by_flight: Counter[int]
) -> None:
    for run, flight_url in (("edge-flight", plain[1]), ("edge-http", None)):
        with Monitor(plain[0], run=run, mode="summary", raw_every=2, flight_url=flight_url) as monitor:
            assert all(monitor.submit(step=step, **an_update(step)) for step in range(4))
            assert monitor.close(60) and monitor.stats["acknowledged"] == 4
    assert by_flight == {0: 1, 2: 1}
    for step in range(4):
        assert reported(plain, "edge-flight", step) == reported(plain, "edge-http", step)
