import json
from pathlib import Path

import pytest

from triage_monitor.errors import ConfigError
from triage_monitor.judge.rules import Criterion, Form, Hysteresis, HysteresisState, Rule, RuleState, Take

CASE = json.loads((Path(__file__).parents[1] / "cases" / "inputs" / "C45.json").read_text())
SERIES = CASE["input"]["rho_window"]


def events(gate: Hysteresis, series: list[float | None]) -> list[tuple[int, str]]:
    state, found = HysteresisState(), []
    for index, value in enumerate(series):
        after = gate.advance(state, value)
        if after.inside is not state.inside:
            found.append((index, "firing" if after.inside else "resolved"))
        state = after
    return found


def test_value_hovering_around_threshold_fires_once_and_resolves_once() -> None:  # case C45
    told = CASE["params"]
    gate = Hysteresis(told["enter"], told["leave"], told["enter_n"], told["leave_n"])
    assert events(gate, list(SERIES)) == [(5, "firing"), (13, "resolved")]


def test_same_series_on_a_plain_threshold_changes_ten_times() -> None:
    plain = Hysteresis(enter=1.5, leave=1.5, enter_updates=1, leave_updates=1)
    assert len(events(plain, list(SERIES))) == 10


def test_absent_values_neither_count_nor_break_a_streak() -> None:
    gate = Hysteresis(enter=1.5, leave=1.35, enter_updates=2, leave_updates=2)
    assert events(gate, [1.6, None, None, 1.6, 1.2, None, 1.2]) == [(3, "firing"), (6, "resolved")]


def test_value_exactly_on_a_level_is_on_neither_side() -> None:
    gate = Hysteresis(enter=1.5, leave=1.35, enter_updates=1, leave_updates=1)
    assert events(gate, [1.5, 1.5, 1.51, 1.35, 1.34]) == [(2, "firing"), (4, "resolved")]


def test_leaving_level_above_entering_level_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"leaving level 1\.6"):
        Hysteresis(1.5, 1.6, 1, 1)
    with pytest.raises(ConfigError, match="rho_pressure"):
        Criterion("rho_pressure", level=1.5, leave=1.6)


@pytest.mark.parametrize(
    ("take", "value", "baseline", "strength"),
    [
        (Take.VALUE, 0.06, 0.02, 3.0),
        (Take.NEGATIVE, -3.0, -1.5, 2.0),
        (Take.NEGATIVE, 0.4, -1.5, 0.0),
        (Take.COMPLEMENT, 0.85, 0.95, 3.0),
    ],
)
def test_relative_strength_grows_with_trouble(take: Take, value: float, baseline: float, strength: float) -> None:
    reading = Criterion("x", 9.0, 9.0, take=take).read({"x": value}, {"x": baseline})
    assert reading.strength == pytest.approx(strength)


def test_tiny_baseline_is_taken_as_its_floor() -> None:
    reading = Criterion("x", 2.0, 1.5, floor=0.1).read({"x": 0.03}, {"x": 1e-7})
    assert reading.strength == pytest.approx(0.3)
    assert "taken as 0.1" in reading.words()


def test_zero_baseline_without_floor_has_no_strength() -> None:
    assert Criterion("x", 2.0, 1.5).read({"x": 3.0}, {"x": 0.0}).strength is None


def test_absolute_form_needs_no_baseline() -> None:
    reading = Criterion("rho_pressure", 3.0, 2.5, form=Form.ABS).read({"rho_pressure": 3.2}, {})
    assert reading.strength == 3.2
    assert reading.numbers() == {"value": 3.2, "level": 3.0}
    assert reading.words() == "rho_pressure 3.2 (level 3)"


def test_relative_reading_says_value_ratio_baseline_and_level() -> None:
    reading = Criterion("q0.001_all", 1.5, 1.3, take=Take.NEGATIVE).read({"q0.001_all": -3.0}, {"q0.001_all": -1.5})
    assert reading.words() == "q0.001_all -3 is 2.00 times its baseline -1.5 (level 1.5)"
    assert reading.numbers() == {"value": -3.0, "baseline": -1.5, "level": 1.5, "ratio": 2.0}


def test_votes_count_indicators_not_criteria() -> None:
    rule = Rule(
        (Criterion("a", 1.5, 1.2), Criterion("a", 3.0, 2.0, form=Form.ABS), Criterion("b", 1.5, 1.2)),
        votes=2,
        enter_updates=1,
    )
    baseline = {"a": 1.0, "b": 1.0}
    alone = rule.advance(RuleState(), {"a": 5.0, "b": 1.0}, baseline)
    assert not rule.holds(alone)
    assert rule.holds(rule.advance(alone, {"a": 5.0, "b": 2.0}, baseline))


def test_more_votes_than_indicators_is_refused() -> None:
    with pytest.raises(ConfigError, match="votes 2"):
        Rule((Criterion("a", 1.5, 1.2), Criterion("a", 3.0, 2.0, form=Form.ABS)), votes=2)


def test_immaterial_window_counts_towards_leaving() -> None:
    rule = Rule((Criterion("a", 1.5, 1.2),), enter_updates=1, leave_updates=2)
    state = rule.advance(RuleState(), {"a": 2.0}, {"a": 1.0})
    for _ in range(2):
        assert rule.holds(state)
        state = rule.advance(state, {"a": 2.0}, {"a": 1.0}, material=False)
    assert not rule.holds(state)


def test_rule_state_survives_json() -> None:
    rule = Rule((Criterion("a", 1.5, 1.2), Criterion("b", 1.5, 1.2)), enter_updates=2)
    state = rule.advance(RuleState(), {"a": 2.0, "b": 1.0}, {"a": 1.0, "b": 1.0})
    restored = RuleState.from_dict(json.loads(json.dumps(state.to_dict())))
    assert restored.inside == state.inside
    assert restored.inside["a/value/rel/1.5"] == HysteresisState(False, 1)
