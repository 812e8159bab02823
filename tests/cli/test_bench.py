"""`bench` by itself is the kernel's table; `bench early-warning` reads a corpus file. The corpus is synthetic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from evaluation.synthetic_runs import a_corpus

from triage_monitor.evaluation import contestants
from triage_monitor.evaluation.rivals import rivals
from triage_monitor.evaluation.series import write_corpus

FEW = ("abs_delta_mean", "rho_pressure", "CUSUM", "KL k3 above 0.03")


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of twelve runs, and a few rivals only: the command is under test, not its patience."""
    path = tmp_path / "corpus.parquet"
    write_corpus(path, a_corpus())
    monkeypatch.setattr(contestants, "contestants", lambda: [entry for entry in rivals() if entry.title in FEW])
    return path


def test_bare_bench_is_still_the_kernel(cli) -> None:
    done = cli("bench", "--tokens", "100000", "--responses", "16", "--turns", "1", "--json")
    assert done.code == 0
    rows = json.loads(done.out)["kernel"]
    assert rows[0]["what"].startswith("reading the gaps once") and rows[0]["share_of_memory_read"] == 1.0
    assert {row["tokens"] for row in rows} == {100_000}


def test_help_names_the_other_benchmark_and_its_example(cli) -> None:
    assert "early-warning" in cli("bench", "--help").out
    assert "Example: triage-monitor bench early-warning" in " ".join(
        cli("bench", "early-warning", "--help").out.split()
    )


def test_json_and_picture_of_a_corpus_file(cli, corpus: Path, tmp_path: Path) -> None:
    picture = tmp_path / "curve.png"
    done = cli("bench", "early-warning", "--corpus", corpus, "--json", "--png", picture, "--definition", "0.75")
    assert done.code == 0
    document = json.loads(done.out)
    assert {row["title"] for row in document["rows"]} == set(FEW)
    assert document["collapse"]["ratio"] == 0.75
    assert document["runs"]["held_out"]["collapses"] == 3
    assert picture.stat().st_size > 10_000
    assert "4/4" in done.err


def test_tables_go_to_stdout_without_progress(cli, corpus: Path) -> None:
    done = cli("bench", "early-warning", "--corpus", corpus, "--by-run", "--budget", "2")
    assert done.code == 0
    assert "at most 2 false alarms per 1,000" in done.out
    assert "synthetic-held-out-falls-2" in done.out
    assert "4/4" not in done.out


def test_wrong_corpus_ends_in_one_sentence(cli, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.parquet"
    wrong.write_text("no parquet")
    for path in (wrong, tmp_path / "absent.parquet"):
        done = cli("bench", "early-warning", "--corpus", path)
        assert done.code == 2 and done.out == ""
        assert done.err.startswith(f"triage-monitor: {path}") and done.err.count("\n") == 1
    assert cli("bench", "early-warning", "--budget", "-1").code == 2
    assert cli("bench", "early-warning", "--definition", "1.5").code == 2
