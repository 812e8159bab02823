"""Causes that show in where the large gaps stand (above 1 nat either way), or in that they go both ways.

A place explains the large gaps when it holds at least half of them, at ten times the rate of the rest, and by chance
would so less than once in a thousand times (a million for the last tokens, where lengths and positions conspire).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from triage_monitor.judge.causes import Finding, Value
from triage_monitor.judge.causes_gaps import CORE, FAR, all_gaps, filling, followed
from triage_monitor.summary.symptoms import Symptoms

RATE_RATIO, HELD = 10.0, 0.5
CORE_SHARE, TAIL_SHARE, FEWEST_TAIL, FILLED = 0.5, 0.01, 5, 2.0


def places(symptoms: Symptoms) -> list[Finding]:
    border, end = _held(symptoms, "border"), _held(symptoms, "end")
    if border is not None and (end is None or border["share"] >= end["share"]):
        if border["chance"] <= 1e-3 and symptoms.count("borders_hit") >= 2:
            hit = symptoms.count("borders_hit")
            evidence: dict[str, Value] = {**border, "borders": symptoms.count("borders"), "borders_hit": hit}
            text = f"{border['share']:.0%} of the large gaps stand within 4 tokens after a turn begins ({hit} turns)"
            return [Finding("retokenised_turn_borders", text, "high" if hit >= 5 else "medium", evidence)]
    elif end is not None and end["chance"] <= 1e-6 and symptoms.count("ends_hit") >= 3:
        hit = symptoms.count("ends_hit")
        text = f"{end['share']:.0%} of the large gaps stand on the last 4 tokens of {hit} responses"
        return [Finding("appended_tokens", text, "medium", {**end, "responses": hit})]
    return []


def _held(symptoms: Symptoms, place: str) -> dict[str, float] | None:
    inside, tail = symptoms.count(f"{place}_tokens"), symptoms.count(f"{place}_tail")
    every, every_tail = symptoms.count(f"{place}_all"), symptoms.count(f"{place}_all_tail")
    if tail < 3 or tail < HELD * every_tail or every <= inside:
        return None
    elsewhere = (every_tail - tail) / (every - inside)
    if tail / inside < RATE_RATIO * elsewhere:
        return None
    share = inside / every
    chance = _at_least(tail, every_tail, share)
    return {
        "large_gaps": every_tail,
        "share": _short(tail / every_tail),
        "place_share": _short(share),
        "chance": chance,
    }


def _at_least(hits: int, draws: int, share: float) -> float:
    """P(binomial >= hits), by its largest term and a geometric bound on the rest."""
    if hits <= share * draws:
        return 1.0
    log = math.lgamma(draws + 1) - math.lgamma(hits + 1) - math.lgamma(draws - hits + 1)
    log += hits * math.log(share) + ((draws - hits) * math.log1p(-share) if draws > hits else 0.0)
    shrinks = (draws - hits) / (hits + 1) * share / (1 - share)
    return _short(min(1.0, math.exp(log) / max(1 - shrinks, 1e-3)))


def symmetric_tails(symptoms: Symptoms) -> Finding | None:
    """Not where the columns are strangers (large gaps both ways are all these have), nor in a few responses alone."""
    negative, positive = symptoms.count("tail_neg"), symptoms.count("tail_pos")
    tail, tokens = negative + positive, symptoms.count("tokens")
    if min(negative, positive) < FEWEST_TAIL or tail < TAIL_SHARE * tokens or 2 * min(negative, positive) < tail / 1.5:
        return None
    same = followed(symptoms)
    filled = FILLED if same is not None and same >= HELD else FAR
    core = all_gaps(symptoms).share(-CORE, CORE)
    if core < CORE_SHARE or filling(symptoms, CORE) > filled or not _spread(symptoms, tail):
        return None
    if _neighbours_cancel(symptoms):
        return None
    evidence: dict[str, Value] = {"below_minus_1": negative, "above_1": positive, "near_zero_share": _short(core)}
    text = f"{tail / tokens:.1%} of the gaps exceed 1 nat, {negative} below and {positive} above, around a narrow core"
    return Finding("symmetric_heavy_tails", text, "medium", evidence)


def _spread(symptoms: Symptoms, tail: int) -> bool:
    """The large gaps stand in at least half of the responses that they would reach if each fell on any of them."""
    responses = symptoms.count("responses")
    reached = -math.expm1(-tail / max(responses, 1))
    return symptoms.count("tail_responses") >= HELD * reached * responses


def _neighbours_cancel(symptoms: Symptoms) -> bool:
    """Shifted columns also give large gaps both ways; each then comes with its opposite beside it."""
    squares = symptoms.total("next_squares")
    return squares > 0 and symptoms.total("next_products") / squares < -0.3


def unexplained(symptoms: Symptoms, named: Sequence[Finding]) -> Finding | None:
    """Plainly wrong, and no cause was named."""
    if named or not symptoms.count("tokens"):
        return None
    if symptoms.count("zero_end"):
        evidence: dict[str, Value] = {"responses": symptoms.count("zero_end")}
        text = "responses end in sampler log-probs of exactly 0: fillers, appended tokens or a broken engine"
        return Finding("undetermined", text, "low", evidence)
    gaps = all_gaps(symptoms)
    if gaps.count < 16:
        return None
    size = _median_size(symptoms)
    negative, positive = symptoms.count("tail_neg"), symptoms.count("tail_pos")
    both = min(negative, positive) >= max(FEWEST_TAIL, 0.02 * gaps.count)
    if size >= 0.5 or both:
        evidence = {"median_abs_gap": _short(size), "below_minus_1": negative, "above_1": positive}
        words = "half of the gaps exceed 0.5 nat" if size >= 0.5 else "large gaps in both directions"
        return Finding("undetermined", f"{words}, and no cause separates from the others", "low", evidence)
    return None


def _median_size(symptoms: Symptoms) -> float:
    gaps = all_gaps(symptoms)
    folded = gaps.cells[gaps.cells.size // 2 :] + gaps.cells[: gaps.cells.size // 2 + 1][::-1]
    folded[0] //= 2
    cells = gaps.cells * 0
    cells[gaps.cells.size // 2 :] = folded
    return type(gaps)(cells).median


def _short(number: float) -> float:
    return float(f"{number:.6g}")
