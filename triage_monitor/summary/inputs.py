"""What `summarize` accepts, brought into one shape or refused with the field and row that is wrong.

Flat arrays with `offsets`, or lists of one array per response. float16 gaps become float32; float32 and float64 keep
their precision; two log-prob arrays are subtracted in float64, because the difference of two rounded numbers near -5 is
only good to 1e-6 in float32 while gaps of 1e-6 matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triage_monitor.errors import InputError
from triage_monitor.summary.states import MASKED, MISSING, PRESENT

Array = NDArray[Any]
ArrayLike = Any  # a numpy array, anything with __array__, or a sequence of numbers or of per-response arrays


@dataclass(frozen=True, slots=True)
class Tokens:
    """One shard in kernel form; shapes: T tokens, R responses."""

    gap_T: Array
    state_T: NDArray[np.uint8]
    offset_R1: NDArray[np.int64]
    advantage_R: NDArray[np.float64]
    advantage_T: NDArray[np.float64]
    learner_T: Array | None
    sampler_T: Array | None

    @property
    def responses(self) -> int:
        return self.offset_R1.size - 1


def tokens_of(
    gap: ArrayLike,
    learner_logprobs: ArrayLike,
    sampler_logprobs: ArrayLike,
    advantages: ArrayLike,
    offsets: ArrayLike,
    mask: ArrayLike,
    missing: ArrayLike,
) -> Tokens:
    """Raises InputError naming the field; see `summarize` for shapes."""
    if (gap is None) == (learner_logprobs is None and sampler_logprobs is None):
        raise InputError("gap_or_logprobs", "give either gap or both learner_logprobs and sampler_logprobs")
    if gap is None and (learner_logprobs is None or sampler_logprobs is None):
        absent = "learner_logprobs" if learner_logprobs is None else "sampler_logprobs"
        raise InputError("gap_or_logprobs", "both log-probs are needed to form a gap", column=absent)
    first_name = "gap" if gap is not None else "learner_logprobs"
    first = gap if gap is not None else learner_logprobs
    values, borders = _flat(first, first_name, offsets)
    learner = sampler = None
    if gap is None:
        learner = values
        sampler, _ = _flat(sampler_logprobs, "sampler_logprobs", offsets, borders)
        with np.errstate(invalid="ignore", over="ignore"):
            values = np.subtract(learner, sampler, dtype=np.float64)
    by_response, by_token = _advantages(advantages, offsets, borders)
    state = _state(mask, missing, offsets, borders)
    return Tokens(np.ascontiguousarray(values), state, borders, by_response, by_token, learner, sampler)


def valid_positions(tokens: Tokens) -> NDArray[np.bool_]:
    """[T], true for tokens that enter the statistics."""
    valid = np.isfinite(tokens.gap_T)
    return valid & (tokens.state_T == PRESENT) if tokens.state_T.size else valid


def per_response(values: ArrayLike, name: str, responses: int, kind: type) -> Array | None:
    """A column of one number a response, or None."""
    if values is None:
        return None
    array = _numbers(values, name, kind)
    if array.shape != (responses,):
        raise InputError("length", f"has shape {array.shape} for {responses} responses", column=name)
    return array


def per_response_or_token(values: ArrayLike, name: str, tokens: Tokens, offsets: ArrayLike) -> Array | None:
    """A column of one whole number a response or a token, always returned per token."""
    if values is None:
        return None
    if offsets is None and _is_ragged(values):
        return _flat(values, name, None, tokens.offset_R1)[0].astype(np.int64)
    array = _numbers(values, name, np.int64)
    if array.shape == (tokens.responses,):
        return np.repeat(array, np.diff(tokens.offset_R1))
    if array.shape == tokens.gap_T.shape:
        return array
    raise InputError("length", f"has shape {array.shape}, neither one a response nor one a token", column=name)


def _is_ragged(values: ArrayLike) -> bool:
    return isinstance(values, Sequence) and len(values) > 0 and all(np.ndim(item) == 1 for item in values)


def _numbers(values: ArrayLike, name: str, kind: Any = None) -> Array:
    if hasattr(values, "detach"):  # a torch tensor, without importing torch
        values = values.detach().cpu()
    try:
        array = np.asarray(values)
        return (
            array if kind is None else array.astype(kind, casting="same_kind" if array.dtype.kind != "O" else "unsafe")
        )
    except (TypeError, ValueError) as error:
        raise InputError("type", f"cannot be read as numbers ({error})", column=name) from None


def _flat(
    values: ArrayLike, name: str, offsets: ArrayLike, borders: NDArray[np.int64] | None = None
) -> tuple[Array, NDArray[np.int64]]:
    if offsets is None:
        values, own = _concatenate(values, name)
    else:
        values, own = _numbers(values, name), _offsets(offsets)
    if values.ndim != 1:
        raise InputError("shape", f"must be one-dimensional, has {values.ndim} dimensions", column=name)
    if values.dtype.kind not in "fiub":
        raise InputError("type", f"holds {values.dtype}, not numbers", column=name)
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float32 if values.dtype == np.float16 else np.float64)
    if own[-1] != values.size:
        raise InputError("length", f"has {values.size} values where offsets end at {own[-1]}", column=name)
    if borders is not None and not np.array_equal(own, borders):
        row = int(np.flatnonzero(np.diff(own) != np.diff(borders))[0]) if own.size == borders.size else None
        raise InputError("length", "its lengths differ from the other per-token columns'", column=name, row=row)
    return values, own


def _concatenate(values: ArrayLike, name: str) -> tuple[Array, NDArray[np.int64]]:
    if not isinstance(values, Sequence):
        raise InputError("offsets", "a flat array needs offsets; without them give one array a response", column=name)
    rows = []
    for row, item in enumerate(values):
        array = _numbers(item, name)
        if array.ndim != 1:
            raise InputError("shape", f"must be one-dimensional, has {array.ndim} dimensions", column=name, row=row)
        rows.append(array)
    lengths = np.array([row.size for row in rows], dtype=np.int64)
    flat = np.concatenate(rows) if rows else np.empty(0, dtype=np.float32)
    return flat, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _offsets(offsets: ArrayLike) -> NDArray[np.int64]:
    array = _numbers(offsets, "offsets", np.int64)
    if array.ndim != 1 or array.size == 0 or array[0] != 0:
        raise InputError("offsets", "must be a one-dimensional array that starts at 0", column="offsets")
    steps = np.diff(array)
    if (steps < 0).any():
        row = int(np.argmax(steps < 0))
        raise InputError("offsets", "decrease", column="offsets", row=row)
    return np.ascontiguousarray(array)


def _advantages(
    advantages: ArrayLike, offsets: ArrayLike, borders: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    none = np.empty(0)
    if advantages is None:
        raise InputError("advantages", "are needed, one a response or one a token", column="advantages")
    if offsets is None and _is_ragged(advantages):
        return none, _flat(advantages, "advantages", None, borders)[0].astype(np.float64)
    array = _numbers(advantages, "advantages", np.float64)
    if array.shape == (borders.size - 1,):
        return np.ascontiguousarray(array), none
    if array.shape == (int(borders[-1]),):
        return none, np.ascontiguousarray(array)
    raise InputError(
        "length",
        f"have shape {array.shape}, neither one a response ({borders.size - 1}) nor one a token ({borders[-1]})",
        column="advantages",
    )


def _state(mask: ArrayLike, missing: ArrayLike, offsets: ArrayLike, borders: NDArray[np.int64]) -> NDArray[np.uint8]:
    if mask is None and missing is None:
        return np.empty(0, dtype=np.uint8)
    state = np.full(int(borders[-1]), PRESENT, dtype=np.uint8)
    for values, name in ((missing, "missing"), (mask, "mask")):
        if values is None:
            continue
        flat = _flat(values, name, offsets, borders)[0] != 0
        if name == "missing":
            state[flat] = MISSING
        else:
            state[~flat] = MASKED
    return state
