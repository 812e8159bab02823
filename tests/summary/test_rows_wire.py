"""Bodies from the network: whole ones of any writer are read, damaged and oversized ones are refused (C48, C50)."""

from __future__ import annotations

import struct

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from arrow_tables import stream, table

from triage_monitor.errors import InputError
from triage_monitor.summary.rows import decode_stream, encode_arrays, sound_table
from triage_monitor.summary.rows_check import END_MARKER
from triage_monitor.summary.rows_halves import SAMPLER, checked_half

BATCHES = [table([[0.5, 0.25], [1.0]], [1.0, -1.0]).to_batches()[0] for _ in range(3)]


def refused(body: bytes, max_tokens: int = 1000) -> str:
    with pytest.raises(InputError) as caught:
        decode_stream(body, max_tokens=max_tokens)
    return caught.value.reason


def own_body(**extra) -> bytes:
    return encode_arrays(gap=[[0.5, 0.25, -1.0], [1.0]], advantages=[1.0, -1.0], mask=[[1, 1, 0], [1]], **extra)


def test_streams_of_other_writers_are_read() -> None:
    rows = decode_stream(stream(*BATCHES), max_tokens=9)
    assert rows.gap.tolist() == [0.5, 0.25, 1.0] * 3
    frame = pl.DataFrame({"advantage": [1.0, -1.0], "gap": [[0.5], [0.25, None]], "engine": ["a", "b"]})
    rows = decode_stream(frame.write_ipc_stream(None).getvalue(), max_tokens=9)
    assert rows.gap[:2].tolist() == [0.5, 0.25] and rows.mask.tolist() == [True, True, False]


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_streams_of_other_writers_are_read(compression: str) -> None:
    batch = table([[0.5] * 500], [1.0]).to_batches()[0]
    assert decode_stream(stream(batch, compression=compression), max_tokens=500).gap.tolist() == [0.5] * 500


def test_three_batches_cut_at_every_byte_are_refused() -> None:
    body = stream(*BATCHES)
    for length in range(len(body)):
        refused(body[:length])
    assert decode_stream(body, max_tokens=9).tokens == 9


def test_cut_between_batches_is_refused_though_arrow_takes_it() -> None:
    body = stream(*BATCHES, end=False)
    assert pa.ipc.open_stream(body).read_all().num_rows == 6  # Arrow's own reader sees nothing wrong
    assert refused(body) == "truncated_stream"


def test_cut_between_batches_is_refused_when_values_look_like_an_end_marker() -> None:
    values = np.frombuffer(END_MARKER * 8, np.float32)
    gap = pa.ListArray.from_arrays(pa.array([0, 16], pa.int32()), pa.array(values))
    batch = pa.record_batch({"advantage": pa.array([1.0]), "gap": gap})
    body = stream(batch, batch)
    first = body.index(END_MARKER * 8) + len(END_MARKER * 8)
    assert body[:first].endswith(END_MARKER)
    assert refused(body[:first]) == "truncated_stream"


def test_own_body_with_any_bit_of_any_byte_flipped_is_refused() -> None:
    body = own_body()
    for place in range(len(body)):
        damaged = bytearray(body)
        damaged[place] ^= 1 << place % 8
        refused(bytes(damaged))


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_foreign_body_with_flipped_bytes_never_crashes(compression: str | None) -> None:
    body = stream(*BATCHES, compression=compression)
    outcomes = set()
    for place in range(len(body)):
        damaged = bytearray(body)
        damaged[place] ^= 0xFF
        try:
            assert decode_stream(bytes(damaged), max_tokens=100).tokens <= 100
            outcomes.add("read")
        except InputError as error:
            outcomes.add(error.reason)
    assert "damaged_stream" in outcomes


@pytest.mark.parametrize("offsets", [[0, 4, 9], [0, 5, 3, 8], [-1, 4, 8], [0, 4], [1, 8], [2**30, 2**30]])
def test_bad_offsets_are_refused(offsets: list[int]) -> None:
    rows = len(offsets) - 1
    sound = np.linspace(0, 8, rows + 1).astype(np.int32)
    gap = pa.ListArray.from_arrays(pa.array(sound), pa.array(np.zeros(8, np.float32)))
    body = bytearray(stream(pa.record_batch({"gap": gap, "advantage": pa.array(np.ones(rows))})))
    assert decode_stream(bytes(body), max_tokens=8).tokens == 8
    # Arrow's writer would cut the list to size or trip over it, so the damage goes into the finished body.
    whole = pa.py_buffer(body)
    place = pa.ipc.open_stream(whole).read_all()["gap"].chunk(0).buffers()[1].address - whole.address
    body[place : place + sound.nbytes] = np.array(offsets, np.int32).tobytes()
    assert refused(bytes(body)) in ("damaged_stream", "offsets")


def test_wrong_types_empty_bodies_and_other_content_are_refused() -> None:
    text = pa.record_batch({"gap": pa.array([["a"]]), "advantage": [1.0]})
    assert refused(stream(text)) == "wrong_type"
    assert refused(b"") == "empty_body"
    assert refused(END_MARKER) == "damaged_stream"
    assert refused(b'{"gap": [[0.5]]}') == "damaged_stream"
    assert refused(stream(*BATCHES) + b"more") == "damaged_stream"
    assert refused(b"\xff\xff\xff\xff\xff\xff\xff\x7f" + bytes(64)) in ("damaged_stream", "truncated_stream")


def test_dictionaries_are_refused_on_the_wire() -> None:
    batch = pa.record_batch(
        {"gap": pa.array([[0.5]]), "advantage": [1.0], "group": pa.array(["a"]).dictionary_encode()}
    )
    assert refused(stream(batch)) == "dictionary"


def test_declared_rows_must_be_there() -> None:
    assert decode_stream(stream(*BATCHES, metadata={"rows": "6"}), max_tokens=9).responses == 6
    assert refused(stream(*BATCHES, metadata={"rows": "7"})) == "row_count"


def test_own_checksum_covers_settings() -> None:
    body = own_body(settings={"temperature": 0.7})
    assert refused(body.replace(b"0.7", b"0.8")) == "checksum"


def test_more_positions_than_allowed_are_refused() -> None:
    assert refused(stream(*BATCHES), max_tokens=8) == "too_large"
    many_rows = stream(table([[]] * 100, [1.0] * 100).to_batches()[0])
    assert refused(many_rows, max_tokens=99) == "too_large"


def test_small_body_that_expands_is_refused_before_it_does() -> None:
    zeros = pa.array(np.zeros(4_000_000, np.float32))
    gap = pa.ListArray.from_arrays(pa.array([0, 4_000_000], pa.int32()), zeros)
    bomb = stream(pa.record_batch({"gap": gap, "advantage": pa.array([1.0])}), compression="zstd")
    assert len(bomb) < 10_000
    before = pa.total_allocated_bytes()
    assert refused(bomb, max_tokens=1_000_000) == "too_large"
    assert pa.total_allocated_bytes() == before


def test_compressed_buffer_that_claims_a_terabyte_is_refused() -> None:
    batch = table([[0.5] * 1000], [1.0]).to_batches()[0]
    body = stream(batch, compression="zstd")
    honest = struct.pack("<q", 4000)
    assert body.count(honest) >= 1
    assert refused(body.replace(honest, struct.pack("<q", 1 << 40))) == "too_large"
    assert refused(body.replace(honest, struct.pack("<q", -2))) == "damaged_stream"


def test_ten_million_tokens_decode_without_a_copy_a_token() -> None:
    """C50: 512 responses of 20,480 tokens, 42 MB; the time is compared with copying the same bytes."""
    gap = np.zeros(512 * 20_480, np.float32)
    body = encode_arrays(gap=gap, offsets=np.arange(513) * 20_480, advantages=np.ones(512))
    assert 41_943_040 <= len(body) < 41_943_040 * 1.01
    before = pa.total_allocated_bytes()
    rows = decode_stream(body, max_tokens=gap.size)
    assert rows.tokens == 10_485_760
    assert pa.total_allocated_bytes() - before < 1_000_000


@pytest.mark.parametrize("names", [["", "", ""], ["x", "x", "y"], ["entropy", "loss", "lr"]])
def test_stream_without_a_column_of_ours_is_refused_whatever_its_columns_are_called(names: list[str]) -> None:
    """Arrow reads every column where none is asked for: columns of one name were an error without one."""
    lists = pa.array([[1, 2], [3]], pa.list_(pa.int64()))
    body = stream(*pa.Table.from_arrays([lists] * 3, names=names).to_batches())
    with pytest.raises(InputError) as caught:
        decode_stream(body, max_tokens=9)
    assert (caught.value.reason, caught.value.column) == ("missing_column", "gap")
    with pytest.raises(InputError) as caught:
        checked_half(SAMPLER, sound_table(body, max_tokens=9), max_tokens=9)
    assert (caught.value.reason, caught.value.column) == ("missing_column", "sampler_logprobs")
