"""The client against the real sidecar: a process of its own, its real store, SIGKILL and restarts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from service.served_process import ServedProcess, served
from trainer.client_help import an_update, balance, eventually

from triage_monitor import Monitor
from triage_monitor.service.names import RUN_NAME
from triage_monitor.trainer import route

SETTINGS: dict[str, Any] = {"temperature": 1.0, "precision": "nvfp4"}


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    """One process for the tests that leave it alive; each has a run of its own."""
    with served(tmp_path_factory.mktemp("data")) as server:
        yield server


def run_of(server: ServedProcess, run: str) -> dict[str, Any]:
    answer = server.http.get(f"/v1/runs/{run}")
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def override(server: ServedProcess, run: str, **changes: Any) -> int:
    answer = server.http.put(f"/v1/runs/{run}/params", json=changes, headers={"If-Match": "*"})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["version"])


def test_both_sides_agree_on_what_a_run_may_be_called() -> None:
    assert route._NAME.pattern == RUN_NAME.pattern


def test_updates_of_all_ranks_close_and_parameters_come_back_acknowledged(sidecar: ServedProcess) -> None:
    ranks = [
        Monitor(sidecar.address, run="ranks", shards=2, shard=i, launch_id="one", settings=SETTINGS) for i in (0, 1)
    ]
    for step in range(6):
        for rank in ranks:
            assert rank.submit(step=step, **an_update(step))
    assert all(eventually(lambda rank=rank: rank.stats["acknowledged"] == 6) for rank in ranks)
    assert eventually(lambda: run_of(sidecar, "ranks")["integrity"]["updates"] == 6)
    run = run_of(sidecar, "ranks")
    assert run["attempt"] == ranks[0].attempt == ranks[1].attempt == 1
    assert run["last_update"]["counts"]["tokens"] == 1200 and run["last_update"]["status"] == "complete"

    ranks[0].apply(6)
    version = override(sidecar, "ranks", gate={"enabled": True, "w_min": 0.6})
    assert eventually(lambda: ranks[0].params.version == version)
    assert ranks[0].apply(7).gate.w_min == 0.6
    assert eventually(lambda: (run_of(sidecar, "ranks")["params_applied"] or {}).get("version") == version)
    assert run_of(sidecar, "ranks")["params_applied"]["step"] == 7
    assert all(rank.close(20.0) for rank in ranks)


def test_killed_sidecar_gets_everything_after_its_restart_and_changes_no_parameter(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        monitor = Monitor(server.address, run="killed", settings=SETTINGS)
        for step in range(4):
            monitor.submit(step=step, **an_update(step))
        assert eventually(lambda: monitor.stats["acknowledged"] == 4)
        version = override(server, "killed", gate={"enabled": True}, lease_updates=1000)
        assert eventually(lambda: monitor.params.version == version)
        before = monitor.apply(4)
        port = urlsplit(server.address).port
        server.kill()
    for step in range(4, 12):
        assert monitor.submit(step=step, **an_update(step))
        assert monitor.apply(step) == before
    assert eventually(lambda: monitor.stats["retries"] > 0)
    with served(tmp_path, None, "--port", str(port)) as server:
        assert monitor.close(60.0), monitor.stats
        assert monitor.stats["acknowledged"] == 12 and monitor.stats["dropped"] == {} and balance(monitor) == 0
        assert eventually(lambda: run_of(server, "killed")["integrity"]["updates"] == 12)
        assert monitor.apply(12) == before
        assert run_of(server, "killed")["params_applied"]["version"] == version


def test_refusal_and_drops_are_seen_by_the_sidecar(sidecar: ServedProcess) -> None:
    monitor = Monitor(sidecar.address, run="refusal", limits={"gate.w_min": (0.5, 1.0)})
    monitor.submit(step=0, **an_update(0))
    monitor.submit(step=1, gap=object(), advantages=[1.0])
    assert eventually(lambda: monitor.stats["acknowledged"] == 1)
    monitor.submit(step=2, **an_update(2))
    assert eventually(lambda: monitor.stats["acknowledged"] == 2)
    refused = override(sidecar, "refusal", gate={"enabled": True, "w_min": 0.1})
    assert eventually(lambda: run_of(sidecar, "refusal")["integrity"]["refused_params"] == 1)
    assert monitor.apply(3).version < refused and not monitor.params.gate.enabled
    assert run_of(sidecar, "refusal")["integrity"]["client_dropped"] == {"invalid": 1}
    assert monitor.close(20.0)


def test_launches_are_attempts_and_a_summary_says_as_much_as_the_arrays(sidecar: ServedProcess) -> None:
    reports = []
    for number, mode in enumerate(("raw", "summary"), start=1):
        with Monitor(sidecar.address, run="launches", mode=mode) as monitor:  # type: ignore[arg-type]  # a loop over Literals
            monitor.submit(step=3, **an_update(3))
            assert eventually(lambda monitor=monitor: monitor.stats["acknowledged"] == 1)
            assert eventually(lambda n=number: run_of(sidecar, "launches")["attempt"] == n)
            assert eventually(lambda n=number: run_of(sidecar, "launches")["last_update"]["attempt"] == n)
        reports.append(run_of(sidecar, "launches")["last_update"])
    assert [report.pop("attempt") for report in reports] == [1, 2]
    assert reports[0]["indicators"] == reports[1]["indicators"]
    assert reports[0]["counts"] == reports[1]["counts"]


def test_other_content_under_the_same_key_is_dropped_by_its_reason(sidecar: ServedProcess) -> None:
    with Monitor(sidecar.address, run="conflict") as monitor:
        monitor.submit(step=0, **an_update(0))
        monitor.submit(step=0, **an_update(0))
        monitor.submit(step=0, **an_update(1))
        assert eventually(lambda: monitor.stats["queue_depth"] == 0)
        stats = monitor.stats
        assert (stats["acknowledged"], stats["duplicates"], stats["dropped"]) == (2, 1, {"conflict": 1})
