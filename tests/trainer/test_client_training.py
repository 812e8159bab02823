"""A training run's losses are the same bits whatever becomes of its monitor (acceptance of the first closed loop)."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from service.served_process import ServedProcess, served
from trainer.client_help import eventually, start_script
from trainer.fault_server import FaultServer

LOOP = f"import runpy; runpy.run_path({str(Path(__file__).with_name('training_loop.py'))!r})"
STEPS = 60
FAULTS = ["ok", "hang", "deaf", "slow", "500", "503", "garbage", "close", "absent"]
CASES = [*FAULTS, "sidecar killed", "restarting"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """One process trains without a monitor, another beside each kind of server in turn."""
    with ExitStack() as stack:
        sidecar = stack.enter_context(served(tmp_path_factory.mktemp("data")))
        servers = {case: stack.enter_context(FaultServer(case if case != "absent" else "ok")) for case in FAULTS}
        servers["absent"].stop()
        servers["restarting"] = stack.enter_context(FaultServer())
        servers["restarting"].restart_every = 3
        alone = start_script(LOOP, str(STEPS), "none")
        beside = start_script(LOOP, str(STEPS), f"lost={sidecar.address}", *(s.url for s in servers.values()))
        assert eventually(lambda: has_updates(sidecar, 3), 100.0)
        sidecar.kill()
        lines = []
        for process in (alone, beside):
            out, err = process.communicate(timeout=200)
            assert process.returncode == 0, err
            lines += [json.loads(line) for line in out.splitlines()]
        calls = {case: server.calls.total() for case, server in servers.items()}
        calls["restarting"] = servers["restarting"].restarts
    names = {"none": "alone", sidecar.address: "sidecar killed", **{s.url: case for case, s in servers.items()}}
    return {names[line["url"]]: {**line, "calls": calls.get(names[line["url"]])} for line in lines}


def has_updates(sidecar: ServedProcess, count: int) -> bool:
    answer = sidecar.http.get("/v1/runs/bits")
    return answer.status_code == 200 and answer.json()["integrity"]["updates"] >= count


@pytest.mark.parametrize("case", CASES)
def test_losses_beside_a_monitor_equal_those_without_bit_for_bit(case: str, runs: dict[str, dict[str, Any]]) -> None:
    losses = runs["alone"]["losses"]
    assert len(losses) == STEPS and len(set(losses)) > STEPS // 2
    assert runs[case]["losses"] == losses
    assert runs[case]["stats"]["submitted"] == STEPS


def test_those_runs_were_really_beside_such_monitors(runs: dict[str, dict[str, Any]]) -> None:
    assert runs["ok"]["stats"]["acknowledged"] > 0
    assert runs["sidecar killed"]["stats"]["acknowledged"] >= 1
    assert runs["sidecar killed"]["stats"]["dropped"]["queue_full"] > 0
    for case in ("hang", "slow", "500", "503", "garbage", "close", "restarting"):
        assert runs[case]["calls"] > 0
    for case in ("hang", "deaf", "slow", "500", "503", "garbage", "close", "absent"):
        assert runs[case]["stats"]["acknowledged"] == 0
        assert runs[case]["stats"]["dropped"]["queue_full"] > 0
