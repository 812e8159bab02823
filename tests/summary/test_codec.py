"""A summary as bytes: versions. Version 1 knew no gradient norm; its bytes are built by hand here."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from triage_monitor.errors import InputError
from triage_monitor.judge.indicators import update_report
from triage_monitor.summary.build import summarize
from triage_monitor.summary.codec import decode, encode
from triage_monitor.summary.step import COUNT_NAMES, SUM_NAMES, StepSummary

GAPS = [[0.5, -1.25, 0.1], [-3.0, 0.02]]


def a_summary(**more: Any) -> StepSummary:
    return summarize(gap=[np.array(gap) for gap in GAPS], advantages=[1.0, -1.0], rewards=[0.5, 1.0], **more)


def parts(body: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    batch = pa.ipc.open_stream(body).read_next_batch()
    columns = {name: batch.column(name).values.to_numpy() for name in batch.schema.names}
    return columns, {key.decode(): value.decode() for key, value in batch.schema.metadata.items()}


def crc(spec: str, columns: dict[str, np.ndarray]) -> str:
    text = spec.encode()
    for name, column in columns.items():
        text += f"{name}:{column.dtype.str}:{column.size}".encode() + column.tobytes()
    return str(zlib.crc32(text))


def body_of(columns: dict[str, np.ndarray], metadata: dict[str, str]) -> bytes:
    arrays = [pa.array([column.tolist()], pa.list_(pa.from_numpy_dtype(column.dtype))) for column in columns.values()]
    batch = pa.record_batch(arrays, names=list(columns)).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def version_1(summary: StepSummary, **metadata: str) -> bytes:
    """What version 1 wrote of it: the last counter and the last total are not there."""
    columns, told = parts(encode(summary))
    columns = {name: column[:-1] if name in ("counters", "totals") else column for name, column in columns.items()}
    return body_of(columns, told | {"version": "1", "crc32": crc(told["spec"], columns)} | metadata)


def test_gradient_norm_stands_at_the_end_of_what_grew() -> None:
    assert (COUNT_NAMES[-1], SUM_NAMES[-1]) == ("grad_norm_responses", "log_grad_norm")


def test_summary_with_a_gradient_norm_comes_back_equal() -> None:
    summary = a_summary(grad_norm=0.25)
    assert decode(encode(summary)) == summary
    assert parts(encode(summary))[1]["version"] == "2"


def test_bytes_built_by_hand_are_what_the_codec_reads() -> None:
    columns, told = parts(encode(a_summary(grad_norm=0.25)))
    assert told["crc32"] == crc(told["spec"], columns)
    assert decode(body_of(columns, told)) == a_summary(grad_norm=0.25)


def test_version_1_is_read_as_a_summary_without_a_gradient_norm() -> None:
    old = decode(version_1(a_summary()))
    assert old == a_summary()
    report = update_report(old)
    assert report["indicators"]["grad_norm"] is None
    assert report["reasons"]["grad_norm"] == "no_grad_norm"
    assert report["indicators"]["reward_mean"] == 0.75


def test_versions_merge() -> None:
    both = decode(version_1(a_summary())).merge(a_summary(grad_norm=0.25))
    assert update_report(both)["indicators"]["grad_norm"] == pytest.approx(0.25)
    assert both.count("responses") == 4


@pytest.mark.parametrize("metadata", [{"crc32": "1"}, {"version": "2"}, {"version": "3"}, {"version": ""}])
def test_version_1_that_is_not_what_it_says_is_refused(metadata: dict[str, str]) -> None:
    with pytest.raises(InputError) as caught:
        decode(version_1(a_summary(), **metadata))
    expected = {"1": "summary_damaged", "2": "summary_shape", "3": "summary_version", "": "summary_version"}
    assert caught.value.reason == expected[next(iter(metadata.values()))]


def test_version_1_of_the_new_length_is_refused() -> None:
    columns, told = parts(encode(a_summary()))
    with pytest.raises(InputError) as caught:
        decode(body_of(columns, told | {"version": "1"}))
    assert (caught.value.reason, caught.value.column) == ("summary_shape", "counters")


def test_spec_with_a_whole_number_that_no_float_holds_is_refused() -> None:
    columns, told = parts(encode(a_summary()))
    spec = told["spec"].replace("0.125", "1" + "0" * 400)
    assert spec != told["spec"]
    with pytest.raises(InputError) as caught:
        decode(body_of(columns, told | {"spec": spec, "crc32": crc(spec, columns)}))
    assert caught.value.reason == "summary_spec"
