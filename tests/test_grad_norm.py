"""The trainer's gradient norm on its way from a trainer, a file or a stream to its indicator."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from arrow_tables import stream, table
from trainer.client_help import FAST, an_update
from trainer.fault_server import FaultServer

from triage_monitor import Monitor
from triage_monitor.errors import InputError
from triage_monitor.judge.indicators import indicators
from triage_monitor.storage.recordings import RecordingWriter, iter_updates
from triage_monitor.summary.build import summarize
from triage_monitor.summary.report import decode_report
from triage_monitor.summary.rows import decode_stream, encode_arrays, rows_from_arrays, rows_from_table
from triage_monitor.summary.step import StepSummary, merge_all

GAPS = [np.array([0.5, -0.25]), np.array([1.0])]


def a_summary(grad_norm: Any) -> StepSummary:
    return summarize(gap=GAPS, advantages=[1.0, -1.0], grad_norm=grad_norm)


def norm(summary: StepSummary) -> float | None:
    return indicators(summary)["grad_norm"]


# ---- in a summary


@pytest.mark.parametrize("given", [0.4, [0.4, 0.4], np.float32(0.4), np.array(0.4), torch.tensor(0.4)])
def test_one_number_or_one_a_response_is_the_norm(given: Any) -> None:
    assert norm(a_summary(given)) == pytest.approx(0.4)


def test_norms_of_responses_make_a_geometric_mean() -> None:
    assert norm(a_summary([0.1, 0.4])) == pytest.approx(0.2)


@pytest.mark.parametrize("useless", [math.nan, math.inf, -math.inf, 0.0, -0.3])
def test_norm_that_is_none_is_left_out(useless: float) -> None:
    assert norm(a_summary(useless)) is None
    assert norm(a_summary([useless, 0.3])) == pytest.approx(0.3)
    assert a_summary([useless, 0.3]).count("grad_norm_responses") == 1


def test_absent_norm_is_absent() -> None:
    assert norm(a_summary(None)) is None
    assert norm(StepSummary.empty()) is None


@pytest.mark.parametrize("wrong", [[0.1], [0.1, 0.2, 0.3], [[0.1, 0.2]], "much"])
def test_norm_of_another_shape_or_type_is_refused_by_name(wrong: Any) -> None:
    for take in (a_summary, lambda given: rows_from_arrays(gap=GAPS, advantages=[1.0, -1.0], grad_norm=given)):
        with pytest.raises(InputError) as caught:
            take(wrong)
        assert caught.value.column == "grad_norm"


def test_shards_of_an_update_merge_to_the_norm_they_share() -> None:
    assert norm(merge_all([a_summary(0.3), a_summary(0.3), a_summary(None)])) == pytest.approx(0.3)


def test_window_of_updates_has_the_geometric_mean_of_their_norms() -> None:
    """0.1, 0.1 and 0.8 of two responses each: the cube root of 0.008."""
    assert norm(merge_all([a_summary(0.1), a_summary(0.1), a_summary(0.8)])) == pytest.approx(0.2)


# ---- on its way


def test_arrow_stream_carries_it_to_the_last_bit() -> None:
    body = encode_arrays(gap=GAPS, advantages=[1.0, -1.0], grad_norm=1 / 3)
    rows = decode_stream(body, max_tokens=100)
    assert rows.grad_norms.tolist() == [1 / 3, 1 / 3]
    assert norm(rows.summarize()) == pytest.approx(1 / 3)


def test_stream_of_any_arrow_writer_carries_it() -> None:
    given = table([[0.5], [0.25]], [1.0, -1.0], grad_norm=pa.array([0.2, None], pa.float32()))
    rows = decode_stream(stream(*given.to_batches()), max_tokens=100)
    assert rows.grad_norms[0] == pytest.approx(0.2) and math.isnan(rows.grad_norms[1])
    assert norm(rows.summarize()) == pytest.approx(0.2)


def test_column_of_nulls_counts_as_absent() -> None:
    rows = rows_from_table(table([[0.5], [0.25]], [1.0, -1.0], grad_norm=pa.nulls(2, pa.float64())))
    assert rows.grad_norms is None


def test_slip_in_the_name_is_refused() -> None:
    with pytest.raises(InputError, match="'grad_norm' is"):
        rows_from_table(table([[0.5]], [1.0], grad_norms=[0.2]))


def test_parquet_recording_carries_it(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, run="r") as writer:
        writer.append(0, 1, rows_from_arrays(gap=GAPS, advantages=[1.0, -1.0], grad_norm=0.3))
        writer.append(1, 1, rows_from_arrays(gap=GAPS, advantages=[1.0, -1.0]))
    assert pq.read_table(tmp_path)["grad_norm"].to_pylist() == [0.3, 0.3, None, None]
    assert [norm(update.rows.summarize()) for update in iter_updates(tmp_path)] == [pytest.approx(0.3), None]


def test_jsonl_carries_it(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines = [{"step": step, "advantage": 1.0, "gap": [0.5]} for step in range(3)]
    lines[0]["grad_norm"], lines[1]["grad_norm"] = 0.25, "nan"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert [norm(update.rows.summarize()) for update in iter_updates(path)] == [pytest.approx(0.25), None, None]


@pytest.mark.parametrize("mode", ["raw", "summary"])
def test_submit_carries_it(mode: Any) -> None:
    """A number, and the tensor without a dimension that torch's clip_grad_norm_ returns."""
    with FaultServer() as server, Monitor(server.url, run="r", mode=mode, **FAST) as monitor:
        for step, given in enumerate((0.25, torch.tensor(0.25), None)):
            assert monitor.submit(step=step, **an_update(step), grad_norm=given)
        assert server.wait(lambda: len(server.steps) == 3), monitor.stats
        bodies = [server.bodies["r", 1, step, 0] for step in range(3)]
    read = (
        (lambda body: decode_report(body)[0])
        if mode == "summary"
        else lambda body: decode_stream(body, max_tokens=1000).summarize()
    )
    assert [norm(read(body)) for body in bodies] == [pytest.approx(0.25), pytest.approx(0.25), None]
