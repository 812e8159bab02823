"""UpdateRows -> its worst responses. One pass weighs every response; only the few kept ones are cut into segments.

The pass adds up, over the valid tokens that amplify (gap and advantage of one sign) with abs(gap) >= tau_ana, the
abs(gap). Thresholds are compared as the summary does: in the gap's own type, log-probs subtracted in float64.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triage_monitor.summary.jit import REORDER, compiled, locked
from triage_monitor.summary.kernel_segment import Floats, Gaps, Ints
from triage_monitor.summary.rows_values import Array, UpdateRows
from triage_monitor.summary.spec import DEFAULT_SPEC, SummarySpec
from triage_monitor.summary.worst import KEPT, MAX_CELLS, MAX_NAME, WorstResponse

Flags = NDArray[np.bool_]
ADVANTAGE, GAP = range(2)


@compiled(REORDER)
def one_sided(x_T: Gaps, first: int, last: int, side: float, tau: float) -> float:
    """The commonest form by itself, so that it is vectorised: gaps as they came, one advantage, no mask."""
    base = np.uintp(first)
    total = np.float64(0)
    for t in range(last - first):
        push = side * np.float64(x_T[base + np.uintp(t)])
        total += push if (push >= tau) & (push < np.inf) else 0.0
    return total


@compiled(REORDER)
def tail_gaps(
    x_T: Gaps, y_T: Gaps, out_T: Flags, offset_R1: Ints, advantage: Floats, per_token: bool, tau: float, gap_R: Floats
) -> None:
    """Into gap_R. The gap is x - y, or x when y is empty; `out_T` marks positions that do not count, or is empty."""
    paired, masked = y_T.size > 0, out_T.size > 0
    plain = not (paired or masked or per_token)
    for r in range(offset_R1.size - 1):
        one = 0.0 if per_token else np.sign(advantage[r])
        if plain:
            gap_R[r] = one_sided(x_T, offset_R1[r], offset_R1[r + 1], one, tau)
            continue
        total = 0.0
        for t in range(offset_R1[r], offset_R1[r + 1]):
            i = np.uintp(t)
            gap = np.float64(x_T[i]) - np.float64(y_T[i]) if paired else np.float64(x_T[i])
            push = gap * (np.sign(advantage[i]) if per_token else one)
            counts = (push >= tau) & (push < np.inf)
            if masked:
                counts &= not out_T[i]
            total += push if counts else 0.0
        gap_R[r] = total


@compiled()
def cut(
    x_T: Gaps,
    y_T: Gaps,
    out_T: Flags,
    advantage: Floats,
    per_token: bool,
    tau: float,
    length: int,
    row_K: Ints,
    first_K: Ints,
    last_K: Ints,
    valid_S: Ints,
    tail_S: Ints,
    lowest_S: Floats,
    mean_KM: Floats,
) -> None:
    """Each of K responses in segments of `length` positions, one after the other; mean advantage and gap into mean_KM.

    `lowest_S` comes filled with infinity; a mean is NaN where no position is valid.
    """
    paired, masked = y_T.size > 0, out_T.size > 0
    segment = -1
    for k in range(row_K.size):
        held, total, pushed = 0, 0.0, 0.0
        for start in range(first_K[k], last_K[k], length):
            segment += 1
            for t in range(start, min(start + length, last_K[k])):
                gap = np.float64(x_T[t]) - np.float64(y_T[t]) if paired else np.float64(x_T[t])
                if not np.isfinite(gap) or (masked and out_T[t]):
                    continue
                one = advantage[t] if per_token else advantage[row_K[k]]
                held += 1
                total += gap
                pushed += one
                valid_S[segment] += 1
                tail_S[segment] += gap * np.sign(one) >= tau  # an unknown advantage has no sign: never
                lowest_S[segment] = min(lowest_S[segment], gap)
        mean = total / held
        if not np.isfinite(total):  # the sum of absurd gaps overflowed, their mean does not
            mean = 0.0
            for t in range(first_K[k], last_K[k]):
                gap = np.float64(x_T[t]) - np.float64(y_T[t]) if paired else np.float64(x_T[t])
                if np.isfinite(gap) and not (masked and out_T[t]):
                    mean += gap / held
        mean_KM[k, ADVANTAGE], mean_KM[k, GAP] = pushed / held, mean


def worst_of(rows: UpdateRows, spec: SummarySpec = DEFAULT_SPEC, *, shard: int = 0) -> tuple[WorstResponse, ...]:
    """At most KEPT responses with an amplifying tail, worst first; a pure function of the shard's rows."""
    if rows.tokens == 0:
        return ()
    given, weight = _columns(rows, spec), np.zeros(rows.responses)
    tail_gaps(given.x, given.y, given.out, given.offsets, given.advantages, given.per_token, given.tau, weight)
    order = np.argsort(-weight, kind="stable")[:KEPT]
    order = order[weight[order] > 0]
    return tuple(_responses(rows, given, order, weight, spec, shard)) if len(order) else ()


@dataclass(frozen=True, slots=True)
class _Columns:
    """The rows as the passes read them; `out` marks positions that do not count, or is empty."""

    x: Array
    y: Array
    out: Flags
    offsets: Ints
    advantages: Floats
    per_token: bool
    tau: float


def _columns(rows: UpdateRows, spec: SummarySpec) -> _Columns:
    first = _readable(rows.gap if rows.gap is not None else rows.learner_logprobs)
    second = _readable(rows.sampler_logprobs) if rows.gap is None else np.empty(0, first.dtype)
    if rows.gap is None and second.dtype != first.dtype:
        first, second = first.astype(np.float64), second.astype(np.float64)
    outside = np.empty(0, np.bool_) if rows.mask is None else ~rows.mask.astype(np.bool_)
    if rows.missing is not None:
        outside = rows.missing | outside if outside.size else rows.missing.astype(np.bool_)
    return _Columns(
        locked(first),
        locked(second),
        locked(outside),
        locked(rows.offsets.astype(np.int64, copy=False)),
        locked(rows.advantages.astype(np.float64, copy=False)),
        rows.advantages_per_token,
        _threshold(rows, spec),
    )


def _readable(values: Array | None) -> Array:
    assert values is not None
    return values if values.dtype in (np.float32, np.float64) else values.astype(np.float32)


def _threshold(rows: UpdateRows, spec: SummarySpec) -> float:
    narrow = rows.gap is not None and rows.gap.dtype != np.float64
    return float(np.float32(spec.tau_ana)) if narrow else spec.tau_ana


def _responses(
    rows: UpdateRows, given: _Columns, order: Ints, weight: Floats, spec: SummarySpec, shard: int
) -> Iterator[WorstResponse]:
    first, last = _heard(rows, order)
    count = -(-(last - first) // spec.segment)
    begin = np.cumsum(count) - count
    valid_S, tail_S = np.zeros(count.sum(), np.int64), np.zeros(count.sum(), np.int64)
    lowest_S, mean_KM = np.full(count.sum(), np.inf), np.zeros((len(order), 2))
    cut(
        given.x, given.y, given.out, given.advantages, given.per_token, given.tau, spec.segment,
        order, first, last, valid_S, tail_S, lowest_S, mean_KM,
    )  # fmt: skip
    eligible_S = valid_S >= spec.minimum_valid
    heavy_S = eligible_S & (tail_S >= spec.phi * valid_S)
    totals = [np.add.reduceat(some, begin, dtype=np.int64).tolist() for some in (valid_S, tail_S, eligible_S, heavy_S)]
    for i, row in enumerate(order.tolist()):
        segments = slice(begin[i], begin[i] + count[i])
        per_cell = -(-int(count[i]) // MAX_CELLS)
        tokens, hits, lowest = _by_cell(valid_S[segments], tail_S[segments], lowest_S[segments], per_cell)
        yield WorstResponse(
            row=row,
            shard=shard,
            response_id=_name(rows.response_ids, row),
            engine=_name(rows.engines, row),
            advantage=_number(mean_KM[i, ADVANTAGE]),
            tail_gap=round(min(float(weight[row]), sys.float_info.max), 6),
            mean_gap=round(float(mean_KM[i, GAP]), 6),
            valid_tokens=totals[0][i],
            tail_tokens=totals[1][i],
            segments=int(count[i]),
            eligible=totals[2][i],
            heavy=totals[3][i],
            per_cell=per_cell,
            tokens=tuple(tokens),
            tail=tuple(hits),
            lowest=tuple(_number(value) for value in lowest),
        )


def _by_cell(
    valid_S: Ints, tail_S: Ints, lowest_S: NDArray[np.float64], per_cell: int
) -> tuple[list[int], list[int], list[float]]:
    """What the segments hold, `per_cell` of them together."""
    if per_cell > 1:
        cells = np.arange(0, len(valid_S), per_cell)
        valid_S, tail_S = np.add.reduceat(valid_S, cells), np.add.reduceat(tail_S, cells)
        lowest_S = np.minimum.reduceat(lowest_S, cells)
    return valid_S.tolist(), tail_S.tolist(), lowest_S.tolist()


def _heard(rows: UpdateRows, order: Ints) -> tuple[Ints, Ints]:
    """Where each response begins and ends, masked positions at either end left out."""
    first, last = rows.offsets[order], rows.offsets[order + 1]
    if rows.mask is not None:
        for i, (start, stop) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
            present = np.flatnonzero(rows.mask[start:stop])
            first[i], last[i] = start + present[0], start + present[-1] + 1
    return first, last


def _number(value: float) -> float | None:
    return round(float(value), 6) if math.isfinite(value) else None


def _name(names: Array | None, row: int) -> str | None:
    """Shortened: a name is whatever a trainer sent."""
    if names is None or names[row] is None:
        return None
    text = str(names[row])
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 1]}…"
