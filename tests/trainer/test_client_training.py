"""A training run's losses are the same bits whatever becomes of its monitor (acceptance of the first closed loop)."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from trainer.client_help import start_script
from trainer.fault_server import FaultServer

LOOP = f"import runpy; runpy.run_path({str(Path(__file__).with_name('training_loop.py'))!r})"
STEPS = 60
CASES = ["ok", "killed", "hang", "slow", "503", "garbage", "absent"]


@pytest.fixture(scope="module")
def runs() -> dict[str, dict[str, Any]]:
    """One process trains without a monitor, another beside each kind of server in turn."""
    alone = start_script(LOOP, str(STEPS), "none")
    with ExitStack() as stack:
        servers = {case: stack.enter_context(FaultServer(case if case != "killed" else "ok")) for case in CASES}
        servers["absent"].stop()
        beside = start_script(LOOP, str(STEPS), *(server.url for server in servers.values()))
        assert servers["killed"].wait(lambda: len(servers["killed"].steps) >= 3, 120.0)
        servers["killed"].stop()
        lines = []
        for process in (alone, beside):
            out, err = process.communicate(timeout=200)
            assert process.returncode == 0, err
            lines += [json.loads(line) for line in out.splitlines()]
        cases = {server.url: case for case, server in servers.items()}
        calls = {case: server.calls.total() for case, server in servers.items()}
    return {cases.get(line["url"], "alone"): {**line, "calls": calls.get(cases.get(line["url"], ""))} for line in lines}


@pytest.mark.parametrize("case", CASES)
def test_losses_beside_a_monitor_equal_those_without_bit_for_bit(case: str, runs: dict[str, dict[str, Any]]) -> None:
    losses = runs["alone"]["losses"]
    assert len(losses) == STEPS and len(set(losses)) > STEPS // 2
    assert runs[case]["losses"] == losses
    assert runs[case]["stats"]["submitted"] == STEPS
    assert (runs[case]["calls"] > 0) is (case != "absent"), "the run was really connected"


def test_outcomes_beside_those_monitors_were_what_they_should_be(runs: dict[str, dict[str, Any]]) -> None:
    assert runs["ok"]["stats"]["acknowledged"] > 0
    assert runs["killed"]["stats"]["acknowledged"] >= 1
    for case in ("hang", "slow", "503", "garbage", "absent"):
        assert runs[case]["stats"]["acknowledged"] == 0
        assert runs[case]["stats"]["dropped"]["queue_full"] > 0
