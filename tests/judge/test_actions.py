import pytest

from triage_monitor.errors import InputError
from triage_monitor.judge.actions import Action, ActionKind, apply, describe
from triage_monitor.parameters import TriageParams, changed

PLAIN = TriageParams(version=7)


def act(kind: str, params: TriageParams = PLAIN, **arguments: object) -> TriageParams:
    return apply(Action.from_dict({"kind": kind, **arguments}), params)


@pytest.mark.parametrize(
    ("kind", "arguments", "expected"),
    [
        ("gate", {}, {"gate.enabled": (False, True)}),
        ("gate", {"w_min": 0.4}, {"gate.enabled": (False, True), "gate.w_min": (0.5, 0.4)}),
        ("repair", {"lambda_rep": 2}, {"repair.enabled": (False, True), "repair.lambda_rep": (5.0, 2.0)}),
        ("tis", {"cap": 3.0}, {"tis.enabled": (False, True), "tis.cap": (2.0, 3.0)}),
        ("fallback", {}, {"precision": ("nvfp4", "bf16")}),
        ("fallback", {"precision": "fp8"}, {"precision": ("nvfp4", "fp8")}),
        ("pause", {}, {"control": ("run", "pause")}),
        ("stop", {}, {"control": ("run", "stop")}),
        ("resume", {}, {}),
    ],
)
def test_action_changes_exactly_what_it_says(
    kind: str, arguments: dict[str, object], expected: dict[str, tuple[object, object]]
) -> None:
    assert changed(PLAIN, act(kind, **arguments)) == expected


def test_gate_can_be_switched_off() -> None:
    assert act("gate", act("gate"), enabled=False) == PLAIN


def test_pause_and_resume_return_to_the_same_set() -> None:
    assert act("resume", act("pause")) == PLAIN


@pytest.mark.parametrize(
    ("kind", "arguments", "column"),
    [
        ("rollback", {}, "kind"),
        ("gate", {"strength": 1}, "strength"),
        ("gate", {"w_min": 2.0}, "gate.w_min"),
        ("gate", {"w_min": "low"}, "gate.w_min"),
        ("fallback", {"precision": "int3"}, "precision"),
        ("fallback", {"cap": 2}, "cap"),
        ("pause", {"hours": 2}, "hours"),
        ("tis", {"combine": "yes"}, "combine"),
    ],
)
def test_nonsense_is_refused_naming_the_argument(kind: str, arguments: dict[str, object], column: str) -> None:
    with pytest.raises(InputError) as error:
        act(kind, **arguments)
    assert error.value.column == column


def test_tis_is_not_added_to_gate_and_repair_unasked() -> None:
    both = act("repair", act("gate"))
    with pytest.raises(InputError, match="combine: true") as error:
        act("tis", both)
    assert error.value.reason == "tis_with_triage"
    assert act("tis", both, combine=True).tis.enabled
    with pytest.raises(InputError, match="combine: true"):
        act("repair", act("gate", act("tis")))


def test_tis_with_the_gate_alone_is_allowed() -> None:
    assert act("tis", act("gate")).tis.enabled


def test_stopped_run_takes_no_further_action() -> None:
    stopped = act("stop")
    assert act("stop", stopped) == stopped
    for kind in set(ActionKind) - {ActionKind.STOP}:
        with pytest.raises(InputError, match="was stopped"):
            act(kind, stopped)


def test_description_names_old_and_new_values() -> None:
    action = Action(ActionKind.GATE, {"w_min": 0.4})
    assert describe(action, PLAIN, apply(action, PLAIN)) == "gate: gate.enabled False -> True, gate.w_min 0.5 -> 0.4"
    again = apply(action, PLAIN)
    assert describe(action, again, apply(action, again)) == "gate: nothing to change"
