"""The document, the picture and the command on a small synthetic corpus."""

from __future__ import annotations

import builtins
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from evaluation.synthetic_runs import a_corpus, a_run
from rich.console import Console

from triage_monitor.errors import ConfigError
from triage_monitor.evaluation.contest import FAMILIES, Asked, ask_all
from triage_monitor.evaluation.contestants import contestants, entries_of
from triage_monitor.evaluation.curve import STYLES, draw, frontier
from triage_monitor.evaluation.ours import OURS
from triage_monitor.evaluation.report import BUDGETS, DEFINITIONS, Report, report
from triage_monitor.evaluation.report_tables import render
from triage_monitor.evaluation.rivals import rivals
from triage_monitor.evaluation.rivals_change import adwin
from triage_monitor.evaluation.rivals_level import Level
from triage_monitor.evaluation.series import RunSeries
from triage_monitor.evaluation.tuning import Entry

PNG = b"\x89PNG\r\n\x1a\n"
FEW = ("abs_delta_mean", "delta_std", "rho_pressure", "rho_asym", "CUSUM", "KL k3 above 0.03", "reward falls")


def deep_tail(run: RunSeries):
    return -run.window["q0.001_all"]


STAND_IN = Level("stand-in", "ours", deep_tail, (3.0, 4.0), fixed=3.0)


@pytest.fixture(scope="module")
def asked() -> Asked:
    entries = [Entry("stand-in", "ours", (STAND_IN,), tuned=False)]
    entries += [entry for entry in rivals() if entry.title in FEW]
    return ask_all(entries, a_corpus(), lambda words: None)


@pytest.fixture(scope="module")
def found(asked: Asked) -> Report:
    return report(asked, definition=0.5, budget=1.0, horizon=50)


def test_document_counts_the_runs_it_was_given(found: Report) -> None:
    """Three fall and three stay in each split; the staying ones have 160 - 40 counted updates each."""
    ends = {"runs": 6, "collapses": 3, "too_early_to_warn": 0, "survivors": 3, "healthy_updates": 360}
    ends["always_on_rate"] = pytest.approx(1000 * 3 / 360)
    assert found.document["runs"] == {"development": ends, "held_out": ends}


def test_document_is_strict_json(found: Report) -> None:
    again = json.loads(json.dumps(found.document, allow_nan=False))
    assert again["by_run"] == found.document["by_run"]
    assert again["rows"][0]["lead_quartiles"] == list(found.document["rows"][0]["lead_quartiles"])


def test_rows_stand_by_family_ours_first(found: Report) -> None:
    families = [row["family"] for row in found.document["rows"]]
    assert families[0] == "ours"
    assert families == sorted(families, key=FAMILIES.index)
    assert {row["title"] for row in found.document["rows"]} == {"stand-in", *FEW}


def test_few_are_featured_and_scored_at_other_budgets_and_definitions(found: Report) -> None:
    titles = [row["title"] for row in found.document["failures"]]
    assert titles[0] == "stand-in" and titles[-1] == "CUSUM" and len(titles) == 4
    assert [item["ratio"] for item in found.document["sensitivity"]] == list(DEFINITIONS)
    trade = [(row["title"], row["budget"]) for row in found.document["trade"]]
    assert trade == [(title, budget) for title in titles for budget in BUDGETS]


def test_drift_of_the_corpus_is_found_by_all_that_look_at_it(found: Report) -> None:
    """The tail crosses 3 when its factor of 1 + 3 t / 40 passes 1.5, 7 updates after the drift begins at -30."""
    rows = {row["title"]: row for row in found.document["rows"]}
    assert rows["stand-in"]["detection"]["value"] == 1.0
    assert 18 <= rows["stand-in"]["lead"]["value"] <= 26
    assert rows["abs_delta_mean"]["false_alarm_rate"]["value"] == 0.0
    assert rows["reward falls"]["detected"] == 0


def test_failures_and_runs_name_the_runs(found: Report) -> None:
    by_title = {item["title"]: item for item in found.document["failures"]}
    assert by_title["stand-in"]["missed"] == []
    first = {run["run"]: run["first_alarm"]["stand-in"] for run in found.document["by_run"]}
    assert set(first) == {f"synthetic-held-out-{fate}-{number}" for fate in ("falls", "stays") for number in range(3)}
    assert all(62 <= first[f"synthetic-held-out-falls-{number}"] - 10 * number <= 72 for number in range(3))
    assert all(first[f"synthetic-held-out-stays-{number}"] is None for number in range(3))


def test_missed_and_false_are_listed() -> None:
    """Ours looks at a tail that only the survivor shows."""
    tail = {"q0.001_all": [-1.0] * 60 + [-9.0] * 60}
    runs = [
        *a_corpus()[:6],
        a_run("synthetic-missed", collapse=90),
        a_run("synthetic-early", collapse=20),
        a_run("synthetic-false", series=tail),
    ]
    entries = [Entry("stand-in", "ours", (STAND_IN,), tuned=False), rivals()[0]]
    document = report(ask_all(entries, runs, lambda words: None), 0.5, 1.0).document
    assert document["failures"][0] == {
        "title": "stand-in",
        "missed": [{"run": "synthetic-missed", "collapse": 90, "alarm_after": None}],
        "false_alarms": {"synthetic-false": [60]},
        "too_early_to_warn": ["synthetic-early"],
    }
    text = drawn(document)
    assert "missed: synthetic-missed, collapse at 90, never alarmed" in text
    assert "false alarm: synthetic-false, at 60" in text
    assert "too early to warn of: synthetic-early" in text
    assert "0/1" in text and "false at 60" in text


def drawn(document: dict) -> str:
    text = io.StringIO()
    Console(width=160, file=text).print(render(document, by_run=True), highlight=False)
    return text.getvalue()


def test_frontier_never_falls_and_starts_at_the_fewest_false_alarms(asked: Asked, found: Report) -> None:
    for row in found.contest.featured:
        rates, detections, leads = frontier(asked, found.contest, row)
        assert (rates[1:] > rates[:-1]).all()
        assert (detections[1:] >= detections[:-1]).all() and (leads[1:] >= leads[:-1]).all()
        assert row.family in STYLES


def test_picture_is_a_png(asked: Asked, found: Report, tmp_path: Path) -> None:
    path = tmp_path / "curve.png"
    draw(asked, found.contest, path)
    assert path.read_bytes()[:8] == PNG


def test_missing_extras_are_named(monkeypatch: pytest.MonkeyPatch, asked: Asked, found: Report, tmp_path: Path) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name.split(".")[0] in ("river", "matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"triage-monitor\[plots\]"):
        draw(asked, found.contest, tmp_path / "curve.png")
    with pytest.raises(ConfigError, match=r"triage-monitor\[bench\]"):
        adwin()[0].alarms(a_corpus()[0], 0.1)


def test_our_detector_comes_first_then_its_variants_then_the_rivals() -> None:
    entries = contestants()
    mine = [entry for entry in entries if entry.family == "ours"]
    assert entries[0].candidates == (OURS,)
    assert entries[: len(mine)] == mine
    assert [entry.title for entry in entries[len(mine) :]] == [entry.title for entry in rivals()]


def test_fixed_parameter_enters_as_shipped_and_tuned() -> None:
    lone = replace(STAND_IN, grid=(3.0,))
    free = replace(STAND_IN, fixed=None)
    told = [[(entry.title, entry.tuned) for entry in entries_of(alarm)] for alarm in (STAND_IN, lone, free)]
    assert told == [[("stand-in", False), ("stand-in, tuned", True)], [("stand-in", False)], [("stand-in", True)]]
