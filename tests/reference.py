"""The oracle: every estimand of the monitor, slow and obvious, on plain Python floats.

Written from the definitions alone and sharing no code with the package: tokens are kept in lists, sums are
`math.fsum`, quantiles sort, the top 5% of segments is a walk down a sorted list. Whatever the package computes by
merging fixed-size summaries must equal what this file computes by looking at all tokens at once, so a window is
simply the same functions on the responses of all its updates.

Where the definitions leave room the reading taken is written in CHOICES. The magnitude family (means, ratios,
perplexities) lives in `reference_magnitude.py`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from reference_magnitude import magnitude

CHOICES = (
    "A quantile is the order statistic at rank ceil(q n) with q as an exact decimal, so 0.05 of 100 is rank 5.",
    "Thresholds compare in float64 with the value as given: float32(0.05) is above 0.05, float16(0.05) below it.",
    "A null inside a list is a masked position without a mask and a missing token with one (mask 1).",
    "`missing` wins over the value found at that place; what stands under mask 0 is never looked at.",
    "nonfinite_fraction = (nan + inf + missing) / tokens: a missing token is 'counted like a non-finite one'.",
    "Without any token of mask 1 nonfinite_fraction is absent; with tokens but none valid it is 1.",
    "empty_responses are those without a token of mask 1; all tokens unusable is `unusable_responses`, not empty.",
    "unusable_advantage counts responses in which a valid token has a NaN or infinite advantage, in either form.",
    "`segments` are all that positions from the first to the last token of mask 1 are cut into; eligible: 4 n >= W.",
    "The top 5% are 0.05 * eligible segments, a fraction included; equal c/n at the cut enter pro rata by number.",
    "Restricted families change c alone: n, eligibility and the denominators over valid tokens stay.",
    "persistence: P(heavy | left neighbour heavy) over adjacent eligible pairs; chance = heavy / eligible.",
    "masked_response_fraction averages the gap over all valid tokens of the response, not only eligible segments.",
    "A unit is a response (or a group within one update) with a valid token; one unit has no standard error.",
    "log_rho_se needs both M(A-) > 0 and M(A+) > 0.",
    "rho_asym with tokens and signal: no_amplifying_mass if M(A-) is 0 as well, else no_positive_mass.",
    "overflow_tokens counts a valid token once when 2 delta > 700 or -delta > 700: an exp of section 5 saturated.",
    "ess_fraction takes delta within [-300, 300], so that neither w nor w^2 saturates alone: it stays in [1/n, 1].",
    "not_observable: 1 when 99.9% of at least 1000 valid tokens have a gap of exactly 0, else 0; absent for none.",
    "A newer attempt replaces older ones from the smallest step it has reported.",
)

QUANTILES = ("0.001", "0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99", "0.999")
FAMILIES = ("", "_a_neg", "_a_pos")


@dataclass(frozen=True)
class Spec:
    segment: int = 64
    tau_ana: float = 0.05
    phi: float = 0.125
    near_zero: float = 0.05
    deep_tail: float = -1.0


DEFAULT = Spec()


@dataclass(frozen=True)
class Response:
    """One row as a trainer would record it; None inside a list is a null."""

    advantage: float | Sequence[float]
    gap: Sequence[float | None] | None = None
    learner: Sequence[float | None] | None = None
    sampler: Sequence[float | None] | None = None
    mask: Sequence[bool] | None = None
    missing: Sequence[bool] | None = None
    group: Hashable | None = None
    reward: float | None = None
    policy_version: int | Sequence[int] | None = None
    padding: bool = False

    def __len__(self) -> int:
        column = self.gap if self.gap is not None else self.learner
        assert column is not None
        return len(column)


@dataclass(frozen=True)
class Token:
    """One position of mask 1. `delta` is None for an unusable one, `advantage` is None when not finite."""

    position: int
    kind: str  # "valid", "nan", "pos_inf", "neg_inf", "missing"
    delta: float
    advantage: float | None
    learner: float | None
    sampler: float | None

    @property
    def region(self) -> str:
        if self.advantage is None or self.advantage == 0 or self.delta == 0:
            return "none"
        if self.advantage < 0:
            return "a_neg" if self.delta < 0 else "c_neg"
        return "a_pos" if self.delta > 0 else "c_pos"

    @property
    def mass(self) -> float:
        return 0.0 if self.advantage is None else abs(self.advantage)


@dataclass(frozen=True)
class Segment:
    index: int
    tokens: tuple[Token, ...]
    eligible: bool

    def tail_count(self, spec: Spec, regions: Sequence[str]) -> int:
        return sum(is_amplifying_tail(t, spec, regions) for t in self.tokens)


def is_amplifying_tail(token: Token, spec: Spec, regions: Sequence[str]) -> bool:
    return token.region in regions and abs(token.delta) >= spec.tau_ana


def family_regions(family: str) -> tuple[str, ...]:
    return {"": ("a_neg", "a_pos"), "_a_neg": ("a_neg",), "_a_pos": ("a_pos",)}[family]


# Section 1: from a row to its tokens


def tokens_of(response: Response) -> list[Token]:
    """Every position of mask 1, classified and numbered from the first of them on, masked ones between included."""
    masked_in = [_mask_at(response, t) for t in range(len(response))]
    if not any(masked_in):
        return []
    first = masked_in.index(True)
    return [_token(response, t, t - first) for t in range(len(response)) if masked_in[t]]


def _columns(response: Response, t: int) -> tuple[float | None, float | None, float | None]:
    """(gap, learner, sampler) at one position; None where the caller gave none."""
    if response.gap is not None:
        return response.gap[t], None, None
    assert response.learner is not None and response.sampler is not None
    learner, sampler = response.learner[t], response.sampler[t]
    if learner is None or sampler is None:
        return None, learner, sampler
    if math.isinf(learner) and learner == sampler:
        return math.nan, learner, sampler
    return learner - sampler, learner, sampler


def _mask_at(response: Response, t: int) -> bool:
    if response.mask is not None:
        return bool(response.mask[t])
    declared_missing = response.missing is not None and response.missing[t]
    return _columns(response, t)[0] is not None or bool(declared_missing)


def _token(response: Response, t: int, position: int) -> Token:
    gap, learner, sampler = _columns(response, t)
    advantage = response.advantage if isinstance(response.advantage, (int, float)) else response.advantage[t]
    usable = float(advantage) if math.isfinite(advantage) else None
    declared_missing = response.missing is not None and response.missing[t]
    if declared_missing or gap is None:
        return Token(position, "missing", 0.0, usable, None, None)
    if math.isnan(gap):
        return Token(position, "nan", 0.0, usable, None, None)
    if math.isinf(gap):
        return Token(position, "pos_inf" if gap > 0 else "neg_inf", 0.0, usable, None, None)
    return Token(position, "valid", float(gap), usable, learner, sampler)


# Sections 2, 3 and 6: direction, marginal distribution, uncertainty


def ratio(top: float, bottom: float) -> float | None:
    return top / bottom if bottom > 0 else None


def order_statistic(values: Sequence[float], q: str) -> float | None:
    if not values:
        return None
    return sorted(values)[max(math.ceil(Fraction(q) * len(values)), 1) - 1]


def region_sum(tokens: Sequence[Token], region: str, weigh_by_gap: bool = False) -> float:
    return math.fsum(t.mass * (abs(t.delta) if weigh_by_gap else 1.0) for t in tokens if t.region == region)


def direction(valid: Sequence[Token], spec: Spec) -> dict[str, float | None]:
    mass = {r: region_sum(valid, r) for r in ("a_neg", "a_pos", "c_neg", "c_pos")}
    pressure = {r: region_sum(valid, r, weigh_by_gap=True) for r in mass}
    tail = [t for t in valid if abs(t.delta) >= spec.tau_ana]
    negative = [t for t in valid if t.advantage is not None and t.advantage < 0]
    positive = [t for t in valid if t.advantage is not None and t.advantage > 0]
    total = math.fsum(t.mass for t in valid)
    amplifying = pressure["a_neg"] + pressure["a_pos"]
    contracting = pressure["c_neg"] + pressure["c_pos"]
    out: dict[str, float | None] = {f"mass_{r}": ratio(m, total) for r, m in mass.items()}
    out["rho_asym"] = ratio(mass["a_neg"], mass["a_pos"])
    out["asym_share"] = ratio(mass["a_neg"], mass["a_neg"] + mass["a_pos"])
    out["rho_asym_tail"] = ratio(region_sum(tail, "a_neg"), region_sum(tail, "a_pos"))
    out["advantage_mass_ratio"] = ratio(math.fsum(t.mass for t in negative), math.fsum(t.mass for t in positive))
    out["sign_odds_blind"] = ratio(sum(t.delta < 0 for t in valid), sum(t.delta > 0 for t in valid))
    factors = (out["rho_asym"], out["advantage_mass_ratio"], out["sign_odds_blind"])
    defined = None not in factors and factors[1] != 0 and factors[2] != 0
    out["rho_excess"] = factors[0] / (factors[1] * factors[2]) if defined else None  # type: ignore[operator]
    out["rho_pressure"] = ratio(pressure["a_neg"], pressure["a_pos"])
    for side, some in (("neg", negative), ("pos", positive)):
        out[f"deep_tail_{side}"] = ratio(sum(t.delta < spec.deep_tail for t in some), len(some))
    out["amplification_balance"] = ratio(amplifying - contracting, amplifying + contracting)
    return out


def reason_for_ratio(valid: Sequence[Token], top: float, bottom: float) -> str | None:
    """Why an absent ratio of amplifying masses is absent; None when it is defined."""
    if bottom > 0:
        return None
    if not valid:
        return "no_tokens"
    if math.fsum(t.mass for t in valid) == 0:
        return "no_advantage_signal"
    return "no_positive_mass" if top > 0 else "no_amplifying_mass"


def reasons(valid: Sequence[Token], spec: Spec) -> dict[str, str]:
    """The reasons that the definitions fix; every other absent number only has to carry some reason."""
    minus, plus = region_sum(valid, "a_neg"), region_sum(valid, "a_pos")
    tail = [t for t in valid if abs(t.delta) >= spec.tau_ana]
    total = math.fsum(t.mass for t in valid)
    found = {
        "rho_asym": reason_for_ratio(valid, minus, plus),
        "rho_asym_tail": reason_for_ratio(valid, region_sum(tail, "a_neg"), region_sum(tail, "a_pos")),
        "rho_pressure": reason_for_ratio(valid, minus, plus),
        "asym_share": reason_for_ratio(valid, 0.0, minus + plus),
    }
    found |= {f"mass_{r}": reason_for_ratio(valid, 0.0, total) for r in ("a_neg", "a_pos", "c_neg", "c_pos")}
    return {name: reason for name, reason in found.items() if reason is not None}


def quantiles(valid: Sequence[Token]) -> dict[str, dict[str, float | None]]:
    groups = {
        "all": [t.delta for t in valid],
        "neg": [t.delta for t in valid if t.advantage is not None and t.advantage < 0],
        "pos": [t.delta for t in valid if t.advantage is not None and t.advantage > 0],
    }
    return {name: {q: order_statistic(values, q) for q in QUANTILES} for name, values in groups.items()}


def log_rho_se(units: Sequence[Sequence[Token]]) -> float | None:
    """Delta method over the units that hold a valid token."""
    xs = [region_sum(unit, "a_neg") for unit in units if unit]
    ys = [region_sum(unit, "a_pos") for unit in units if unit]
    sum_x, sum_y, count = math.fsum(xs), math.fsum(ys), len(xs)
    if count < 2 or sum_x == 0 or sum_y == 0:
        return None
    spread = math.fsum((x / sum_x - y / sum_y) ** 2 for x, y in zip(xs, ys, strict=True))
    return math.sqrt(count / (count - 1) * spread)


# Section 4: segments


def segments_of(tokens: Sequence[Token], spec: Spec) -> list[Segment]:
    """Consecutive segments up to the last token; one inside may hold no valid token at all."""
    held: list[list[Token]] = [[] for _ in range(tokens[-1].position // spec.segment + 1)] if tokens else []
    for token in tokens:
        if token.kind == "valid":
            held[token.position // spec.segment].append(token)
    return [Segment(j, tuple(some), 4 * len(some) >= spec.segment) for j, some in enumerate(held)]


def top5_tail_share(placed: Sequence[tuple[int, int]]) -> float | None:
    """`placed` holds (c, n) of each eligible segment."""
    total = sum(c for c, _ in placed)
    if total == 0:
        return None
    room = Fraction(len(placed), 20)
    held = Fraction(0)
    for value in sorted({Fraction(c, n) for c, n in placed}, reverse=True):
        tied = [c for c, n in placed if Fraction(c, n) == value]
        entering = min(room, Fraction(len(tied)))
        held += entering / len(tied) * sum(tied)
        room -= entering
    return float(held / total)


def segment_family(responses: Sequence[Sequence[Token]], spec: Spec, family: str) -> dict[str, float | None]:
    regions = family_regions(family)
    segmented = [[s for s in segments_of(tokens, spec) if s.eligible] for tokens in responses]
    valid = [t for tokens in responses for t in tokens if t.kind == "valid"]
    placed = [[(s.tail_count(spec, regions), len(s.tokens)) for s in found] for found in segmented]
    pooled = [pair for found in placed for pair in found]
    heavy = [[c / n >= spec.phi for c, n in found] for found in placed]
    follows, both = 0, 0
    for found, flags in zip(segmented, heavy, strict=True):
        for j in range(len(found) - 1):
            if flags[j] and found[j + 1].index == found[j].index + 1:
                follows += 1
                both += flags[j + 1]
    with_heavy = [tokens for tokens, flags in zip(responses, heavy, strict=True) if any(flags)]
    hidden = sum(abs(mean_gap(tokens)) < spec.near_zero for tokens in with_heavy)
    share = top5_tail_share(pooled)
    after_heavy, chance = ratio(both, follows), ratio(sum(map(sum, heavy)), len(pooled))
    return {
        f"tail_token_fraction{family}": ratio(sum(is_amplifying_tail(t, spec, regions) for t in valid), len(valid)),
        f"heavy_segment_fraction{family}": chance,
        f"top5_tail_share{family}": share,
        f"tail_concentration{family}": None if share is None else share / 0.05,
        f"persistence{family}": None if after_heavy is None or not chance else after_heavy / chance,
        f"masked_response_fraction{family}": ratio(hidden, len(with_heavy)),
    }


def mean_gap(tokens: Sequence[Token]) -> float:
    usable = [t.delta for t in tokens if t.kind == "valid"]
    return math.fsum(usable) / len(usable)


# Everything of one update, or of several pooled


@dataclass(frozen=True)
class Update:
    step: int
    responses: tuple[Response, ...]
    attempt: int = 1
    complete: bool = True


def report(inputs: Sequence[Update | Response], spec: Spec = DEFAULT) -> dict[str, Any]:
    """{indicators, reasons, quantiles, masses, counts} of the pooled responses; plain responses are one update."""
    rows = rows_of(inputs)
    responses = [tokens_of(r) for _, r in rows]
    usable = [[t for t in tokens if t.kind == "valid"] for tokens in responses]
    valid = [t for tokens in usable for t in tokens]
    out = direction(valid, spec) | magnitude(usable, spec.near_zero)
    out["log_rho_se"] = log_rho_se(_units(rows, usable))
    for family in FAMILIES:
        out |= segment_family(responses, spec, family)
    counted = counts(responses, spec)
    unusable = counted["missing"] + counted["nan"] + counted["pos_inf"] + counted["neg_inf"]
    out["nonfinite_fraction"] = ratio(unusable, counted["tokens"])
    zeros = sum(t.delta == 0 for t in valid)
    out["not_observable"] = float(len(valid) >= 1000 and 1000 * zeros >= 999 * len(valid)) if valid else None
    rewards = [r.reward for _, r in rows if r.reward is not None and not math.isnan(r.reward)]
    out["reward_mean"] = ratio(math.fsum(rewards), len(rewards))
    masses = {r: region_sum(valid, r) for r in ("a_neg", "a_pos", "c_neg", "c_pos")}
    masses["total"] = math.fsum(t.mass for t in valid)
    why = reasons(valid, spec)
    return {"indicators": out, "reasons": why, "quantiles": quantiles(valid), "masses": masses, "counts": counted}


def rows_of(inputs: Sequence[Update | Response]) -> list[tuple[int, Response]]:
    """(number of the update, response) of every row that is not padding."""
    rows: list[tuple[int, Response]] = []
    for k, item in enumerate(inputs):
        rows += [(-1, item)] if isinstance(item, Response) else [(k, r) for r in item.responses]
    return [(k, r) for k, r in rows if not r.padding]


def _units(rows: Sequence[tuple[int, Response]], usable: Sequence[Sequence[Token]]) -> list[list[Token]]:
    units: dict[Hashable, list[Token]] = {}
    for i, ((update, response), tokens) in enumerate(zip(rows, usable, strict=True)):
        key = ("row", i) if response.group is None else ("group", update, response.group)
        units.setdefault(key, []).extend(tokens)
    return list(units.values())


def counts(responses: Sequence[Sequence[Token]], spec: Spec) -> dict[str, int]:
    every = [t for tokens in responses for t in tokens]
    segments = [s for tokens in responses for s in segments_of(tokens, spec)]
    eligible = [s for s in segments if s.eligible]
    regions = family_regions("")
    return {
        "responses": len(responses),
        "empty_responses": sum(not tokens for tokens in responses),
        "tokens": len(every),
        "valid_tokens": sum(t.kind == "valid" for t in every),
        **{kind: sum(t.kind == kind for t in every) for kind in ("missing", "nan", "pos_inf", "neg_inf")},
        "unusable_advantage": sum(
            any(t.kind == "valid" and t.advantage is None for t in tokens) for tokens in responses
        ),
        "segments": len(segments),
        "eligible_segments": len(eligible),
        "heavy_segments": sum(s.tail_count(spec, regions) / len(s.tokens) >= spec.phi for s in eligible),
        "overflow_tokens": sum(t.kind == "valid" and (2 * t.delta > 700 or -t.delta > 700) for t in every),
    }


# Section 7: windows


def effective(updates: Sequence[Update]) -> list[Update]:
    """The run's history after resumptions, in step order: newest attempt wins from its first step on."""
    firsts = {a: min(u.step for u in updates if u.attempt == a) for a in {u.attempt for u in updates}}
    kept = [u for u in updates if all(u.step < firsts[a] for a in firsts if a > u.attempt)]
    return sorted((u for u in kept if u.complete), key=lambda u: u.step)


def trailing_window(updates: Sequence[Update], size: int = 25, upto: int | None = None) -> list[Update]:
    """The updates that the newest window (or the one that ends at step `upto`) merges."""
    return [u for u in effective(updates) if upto is None or u.step <= upto][-size:]
