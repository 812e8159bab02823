"""A monitor that changes its mind too often is refused; what must never wait is not."""

from __future__ import annotations

from typing import Any

import pytest
from trainer.client_help import FAST, eventually
from trainer.fault_server import FaultServer
from trainer.test_client_lease import SAFE, parameter_set

from triage_monitor import Monitor
from triage_monitor.errors import ConfigError
from triage_monitor.trainer.lease import ParameterDesk


def a_desk(changes: int = 2, updates: int = 10) -> ParameterDesk:
    return ParameterDesk(SAFE, None, 600.0, (changes, updates))


def a_set(version: int, w_min: float, **changes: Any) -> dict[str, Any]:
    return parameter_set(version, changes={"gate.w_min": w_min, "lease_updates": 1000, **changes})


def in_force(desk: ParameterDesk, step: int, document: dict[str, Any]) -> tuple[int, str | None]:
    """The version in force at a step after an offer, and what was reported as refused."""
    assert desk.offer(document) is None
    params, told = desk.decide(step, 0.0)
    return params.version, None if told is None else told.refused


def test_change_beyond_the_limit_is_refused_whole_and_stays_refused() -> None:
    desk = a_desk(changes=2, updates=10)
    assert in_force(desk, 0, a_set(1, 0.6)) == (1, None)
    assert in_force(desk, 3, a_set(2, 0.7)) == (2, None)
    version, refused = in_force(desk, 5, a_set(3, 0.8))
    assert version == 2 and refused is not None and "2 in 10 updates" in refused
    assert desk.refused == 1
    assert [desk.decide(step, 0.0)[0].version for step in (6, 9, 10, 30)] == [2, 2, 2, 2]
    assert in_force(desk, 31, a_set(4, 0.8)) == (4, None), "the next one is looked at anew"


def test_room_comes_back_with_the_updates() -> None:
    desk = a_desk(changes=2, updates=10)
    answers = [in_force(desk, step, a_set(step + 1, 0.5 + step / 100))[0] for step in range(0, 24, 2)]
    taken = sorted(set(answers))
    assert taken == [1, 3, 11, 13, 21, 23], "two changes in any ten updates"


@pytest.mark.parametrize(
    "changes",
    [
        {"control": "stop"},
        {"control": "pause"},
        {"gate.enabled": False, "gate.w_min": 0.5, "lease_updates": 100},
    ],
)
def test_stop_pause_and_the_way_back_to_safety_never_wait(changes: dict[str, Any]) -> None:
    desk = a_desk(changes=1, updates=1000)
    assert in_force(desk, 0, a_set(1, 0.6)) == (1, None)
    assert in_force(desk, 1, a_set(2, 0.7))[0] == 1
    assert in_force(desk, 2, a_set(3, 0.8, **changes)) == (3, None)


def test_resuming_is_no_change_of_the_objective() -> None:
    desk = a_desk(changes=1, updates=1000)
    for version, control in enumerate(("run", "pause", "run", "pause", "run"), start=1):
        assert in_force(desk, version, a_set(version, 0.6, control=control)) == (version, None)


def test_set_that_returns_after_its_lease_ran_out_is_not_another_change() -> None:
    desk = a_desk(changes=1, updates=1000)
    desk.offer(parameter_set(1, changes={"lease_updates": 2}))
    assert desk.decide(0, 0.0)[0].version == 1
    for step in (10, 20, 30):
        assert desk.decide(step, 0.0)[0] is SAFE
        desk.heard(0.0)
        assert desk.decide(step + 1, 0.0)[0].version == 1


def test_first_set_of_a_new_monitor_is_limited_too() -> None:
    desk = a_desk(changes=1, updates=1000)
    assert in_force(desk, 0, {**a_set(1, 0.6), "epoch": 1})[0] == 1
    assert in_force(desk, 1, {**a_set(0, 0.5), "epoch": 2})[0] == 0, "it has issued nothing: safe default"
    version, refused = in_force(desk, 2, {**a_set(1, 0.7), "epoch": 2})
    assert version == 0 and refused is not None


@pytest.mark.parametrize("limit", [None, 3, (1,), (0, 5), (5, 0), (1.5, 2), (True, 3), [1, 2], ("1", "2")])
def test_wrong_limit_is_a_configuration_error(limit: Any) -> None:
    with pytest.raises(ConfigError, match="change_limit"):
        Monitor("http://127.0.0.1:1", run="r", change_limit=limit)


def test_refusal_by_the_limit_is_told_to_the_monitor() -> None:
    with FaultServer() as server, Monitor(server.url, run="r", change_limit=(1, 50), **FAST) as monitor:
        for version in (1, 2):
            server.publish(a_set(version, 0.5 + version / 10))
            assert eventually(lambda version=version: monitor.params.version == version)
            assert monitor.apply(version).version == 1
        assert server.wait(lambda: any(item.get("refused") for item in server.acknowledged))
        assert server.acknowledged[-1]["version"] == 2 and "1 in 50" in server.acknowledged[-1]["refused"]
        assert monitor.stats["params_refused"] == 1
