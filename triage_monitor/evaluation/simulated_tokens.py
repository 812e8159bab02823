"""One synthetic update: responses of ragged length, their advantages, and a gap for every token. Not a measurement.

Every eligible segment of 64 positions is heavy or calm: a two-state Markov chain along the segments of a response, with
P(heavy) = heavy_share (times the side's weight) and P(heavy | heavy) = persistence * heavy_share. A heavy segment gets
at least phi * n amplifying-tail tokens, a calm one always fewer, so the latent state is the measured one. Of the
responses with a heavy segment a share stays masked; the others receive deep negative gaps in their heavy segments, of a
sum that moves their mean gap to -visible_nats. The rest of the gaps lie below 0.05, their signs such that
M(A-) / M(A+) = rho_asym over all tokens.

Draws that a window's ratios hang on are stratified (the chain) or counted out (masked responses), because 25 updates of
a hundred responses would otherwise miss 0.0036 +- 5% by chance. Lengths are lognormal, then one side is scaled to the
wanted ratio of abs(A) mass. Groups have mixed rewards only, as dynamic sampling leaves them: no advantage is 0.
Leaves out: log-probs, masks, policy versions, and any dependence of a gap on the tokens before it within a segment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from triage_monitor.evaluation.simulated_regimes import Regime
from triage_monitor.summary.spec import DEFAULT_SPEC

GROUP = 8  # responses of one prompt
SEGMENT, TAU, PHI, MINIMUM = DEFAULT_SPEC.segment, DEFAULT_SPEC.tau_ana, DEFAULT_SPEC.phi, DEFAULT_SPEC.minimum_valid
SHORTEST, LENGTH_SPREAD = 80, 0.6
BULK_NATS = 0.015  # scale of the gaps below the threshold
FEWEST_DEEP, DEEP_SPREAD, FEWEST_VISIBLE_NATS = 4, 0.4, 0.08

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Rng = np.random.Generator


@dataclass(slots=True)
class Stratified:
    """An endless source of uniforms in (0, 1], one in each of `block` equal parts, in random order, block by block."""

    rng: Rng
    block: int = 64
    _left: list[float] = field(default_factory=list)

    def next(self) -> float:
        if not self._left:
            self._left = stratified(self.rng, self.block).tolist()
        return self._left.pop()


class Course:
    """What runs through the updates of one simulation: the random source, and counts carried from one to the next."""

    def __init__(self, rng: Rng) -> None:
        self.rng = rng
        self._stay = Stratified(rng)
        self._enter = Stratified(rng)
        self._until = 0.0
        self._owed = 0.5
        self._until = -math.log(self._enter.next())

    def chain(self, share: Sequence[float], opens: Sequence[bool], stay: float) -> list[bool]:
        """Heavy or calm for each eligible segment, `opens` telling those with no eligible one before them.

        P(heavy) = share at an opening one, `stay` after a heavy one, and after a calm one what keeps that stationary.
        """
        states, heavy = [], False
        for chance, is_first in zip(share, opens, strict=True):
            if heavy and not is_first:
                heavy = self._stay.next() <= stay
            else:
                self._until += math.log1p(-chance if is_first else -chance * (1 - stay) / (1 - chance))
                heavy = self._until <= 0
                if heavy:
                    self._until = -math.log(self._enter.next())
            states.append(heavy)
        return states

    def masked(self, among: int, share: float) -> int:
        """How many of `among` responses stay masked: counted out, so that a window is right to one response."""
        self._owed += among * share
        whole = min(int(self._owed), among)
        self._owed -= whole
        return whole

    def begin_window(self) -> None:
        self._owed = 0.5


@dataclass(frozen=True, slots=True)
class Responses:
    """R responses: advantage, solved or not, length in tokens, first token."""

    advantage_R: Floats
    solved_R: Flags
    offset_R1: Ints

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offset_R1)


@dataclass(frozen=True, slots=True)
class Segments:
    """S segments in order: the response each lies in, its first token and its length."""

    response_S: Ints
    length_S: Ints

    @property
    def eligible(self) -> Flags:
        return self.length_S >= MINIMUM


def draw_responses(course: Course, regime: Regime, groups: int, tokens_per_response: int) -> Responses:
    rng = course.rng
    solved = np.array([_mixed(rng, regime.solve_rate) for _ in range(groups)])
    rate_G = solved.mean(axis=1, keepdims=True)
    advantage_R = ((solved - rate_G) / np.sqrt(rate_G * (1 - rate_G))).ravel()
    solved_R = solved.ravel().astype(bool)
    length_R = np.exp(LENGTH_SPREAD * _stratified_normal(rng, solved_R.size))
    mass_R = np.abs(advantage_R)
    ratio = (mass_R * length_R)[~solved_R].sum() / (mass_R * length_R)[solved_R].sum()
    length_R[~solved_R] *= regime.mass_ratio / ratio
    length_R *= tokens_per_response / length_R.mean()
    length_R = np.maximum(np.rint(length_R), SHORTEST)
    return Responses(advantage_R, solved_R, np.concatenate([[0], np.cumsum(length_R)]).astype(np.int64))


def draw_gaps(course: Course, regime: Regime, responses: Responses) -> NDArray[np.float32]:
    """[T] nats."""
    rng = course.rng
    segments = _cut(responses.lengths)
    weight_S = _weights(regime.tilt, responses.solved_R[segments.response_S], segments.length_S)
    heavy_S = _heavy(course, regime, segments, weight_S)
    visible_R = _visible(course, regime, segments.response_S[heavy_S], responses.solved_R.size)
    amplifying_S, contracting_S = _tail_counts(rng, regime, segments, heavy_S, weight_S)
    kind_T = _place(rng, segments.length_S, amplifying_S, contracting_S)
    segment_T = np.repeat(np.arange(segments.length_S.size), segments.length_S)
    response_T = segments.response_S[segment_T]
    gap_T = np.where(kind_T > 0, _tail_sizes(rng, regime, kind_T.size), _bulk_sizes(rng, kind_T.size))
    sign_T = _signs(rng, regime, kind_T, responses, response_T)
    deep_T = (kind_T > 0) & (sign_T < 0) & heavy_S[segment_T] & visible_R[response_T]
    gap_T[deep_T] = _deep_sizes(rng, regime, response_T[deep_T], responses.lengths)
    return (sign_T * gap_T).astype(np.float32)


def _mixed(rng: Rng, solve_rate: float) -> Floats:
    """A group's rewards, neither all 0 nor all 1."""
    while True:
        solved = (rng.random(GROUP) < solve_rate).astype(np.float64)
        if 0 < solved.sum() < GROUP:
            return solved


def stratified(rng: Rng, count: int) -> Floats:
    """Uniforms in (0, 1], one in each of `count` equal parts, in random order."""
    return rng.permutation((np.arange(count) + 1.0 - rng.random(count)) / count)


def _stratified_normal(rng: Rng, count: int) -> Floats:
    """Normal by Box and Muller; the radius is stratified, the angle is not."""
    angle = 2 * math.pi * rng.random(count)
    radius: Floats = np.sqrt(-2 * np.log(stratified(rng, count)))
    return radius * np.cos(angle)


def _cut(length_R: Ints) -> Segments:
    pieces_R = -(-length_R // SEGMENT)
    response_S = np.repeat(np.arange(length_R.size), pieces_R)
    length_S = np.full(response_S.size, SEGMENT)
    length_S[np.cumsum(pieces_R) - 1] = length_R - SEGMENT * (pieces_R - 1)
    return Segments(response_S, length_S)


def _weights(tilt: float, solved_S: Flags, length_S: Ints) -> Floats:
    """[S], the factor on the tail's rates by the side of A; its token mean is 1."""
    share = float(length_S[~solved_S].sum() / length_S.sum())
    return np.where(solved_S, 1.0, tilt) / (share * tilt + 1.0 - share)


def _heavy(course: Course, regime: Regime, segments: Segments, weight_S: Floats) -> Flags:
    eligible = segments.eligible
    response = segments.response_S[eligible]
    share = np.minimum(regime.heavy_share * weight_S[eligible], 0.9)
    heavy_S = np.zeros(eligible.size, dtype=bool)
    opens = np.diff(response, prepend=-1) != 0
    stay = min(regime.persistence * regime.heavy_share, 0.95)
    heavy_S[eligible] = course.chain(share.tolist(), opens.tolist(), stay)
    return heavy_S


def _visible(course: Course, regime: Regime, response_H: Ints, responses: int) -> Flags:
    """[R], the responses with a heavy segment whose mean gap shows it; `response_H`: where the heavy segments lie."""
    holds = course.rng.permutation(np.unique(response_H))
    visible_R = np.zeros(responses, dtype=bool)
    visible_R[holds[course.masked(holds.size, regime.masked_share) :]] = True
    return visible_R


def _tail_counts(rng: Rng, regime: Regime, segments: Segments, heavy_S: Flags, weight_S: Floats) -> tuple[Ints, Ints]:
    """Amplifying and contracting tail tokens of each segment."""
    n = segments.length_S
    threshold = np.ceil(PHI * n).astype(np.int64)
    calm = np.minimum(rng.binomial(n, np.minimum(regime.calm_rate * weight_S, 0.5)), threshold - 1)
    heavy = threshold + rng.binomial(n - threshold, regime.heavy_excess)
    amplifying = np.where(heavy_S, heavy, calm)
    rest = n - amplifying
    contracting = rng.binomial(rest, np.where(heavy_S, regime.contracting_heavy, regime.contracting_rate))
    fewest = np.where(heavy_S, np.minimum(FEWEST_DEEP, rest), 0)
    return amplifying, np.maximum(contracting, fewest)


def _place(rng: Rng, length_S: Ints, amplifying_S: Ints, contracting_S: Ints) -> Ints:
    """[T]: 1 amplifying tail, 2 contracting tail, 0 neither; at random places within each segment."""
    segment_T = np.repeat(np.arange(length_S.size), length_S)
    order = np.argsort(segment_T + rng.random(segment_T.size))
    rank_T = np.arange(segment_T.size) - np.repeat(np.cumsum(length_S) - length_S, length_S)
    first, both = amplifying_S[segment_T], (amplifying_S + contracting_S)[segment_T]
    kind_T = np.empty(segment_T.size, dtype=np.int64)
    kind_T[order] = np.where(rank_T < first, 1, np.where(rank_T < both, 2, 0))
    return kind_T


def _tail_sizes(rng: Rng, regime: Regime, count: int) -> Floats:
    far = rng.random(count) < regime.far_share
    return TAU * 1.0001 + rng.exponential(size=count) * np.where(far, regime.far_nats, regime.tail_nats)


def _bulk_sizes(rng: Rng, count: int) -> Floats:
    """Exponential, cut off below the threshold; never 0."""
    reach = -math.expm1(-0.999 * TAU / BULK_NATS)
    return -BULK_NATS * np.log1p(-reach * (1.0 - rng.random(count))) + 1e-6


def _signs(rng: Rng, regime: Regime, kind_T: Ints, responses: Responses, response_T: Ints) -> Floats:
    """-1 or 1. Below the threshold so drawn that M(A-) / M(A+) = rho_asym over all tokens."""
    solved_T = responses.solved_R[response_T]
    amplifying = np.where(kind_T == 1, 1.0, 0.0)
    lean = math.sqrt(regime.rho_asym / regime.mass_ratio)
    for side, share in ((False, 0.5 * lean), (True, 0.5 / lean)):
        bulk = (kind_T == 0) & (solved_T == side)
        tail = (kind_T == 1) & (solved_T == side)
        chance = (share * np.count_nonzero(solved_T == side) - np.count_nonzero(tail)) / np.count_nonzero(bulk)
        amplifying[bulk] = rng.random(np.count_nonzero(bulk)) < chance
    upwards = (amplifying == 1) == solved_T
    return np.where(upwards, 1.0, -1.0)


def _deep_sizes(rng: Rng, regime: Regime, response_D: Ints, length_R: Ints) -> Floats:
    """Sizes that add up to visible_nats * length in every response of `response_D`."""
    weight_D = np.exp(DEEP_SPREAD * rng.standard_normal(response_D.size))
    total_R = np.bincount(response_D, weight_D, minlength=length_R.size)
    nats_R = np.maximum(regime.visible_nats * np.exp(0.25 * rng.standard_normal(length_R.size)), FEWEST_VISIBLE_NATS)
    return np.maximum(weight_D / total_R[response_D] * (nats_R * length_R)[response_D], TAU * 1.0001)
