"""Run series: written and read, and made from a real (tiny) testbed recording the way `analyze` computes them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from evaluation.synthetic_runs import a_run

from triage_monitor.cli.analysis import analyse
from triage_monitor.errors import InputError
from triage_monitor.evaluation.series import RunSeries, read_corpus, series_of_recording, write_corpus
from triage_monitor.storage.recordings import iter_updates
from triage_monitor.summary.spec import DEFAULT_SPEC
from triage_monitor.testbed.config import TrainConfig
from triage_monitor.testbed.record import RunRecorder
from triage_monitor.testbed.train import Trainer
from triage_monitor.testbed.warmup import WarmupRecipe

STORED = 1e-4  # relative: the file keeps 13 bits of mantissa
UPDATES = 4
CONFIG = TrainConfig(
    updates=UPDATES, response_tokens=16, prompts=4, group_size=4, warmup=WarmupRecipe(updates=2, batch=4)
)
ARRAYS = ("rewards", "entropy", "grad_norm", "loss")


def two_runs() -> list[RunSeries]:
    """SYNTHETIC, of unequal length, with holes."""
    hole = np.array([0.3, np.nan, 0.1, np.nan, 7.25e-9])
    first = a_run("a-s0", updates=5, series={"rho_asym": hole, "abs_delta_mean": -hole}, grad_norm=hole)
    second = a_run("b-s1", updates=3, split="development", rewards=np.array([0.5, np.nan, -2.0]))
    return [replace(first, finite=np.array([True, True, False, True, True]), group="a"), replace(second, group="b")]


def same(read: RunSeries, written: RunSeries) -> None:
    assert (read.name, read.group, read.split, read.settings) == (
        written.name,
        written.group,
        written.split,
        written.settings,
    )
    np.testing.assert_array_equal(read.steps, written.steps)
    np.testing.assert_array_equal(read.finite, written.finite)
    for name in ARRAYS:
        np.testing.assert_allclose(getattr(read, name), getattr(written, name), rtol=STORED, err_msg=name)
    for scope in ("update", "window"):
        ours, theirs = getattr(read, scope), getattr(written, scope)
        assert set(ours) == set(theirs)
        for name in theirs:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=STORED, err_msg=name)


def test_corpus_written_is_the_corpus_read(tmp_path: Path) -> None:
    """Absent values (NaN) are compared as well: they come back absent and nothing else does."""
    runs = two_runs()
    write_corpus(tmp_path / "runs.parquet", runs)
    read = read_corpus(tmp_path / "runs.parquet")
    assert [len(run) for run in read] == [5, 3]
    for ours, theirs in zip(read, runs, strict=True):
        same(ours, theirs)
    assert [path.name for path in tmp_path.iterdir()] == ["runs.parquet"]


def test_absent_value_is_null_in_the_file(tmp_path: Path) -> None:
    write_corpus(tmp_path / "runs.parquet", two_runs())
    table = pq.read_table(tmp_path / "runs.parquet")
    assert table["window.rho_asym"].null_count == 2
    assert table["grad_norm"].null_count == 2
    assert table["reward"].null_count == 1
    assert table["entropy"].null_count == 0
    for name in table.column_names:
        if pa.types.is_floating(table[name].type):
            assert not np.isnan(table[name].drop_null().to_numpy()).any(), name


def test_stored_values_are_off_by_at_most_half_a_step_of_13_bits(tmp_path: Path) -> None:
    values = np.random.default_rng(0).lognormal(0.0, 5.0, 400) * np.tile([1.0, -1.0], 200)
    write_corpus(tmp_path / "runs.parquet", [a_run("r", updates=400, series={"kl_k1": values})])
    (read,) = read_corpus(tmp_path / "runs.parquet")
    off = np.abs(read.window["kl_k1"] / values - 1)
    assert 0 < off.max() <= 2.0**-14 * 1.001


def test_collapse_of_a_run_is_told_from_its_rewards(tmp_path: Path) -> None:
    run = a_run("falls", collapse=60)
    assert run.collapse() == 60
    assert a_run("stays").collapse() is None
    assert replace(a_run("breaks"), finite=np.arange(120) != 17).collapse() == 17


@pytest.mark.parametrize("content", ["text", "table", "foreign metadata"])
def test_file_that_is_no_corpus_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.parquet"
    if content == "text":
        path.write_text("not Parquet at all")
    else:
        table = pa.table({"run" if content == "table" else "step": ["a"]})
        metadata = None if content == "table" else {b"triage_runs": json.dumps({"a": {}}).encode()}
        pq.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(InputError) as caught:
        read_corpus(path)
    assert (caught.value.reason, caught.value.path) == ("format", str(path))


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.parquet"):
        read_corpus(tmp_path / "none.parquet")


# ---- from a recording


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("recording")
    trainer = Trainer(CONFIG, cache_directory=home / "cache")
    with RunRecorder(home / "run", CONFIG, run="tiny-s0") as record:
        for _ in range(UPDATES):
            record(trainer.update())
    return home / "run"


def test_series_of_a_recording_are_what_analyze_says_of_it(recording: Path) -> None:
    run = series_of_recording(recording, "tiny-s0", "tiny", "development")
    document = analyse(iter_updates([recording / "updates"]), spec=DEFAULT_SPEC, window=25).document
    for scope, reports in ((run.update, document["updates"]), (run.window, document["windows"])):
        assert len(reports) == len(run) == UPDATES
        for k, report in enumerate(reports):
            said = dict(report["indicators"])
            for side, quantiles in report["quantiles"].items():
                said |= {f"q{probability}_{side}": value for probability, value in quantiles.items()}
            shown = {name: scope[name][k] for name in said}
            assert shown == pytest.approx(
                {name: np.nan if value is None else value for name, value in said.items()}, rel=0, abs=0, nan_ok=True
            )
    assert np.isfinite(run.window["abs_delta_mean"]).all()


def test_series_of_a_recording_hold_the_lines_and_the_settings(recording: Path) -> None:
    run = series_of_recording(recording, "tiny-s0", "tiny", "development")
    lines = [json.loads(line) for line in (recording / "updates.jsonl").read_text().splitlines()]
    assert run.steps.tolist() == [0, 1, 2, 3]
    assert run.rewards.tolist() == [line["reward_mean"] for line in lines]
    assert run.grad_norm.tolist() == [line["grad_norm"] for line in lines]
    assert run.entropy.tolist() == [line["entropy"] for line in lines]
    assert run.finite.all()
    assert (run.settings["arm"], run.settings["task"], run.settings["response_tokens"]) == ("nvfp4", "awalk", 16)
    # What the detector reads is what the trainer reported, through rows and summary. A norm of 0 (no response better
    # than its group) has no logarithm and counts as none.
    sent = np.where(run.grad_norm > 0, np.log(np.maximum(run.grad_norm, 1e-300)), np.nan)
    assert np.isfinite(sent).any()
    np.testing.assert_allclose(run.update["grad_norm"], np.exp(sent))
    mean = [np.nanmean(sent[: k + 1]) if np.isfinite(sent[: k + 1]).any() else np.nan for k in range(UPDATES)]
    np.testing.assert_allclose(run.window["grad_norm"], np.exp(mean))
    np.testing.assert_allclose(run.window["reward_mean"], np.cumsum(run.rewards) / np.arange(1, 5))


def test_window_grows_update_by_update(recording: Path) -> None:
    run = series_of_recording(recording, "tiny-s0", "tiny", "development")
    assert run.window["updates"].tolist() == [1, 2, 3, 4]
    assert run.window["responses"].tolist() == [16, 32, 48, 64]
    assert run.window["tokens"].tolist() == np.cumsum(run.update["tokens"]).tolist() == [256, 512, 768, 1024]
    energy = np.cumsum(run.update["mismatch_energy"] * run.update["tokens"]) / run.window["tokens"]
    np.testing.assert_allclose(run.window["mismatch_energy"], energy)


def test_recording_with_a_line_too_few_is_refused(recording: Path, tmp_path: Path) -> None:
    for item in recording.rglob("*"):
        if item.is_file():
            target = tmp_path / item.relative_to(recording)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(item.read_bytes())
    lines = (tmp_path / "updates.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "updates.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(InputError, match="3 lines but 4 recorded updates"):
        series_of_recording(tmp_path, "tiny-s0", "tiny", "development")
