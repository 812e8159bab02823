"""Rivals by hand on small synthetic series, and none of them looks ahead."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from evaluation.synthetic_runs import TYPICAL, a_run, noisy, step_up

from triage_monitor.errors import InputError
from triage_monitor.evaluation.rivals import rivals
from triage_monitor.evaluation.rivals_change import Cusum, Streamed
from triage_monitor.evaluation.rivals_level import Indicator, InForm, Level, in_form
from triage_monitor.evaluation.rivals_trainer import RewardFall, Spike, grad_norm, loss
from triage_monitor.evaluation.rivals_trend import Trend, mean_abs_gap, ranks, slopes
from triage_monitor.evaluation.scoring import Alarm, Floats
from triage_monitor.evaluation.series import RunSeries
from triage_monitor.evaluation.tuning import Entry


def every_alarm() -> list[Alarm]:
    return [alarm for entry in rivals() for alarm in entry.candidates]


def entry(title: str) -> Entry:
    return next(entry for entry in rivals() if entry.title == title)


# ---- what is there


def test_names_are_unique_and_families_complete() -> None:
    names = [alarm.name for alarm in every_alarm()]
    assert len(names) == len(set(names))
    families = {entry.family for entry in rivals()}
    assert families == {
        *("magnitude", "field line", "tail", "direction", "segment"),
        *("trend", "change point", "loss", "reward"),
    }
    assert all(alarm.family == entry.family for entry in rivals() for alarm in entry.candidates)


def test_field_lines_are_the_published_ones() -> None:
    """Effective sample size 0.3 reads as 0.7 of it lost."""
    lines = {row.title: row.candidates[0].fixed for row in rivals() if row.family == "field line" and not row.tuned}
    assert lines == {
        "mean abs gap above 0.1": 0.1,
        "KL k3 above 0.01": 0.01,
        "KL k3 above 0.03": 0.03,
        "KL k3 above 0.1": 0.1,
        "mult_prob_error above 1.05": 1.05,
        "1 - ESS above 0.7": 0.7,
        "chi-square above 1": 1.0,
    }


@pytest.mark.parametrize(
    ("title", "indicator", "healthy", "bad"),
    [
        ("mean abs gap above 0.1", "abs_delta_mean", 0.09, 0.11),
        ("KL k3 above 0.03", "kl_k3", 0.02, 0.04),
        ("mult_prob_error above 1.05", "mult_prob_error", 1.04, 1.06),
        ("1 - ESS above 0.7", "ess_fraction", 0.31, 0.29),
        ("chi-square above 1", "chi2_token", 0.9, 1.1),
    ],
)
def test_field_line_is_on_beyond_its_line_only(title: str, indicator: str, healthy: float, bad: float) -> None:
    run = a_run("synthetic", updates=50, series={indicator: step_up(50, 45, healthy, bad)})
    (line,) = entry(title).candidates
    assert line.fixed is not None
    assert list(line.alarms(run, line.fixed)) == [45, 46, 47, 48, 49]


def test_series_that_is_not_there_is_named() -> None:
    run = a_run("synthetic")
    bare = replace(run, update={}, window={})
    with pytest.raises(InputError, match=r"run synthetic has no such series") as caught:
        Level("x", "magnitude", InForm(Indicator("kl_k3", np.negative), "window", "abs"), (1.0,)).alarms(bare, 1.0)
    assert caught.value.column == "window.kl_k3"


# ---- forms


def test_forms_by_hand() -> None:
    """First 40 values: 20 of 1 and 20 of 3, so median 2, MAD 1; then 5."""
    values = np.r_[np.tile([1.0, 3.0], 20), 5.0, 5.0]
    assert in_form(values, "abs").tolist() == values.tolist()
    relative, deviations = in_form(values, "rel"), in_form(values, "dev")
    assert np.isnan(relative[:40]).all() and np.isnan(deviations[:40]).all()
    assert relative[40:].tolist() == [2.5, 2.5]
    assert deviations[40:] == pytest.approx([3 / 1.4826] * 2)


@pytest.mark.parametrize(
    "first",
    [np.full(40, np.nan), np.zeros(40), np.r_[np.full(31, np.nan), np.ones(9)], np.full(40, -1.0)],
    ids=["absent", "zero", "nine known", "negative"],
)
def test_baseline_that_is_no_unit_leaves_the_relative_form_undefined(first: Floats) -> None:
    assert np.isnan(in_form(np.r_[first, 9.0], "rel")).all()


def test_short_run_has_no_relative_form() -> None:
    assert np.isnan(in_form(np.ones(40), "rel")).all()


def test_sustained_level_needs_every_update_and_an_undefined_one_breaks_it() -> None:
    values = np.array([5.0, 5, 1, 5, 5, 5, 5, np.nan, 5, 5, 5])
    level = Level("x", "magnitude", lambda run: values, (2.0,), sustained=3)
    assert level.alarms(a_run("synthetic", updates=11), 2.0) == [5, 6, 10]


# ---- trends


def test_slope_over_its_error_by_hand() -> None:
    """0, 1, 2, 5: slope 1.6, residuals .4 -.2 -.8 .6, variance 1.2/2, error sqrt(.6/5); growth 1.6 * 4 / 2."""
    window = np.array([[0.0, 1.0, 2.0, 5.0]])
    assert slopes(window, "slope")[0] == pytest.approx(1.6 / math.sqrt(0.12))
    assert slopes(window, "growth")[0] == pytest.approx(3.2)


def test_mann_kendall_by_hand() -> None:
    """1, 3, 2, 4: five pairs rise, one falls: S 4, variance 4*3*13/18; corrected (4 - 1) / sqrt(8.667)."""
    assert ranks(np.array([[1.0, 3.0, 2.0, 4.0]]))[0] == pytest.approx(3 / math.sqrt(4 * 3 * 13 / 18))
    assert ranks(np.array([[2.0, 2.0, 2.0, 2.0]]))[0] == 0.0


def test_trend_looks_at_its_own_length_only() -> None:
    """Flat, then up by 1 an update: a window of 25 is all ramp from 24 updates after the turn on."""
    gaps = np.r_[np.full(60, 0.04), 0.04 + np.arange(1, 61)]
    run = a_run("synthetic", series={"abs_delta_mean": gaps})
    growth = Trend(mean_abs_gap, "growth", 25)(run)
    assert np.isnan(growth[:24]).all() and growth[59] == pytest.approx(0.0, abs=1e-12)
    assert growth[119] == pytest.approx(25 / (0.04 + np.arange(36, 61).mean()))


# ---- change points


def test_cusum_by_hand() -> None:
    """Baseline median 2, deviation 1.4826; three values 3 deviations up, allowance 1: 2, 4, 6, then down by 5."""
    up, down = 2 + 3 * 1.4826, 2 - 4 * 1.4826
    gaps = np.r_[np.tile([1.0, 3.0], 20), up, up, up, down, down]
    run = a_run("synthetic", updates=45, series={"abs_delta_mean": gaps})
    sums = Cusum(allowance=1.0)(run)
    assert np.isnan(sums[:40]).all()
    assert sums[40:] == pytest.approx([2, 4, 6, 1, 0])


@pytest.mark.parametrize(("kind", "parameter"), [("adwin", 0.01), ("page-hinkley", 5.0)])
def test_river_detectors_hear_a_rise_soon_and_a_fall_never(kind: Any, parameter: float) -> None:
    rng = np.random.default_rng(5)
    wobble = 1 + 0.05 * rng.standard_normal(140)
    detector = Streamed("x", kind, "rel", (parameter,), tolerance=0.05)
    rises = a_run("synthetic-rises", updates=140, series={"abs_delta_mean": step_up(140, 90, 0.04, 0.12) * wobble})
    falls = a_run("synthetic-falls", updates=140, series={"abs_delta_mean": step_up(140, 90, 0.12, 0.04) * wobble})
    first = detector.alarms(rises, parameter)[0]
    assert 90 < first < 110
    assert detector.alarms(falls, parameter) == []


# ---- what trainers log


def test_spikes_by_hand() -> None:
    """Before it 0 to 24: median 12, MAD 6; the spike is four deviations away."""
    before = np.arange(25.0)
    norms = np.r_[before, 12 + 6 * 1.4826 * 4]
    run = a_run("synthetic", updates=26, loss=norms, grad_norm=np.exp(norms))
    assert Spike(loss, either_side=True)(run)[25] == pytest.approx(4.0)
    down = a_run("synthetic", updates=26, loss=np.r_[before, 12 - 6 * 1.4826 * 4])
    assert Spike(loss, either_side=True)(down)[25] == pytest.approx(4.0)
    assert Spike(loss)(down)[25] == pytest.approx(-4.0)
    assert np.isnan(Spike(loss)(run)[:25]).all()


def test_grad_norm_that_is_not_positive_is_unknown() -> None:
    run = a_run("synthetic", updates=4, grad_norm=np.array([0.5, 0.0, np.inf, np.nan]))
    assert grad_norm(run)[0] == pytest.approx(0.5)
    assert np.isnan(grad_norm(run)[1:]).all()


def test_reward_fall_by_hand() -> None:
    """Means of two: .5, .75, 1, .75, .25; the best is 1 from the third on."""
    run = a_run("synthetic", updates=6, rewards=np.array([0.5, 0.5, 1.0, 1.0, 0.5, 0.0]))
    fall = RewardFall(2)(run)
    assert np.isnan(fall[0])
    assert fall[1:] == pytest.approx([0, 0, 0, 0.25, 0.75])


# ---- none looks ahead


def cut(run: RunSeries, length: int) -> RunSeries:
    def shorter(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value[:length]
        return {key: item[:length] for key, item in value.items()} if "tokens" in value or "kl_k3" in value else value

    parts = {field.name: getattr(run, field.name) for field in fields(run)}
    return RunSeries(**{name: value if isinstance(value, str) else shorter(value) for name, value in parts.items()})


@cache
def drifting() -> RunSeries:
    rng = np.random.default_rng(11)
    length = 130
    fall = np.clip((np.arange(length) - 70) / 40, 0, 1)
    return a_run(
        "synthetic-drifting",
        updates=length,
        series=noisy(length, 60, 11, times=8.0),
        rewards=0.7 * (1 - fall) + 0.02 * rng.standard_normal(length),
        loss=1e-8 * rng.standard_normal(length) * np.exp(3 * fall),
        grad_norm=0.2 * np.exp(0.1 * rng.standard_normal(length) + 4 * fall),
        entropy=0.7 * (1 + fall) + 0.01 * rng.standard_normal(length),
    )


@pytest.mark.parametrize("alarm", every_alarm(), ids=lambda alarm: alarm.name)
def test_what_comes_later_changes_nothing(alarm: Alarm) -> None:
    """The alarms of a run cut at k are those of the whole run up to k, for four cuts and five parameters."""
    run = drifting()
    parameters = [*alarm.grid[:: max(1, len(alarm.grid) // 5)], *([alarm.fixed] if alarm.fixed is not None else [])]
    for parameter in parameters:
        whole = list(alarm.alarms(run, parameter))
        assert whole == sorted(set(whole))
        for length in (30, 41, 77, 111):
            assert list(alarm.alarms(cut(run, length), parameter)) == [step for step in whole if step < length]


def test_cut_run_is_cut_everywhere() -> None:
    short = cut(drifting(), 41)
    assert {len(getattr(short, name)) for name in ("steps", "rewards", "finite", "entropy", "grad_norm", "loss")} == {
        41
    }
    assert {values.size for values in (*short.update.values(), *short.window.values())} == {41}
    assert set(TYPICAL) <= set(short.update)
    assert short.settings == {"arm": "synthetic"}


def test_every_tuned_rival_can_be_silent_and_can_speak() -> None:
    """Otherwise causality would hold of alarms that never ring, and no budget could be met."""
    run = drifting()
    silent = [row.title for row in rivals() if row.tuned and not any(_count(a, run, -1) == 0 for a in row.candidates)]
    mute = [row.title for row in rivals() if row.tuned and not any(_count(a, run, 0) > 0 for a in row.candidates)]
    assert silent == []
    assert mute == []


def _count(alarm: Alarm, run: RunSeries, place: int) -> int:
    order = sorted(alarm.grid)
    if "ADWIN" in alarm.name:  # its parameter grows with sensitivity, the others' with the level
        order.reverse()
    return len(alarm.alarms(run, order[place]))
