"""How each kind of batch says where its responses are; every function gives a `Placement`.

    padded       [B, T], one sample a row, padded on either side or both, with or without the prompt
    packed       [T] or [1, T] with cu_seqlens [R + 1]; what lies behind the last offset is padding
    by_position  [T] or [1, T] with position ids: a sample begins where the position is not the one before plus 1
    by_id        [B, T] with a sample number in every token, 0 for what belongs to none
    per_sample   a list of 1-D arrays, one a sample

`dummy_first`: the first position of every sample holds no prediction (arrays of the full sequence whose index t is
about token t); it is left out whatever the mask says there, as the frameworks' own losses do. A mask is read as
nonzero = 1; NaN in a mask is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triage_monitor.errors import InputError
from triage_monitor.trainer.layouts.placement import Indices, Placement, as_host, placed, placed_ranges

Mask = NDArray[np.bool_]


def padded(mask: Any, *, dummy_first: bool = False) -> Placement:
    """mask [B, T]: one response a row."""
    rows = _mask(mask, "mask")
    if rows.ndim != 2:
        raise InputError("shape", f"expected [B, T], got {rows.shape}", column="mask")
    if dummy_first:
        rows = rows.copy()
        rows[:, :1] = False
    return placed(rows.reshape(-1), np.arange(rows.shape[0] + 1) * rows.shape[1], rows.shape)


def packed(mask: Any, cu_seqlens: Any, *, dummy_first: bool = False) -> Placement:
    """mask [T] or [1, T]; cu_seqlens [R + 1] from 0, not decreasing, at most T."""
    row = _row(mask, "mask")
    bounds = checked_bounds(cu_seqlens, row.size)
    return placed(_without_first(row, bounds, dummy_first), bounds, row.shape)


def by_position(mask: Any, position_ids: Any, *, responses: int | None = None, dummy_first: bool = False) -> Placement:
    """mask and position_ids [T] or [1, T]. `responses`: how many samples there are; whatever follows is
    padding and must be masked. Without it, masked tokens of position 0 at the end that are samples of
    one token count as padding."""
    row, position = _row(mask, "mask"), _row(position_ids, "position_ids", keep=True)
    if position.dtype.kind not in "iu" and position.size:
        raise InputError("type", f"holds {position.dtype}, not whole numbers", column="position_ids")
    position = position.astype(np.int64)
    if position.shape != row.shape:
        raise InputError("shape", f"{position.shape} is not the mask's {row.shape}", column="position_ids")
    begins = np.flatnonzero(np.diff(position, prepend=position[:1] - 2) != 1)
    bounds = np.append(begins, row.size).astype(np.int64)
    kept = _unpadded(row, position, bounds) if responses is None else responses
    if not 0 <= kept < bounds.size:
        raise InputError("length", f"{bounds.size - 1} samples where {kept} were said", column="position_ids")
    if row[bounds[kept] :].any():
        at = int(bounds[kept] + np.argmax(row[bounds[kept] :]))
        raise InputError("length", f"a mask-1 token behind the {kept} samples that were said", column="mask", row=at)
    bounds = bounds[: kept + 1]
    return placed(_without_first(row, bounds, dummy_first), bounds, row.shape)


def by_id(response_ids: Any, sequence_ids: Any = None, *, dummy_first: bool = False) -> Placement:
    """response_ids [B, T] (or [T]): the sample's number on its trained tokens, 0 elsewhere. Samples may not interleave.

    sequence_ids: the sample's number on all of its tokens (prompts and holes too), 0 on padding; then a sample without
    a trained token is an empty response. Responses are in order of row, then place.
    """
    ids = _rows(response_ids, "response_ids")
    whole = ids if sequence_ids is None else _rows(sequence_ids, "sequence_ids")
    if whole.shape != ids.shape:
        raise InputError("shape", f"{whole.shape} is not that of response_ids, {ids.shape}", column="sequence_ids")
    trained = ids != 0
    if (trained & (whole != 0) & (ids != whole)).any() and len(np.unique(ids[trained])) > 1:
        row = int(np.argmax((trained & (whole != 0) & (ids != whole)).any(axis=1)))
        raise InputError("length", "a trained token has another number than its sample", column="sequence_ids", row=row)
    if (trained & (whole == 0)).any():
        row = int(np.argmax((trained & (whole == 0)).any(axis=1)))
        raise InputError("length", "a trained token belongs to no sample", column="sequence_ids", row=row)
    first, last = _ranges(whole, "response_ids" if sequence_ids is None else "sequence_ids")
    flat = trained.reshape(-1)
    if dummy_first:
        flat = flat.copy()
        flat[first] = False
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(flat)))
    hits = np.flatnonzero(flat)
    low, high = before[first], before[last + 1]
    has = high > low
    start = np.where(has, np.append(hits, 0)[np.minimum(low, hits.size)], first)
    stop = np.where(has, np.append(hits, 0)[np.maximum(high - 1, 0)] + 1, start)
    return placed_ranges(flat, start, stop - start, np.shape(as_host(response_ids)))


def per_sample(masks: Sequence[Any], *, dummy_first: bool = False) -> Placement:
    """A list of [L_i]: one response an item; items may be empty."""
    items = [_mask(item, "mask", row) for row, item in enumerate(masks)]
    for row, item in enumerate(items):
        if item.ndim != 1:
            raise InputError("shape", f"must be one-dimensional, has {item.ndim} dimensions", column="mask", row=row)
    lengths = tuple(item.size for item in items)
    flat = np.concatenate(items) if items else np.zeros(0, np.bool_)
    bounds = np.cumsum((0, *lengths), dtype=np.int64)
    return placed(_without_first(flat, bounds, dummy_first), bounds, flat.shape, lengths)


def _mask(values: Any, name: str, row: int | None = None) -> Mask:
    array = as_host(values, name)
    if array.dtype.kind not in "biuf":
        raise InputError("type", f"holds {array.dtype}, not numbers", column=name, row=row)
    if array.dtype.kind == "f" and np.isnan(array).any():
        at = int(np.argwhere(np.isnan(array))[0][0]) if row is None else row
        raise InputError("mask", "holds NaN", column=name, row=at)
    mask: Mask = array != 0
    return mask


def _row(values: Any, name: str, *, keep: bool = False) -> NDArray[Any]:
    array = as_host(values, name) if keep else _mask(values, name)
    if array.ndim != 1 and not (array.ndim == 2 and array.shape[0] == 1):
        raise InputError("shape", f"packed tokens are [T] or [1, T], got {array.shape}", column=name)
    return array.reshape(-1)


def _rows(values: Any, name: str) -> Indices:
    array = as_host(values, name)
    if array.ndim not in (1, 2) or array.dtype.kind not in "biu":
        raise InputError("shape", f"expected whole numbers [B, T], got {array.dtype} {array.shape}", column=name)
    return np.atleast_2d(array).astype(np.int64)


def checked_bounds(cu_seqlens: Any, tokens: int | None = None) -> Indices:
    bounds = as_host(cu_seqlens, "cu_seqlens")
    if bounds.ndim != 1 or bounds.size < 1 or bounds.dtype.kind not in "iu":
        said = f"expected whole numbers [R + 1], got {bounds.dtype} {bounds.shape}"
        raise InputError("offsets", said, column="cu_seqlens")
    bounds = bounds.astype(np.int64)
    if bounds[0] != 0 or (tokens is not None and bounds[-1] > tokens):
        over = "" if tokens is None else f" over {tokens} tokens"
        raise InputError("offsets", f"run from {bounds[0]} to {bounds[-1]}{over}", column="cu_seqlens")
    if (np.diff(bounds) < 0).any():
        raise InputError("offsets", "decrease", column="cu_seqlens", row=int(np.argmax(np.diff(bounds) < 0)))
    return bounds


def _without_first(row: Mask, bounds: Indices, dummy_first: bool) -> Mask:
    if not dummy_first:
        return row
    row = row.copy()
    row[bounds[:-1][np.diff(bounds) > 0]] = False
    return row


def _unpadded(row: Mask, position: Indices, bounds: Indices) -> int:
    """The number of samples before the padding at the end."""
    starts = bounds[:-1]
    is_padding = (np.diff(bounds) == 1) & (position[starts] == 0) & ~row[starts]
    kept = np.flatnonzero(~is_padding)
    return int(kept[-1]) + 1 if kept.size else 0


def _ranges(ids: Indices, name: str) -> tuple[Indices, Indices]:
    """First and last flat position of every sample. Raises InputError where two samples of a row interleave."""
    width = ids.shape[1]
    at = np.flatnonzero(ids.reshape(-1))
    key = ids.reshape(-1)[at]
    row = at // max(width, 1)
    begins = np.ones(at.size, np.bool_)
    begins[1:] = (key[1:] != key[:-1]) | (row[1:] != row[:-1])
    starts = np.flatnonzero(begins)
    pairs = np.stack((row[starts], key[starts]), axis=1)
    if len(np.unique(pairs, axis=0)) != len(pairs):
        _, first_at = np.unique(pairs, axis=0, return_index=True)
        again = int(np.setdiff1d(np.arange(len(pairs)), first_at)[0])
        said = f"sample {pairs[again][1]} comes again after another one"
        raise InputError("interleaved", said, column=name, row=int(pairs[again][0]))
    first = at[starts].astype(np.int64)
    last = at[np.append(starts[1:], at.size) - 1].astype(np.int64) if starts.size else first
    return first, last
