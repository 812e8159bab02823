"""The trainer's half of the control loop, without sockets: limits, order of versions, lease."""

from __future__ import annotations

from typing import Any

import pytest

from triage_monitor.errors import ConfigError, InputError
from triage_monitor.parameters import TriageParams
from triage_monitor.trainer.lease import ParameterDesk

SAFE = TriageParams(reason="safe")


def parameter_set(version: int, **more: Any) -> dict[str, Any]:
    changes = {"gate.enabled": True, "lease_updates": 3, **more.pop("changes", {})}
    return {**TriageParams().with_changes(changes).to_dict(), "version": version, **more}


def a_desk(**settings: Any) -> ParameterDesk:
    return ParameterDesk(SAFE, settings.pop("limits", None), settings.pop("pause_silence_seconds", 600.0))


def test_before_the_first_word_the_safe_default_is_in_force() -> None:
    assert a_desk().decide(5, 0.0) == (SAFE, None)


def test_new_set_takes_effect_at_the_next_update_and_is_acknowledged_once() -> None:
    desk = a_desk()
    desk.decide(4, 0.0)
    assert desk.offer(parameter_set(1)) is None
    assert desk.in_force is SAFE
    params, acknowledgement = desk.decide(5, 0.0)
    assert params.version == 1 and params.gate.enabled
    assert acknowledgement is not None and (acknowledgement.version, acknowledgement.step) == (1, 5)
    assert desk.decide(6, 0.0) == (params, None)


def test_older_and_repeated_versions_change_nothing() -> None:
    desk = a_desk()
    desk.offer(parameter_set(7, changes={"gate.w_min": 0.7}))
    for version in (7, 6, 1):
        desk.offer(parameter_set(version, changes={"gate.w_min": 0.1}))
    assert (desk.newest.version, desk.newest.gate.w_min, desk.stale) == (7, 0.7, 2)


def test_higher_epoch_wins_over_a_higher_version_and_a_lower_one_never_does() -> None:
    desk = a_desk()
    desk.offer(parameter_set(50, epoch=3))
    desk.offer(parameter_set(2, epoch=4))
    assert desk.newest.version == 2
    desk.offer(parameter_set(99, epoch=3))
    assert desk.newest.version == 2


def test_version_zero_means_nothing_was_issued_and_leaves_the_safe_default() -> None:
    desk = a_desk()
    desk.offer(parameter_set(0, epoch=1))
    assert desk.decide(0, 0.0) == (SAFE, None)
    desk.offer(parameter_set(3, epoch=1))
    assert desk.decide(1, 0.0)[0].version == 3
    desk.offer(parameter_set(0, epoch=2))
    assert desk.decide(2, 0.0) == (SAFE, None), "a newer monitor that issued nothing owns the run now"


@pytest.mark.parametrize(
    ("limits", "changes", "named"),
    [
        ({"gate.w_min": (0.3, 1.0)}, {"gate.w_min": 0.2}, "gate.w_min"),
        ({"tis.enabled": [False]}, {"tis.enabled": True}, "tis.enabled"),
        ({"precision": ("bf16", "nvfp4")}, {"precision": "fp8"}, "precision"),
        ({"repair.lambda_rep": (0, 5)}, {"repair.lambda_rep": 5.5}, "repair.lambda_rep"),
    ],
)
def test_set_outside_the_trainers_limits_is_refused_whole(
    limits: dict[str, Any], changes: dict[str, Any], named: str
) -> None:
    desk = a_desk(limits=limits)
    desk.offer(parameter_set(1))
    desk.decide(9, 0.0)
    refusal = desk.offer(parameter_set(2, changes=changes))
    assert refusal is not None and (refusal.version, refusal.step) == (2, 9)
    assert refusal.refused is not None and named in refusal.refused
    assert (desk.decide(10, 0.0)[0].version, desk.refused) == (1, 1)
    assert desk.offer(parameter_set(2, changes=changes)) is None, "one refusal is reported once"
    desk.offer(parameter_set(3))
    assert desk.decide(11, 0.0)[0].version == 3


def test_set_with_an_unknown_or_impossible_field_is_refused_with_its_name() -> None:
    desk = a_desk()
    for version, extra in ((1, {"surprise": 1}), (2, {"precision": "int3"}), (3, {"lease_updates": 0})):
        refusal = desk.offer({**parameter_set(version), **extra})
        assert refusal is not None and refusal.refused is not None and next(iter(extra)) in refusal.refused
    assert desk.newest is SAFE


@pytest.mark.parametrize("document", [{}, {"version": "1"}, {"version": True}, {"version": 1, "epoch": "x"}])
def test_document_without_a_version_is_no_parameter_set(document: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        a_desk().offer(document)


def test_lease_ends_after_its_updates_of_silence_and_returns_with_the_first_word() -> None:
    desk = a_desk()
    desk.heard(0.0)
    desk.offer(parameter_set(1))
    in_force = [desk.decide(step, 0.0)[0].version for step in range(10, 16)]
    assert in_force == [1, 1, 1, 1, 0, 0], "word at step 10, lease of 3: in force up to 13"
    assert desk.expired and desk.expiries == 1
    desk.heard(0.0)
    params, acknowledgement = desk.decide(16, 0.0)
    assert params.version == 1 and not desk.expired
    assert acknowledgement is not None and acknowledgement.step == 16


def test_every_word_renews_the_lease() -> None:
    desk = a_desk()
    desk.offer(parameter_set(1))
    for step in range(40):
        if step % 3 == 0:
            desk.heard(0.0)
        assert desk.decide(step, 0.0)[0].version == 1


def test_steps_that_go_back_restart_the_lease() -> None:
    desk = a_desk()
    desk.offer(parameter_set(1))
    assert desk.decide(100, 0.0)[0].version == 1
    assert [desk.decide(step, 0.0)[0].version for step in (50, 53, 54)] == [1, 1, 0]


def test_pause_ends_when_the_monitor_is_silent_too_long() -> None:
    desk = a_desk(pause_silence_seconds=60.0)
    desk.heard(1000.0)
    desk.offer(parameter_set(1, control="pause"))
    assert desk.decide(5, 1059.0)[0].control == "pause"
    assert desk.decide(5, 1061.0)[0].control == "run"
    desk.heard(1070.0)
    assert desk.decide(5, 1071.0)[0].control == "pause"


@pytest.mark.parametrize(
    "limits",
    [
        {"gate.nothing": (0, 1)},
        {"version": (0, 1)},
        {"gate.w_min": (-0.1, 1.0)},
        {"gate.w_min": (0.9, 0.1)},
        {"gate.w_min": 0.5},
        {"gate.w_min": (float("nan"), 1.0)},
        {"gate.w_min": (0, 10**400)},
        {"precision": "nvfp4"},
        {"tis.enabled": []},
        {"gate.w_min": (0.6, 1.0)},  # the safe default's 0.5 lies outside
    ],
)
def test_wrong_limits_are_a_configuration_error(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        a_desk(limits=limits)
