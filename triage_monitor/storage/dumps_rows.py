"""One response of a framework's dump as a row of the contract's table, and rows bundled into tables of bounded size.

The readers of the single frameworks (dumps_nemo, dumps_prime, dumps_slime) cut a response out of its padding, prompt or
slices; this is what they cut it into. Positions run from the first response token to the last; a hole in between (a
tool's answer) keeps its place under mask 0, so that segments fall where they fell in training. A value that the dump
does not hold is missing, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from triage_monitor.errors import InputError
from triage_monitor.summary.rows_values import Array

TABLE_BYTES = 32 << 20
BYTES_A_TOKEN = 25
MAX_STEP = 2**53


@dataclass(frozen=True, slots=True)
class DumpRow:
    """n positions: log-probs and advantage float32 or float64 [n], mask bool [n]; `missing` marks what has no value."""

    step: int
    response_id: str
    learner: Array
    sampler: Array
    advantage: Array
    mask: Array
    missing: Array | None = None
    reward: float | None = None
    policy_version: int | None = None


def tables(rows: Iterable[DumpRow], settings: Mapping[str, str]) -> Iterator[pa.Table]:
    """First an empty table with every column, then the rows; `settings` go into the schema's metadata."""
    waiting: list[DumpRow] = []
    size = 0
    is_first = True
    for row in rows:
        if is_first:
            yield _table([row], settings).slice(0, 0)
            is_first = False
        waiting.append(row)
        size += BYTES_A_TOKEN * len(row.mask) + 100
        if size >= TABLE_BYTES:
            yield _table(waiting, settings)
            waiting, size = [], 0
    if waiting:
        yield _table(waiting, settings)


def _table(rows: list[DumpRow], settings: Mapping[str, str]) -> pa.Table:
    missing = [row.missing if row.missing is not None else np.zeros(len(row.mask), np.bool_) for row in rows]
    columns: dict[str, Any] = {
        "step": pa.array([row.step for row in rows], pa.int64()),
        "response_id": pa.array([row.response_id.encode("utf-8", "replace") for row in rows]).cast(pa.string()),
        "learner_logprobs": _lists([row.learner for row in rows]),
        "sampler_logprobs": _lists([row.sampler for row in rows], np.concatenate(missing)),
        "advantage": _lists([row.advantage for row in rows]),
        "mask": _lists([row.mask for row in rows]),
        "reward": pa.array([row.reward for row in rows], pa.float64()),
    }
    if all(row.policy_version is not None for row in rows):
        columns["policy_version"] = pa.array([row.policy_version for row in rows], pa.int64())
    return pa.table(columns).replace_schema_metadata(dict(settings))


def _lists(parts: list[Array], nulls: Array | None = None) -> pa.Array:
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(part) for part in parts], dtype=np.int64)])
    values = pa.array(np.concatenate(parts), mask=nulls if nulls is not None and nulls.any() else None)
    return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), values)


def step_of(value: Any, field: str) -> int:
    if type(value) is not int or not 0 <= value < MAX_STEP:
        raise InputError("step", f"is {value!r:.40}, not a whole number from 0 on", column=field)
    return value


def finite_or_none(value: Any) -> float | None:
    """A reward: a finite number, or nothing."""
    try:
        number = float(value) if isinstance(value, int | float) else float("nan")
    except OverflowError:
        return None
    return number if np.isfinite(number) else None


def response_span(mask: Array) -> slice:
    """From the first position with mask 1 to the last; empty when there is none."""
    inside = np.flatnonzero(mask)
    return slice(int(inside[0]), int(inside[-1]) + 1) if len(inside) else slice(0, 0)


def numbers(value: Any, field: str, *, nulls: bool = False) -> Array:
    """A JSON list of numbers as float64; null, where allowed, is NaN. InputError names the field."""
    if not isinstance(value, list):
        raise InputError("wrong_type", f"is {_shown(value)}, not a list of numbers", column=field)
    try:
        if str in map(type, value):  # numpy would read the text
            raise TypeError
        array = np.array(value, dtype=np.float64)  # null becomes NaN
    except (TypeError, ValueError, OverflowError):
        wrong = next((item for item in value if not isinstance(item, int | float | None)), value)
        raise InputError("wrong_type", f"holds {_shown(wrong)}, which is no number", column=field) from None
    if array.ndim != 1:
        raise InputError("wrong_type", "is no flat list of numbers", column=field)
    if not nulls and np.isnan(array).any() and None in value:
        raise InputError("null", "holds a null", column=field)
    return array


def flags(value: Any, field: str) -> Array:
    array = numbers(value, field)
    wrong = np.flatnonzero((array != 0) & (array != 1))
    if len(wrong):
        raise InputError("mask_value", f"holds {array[wrong[0]]:g}; only 0 and 1 are a mask", column=field)
    return array.astype(np.bool_)


def same_length(field: str, array: Array, lead: str, expected: int) -> None:
    if len(array) != expected:
        raise InputError("length", f"has {len(array)} entries where '{lead}' has {expected}", column=field)


def _shown(value: Any) -> str:
    return repr(value)[:40]
