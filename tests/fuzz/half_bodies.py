"""One half of an update as nobody should send it: odd types and lists under the right names, whole updates, damage.

Ids come from a small pool, so that the two sides of a step often match, in different lengths, twice, or not at all.
About half of the bodies may be taken. Everything is synthetic.
"""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
from fuzz.arrow_bodies import EDGES, FLOATS, arrow_body, damaged, odd_array, stream_of

from triage_monitor.summary.rows_halves import LEARNER, SAMPLER, SIDES

VALUES = {SAMPLER: "sampler_logprobs", LEARNER: "learner_logprobs"}
IDS = (*(f"r{number}" for number in range(12)), "", "\N{SNOWMAN}", "x" * 3000, None)
LOGPROBS = (0.0, -0.0, -0.5, -1e-7, -30.0, -9999.0, 1.0, -1e308, float("nan"), float("-inf"), None)
TEXT_FORMS = (pa.string(), pa.large_string(), pa.string_view())
SETTINGS = ("temperature", "top_p", "precision", "learner", "sampler", "objective", "padding_rows", "run", "step")
TEXTS = ("1.0", "nan", "-1", "", '{"rows": 1}', '{"rows": 1e999}', "9" * 400, "nvfp4", "x" * 300, "\udcff")


def half_body(side: str, rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.15:
        return arrow_body(rng)
    body = _half(side if kind < 0.95 else rng.choice(SIDES), rng)
    return damaged(body, rng) if rng.random() < 0.25 else body


def _half(side: str, rng: random.Random) -> bytes:
    rows = rng.choice((0, 1, 2, 5, 5, 9))
    lengths = [rng.choice((0, 1, 2, 2, 3)) for _ in range(rows)]
    ids = rng.sample(IDS[:12], rows)
    if rng.random() < 0.3 and rows:
        ids[rng.randrange(rows)] = rng.choice(IDS)
    columns: dict[str, Any] = {
        "response_id": pa.array(ids, rng.choice(TEXT_FORMS)),
        VALUES[side]: _logprobs(lengths, rng, plain=rng.random() < 0.6),
    }
    if side == LEARNER:
        advantage = [rng.choice((-1.0, 1.0, 0.0, 0.25, float("nan"), 1e300)) for _ in range(rows)]
        columns["advantage"] = pa.array(advantage, rng.choice((pa.float32(), pa.float64())))
    for name, make in _OPTIONAL.items():
        if rng.random() < (0.2 if side == LEARNER or name in ("policy_version", "engine") else 0.01):
            columns[name] = make(lengths, rng)
    if rng.random() < 0.15:
        columns[rng.choice((*columns, "gap", "extra", "step"))] = odd_array(rows, rng)
    if rng.random() < 0.1:
        columns.pop(rng.choice(list(columns)))
    if not columns:
        return b""
    return stream_of(columns, rng, metadata=_metadata(rng))


def _logprobs(lengths: list[int], rng: random.Random, *, plain: bool) -> pa.Array:
    pool = LOGPROBS[2:5] if plain else LOGPROBS
    kind = rng.choice(FLOATS)
    limit = 6e4 if kind == pa.float16() else 3e38
    values = [[rng.choice(pool) for _ in range(size)] for size in lengths]
    values = [[None if item is None else kind.to_pandas_dtype()(max(item, -limit)) for item in row] for row in values]
    return pa.array(values, rng.choice((pa.list_, pa.large_list, pa.list_view))(kind))


def _flags(lengths: list[int], rng: random.Random) -> pa.Array:
    return pa.array([[rng.random() < 0.6 for _ in range(size)] for size in lengths], pa.list_(pa.bool_()))


def _whole(lengths: list[int], rng: random.Random) -> pa.Array:
    pool = (1, 1, 2, rng.choice(EDGES) % 2**62)
    if rng.random() < 0.3:
        return pa.array([[rng.choice(pool) for _ in range(size)] for size in lengths], pa.list_(pa.int64()))
    return pa.array([rng.choice((*pool * 10, None)) for _ in lengths], pa.int64())


_OPTIONAL = {
    "mask": _flags,
    "turn_starts": lambda lengths, rng: pa.array([[0][:size] for size in lengths], pa.list_(pa.int64())),
    "policy_version": _whole,
    "engine": lambda lengths, rng: pa.array([rng.choice(("a", "b", "", None)) for _ in lengths], pa.string()),
    "group": lambda lengths, rng: pa.array([rng.choice((1, 2, 2**62)) for _ in lengths], pa.int64()),
    "reward": lambda lengths, rng: pa.array([rng.choice((None, 1.0, 1e308, float("inf"))) for _ in lengths]),
    "padding": lambda lengths, rng: pa.array([rng.random() < 0.3 for _ in lengths], pa.bool_()),
    "grad_norm": lambda lengths, rng: pa.array([rng.choice((None, 1.0, -1.0, 1e308)) for _ in lengths], pa.float64()),
}


def _metadata(rng: random.Random) -> dict[str, bytes] | None:
    if rng.random() < 0.8:
        return None
    names = rng.sample(SETTINGS, rng.randrange(1, 4))
    return {name: rng.choice(TEXTS).encode("utf-8", "surrogateescape") for name in names}
