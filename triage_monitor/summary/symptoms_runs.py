"""Runs of sampler log-probs that are exactly 0 while the learner finds the tokens unlikely.

A sampler gives probability one to a token now and then; to several in a row that the learner puts below 1/e it does
not: somebody filled the values in, or the engine is broken. Which of the two, by place and by the learner's values:

    dummy       the run ends and ordinary tokens follow (tool or observation tokens under mask 1)
    appended    at most 8 tokens, the response's last ones, at most half of it
    degenerate  runs to the end, nearly the whole response, or long and with about the same learner value (one token
                repeated); 8 tokens at least
    zero_end    runs to the end and fits none of these
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triage_monitor.summary.symptoms_view import Flags, Floats, Looked

SAMPLER_ZERO = 2e-6  # nats: a float32 log-softmax of a sure token comes out as 0 or a few of its last bits
SURE = -0.05
UNLIKELY = -1.0
MIN_RUN, BORDER_RUN, MAX_APPENDED, MIN_DEGENERATE, LONG_RUN = 3, 4, 8, 8, 32
FEWEST_UNEXPLAINED = 6
CHANCE = 0.01  # runs of this length that independent tokens would make


@dataclass(frozen=True, slots=True)
class Run:
    """From its first doubted token to its last; `count` of them, with mean and deviation of the learner over these."""

    response: int
    start: int
    stop: int
    last_zero: int
    count: int
    mean: float
    deviation: float

    @property
    def length(self) -> int:
        return self.stop - self.start + 1


def zero_runs(view: Looked) -> tuple[dict[str, Flags], NDArray[np.int64]]:
    """Class -> [R]; and [R], how many filled-in tokens a response holds."""
    classes = {name: np.zeros(view.responses, np.bool_) for name in ("degenerate", "dummy", "appended", "zero_end")}
    filled = np.zeros(view.responses, np.int64)
    if view.sampler is None or view.learner is None or not len(view.of):
        return classes, filled
    zero = (view.valid & (np.abs(view.sampler) < SAMPLER_ZERO)) | view.sentinel
    off = zero & (view.sentinel | (view.learner < SURE))
    runs, shorter = _runs(view, zero, off)
    fewest = _fewest(zero, off, runs, shorter)
    for run in runs:
        if run.count < fewest or 2 * run.count < run.length or run.mean >= UNLIKELY or _elsewhere(view, run, zero):
            continue
        size = int(view.size[run.response]) + int(view.sentinel[view.of == run.response].sum())
        after = int(view.valid[run.last_zero + 1 : int(np.searchsorted(view.of, run.response, side="right"))].sum())
        told = bool(view.sentinel[run.start : run.stop + 1].any())  # no engine gives such a number, however broken
        name = "dummy" if told else _name(run, size, after)
        if name:
            filled[run.response] += run.count
            classes[name][run.response] = True
    classes["dummy"] &= ~classes["degenerate"]
    classes["appended"] &= ~(classes["degenerate"] | classes["dummy"])
    classes["zero_end"] &= ~(classes["degenerate"] | classes["dummy"] | classes["appended"])
    return classes, filled


def _fewest(zero: Flags, off: Flags, runs: Sequence[Run], shorter: tuple[int, int]) -> int:
    """The shortest run that chance does not make: where the learner doubts sure tokens anyway, runs must be longer, and
    longer still where such doubts come in clusters, as the runs of one and of two (`shorter`) tell."""
    inside = sum(run.count for run in runs)
    count = int(zero.sum())
    doubted = (int(off.sum()) - inside) / max(count - inside, 1)
    if doubted <= 0:
        return MIN_RUN
    needed = math.log(CHANCE / max(count, 1)) / math.log(min(doubted, 0.99))
    single, double = shorter
    if double:
        goes_on = min(double / (single + double), 0.99)
        needed = max(needed, 1 + math.log(CHANCE / (single + double)) / math.log(goes_on))
    return max(MIN_RUN, math.ceil(needed))


def _elsewhere(view: Looked, run: Run, zero: Flags) -> bool:
    """The response is off on its other tokens too, or the run stands where a turn begins: another cause's business."""
    first, last = np.searchsorted(view.of, [run.response, run.response + 1])
    others = view.valid[first:last] & ~zero[first:last]
    size = np.abs(view.gap[first:last][others])
    if len(size) and np.median(size) > 0.5:
        return True
    return run.count <= BORDER_RUN and bool(view.turn[max(run.start - BORDER_RUN + 1, first) : run.start + 1].any())


def _name(run: Run, size: int, after: int) -> str:
    whole = run.length >= 0.9 * size
    long = run.length >= LONG_RUN or (run.length >= LONG_RUN // 2 and 2 * run.length >= size)
    alike = run.deviation <= 0.3 * abs(run.mean)
    if after > (2 if whole or (long and alike and 2 * run.length >= size) else 0):
        return "dummy"
    if run.length >= MIN_DEGENERATE and run.mean <= 2 * UNLIKELY and (whole or (long and alike)):
        return "degenerate"
    if run.length <= MAX_APPENDED and 2 * run.length <= size:
        # Sure tokens that the learner shares may be ordinary ones behind a filler; a few leave it open.
        shared = run.last_zero - run.stop
        return "appended" if shared == 0 else "dummy" if shared >= MIN_RUN else ""
    return "zero_end" if run.count >= FEWEST_UNEXPLAINED else ""


def _runs(view: Looked, zero: Flags, off: Flags) -> tuple[list[Run], tuple[int, int]]:
    """Runs of zeros with MIN_RUN doubted tokens or more; and how many hold one such token, and two."""
    assert view.learner is not None
    begins = zero.copy()
    begins[1:] &= ~(zero[:-1] & (view.of[1:] == view.of[:-1]))
    number = np.cumsum(begins) - 1
    places = np.flatnonzero(off)
    if not len(places):
        return [], (0, 0)
    runs, first, count = np.unique(number[places], return_index=True, return_counts=True)
    ends = np.flatnonzero(zero)[np.searchsorted(number[zero], runs, side="right") - 1]
    learner: Floats = np.where(view.sentinel, -50.0, np.maximum(view.learner, -50.0))[places]
    mean = np.add.reduceat(learner, first) / count
    deviation = np.sqrt(np.maximum(np.add.reduceat(learner**2, first) / count - mean**2, 0.0))
    long = [
        Run(
            int(view.of[places[first[i]]]),
            int(places[first[i]]),
            int(places[first[i] + count[i] - 1]),
            int(ends[i]),
            int(count[i]),
            float(mean[i]),
            float(deviation[i]),
        )
        for i in np.flatnonzero(count >= MIN_RUN)
    ]
    return long, (int((count == 1).sum()), int((count == 2).sum()))
