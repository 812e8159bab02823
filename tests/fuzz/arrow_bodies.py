"""Arrow streams as nobody should send them, from a seeded generator: odd types, lists and metadata, damage, bombs.

`arrow_body` draws one. About a third is a sound update in some unusual form (and may be taken), a third is a sound
stream of something else, a third is damaged bytes. Everything is synthetic.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from triage_monitor.summary.rows import encode_arrays

FLOATS = (pa.float16(), pa.float32(), pa.float64())
INTS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
EDGES = (0, 1, -1, 2**31 - 1, -(2**31), 2**32, 2**53, 2**63 - 1, -(2**63), 2**40)
OPTIONAL = (
    *("mask", "group", "policy_version", "reward", "engine", "response_id", "padding", "turn_starts", "grad_norm"),
    *("step", "attempt", "gap", "learner_logprobs", "masks", "extra", "", "a\0b", "\N{SNOWMAN}"),
)
SETTINGS = ("temperature", "top_p", "precision", "learner", "sampler", "objective", "rows", "checksum", "writer", "x")
TEXTS = ("1.0", "nan", "1e999", "-1", "", "{}", '{"a": 1}', "[" * 2000, "nvfp4", "x" * 300, "crc32-00000000", "\udcff")


def arrow_body(rng: random.Random) -> bytes:
    body = rng.choice((sound_body, sound_body, _odd, _odd, _ours, _bomb))(rng)
    return damaged(body, rng) if rng.random() < 0.4 else body


def damaged(body: bytes, rng: random.Random) -> bytes:
    """One to three kinds of damage."""
    for _ in range(rng.randint(1, 3)):
        body = rng.choice(DAMAGE)(body, rng)
    return body


def _ours(rng: random.Random) -> bytes:
    lengths = [rng.randrange(5) for _ in range(rng.randrange(5))]
    compression = rng.choice((None, "zstd", "lz4"))
    gap = [np.float32([rng.gauss(0, 1) for _ in range(size)]) for size in lengths]
    if not gap:
        return encode_arrays(gap=np.zeros(0, np.float32), offsets=np.zeros(1, np.int64), advantages=np.zeros(0))
    return encode_arrays(gap=gap, advantages=np.float32([rng.gauss(0, 1) for _ in gap]), compression=compression)


def sound_body(rng: random.Random) -> bytes:
    """Readable columns in an unusual but documented form."""
    rows = rng.choice((0, 1, 2, 5))
    lengths = [rng.randrange(4) for _ in range(rows)]
    kind = rng.choice(FLOATS)
    columns = {
        "gap": _lists(lengths, kind, rng),
        "advantage": pa.array([rng.choice((-1.0, 1.0, 0.0, float("nan"), 1e300)) for _ in range(rows)], pa.float64()),
    }
    if rng.random() < 0.3:
        columns["policy_version"] = pa.array([rng.choice(EDGES) % 2**62 for _ in range(rows)], pa.int64())
    if rng.random() < 0.3:
        columns["group"] = pa.array([rng.choice(EDGES) if rng.random() < 0.5 else 7 for _ in range(rows)], pa.int64())
    if rng.random() < 0.3:
        columns["reward"] = pa.array([rng.choice((None, 1e308, -1.0, float("inf"))) for _ in range(rows)], pa.float64())
    if rng.random() < 0.3:
        columns["padding"] = pa.array([rng.random() < 0.5 for _ in range(rows)], pa.bool_())
    if rng.random() < 0.3:
        columns["mask"] = pa.array(
            [[rng.random() < 0.5 for _ in range(size)] for size in lengths], pa.list_(pa.bool_())
        )
    return stream_of(columns, rng, metadata=_metadata(rng) if rng.random() < 0.2 else None)


def _lists(lengths: list[int], kind: pa.DataType, rng: random.Random) -> pa.Array:
    special = (0.0, -0.0, 0.5, -0.5, 60000.0, 1e308, -1e308, float("nan"), float("inf"), None, -1e-7)
    values = [[rng.choice(special) for _ in range(size)] for size in lengths]
    with np.errstate(over="ignore"):
        narrow = kind.to_pandas_dtype()
        values = [[None if item is None else np.float64(item).astype(narrow) for item in row] for row in values]
    form = rng.choice((pa.list_, pa.large_list, pa.list_view, pa.large_list_view))(kind)
    if form.id == pa.list_(kind).id and rng.random() < 0.5 and lengths:
        more = pa.array([[None], *values, [None]], form)
        return more.slice(1, len(values))
    return pa.array(values, form)


def _odd(rng: random.Random) -> bytes:
    """A sound stream whose columns have any type at all."""
    rows = rng.choice((0, 1, 2, 3))
    names = ["gap", "advantage", *rng.sample(OPTIONAL, rng.randrange(4))]
    if rng.random() < 0.2:
        names.remove(rng.choice(names))
    columns = [(name, odd_array(rows, rng)) for name in names]
    if rng.random() < 0.5 and "gap" in names:
        columns[names.index("gap")] = ("gap", pa.array([[0.5]] * rows, pa.list_(pa.float32())))
    schema = pa.schema([pa.field(name, array.type) for name, array in columns], metadata=_metadata(rng))
    batch = pa.record_batch([array for _, array in columns], schema=schema) if columns else None
    return _written(schema, [batch] * rng.randrange(3) if batch is not None else [], rng)


def odd_array(rows: int, rng: random.Random) -> pa.Array:
    return rng.choice(ODD)(rows, rng)


def _union(rows: int, rng: random.Random) -> pa.Array:
    types = pa.array([0] * rows, pa.int8())
    children = [pa.array([0.5] * rows), pa.array([1] * rows)]
    if rng.random() < 0.5:
        return pa.UnionArray.from_sparse(types, children)
    return pa.UnionArray.from_dense(types, pa.array(range(rows), pa.int32()), children)


def _run_ends(rows: int, rng: random.Random) -> pa.Array:
    if rows == 0:
        return pa.RunEndEncodedArray.from_arrays(pa.array([], pa.int32()), pa.array([], pa.float64()))
    return pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int32()), pa.array([0.5]))


def _nested(rows: int, rng: random.Random) -> pa.Array:
    kind: pa.DataType = pa.float32()
    for _ in range(rng.choice((2, 5, 40, 70))):
        kind = rng.choice((pa.list_, pa.large_list))(kind)
    return pa.array([None] * rows, kind)


def _extension(rows: int, rng: random.Random) -> pa.Array:
    kind, storage = rng.choice(
        (
            (pa.uuid(), pa.array([b"0" * 16] * rows, pa.binary(16))),
            (pa.json_(), pa.array(["[]"] * rows, pa.string())),
            (pa.bool8(), pa.array([1] * rows, pa.int8())),
            (pa.fixed_shape_tensor(pa.float32(), [2]), pa.array([[0.5, 1.0]] * rows, pa.list_(pa.float32(), 2))),
        )
    )
    return pa.ExtensionArray.from_storage(kind, storage)


def _ints(rows: int, rng: random.Random) -> pa.Array:
    kind = rng.choice(INTS)
    bits, signed = kind.bit_width, pa.types.is_signed_integer(kind)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return pa.array([min(max(rng.choice(EDGES), low), high) for _ in range(rows)], kind)


def _int_lists(rows: int, rng: random.Random) -> pa.Array:
    return pa.array([[rng.choice(EDGES) for _ in range(rng.randrange(3))] for _ in range(rows)], pa.list_(pa.int64()))


ODD: tuple[Callable[[int, random.Random], pa.Array], ...] = (
    _ints, _ints, _int_lists, _union, _run_ends, _nested, _extension,
    lambda rows, rng: pa.array([rng.choice((0.5, None, float("inf")))] * rows, rng.choice(FLOATS[1:])),
    lambda rows, _: pa.array([None] * rows, pa.null()),
    lambda rows, _: pa.array([[None]] * rows, pa.list_(pa.null())),
    lambda rows, _: pa.array(["a"] * rows).dictionary_encode(),
    lambda rows, _: pa.array([["a"]] * rows, pa.list_(pa.dictionary(pa.int8(), pa.string()))),
    lambda rows, _: pa.array([{"a": 1.0}] * rows, pa.struct([("a", pa.float64())])),
    lambda rows, _: pa.array([[("k", 1.0)]] * rows, pa.map_(pa.string(), pa.float64())),
    lambda rows, _: pa.array(["x"] * rows, pa.string_view()),
    lambda rows, _: pa.array([b"\xff\xfe"] * rows, pa.binary_view()),
    lambda rows, _: pa.array([Decimal("1.5")] * rows, pa.decimal128(10, 2)),
    lambda rows, _: pa.array([1] * rows, pa.timestamp("ns", "UTC")),
    lambda rows, _: pa.array([[0.5, 1.0]] * rows, pa.list_(pa.float16(), 2)),
    lambda rows, _: pa.array([[0.5]] * rows, pa.list_view(pa.float32())),
    lambda rows, _: pa.array([True] * rows),
    lambda rows, _: pa.array(["x" * 40] * rows, pa.large_string()),
)  # fmt: skip


def _metadata(rng: random.Random) -> dict[str, bytes] | None:
    if rng.random() < 0.5:
        return None
    names = rng.sample(SETTINGS, rng.randrange(1, 4))
    return {name: rng.choice(TEXTS).encode("utf-8", "surrogateescape") for name in names}


def _bomb(rng: random.Random) -> bytes:
    """Small bodies that say, or expand to, far more than they are."""
    compression = rng.choice(("zstd", "lz4"))
    size = rng.choice((10_000, 300_000, 3_000_000))
    which = rng.randrange(4)
    rows = 1
    if which == 0:
        gap = pa.ListArray.from_arrays(pa.array([0, size], pa.int32()), pa.array(np.zeros(size, np.float32)))
    elif which == 1:  # many views of the same values
        rows = size // 100
        starts, sizes = pa.array([0] * rows, pa.int32()), pa.array([1000] * rows, pa.int32())
        gap = pa.ListViewArray.from_arrays(starts, sizes, pa.array(np.zeros(1000, np.float32)))
    elif which == 2:
        rows = size // 100
        gap = pa.FixedSizeListArray.from_arrays(pa.nulls(rows * 100, pa.float32()), 100)
    else:
        rows = size // 1000
        gap = pa.array([[0.5]] * rows, pa.list_(pa.float32()))
    columns = {"gap": gap, "advantage": pa.array(np.ones(rows))}
    if which == 3:
        columns["response_id"] = pa.array(["x" * 1000] * rows)
    return stream_of(columns, rng, compression=compression)


def stream_of(
    columns: dict[str, Any], rng: random.Random, metadata: Any = None, compression: str | None = None
) -> bytes:
    batch = pa.record_batch(columns)
    schema = batch.schema.with_metadata(metadata)
    batches = [batch.replace_schema_metadata(metadata)]
    if rng.random() < 0.3:
        batches += [batches[0].slice(len(batch) // 2), batches[0].slice(0, 0)]
    return _written(schema, batches, rng, compression or rng.choice((None, None, "zstd", "lz4")))


def _written(schema: pa.Schema, batches: list[Any], rng: random.Random, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=rng.random() < 0.2)
    try:
        with pa.ipc.new_stream(sink, schema, options=options) as writer:
            for batch in batches:
                writer.write_batch(batch)
    except pa.ArrowException:  # this library's writer does not write every type it can hold
        return b"\xff\xff\xff\xff\0\0\0\0"
    return bytes(sink.getvalue())


def _cut(body: bytes, rng: random.Random) -> bytes:
    return body[: rng.randrange(len(body) + 1)]


def _bits(body: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(body)
    for _ in range(rng.choice((1, 1, 2, 8)) if body else 0):
        damaged[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def _numbers(body: bytes, rng: random.Random) -> bytes:
    """An offset, a length or a count becomes another."""
    code, size = rng.choice((("<i", 4), ("<q", 8), ("<h", 2)))
    if len(body) < 2 * size:
        return body
    place = rng.randrange(len(body) // size) * size
    limit = 2 ** (8 * size - 1)
    value = rng.choice((*EDGES, 7, -2, 2**27, 2**20)) % (2 * limit) - limit
    return (body[:place] + struct.pack(code, value) + body[place + size :])[: len(body)]


def _splice(body: bytes, rng: random.Random) -> bytes:
    start, end = sorted(rng.randrange(len(body) + 1) for _ in range(2))
    return rng.choice((body[:start] + body[end:], body[:end] + body[start:], body[start:end], body + body))


def _filled(body: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(body) + 1)
    return body[:start] + rng.choice((b"\0", b"\xff", rng.randbytes(1))) * rng.randrange(64) + body[start + 8 :]


DAMAGE: tuple[Callable[[bytes, random.Random], bytes], ...] = (_cut, _bits, _numbers, _numbers, _splice, _filled)
