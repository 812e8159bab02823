"""Which parameter is chosen, and that held-out runs have no say in it. All runs are synthetic."""

from __future__ import annotations

import pytest
from evaluation.synthetic_runs import AFTER, a_corpus, a_run, step_up

from triage_monitor.errors import InputError
from triage_monitor.evaluation.contest import ask_all, hold
from triage_monitor.evaluation.rivals_level import Level
from triage_monitor.evaluation.scoring import score
from triage_monitor.evaluation.series import RunSeries
from triage_monitor.evaluation.tuning import Entry, Trial, ends, part, trials
from triage_monitor.testbed.outcome import CollapseRule

GRID = (0.05, 0.1, 0.2, 0.4)


def gap(run: RunSeries):
    return run.update["abs_delta_mean"]


def level(name: str, family: str = "magnitude", grid: tuple[float, ...] = GRID, fixed: float | None = None) -> Level:
    return Level(name, family, gap, grid, fixed=fixed)


def two_stages(collapse: int) -> list[float]:
    """0.04, then 0.15 from 40 updates before the collapse, then 0.3 from 10 before."""
    early = step_up(collapse + AFTER, collapse - 40, 0.04, 0.15)
    return [float(max(a, b)) for a, b in zip(early, step_up(collapse + AFTER, collapse - 10, 0.0, 0.3), strict=True)]


def corpus(calm: float) -> list[RunSeries]:
    """Falling runs in two stages; surviving ones touch `calm` once, at update 60."""
    runs = []
    for split in ("development", "held-out"):
        runs.append(a_run(f"{split}-falls", collapse=120, split=split, series={"abs_delta_mean": two_stages(120)}))
        touched = step_up(140, 140, 0.04, 0.04)
        touched[60] = calm
        runs.append(a_run(f"{split}-stays", updates=140, split=split, series={"abs_delta_mean": touched}))
    return runs


def chosen(runs: list[RunSeries], budget: float, entries: list[Entry] | None = None):
    asked = ask_all(entries or [Entry("gap", "magnitude", (level("gap"),))], runs, lambda words: None)
    return hold(asked, CollapseRule(), budget).rows


def test_longest_lead_wins_within_the_budget() -> None:
    """Below 0.15 the survivor's touch of 0.12 is an alarm at 0.1 only; 0.2 leads by 10 without one."""
    (row,) = chosen(corpus(0.12), budget=1.0)
    assert row.choice.parameter == 0.2
    assert (row.choice.trial.false_alarm_rate, row.score.lead.value) == (0.0, 10.0)


def test_larger_budget_buys_the_longer_lead() -> None:
    """The survivor's one alarm in 100 counted updates is 10 per 1,000."""
    (row,) = chosen(corpus(0.12), budget=10.0)
    assert row.choice.parameter == 0.1
    assert (row.score.lead.value, row.score.false_alarm_rate.value) == (40.0, pytest.approx(10.0))


def test_trials_of_all_parameters_are_what_scoring_says_of_each() -> None:
    asked = ask_all([Entry("gap", "magnitude", (level("gap"),))], a_corpus(), lambda words: None)
    chosen = asked.of("development")
    runs = part(ends(asked.runs, CollapseRule()), chosen)
    for place, trial in enumerate(trials(asked.answers["gap"], runs, chosen)):
        result = score(asked.answers["gap"].at(place, chosen), runs)
        told = (result.detection.value, result.lead_with_misses.value, result.false_alarm_rate.value)
        assert (trial.detection, trial.lead_with_misses, trial.false_alarm_rate) == pytest.approx(told)


def test_fewest_false_alarms_when_nothing_fits() -> None:
    """A touch of 0.5 sets off every level; all have one false alarm, so the best detection and lead decide."""
    (row,) = chosen(corpus(0.5), budget=1.0)
    assert row.choice.parameter == 0.1
    assert not row.choice.trial.within(1.0)
    assert Trial(0.0, 0.0, 5.0).rank(1.0) > Trial(1.0, 90.0, 6.0).rank(1.0)
    assert Trial(0.0, 0.0, 1.0).rank(1.0) > Trial(1.0, 90.0, 1.1).rank(1.0)


def test_middle_of_equals_is_taken() -> None:
    """0.05 to 0.13 all lead by 40 on the falling run and touch nothing on the calm one."""
    grid = (0.03, 0.05, 0.07, 0.09, 0.11, 0.13, 0.2)
    (row,) = chosen(corpus(0.04), 1.0, [Entry("gap", "magnitude", (level("gap", grid=grid),))])
    assert row.choice.parameter == 0.09


def test_detection_counts_before_lead() -> None:
    assert Trial(0.9, 10.0, 0.5).rank(1.0) > Trial(0.8, 100.0, 0.0).rank(1.0)
    assert Trial(0.9, 11.0, 1.0).rank(1.0) > Trial(0.9, 10.0, 0.0).rank(1.0)
    assert Trial(0.9, 10.0, 0.0).rank(1.0) > Trial(0.9, 10.0, 1.0).rank(1.0)


def test_held_out_runs_have_no_say() -> None:
    """Their survivor touches 0.5, which development never saw: the choice stays and pays for it."""
    runs = corpus(0.12)
    loud = corpus(0.5)
    (row,) = chosen([*runs[:2], *loud[2:]], budget=1.0)
    assert row.choice.parameter == 0.2
    assert row.score.false_alarms == 1


def test_fixed_entry_keeps_its_value_and_ignores_the_budget() -> None:
    line = level("line", "field line", (), fixed=0.1)
    entries = [Entry("gap", "magnitude", (level("gap"),)), Entry("line", "field line", (line,), tuned=False)]
    rows = {row.choice.entry.title: row for row in chosen(corpus(0.12), 1.0, entries)}
    assert rows["line"].choice.parameter == 0.1
    assert rows["line"].score.false_alarms == 1
    assert rows["line"].score.ahead.value == 30.0  # leads 40 and 10


def test_best_magnitude_is_the_one_development_would_choose() -> None:
    entries = [
        Entry("blunt", "magnitude", (level("blunt", grid=(0.2,)),)),
        Entry("sharp", "magnitude", (level("sharp", grid=(0.14,)),)),
    ]
    asked = ask_all(entries, corpus(0.12), lambda words: None)
    contest = hold(asked, CollapseRule(), 1.0)
    assert contest.best_magnitude.choice.entry.title == "sharp"
    assert [row.choice.entry.title for row in contest.featured] == ["sharp"]


def test_corpus_of_one_split_is_refused() -> None:
    with pytest.raises(InputError, match="development and held-out"):
        ask_all([], corpus(0.1)[:2], lambda words: None)


def test_contest_without_magnitude_rules_is_refused() -> None:
    asked = ask_all([Entry("x", "trend", (level("x", "trend"),))], corpus(0.1), lambda words: None)
    with pytest.raises(InputError, match="no magnitude rule"):
        hold(asked, CollapseRule(), 1.0)
