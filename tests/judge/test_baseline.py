import json
from itertools import pairwise

import pytest

from triage_monitor.errors import ConfigError
from triage_monitor.judge.baseline import Baseline, BaselineSettings, forget_from, learn

SETTINGS = BaselineSettings(first_updates=5, min_windows=3, windows=6, span_windows=12)


def taught(series: list[float | None], settings: BaselineSettings = SETTINGS, healthy: bool = True) -> Baseline:
    baseline = Baseline()
    for step, value in enumerate(series):
        baseline = learn(settings, baseline, step=step, updates=5, values={"x": value}, healthy=healthy)
    return baseline


def test_median_and_spread_of_the_first_windows_are_frozen() -> None:
    baseline = taught([1.0, 1.1, 0.9, 1.2, 1.0, 0.8, 50.0, 50.0])
    assert baseline.frozen
    assert baseline.medians() == {"x": 1.0}
    # Deviations from 1.0: 0, 0.1, 0.1, 0.2, 0, 0.2; their median is 0.1.
    assert baseline.levels["x"].mad == pytest.approx(0.1)
    assert baseline.levels["x"].windows == 6


def test_first_and_last_third_show_whether_the_run_had_settled() -> None:
    level = taught([1.0, 1.1, 1.2, 1.3, 1.4, 1.5]).levels["x"]
    assert (level.early, level.late) == (pytest.approx(1.05), pytest.approx(1.45))


def test_nothing_is_answered_before_min_windows() -> None:
    assert not taught([1.0, 1.1]).ready
    assert taught([1.0, 1.1, 0.9]).medians() == {"x": 1.0}


def test_short_window_teaches_nothing() -> None:
    baseline = learn(SETTINGS, Baseline(), step=0, updates=4, values={"x": 1.0}, healthy=True)
    assert baseline == Baseline()


def test_excursion_is_left_out_and_counted() -> None:
    baseline = taught([1.0, 1.1, 0.9, 5.0, 5.0, 1.0, 1.0, 1.0])
    assert baseline.excluded == 2
    assert baseline.medians() == {"x": 1.0}
    assert baseline.frozen


def test_window_called_unhealthy_is_not_learned() -> None:
    baseline = taught([1.0, 1.0, 1.0], healthy=False)
    assert (baseline.offered, baseline.excluded, baseline.ready) == (3, 3, False)


def test_run_unsettled_from_the_start_ends_learning_with_what_there_is() -> None:
    baseline = taught([1.0, 1.0, 1.0, *[9.0] * 20])
    assert baseline.frozen
    assert baseline.offered == SETTINGS.span_windows
    assert baseline.medians() == {"x": 1.0}


def test_run_never_healthy_is_frozen_without_a_baseline() -> None:
    baseline = taught([1.0] * 12, healthy=False)
    assert baseline.frozen
    assert not baseline.ready


def test_absent_indicator_has_no_level() -> None:
    baseline = Baseline()
    for step in range(6):
        values = {"x": 1.0, "rho_pressure": None if step % 2 else 2.0, "never": None}
        baseline = learn(SETTINGS, baseline, step=step, updates=5, values=values, healthy=True)
    assert baseline.medians() == {"x": 1.0, "rho_pressure": 2.0}
    assert baseline.levels["rho_pressure"].windows == 3


def test_new_attempt_drops_what_it_replaces_but_not_a_frozen_baseline() -> None:
    learning = taught([1.0, 1.0, 1.0, 1.2, 1.2])
    kept = forget_from(SETTINGS, learning, 3)
    assert [step for step, _ in kept.rows] == [0, 1, 2]
    assert kept.medians() == {"x": 1.0}
    frozen = taught([1.0] * 6)
    assert forget_from(SETTINGS, frozen, 0) == frozen


def test_state_survives_json_at_every_point() -> None:
    series: list[float | None] = [1.0, 1.1, None, 0.9, 5.0, 1 / 3, 1.0, 1.0]
    for cut in range(len(series) + 1):
        before = taught(series[:cut])
        restored = Baseline.from_dict(json.loads(json.dumps(before.to_dict())))
        for step, value in list(enumerate(series))[cut:]:
            restored = learn(SETTINGS, restored, step=step, updates=5, values={"x": value}, healthy=True)
        assert restored.to_dict() == taught(series).to_dict()


@pytest.mark.parametrize("field", ["min_windows", "windows", "span_windows"])
def test_windows_out_of_order_are_refused(field: str) -> None:
    orders = {"min_windows": (51, 50, 100), "windows": (10, 101, 100), "span_windows": (10, 50, 49)}
    low, mid, high = orders[field]
    assert not all(a <= b for a, b in pairwise(orders[field]))
    with pytest.raises(ConfigError, match="min_windows <= windows"):
        BaselineSettings(min_windows=low, windows=mid, span_windows=high)


def test_saturated_values_do_not_overflow_between_two_of_them() -> None:
    most = 1.7976931348623157e308
    level = taught([most] * 4).levels["x"]
    assert (level.median, level.mad, level.early, level.late) == (most, 0.0, most, most)
    level = taught([most, -most, most]).levels["x"]
    assert (level.median, level.mad, level.late) == (most, 0.0, most)
    level = taught([-most, most, -most, most, 0.0]).levels["x"]
    json.dumps([level.median, level.mad, level.early, level.late], allow_nan=False)
