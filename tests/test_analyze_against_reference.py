"""`triage-monitor analyze --json` on recorded files, end to end, against the reference on the same rows.

What a stranger would check first: write updates with holes, nulls, padding, groups and a resumed attempt, run the
command, and work every number out again by other means.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from agreement import assert_report_agrees
from reference import DEFAULT, Response, Update, trailing_window
from strategies import realistic_update
from typer.testing import CliRunner

from triage_monitor.cli.main import build_app

WINDOW = 3
# Attempt 2 resumes at step 4: steps 4 and 5 of the first are replaced.
PLACES = [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (4, 2), (5, 2), (6, 2)]


def recorded(form: str) -> list[Update]:
    history = []
    for k, (step, attempt) in enumerate(PLACES):
        rows = realistic_update(
            seed=100 + k,
            responses=10 + k,
            both=form == "log-probs",
            holes=form != "plain",
            grouped=form != "plain",
            per_token=form == "per token",
            longest=160,
        ).responses
        rows = tuple(with_nulls(r, k + i) for i, r in enumerate(rows)) if form != "plain" else rows
        padding = replace(rows[0], padding=True)
        history.append(Update(step, (*rows, padding), attempt))
    return history


def with_nulls(row: Response, salt: int) -> Response:
    """A null at every 17th place: missing in a row with a mask (gaps), a masked position without one (log-probs)."""
    rng = np.random.default_rng(salt)

    def holed(values: Any) -> Any:
        return None if values is None else [None if i % 17 == salt % 17 else v for i, v in enumerate(values)]

    mask = None if row.learner is not None else row.mask
    return replace(row, gap=holed(row.gap), sampler=holed(row.sampler), mask=mask, reward=float(rng.random()))


def table_of(history: list[Update]) -> pa.Table:
    rows = [(u, r) for u in history for r in u.responses]
    per_token = not isinstance(rows[0][1].advantage, float)
    columns: dict[str, Any] = {
        "step": pa.array([u.step for u, _ in rows], pa.int64()),
        "attempt": pa.array([u.attempt for u, _ in rows], pa.int64()),
        "advantage": pa.array([r.advantage for _, r in rows], pa.list_(pa.float32()) if per_token else pa.float32()),
        "reward": pa.array([r.reward for _, r in rows], pa.float64()),
        "padding": pa.array([r.padding for _, r in rows], pa.bool_()),
    }
    lists = pa.list_(pa.float32())
    for name, field in (("gap", "gap"), ("learner_logprobs", "learner"), ("sampler_logprobs", "sampler")):
        values = [getattr(r, field) for _, r in rows]
        if values[0] is not None:
            columns[name] = pa.array(values, lists)
    if any(r.mask is not None for _, r in rows):
        columns["mask"] = pa.array([r.mask for _, r in rows], pa.list_(pa.bool_()))
    if rows[0][1].group is not None:
        columns["group"] = pa.array([r.group for _, r in rows], pa.int64())
    return pa.table(columns)


def analysed(*paths: Path) -> dict[str, Any]:
    done = CliRunner().invoke(build_app(), ["analyze", *map(str, paths), "--window", str(WINDOW), "--json"])
    assert done.exit_code == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def assert_document_agrees(document: dict[str, Any], history: list[Update]) -> None:
    in_order = sorted(history, key=lambda u: (u.attempt, u.step))
    assert [(u["step"], u["attempt"]) for u in document["updates"]] == [(u.step, u.attempt) for u in in_order]
    for k, (update, window) in enumerate(zip(document["updates"], document["windows"], strict=True)):
        assert_report_agrees(update, [in_order[k]], DEFAULT)
        kept = trailing_window(in_order[: k + 1], WINDOW)
        assert (window["first_step"], window["step"], window["updates"]) == (kept[0].step, kept[-1].step, len(kept))
        assert_report_agrees(window, kept, DEFAULT)


@pytest.mark.parametrize("form", ["plain", "holes", "per token", "log-probs"])
def test_parquet_recording_gives_the_reference_numbers(tmp_path: Path, form: str) -> None:
    history = recorded(form)
    pq.write_table(table_of(history), tmp_path / "run.parquet")
    assert_document_agrees(analysed(tmp_path / "run.parquet"), history)


def test_arrow_file_of_many_batches_gives_the_reference_numbers(tmp_path: Path) -> None:
    """Record batches cut updates (and groups) anywhere; an update is what its step says."""
    history = recorded("holes")
    table = table_of(history)
    with pa.ipc.new_file(tmp_path / "run.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    assert_document_agrees(analysed(tmp_path / "run.arrow"), history)


def test_command_in_a_process_of_its_own_prints_the_same(tmp_path: Path) -> None:
    pq.write_table(table_of(recorded("plain")), tmp_path / "run.parquet")
    command = [sys.executable, "-m", "triage_monitor", "analyze", str(tmp_path), "--window", str(WINDOW), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == analysed(tmp_path)


def test_jsonl_gives_the_reference_numbers(tmp_path: Path) -> None:
    history = recorded("plain")
    rows = table_of(history).to_pylist()
    text = "".join(json.dumps({k: v for k, v in row.items() if v is not None}) + "\n" for row in rows)
    (tmp_path / "run.jsonl").write_text(text)
    assert_document_agrees(analysed(tmp_path / "run.jsonl"), history)


def test_shards_in_several_files_give_the_reference_numbers(tmp_path: Path) -> None:
    history = recorded("plain")
    table = table_of(history)
    for shard in range(3):
        pq.write_table(table.take(list(range(shard, table.num_rows, 3))), tmp_path / f"shard-{shard}.parquet")
    assert_document_agrees(analysed(*sorted(tmp_path.glob("*.parquet"))), history)


def test_groups_split_over_files_make_the_response_the_unit(tmp_path: Path) -> None:
    history = recorded("holes")
    table = table_of(history)
    for shard in range(2):
        pq.write_table(table.take(list(range(shard, table.num_rows, 2))), tmp_path / f"shard-{shard}.parquet")
    ungrouped = [replace(u, responses=tuple(replace(r, group=None) for r in u.responses)) for u in history]
    document = analysed(*sorted(tmp_path.glob("*.parquet")))
    assert_document_agrees(document, ungrouped)
    assert all(update["counts"]["group_split"] == 1 for update in document["updates"])
