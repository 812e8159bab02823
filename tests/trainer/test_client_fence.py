"""Two monitors, or an old one, cannot fight over a run: the trainer obeys the highest epoch and tells the others so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from service.live_server import LiveServer, masses, serving
from trainer.client_help import FAST, an_update, eventually
from trainer.fault_server import FaultServer
from trainer.test_client_lease import a_desk, parameter_set

from triage_monitor import Monitor
from triage_monitor.config import Settings
from triage_monitor.service.server import open_store


@pytest.mark.parametrize(
    ("origin", "taken"),
    [
        ({"epoch": 6, "issuer": "b.1"}, True),
        ({"epoch": 5, "issuer": "a.1"}, True),
        ({"epoch": 5, "issuer": "a.2"}, False),
        ({"epoch": 5}, False),
        ({"epoch": 4, "issuer": "a.0"}, False),
        ({"epoch": 4, "issuer": "c.9"}, False),
        ({}, False),
    ],
)
def test_set_is_taken_from_the_monitor_obeyed_or_one_of_a_higher_epoch(origin: dict[str, Any], taken: bool) -> None:
    desk = a_desk()
    desk.offer(parameter_set(3, epoch=5, issuer="a.1"))
    refusal = desk.offer(parameter_set(9, **origin))
    assert (refusal is None) is taken and desk.newest.version == (9 if taken else 3)
    assert desk.fence.refused == (not taken)
    if refusal is not None:
        assert refusal.fenced_by == 5 and "fenced" in str(refusal.refused)
        assert desk.offer(parameter_set(9, **origin)) is None, "reported once"
        assert desk.fence.refused == 2, "and counted each time"


def test_restarted_monitor_with_the_same_set_is_obeyed_without_a_second_acknowledgement() -> None:
    desk = a_desk()
    desk.offer(parameter_set(3, epoch=5, issuer="a.1"))
    assert desk.decide(1, 0.0)[1] is not None
    desk.offer(parameter_set(3, epoch=6, issuer="a.2"))
    assert desk.decide(2, 0.0)[1] is None and desk.fence.obeyed.epoch == 6
    desk.offer(parameter_set(3, epoch=7, issuer="b.1"))
    acknowledgement = desk.decide(3, 0.0)[1]
    assert acknowledgement is not None and acknowledgement.origin == (7, "b.1"), "another store has not heard of it"


def test_answer_of_a_fenced_monitor_is_no_word_that_keeps_the_lease() -> None:
    desk = a_desk()
    desk.offer(parameter_set(1, epoch=5, issuer="a.1"))
    assert desk.is_fenced({"params_version": 4, "epoch": 4, "issuer": "a.0"})
    assert not desk.is_news({"params_version": 4, "epoch": 4, "issuer": "a.0"})
    assert not desk.is_fenced({"params_version": 1})
    assert desk.is_news({"params_version": 1, "epoch": 6, "issuer": "b.1"}), "the same number, another monitor"


def test_lease_runs_out_while_only_a_fenced_monitor_answers() -> None:
    with FaultServer() as server, Monitor(server.url, run="r", attempt=1, **FAST) as monitor:
        server.publish({**parameter_set(4), "epoch": 5, "issuer": "a.1"})
        assert eventually(lambda: monitor.params.version == 4)
        assert monitor.apply(0).version == 4
        server.publish({**parameter_set(9), "epoch": 4, "issuer": "b.1"})
        assert server.wait(lambda: any("fenced_by" in item for item in server.acknowledged))
        told = next(item for item in server.acknowledged if "fenced_by" in item)
        assert (told["version"], told["epoch"], told["issuer"], told["fenced_by"]) == (9, 4, "b.1", 5)
        assert monitor.stats["params_fenced"] >= 1 and monitor.stats["params_epoch"] == 5
        server.acknowledged.clear()
        assert eventually(lambda: monitor.stats["params_fenced"] >= 3), "it is asked again, at a slower and slower pace"
        versions = [monitor.apply(step).version for step in range(1, 12)]
        assert versions[0] == 4 and versions[-1] == 0 and 9 not in versions


@contextmanager
def sidecar(directory: Path, port: int = 0, epoch_above: int = 0) -> Iterator[LiveServer]:
    """A start of the sidecar on a data directory, at the address where another was before."""
    told = {"port": port}, {"data_dir": str(directory), "epoch_above": epoch_above}
    settings = Settings.from_dict({"server": told[0], "store": told[1], "control": {"max_changes": 100}})
    store = open_store(settings)
    try:
        with serving(settings, store) as server:
            yield server
    finally:
        store.close()


def override(server: LiveServer, w_min: float) -> int:
    body = {"gate": {"enabled": True, "w_min": w_min}, "lease_updates": 1000}
    answer = server.http.put("/v1/runs/r/params", json=body, headers={"If-Match": "*"})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["version"])


def test_restored_backup_commands_nothing_and_says_so_until_it_takes_over(tmp_path: Path) -> None:
    live, backup = tmp_path / "live", tmp_path / "backup"
    with sidecar(live) as server:
        port = urlsplit(server.address).port or 0
        monitor = Monitor(server.address, run="r", **FAST)
        monitor.submit(step=0, **an_update(0))
        assert eventually(lambda: monitor.stats["acknowledged"] == 1)
        override(server, 0.7)
    shutil.copytree(live, backup)
    open_store(
        Settings.from_dict({"store": {"data_dir": str(live)}})
    ).close()  # the copy is a start behind from here on
    with sidecar(live, port) as server:
        newest = override(server, 0.6)
        assert eventually(lambda: monitor.params.version == newest)
        assert monitor.apply(1).gate.w_min == 0.6
        assert eventually(lambda: (server.run("r")["params_applied"] or {}).get("version") == newest)
        assert server.run("r")["fenced_by"] is None
    with sidecar(backup, port) as server:
        assert eventually(lambda: server.run("r")["fenced_by"] == monitor.stats["params_epoch"])
        assert server.metrics()['triage_params_fenced{run="r"}'] == 1.0
        override(server, 0.1)
        override(server, 0.2)
        assert eventually(lambda: server.run("r")["integrity"]["refused_params"] >= 2)
        assert monitor.apply(2).gate.w_min == 0.6 and monitor.stats["params_fenced"] >= 2
        rival = server.run("r")["fenced_by"]
    with sidecar(backup, port, epoch_above=rival) as server:
        assert eventually(lambda: monitor.apply(3).gate.w_min == 0.2)
        assert eventually(lambda: (server.run("r")["params_applied"] or {}).get("step") == 3)
        assert server.run("r")["fenced_by"] is None and server.run("r")["epoch"] == monitor.stats["params_epoch"]
        assert server.metrics()['triage_params_fenced{run="r"}'] == 0.0
    monitor.close(0.0)


def test_acknowledgement_outlives_a_restart_and_one_of_another_copy_is_refused(tmp_path: Path) -> None:
    with sidecar(tmp_path) as server:
        server.put("r", 0, masses(1, 1))
        version = override(server, 0.7)
        told = server.http.get("/v1/runs/r/params").json()
    with sidecar(tmp_path) as server:
        for issuer, epoch, status in (
            (told["issuer"], told["epoch"], 200),
            ("beef.1", told["epoch"], 409),
            (told["issuer"], told["epoch"] + 9, 409),
            (told["issuer"], told["epoch"] + 1, 409),
        ):
            body = {"version": version, "step": 4, "epoch": epoch, "issuer": issuer}
            assert server.http.post("/v1/runs/r/params/ack", json=body).status_code == status, body
