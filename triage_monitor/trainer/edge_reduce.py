"""The kernel again, in torch, on the training device: an update's tokens -> one float64 vector of fixed length.

The same counts as summary/kernel.py, bit for bit, and the same sums, formed in float64. Nothing here waits for the
device: every shape follows from the inputs' shapes, tokens lie in [slots, W], and what is not a token is a 0 in a sum.

Deterministic on every device without torch's switch for it: histograms add whole numbers, which no order changes; sums
of floats run along dimensions (`sum`) or, over the segments of a response, by doubling strides (`_over_responses`),
never by atomic addition. k3 is a series below SMALL, where exp(d) - 1 - d would cancel.
What the vector becomes on the host is summary/reduced.py's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from triage_monitor.summary.build import segment_tables
from triage_monitor.summary.kernel_segment import LOG_1E4, LOG_2, MAX_EXPONENT
from triage_monitor.summary.sketch import BINS, RAW_BINS, bin_of
from triage_monitor.summary.spec import SummarySpec
from triage_monitor.summary.step import LEVELS
from triage_monitor.trainer.edge_layout import EdgeTokens, at, to_device

SMALL = 0.05
WEIGHT_EXPONENT = 300.0
CHUNK_TOKENS = 1 << 21  # of one pass: bounds the temporaries, some fifty float64 numbers a token
ROW_SUMS = ("tokens", "valid", "gap", "mass_a_neg", "mass_a_pos", "broken", "zero", "learner", "sampler")
ROW_COLUMNS = len(ROW_SUMS) + 6  # and, per family, the level of the worst segment and whether one was heavy


@dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    """On the device: sketch bin of the top 16 bits, level and first heavy count of a segment."""

    fold: Tensor
    level: Tensor
    heavy_from: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """Slots c of one pass: their tokens [c, W]; `d` float64 and `a` are 0 where not valid."""

    x: Tensor
    d: Tensor
    a: Tensor
    valid: Tensor
    usable: Tensor  # valid, with a finite advantage
    unmasked: Tensor
    kinds: Tensor  # missing, NaN, +inf, -inf
    learner: Tensor | None
    sampler: Tensor | None
    lag: Tensor | None


def reduce_tokens(tokens: EdgeTokens, spec: SummarySpec) -> Tensor:
    """The vector that `edge.py` reads: see `sections` for its parts and their order. No host synchronisation."""
    borders, device, width = tokens.borders, tokens.gap.device, spec.segment
    tables = _tables(spec.segment, spec.phi, device)
    lane = torch.arange(width, device=device)
    index_in_response = torch.arange(borders.slots, device=device) - at(borders.slot_start, borders.slot_response)
    start = at(tokens.first, borders.slot_response) + index_in_response * width
    last = at(tokens.last, borders.slot_response)
    newest = _newest_version(tokens)
    gap_histogram = torch.zeros(3 * BINS, dtype=torch.int64, device=device)
    totals: Tensor | None = None
    lowest, highest, rows, tails = [], [], [], []
    step = max(1, CHUNK_TOKENS // width)
    for begin in range(0, borders.slots, step):
        chosen = slice(begin, begin + step)
        part = _gather(tokens, borders.slot_response[chosen], start[chosen], last[chosen], lane, newest)
        numbers, low, high = _scalars(part, spec)
        totals = numbers if totals is None else totals + numbers
        lowest.append(low)
        highest.append(high)
        sums, tail = _slots(part, spec)
        rows.append(sums)
        tails.append(tail)
        _count_gaps(part, tables.fold, gap_histogram)
    assert totals is not None
    bounds = torch.cat([torch.stack(lowest).amin(0), torch.stack(highest).amax(0)])
    slot_rows, slot_tails = torch.cat(rows), torch.cat(tails)
    segments = _segments(tokens, slot_rows[:, 1].to(torch.int64), slot_tails, start < last, spec, tables)
    table = _over_responses(slot_rows, tokens, torch.add)
    worst = _over_responses(segments.worst, tokens, torch.maximum)
    ends = torch.cat([table, worst.double()], 1)
    whole = [segments.counts, segments.segment, segments.pair, gap_histogram, tokens.faults]
    return torch.cat([totals, bounds, *(part.double() for part in whole), ends.reshape(-1)])


def sections(spec: SummarySpec, responses: int) -> dict[str, tuple[int, ...]]:
    """Shape of each part of the vector, in order."""
    side = spec.segment + 1
    return {
        "counts": (12,),  # the kernel's, but for those of segments
        "sums": (10,),
        "regions": (19,),
        "probabilities": (6,),
        "lags": (10,),
        "minima": (3,),
        "maxima": (4,),  # the fourth: largest difference of the probabilities
        "segments": (12,),  # segments, eligible, adjacent; heavy, first, both for each family
        "segment": (3, side, side),
        "pair": (3, LEVELS + 1, LEVELS + 1),
        "gap": (3, BINS),
        "faults": (3,),
        "rows": (responses, ROW_COLUMNS),
    }


@lru_cache(maxsize=8)
def _tables(length: int, phi: float, device: torch.device) -> _Tables:
    level, heavy = segment_tables(length, phi)
    top = np.arange(RAW_BINS, dtype=np.uint32) << 16
    with np.errstate(invalid="ignore"):
        fold = bin_of(top.view(np.float32).astype(np.float64))
    return _Tables(
        to_device(fold, device),
        to_device(level.astype(np.int64).reshape(-1), device),
        to_device(heavy, device),
    )


def _newest_version(tokens: EdgeTokens) -> Tensor | None:
    """The largest version that sampled a valid token."""
    if tokens.version is None:
        return None
    valid = tokens.present & torch.isfinite(tokens.gap)
    lowest = torch.iinfo(torch.int64).min
    if not tokens.version_per_token:
        counted = torch.cat((valid.new_zeros(1, dtype=torch.int64), valid.to(torch.int64).cumsum(0)))
        valid = at(counted, tokens.borders.end) > at(counted, tokens.borders.start)
    return torch.where(valid, tokens.version, lowest).amax()


def _gather(
    tokens: EdgeTokens, owner: Tensor, start: Tensor, last: Tensor, lane: Tensor, newest: Tensor | None
) -> _Pass:
    place = start[:, None] + lane
    inside = place < last[:, None]
    place = place.clamp(max=tokens.gap.shape[0] - 1)
    x = at(tokens.gap, place)
    unmasked, present = inside & at(tokens.unmasked, place), inside & at(tokens.present, place)
    valid = present & torch.isfinite(x)

    def spread(values: Tensor, per_token: bool) -> Tensor:
        return at(values, place) if per_token else at(values, owner)[:, None].expand(place.shape)

    a = spread(tokens.advantage, tokens.advantage_per_token)
    finite_a = torch.isfinite(a)
    lag = None
    if tokens.version is not None and newest is not None:
        lag = torch.where(valid, newest - spread(tokens.version, tokens.version_per_token), 0)
    unusable = present & ~valid
    kinds = [unmasked & ~present, unusable & torch.isnan(x), unusable & (x > 0), unusable & (x < 0)]
    usable = valid & finite_a
    return _Pass(
        x=torch.where(valid, x, 0.0),
        d=torch.where(valid, x, 0.0).double(),
        a=torch.where(usable, a, 0.0),
        valid=valid,
        usable=usable,
        unmasked=unmasked,
        kinds=torch.stack([kind.sum() for kind in kinds]),
        learner=None if tokens.learner is None else torch.where(valid, at(tokens.learner, place), 0.0).double(),
        sampler=None if tokens.sampler is None else torch.where(valid, at(tokens.sampler, place), 0.0).double(),
        lag=lag,
    )


def _own(value: float, x: Tensor) -> float:
    """A threshold in the gap's own type, as the kernel compares."""
    return float(np.float32(value)) if x.dtype == torch.float32 else value


def _scalars(part: _Pass, spec: SummarySpec) -> tuple[Tensor, Tensor, Tensor]:
    """Everything that adds over tokens, in the order of `sections`; smallest gap by the sign of A; largest likewise."""
    x, d, valid = part.x, part.d, part.valid
    near, tau, deep = (_own(value, x) for value in (spec.near_zero, spec.tau_ana, spec.deep_tail))
    negative, positive, against, along = d < 0, d > 0, part.a < 0, part.a > 0
    a_neg, a_pos, c_neg, c_pos = against & negative, along & positive, against & positive, along & negative
    tail_neg, tail_pos = a_neg & (x <= -tau), a_pos & (x >= tau)
    overflow = (d > MAX_EXPONENT / 2) | (d < -MAX_EXPONENT)
    flags = [negative, positive, valid & (x.abs() < near), d > LOG_2, d < -LOG_2, d < LOG_1E4, overflow]
    counts = [flag.sum() for flag in (*flags, tail_neg | tail_pos)]
    weight = part.a.abs()
    push = weight * d.abs()
    masses = [_where(region, weight) for region in (a_neg, a_pos, c_neg, c_pos, against, along)]
    pressures = [_where(region, push) for region in (a_neg, a_pos, c_neg, c_pos)]
    tails = [_where(tail_neg, weight), _where(tail_pos, weight)]
    deep_gap = x < deep
    told = [side.sum() for side in (against, along, against & deep_gap, along & deep_gap, tail_neg, tail_pos)]
    regions = [*masses, weight.sum(), *tails, *pressures, *told]
    listed = [*part.kinds.unbind(), *counts, *_moments(d, valid), *regions, *_probabilities(part), *_lags(part)]
    planes = [against, along, valid & ~(against | along)]
    low = [torch.where(plane, x, torch.inf).amin() for plane in planes]
    high = [torch.where(plane, x, -torch.inf).amax() for plane in planes]
    return _column(listed), _column(low), _column([*high, _largest_difference(part)])


def _where(region: Tensor, values: Tensor) -> Tensor:
    return torch.where(region, values, 0.0).sum()


def _column(values: list[Tensor]) -> Tensor:
    return torch.stack([value.double() for value in values])


def _k3(v: Tensor, growth: Tensor) -> Tensor:
    """exp(v) - 1 - v; `growth` is exp(v) - 1."""
    series = v * v * (1 / 2 + v * (1 / 6 + v * (1 / 24 + v * (1 / 120 + v * (1 / 720)))))
    return torch.where(v.abs() < SMALL, series, growth - v)


def _moments(d: Tensor, valid: Tensor) -> list[Tensor]:
    """In the kernel's order; a position that is no token is a gap of 0. The ratios' sums are not a count and sums of
    exp - 1: that would lose what far gaps leave of them."""
    bounded = d.clamp(-MAX_EXPONENT, MAX_EXPONENT)
    growth, shrinkage = torch.expm1(bounded), torch.expm1(-bounded)
    forward, backward = _k3(d, growth), _k3(-d, shrinkage)
    weight = d.clamp(-WEIGHT_EXPONENT, WEIGHT_EXPONENT).exp()
    return [
        d.sum(),
        d.abs().sum(),
        d.square().sum(),
        forward.sum(),
        backward.sum(),
        torch.where(d > 0, forward, backward).sum(),
        torch.expm1(2 * d.clamp(-MAX_EXPONENT, MAX_EXPONENT / 2)).sum(),
        _where(valid, bounded.exp()),
        _where(valid, weight),
        _where(valid, weight * weight),
    ]


def _chances(part: _Pass) -> tuple[Tensor, Tensor] | None:
    if part.learner is None or part.sampler is None:
        return None
    learner, sampler = (side.clamp(max=MAX_EXPONENT).exp() for side in (part.learner, part.sampler))
    return torch.where(part.valid, learner, 0.0), torch.where(part.valid, sampler, 0.0)


def _probabilities(part: _Pass) -> list[Tensor]:
    pair = _chances(part)
    if pair is None:
        return list(part.d.new_zeros(6).unbind())
    learner, sampler = pair
    products = [learner, learner * learner, sampler, sampler * sampler, learner * sampler, (learner - sampler).abs()]
    return [values.sum() for values in products]


def _largest_difference(part: _Pass) -> Tensor:
    pair = _chances(part)
    return part.d.new_full((), -torch.inf) if pair is None else (pair[0] - pair[1]).abs().amax()


def _lags(part: _Pass) -> list[Tensor]:
    if part.lag is None:
        return list(part.d.new_zeros(10).unbind())
    weight, sums = part.a.abs(), []
    for here in (part.lag == 0, part.lag == 1, part.lag >= 2):
        here = here & part.valid
        sums += [here.sum(), _where(here & (part.a < 0) & (part.d < 0), weight)]
        sums.append(_where(here & (part.a > 0) & (part.d > 0), weight))
    return [*sums, part.lag.sum()]


def _slots(part: _Pass, spec: SummarySpec) -> tuple[Tensor, Tensor]:
    """(ROW_SUMS [c, 9] float64, amplifying-tail tokens [c, 2] int64, A < 0 first), each over the tokens of a slot."""
    x, d, a, tau = part.x, part.d, part.a, _own(spec.tau_ana, part.x)
    a_neg, a_pos = (a < 0) & (d < 0), (a > 0) & (d > 0)
    zero = torch.zeros_like(d)
    columns = [
        part.unmasked,
        part.valid,
        d,
        torch.where(a_neg, -a, 0.0),
        torch.where(a_pos, a, 0.0),
        part.valid & ~part.usable,
        part.usable & (a == 0),
        zero if part.learner is None else part.learner,
        zero if part.sampler is None else part.sampler,
    ]
    tails = torch.stack([(a_neg & (x <= -tau)).sum(1), (a_pos & (x >= tau)).sum(1)], 1)
    return torch.stack([column.sum(1).double() for column in columns], 1), tails


def _count_gaps(part: _Pass, fold: Tensor, histogram: Tensor) -> None:
    top = (part.x.float().view(torch.int32) >> 16) & (RAW_BINS - 1)
    plane = torch.where(part.a < 0, 0, torch.where(part.a > 0, 1, 2))
    cell = plane * BINS + at(fold, top.to(torch.int64))
    histogram.index_add_(0, cell.reshape(-1), part.valid.reshape(-1).to(torch.int64))


@dataclass(frozen=True, slots=True, eq=False)
class _Segments:
    counts: Tensor
    segment: Tensor
    pair: Tensor
    worst: Tensor  # [S, 6] levels (-1 where not eligible), then heavy as 0 and 1, per family


def _segments(
    tokens: EdgeTokens, n: Tensor, tails: Tensor, exists: Tensor, spec: SummarySpec, tables: _Tables
) -> _Segments:
    side, owner = spec.segment + 1, tokens.borders.slot_response
    c = torch.stack([tails[:, 0] + tails[:, 1], tails[:, 0], tails[:, 1]])
    eligible = n >= spec.minimum_valid
    level = at(tables.level, n * side + c)
    heavy = eligible & (c >= at(tables.heavy_from, n))
    adjacent = eligible[1:] & eligible[:-1] & (owner[1:] == owner[:-1])
    family = torch.arange(3, device=n.device)[:, None]
    segment = _histogram((family * side + n) * side + c, eligible, 3 * side * side)
    levels = LEVELS + 1
    pair = _histogram((family * levels + level[:, :-1]) * levels + level[:, 1:], adjacent, 3 * levels * levels)
    first = (adjacent & heavy[:, :-1]).sum(1)
    both = (adjacent & heavy[:, :-1] & heavy[:, 1:]).sum(1)
    alone = torch.stack([exists.sum(), eligible.sum(), adjacent.sum()])
    worst = torch.cat([torch.where(eligible, level, -1), heavy.to(torch.int64)]).t()
    return _Segments(torch.cat([alone, heavy.sum(1), first, both]), segment, pair, worst)


def _histogram(cell: Tensor, where: Tensor, size: int) -> Tensor:
    ones = where.to(torch.int64).expand(cell.shape).reshape(-1)
    return torch.zeros(size, dtype=torch.int64, device=cell.device).index_add_(0, cell.reshape(-1), ones)


def _over_responses(values: Tensor, tokens: EdgeTokens, join: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """[S, K] joined over the slots of each response, [R, K]: after strides 1, 2, 4 .. a slot holds its response's up to
    itself, in an order that only the shapes decide."""
    borders = tokens.borders
    owner, stride = borders.slot_response, 1
    while stride < min(borders.longest, borders.slots):
        same = (owner[stride:] == owner[:-stride])[:, None]
        joined = torch.where(same, join(values[stride:], values[:-stride]), values[stride:])
        values = torch.cat([values[:stride], joined])
        stride *= 2
    ends = torch.cat([borders.slot_start[1:], borders.slot_start.new_full((1,), borders.slots)]) - 1
    return at(values, ends)
