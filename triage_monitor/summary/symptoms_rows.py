"""UpdateRows -> Symptoms. First every response is classified on its own, then token statistics are taken over what is
not suspicious, so that a few broken responses do not bend the slope or the offset of the others.

    shifted     the learner's log-probs fit the sampler's of another position: mean abs(l_t - s_(t+k)) at most 0.35 of
                that at k = 0, correlation 0.8 or more there and 0.2 less at k = 0 (8 pairs at least)
    broken      8 tokens or more, abs(mean gap) above 1 and half of the tokens off by more than 0.5
    padding     every gap exactly 0 and every advantage 0; `zero_rows`: every gap exactly 0, some advantage not
    offset_*    16 tokens or more, 95% of them within half of the response's median gap, which is 0.015 nats or more
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from triage_monitor.summary.cells import Cells, Counts
from triage_monitor.summary.objective import to_units
from triage_monitor.summary.rows_values import UpdateRows
from triage_monitor.summary.sketch import CELLS, bin_of
from triage_monitor.summary.symptoms import (
    BITMAPS,
    CLASSES,
    COUNT_NAMES,
    ENGINE_BINS,
    FINE_PER_BIN,
    GAP_BINS,
    GAP_ROWS,
    LEVEL_EDGES,
    LEVELS,
    SCALE,
    WORDS,
    ZERO_GAP,
    Symptoms,
    merge_symptoms,
    smallest,
)
from triage_monitor.summary.symptoms_kernel import GAP, Words, fit_sums, mark_gaps, mark_side, see_all
from triage_monitor.summary.symptoms_runs import zero_runs
from triage_monitor.summary.symptoms_shapes import add_alignment, add_places
from triage_monitor.summary.symptoms_view import Flags, Floats, Looked, looked_at

MIN_TOKENS = 8
OFFSET_FLOOR, OFFSET_SPREAD, OFFSET_SHARE = 0.015, 0.5, 0.95
LIKELY_SUM = -0.2  # learner + sampler below: a token that was a choice
FIT_LIMIT = 32.0
_FIT = ("n", "l", "s", "ll", "ss", "ls")
_EDGES = np.array(LEVEL_EDGES)


def symptoms_of(rows: UpdateRows) -> Symptoms:
    """What one shard shows; a pure function of its rows."""
    if rows.tokens == 0:
        return Symptoms.empty()
    view = looked_at(rows)
    counts: Counter[str] = Counter()
    classes, filled = zero_runs(view)
    flawed = np.logical_or.reduce(list(classes.values()))
    classes["misaligned"] = add_alignment(view, flawed, counts)
    flawed = flawed | classes["misaligned"]
    classes |= _responses(view, flawed, counts)
    clean = view.drawn & ~flawed & ~classes["broken"] & ~classes["padding"]
    for name in CLASSES:
        counts[name] += int((classes[name] & view.drawn).sum())
    counts["dummy_tokens"] += int(filled[view.drawn & ~classes["degenerate"]].sum())
    counts["degenerate_tokens"] += int(filled[view.drawn & classes["degenerate"]].sum())
    add_places(view, view.drawn & (~flawed | classes["appended"]) & ~classes["broken"], counts)
    gaps, seen = _tokens(view, clean, counts)
    base = Symptoms(
        np.array([counts[name] for name in COUNT_NAMES], np.int64),
        Cells.of(gaps),
        seen,
        _engines(view),
        _examples(view, classes),
        {name: (value,) for name, value in rows.settings.items()},
        to_units(rows.objective),
    )
    return merge_symptoms((base,))  # brings bounded lists into their bounds


def _responses(view: Looked, flawed: Flags, counts: Counter[str]) -> dict[str, Flags]:
    heard = view.size > 0
    mean = np.divide(view.sum_of(view.gap, view.valid), view.size, where=heard, out=np.zeros(view.responses))
    centre, typical = view.median_of(view.gap), view.median_of(np.abs(view.gap))
    alike = view.valid & (np.abs(view.gap - centre[view.of]) <= OFFSET_SPREAD * np.abs(centre[view.of]))
    enough = (view.size >= MIN_TOKENS) & ~flawed
    broken = enough & (np.abs(mean) > 1.0) & (typical > 0.5)
    calm = enough & (np.abs(mean) <= 0.25) & (typical <= 0.25)
    equal = heard & (view.count_of(view.valid & (view.gap == 0)) == view.size)
    weightless = heard & (view.count_of(view.valid & (view.advantage == 0)) == view.size)
    padding, zero_rows = equal & weightless, equal & ~weightless
    offset = (view.size >= 2 * MIN_TOKENS) & enough & ~broken & (np.abs(centre) >= OFFSET_FLOOR)
    offset &= view.count_of(alike) >= OFFSET_SHARE * view.size
    drawn = view.drawn
    for name, where in (
        ("responses", heard),
        ("short", heard & (view.size <= 4)),
        ("medium", (view.size > 4) & (view.size < 16)),
        ("long", view.size >= 16),
        ("testable", view.size >= MIN_TOKENS),
        ("zero_advantage", weightless),
        ("between", enough & ~broken & ~calm),
        ("calm", calm),
        ("offset_neg", offset & (centre < 0)),
        ("offset_pos", offset & (centre > 0)),
    ):
        counts[name] += int((where & drawn).sum())
    fixed = np.rint(centre[offset & drawn] * SCALE).astype(np.int64)
    counts["offset_sum"] += int(fixed.sum())
    counts["offset_squares"] += int((fixed * fixed).sum())
    counts["padding_tokens"] += int(view.size[padding & drawn].sum())
    counts["zero_row_tokens"] += int(view.size[zero_rows & drawn].sum())
    return {"broken": broken, "padding": padding, "zero_rows": zero_rows}


def _tokens(view: Looked, clean: Flags, counts: Counter[str]) -> tuple[Counts, Words]:
    """Histograms of the gap [GAP_ROWS, GAP_BINS] and bitmaps [BITMAPS, WORDS]."""
    drawn = view.valid & view.drawn[view.of]
    calm = view.valid & clean[view.of]
    counts["tokens"] += int(drawn.sum())
    counts["zero_gap"] += int((drawn & (view.gap == 0)).sum())
    _lags(view, drawn, counts)
    gaps, seen = np.zeros((GAP_ROWS, GAP_BINS), np.int64), np.zeros((len(BITMAPS), WORDS), np.uint64)
    coarse = np.zeros((3, 3), np.int64)
    cell = bin_of(view.gap) - CELLS
    place = ZERO_GAP + np.sign(cell) * -(-np.abs(cell) // FINE_PER_BIN)
    mark_gaps(calm, place, view.gap, *_narrow(view.gap), gaps[2 * LEVELS], seen[BITMAPS.index("gap")], coarse[GAP])
    counts["gap_values"], counts["gap_coarse"] = coarse[GAP, :2].tolist()
    if view.learner is None or view.sampler is None:
        return gaps, seen
    counts["pairs"] += int(drawn.sum())
    _fillers(view, counts)
    for row, (name, values) in enumerate((("sampler", view.sampler), ("learner", view.learner))):
        narrow, bits = _narrow(values)
        level = gaps[row * LEVELS : (row + 1) * LEVELS]
        mark_side(calm, place, values, narrow, bits, _EDGES, level, coarse[row])
        for kind, total in zip(("values", "coarse", "rich"), coarse[row].tolist(), strict=True):
            counts[f"{name}_{kind}"] += total
        if name == "sampler":
            see_all(calm, bits, seen[BITMAPS.index("sampler")])
    fit = np.zeros(len(_FIT), np.int64)
    fit_sums(calm, view.learner, view.sampler, LIKELY_SUM, FIT_LIMIT, fit)
    for name, total in zip(_FIT, fit.tolist(), strict=True):
        counts[f"fit_{name}"] += total
    return gaps, seen


def _narrow(values: Floats) -> tuple[NDArray[np.float32], NDArray[np.uint32]]:
    """The values in float32, and their bits."""
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = values.astype(np.float32)
    return narrow, narrow.view(np.uint32)


def _fillers(view: Looked, counts: Counter[str]) -> None:
    """Values that no engine computes for a token it sampled."""
    assert view.learner is not None and view.sampler is not None
    here = view.present & view.drawn[view.of]
    counts["sampler_infinite"] += int((here & np.isneginf(view.sampler)).sum())
    counts["sentinels"] += int((here & view.sentinel).sum())
    counts["learner_zero"] += int((here & view.valid & (view.learner == 0) & (view.sampler < -1.0)).sum())


def _lags(view: Looked, drawn: Flags, counts: Counter[str]) -> None:
    versions = view.rows.policy_versions
    if versions is None or not len(versions):
        return
    lag = int(versions.max()) - versions[view.place if view.rows.versions_per_token else view.chosen[view.of]]
    for name, here in (("0", lag == 0), ("1", lag == 1), ("2_plus", lag > 1)):
        counts[f"lag_{name}"] += int((drawn & here).sum())


def _engines(view: Looked) -> dict[str, Counts]:
    names = view.rows.engines
    if names is None:
        return {}
    mean = view.sum_of(np.minimum(np.abs(view.gap), 1e3), view.valid) / np.maximum(view.size, 1)
    with np.errstate(divide="ignore"):
        place = np.clip(np.floor(4 * (np.log2(mean) + 14)), 0, ENGINE_BINS - 1)
    engines: dict[str, Counts] = {}
    for response in np.flatnonzero(view.drawn & (view.size >= 1)):
        name = names[view.chosen[response]]
        if name is not None:
            bins = engines.setdefault(str(name), np.zeros(ENGINE_BINS, np.int64))
            bins[int(place[response])] += 1
    return engines


def _examples(view: Looked, classes: dict[str, Flags]) -> dict[str, tuple[str, ...]]:
    """The names of the responses found, suspects included, and of their engines."""
    ids, engines = view.rows.response_ids, view.rows.engines
    examples: dict[str, tuple[str, ...]] = {}
    for name, where in classes.items():
        chosen = view.chosen[where]
        if not len(chosen):
            continue
        examples[name] = smallest((str(row) if ids is None else str(ids[row]) for row in chosen), len(chosen))
        if engines is not None:
            examples[f"{name}@engine"] = smallest((str(engines[row]) for row in chosen), len(chosen))
    return examples
