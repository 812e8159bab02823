"""The objective of estimands section 9, slow and obvious: plain Python floats, one response and one token at a time.

Written from the estimands, shares nothing with the package. A response is given from its first stored position on;
its segments start at its first mask-1 position. Tokens carry what the trainer's own loss gives: its value and its
derivative in log pi.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Token:
    learner: float
    sampler: float
    advantage: float
    mask: bool = True
    loss: float = 0.0
    slope: float = 0.0  # d loss / d learner


@dataclass
class Outcome:
    loss: float
    repair: float
    gradient: list[list[float]]  # d loss / d learner, per response and token
    alpha: list[list[float]]
    psi: list[list[float]]
    n_rep: int
    gated: list[list[bool]] = field(default_factory=list)


def gap_of(token: Token) -> float | None:
    """None when masked or not finite."""
    if not token.mask:
        return None
    gap = token.learner - token.sampler
    return gap if math.isfinite(gap) else None


def segments_of(response: list[Token], width: int) -> list[list[int]]:
    """Indices of each segment's positions, holes included."""
    masked_in = [index for index, token in enumerate(response) if token.mask]
    if not masked_in:
        return []
    segments = []
    start = masked_in[0]
    while start <= masked_in[-1]:
        segments.append(list(range(start, min(start + width, masked_in[-1] + 1))))
        start += width
    return segments


def statistics_of(response: list[Token], segment: list[int], tau_tail: float) -> tuple[int, float, float]:
    gaps = [gap for index in segment if (gap := gap_of(response[index])) is not None]
    if not gaps:
        return 0, 0.0, 0.0
    return len(gaps), math.fsum(gaps) / len(gaps), sum(gap < tau_tail for gap in gaps) / len(gaps)


def ramp(value: float, start: float, end: float) -> float:
    return min(1.0, max(0.0, (value - start) / (end - start)))


def gate_weights(response: list[Token], gate: dict[str, Any]) -> list[float]:
    weights = [1.0] * len(response)
    if not gate["enabled"]:
        return weights
    for segment in segments_of(response, gate["segment"]):
        count, mean, tail = statistics_of(response, segment, gate["tau_tail"])
        if count == 0:
            continue
        r1 = ramp(-mean, -gate["mean_hi"], -gate["mean_lo"])
        r2 = ramp(tail, gate["tail_lo"], gate["tail_hi"])
        segment_weight = 1 - (1 - gate["w_min"]) * (1 - (1 - r1) * (1 - r2))
        for index in segment:
            gap = gap_of(response[index])
            if gap is not None and response[index].advantage < 0 and gap < 0:
                weights[index] = segment_weight
    return weights


def alpha_of(response: list[Token], weights: list[float]) -> list[float]:
    kept = [weight for token, weight in zip(response, weights, strict=True) if token.mask]
    if not kept or math.fsum(kept) == 0:
        return [1.0] * len(response)
    wbar = math.fsum(kept) / len(kept)
    return [weight / wbar if token.mask else 1.0 for token, weight in zip(response, weights, strict=True)]


def repair_segments(response: list[Token], width: int) -> list[list[int]]:
    """Eligible segments (at least W/4 valid tokens) whose advantages sum to more than 0."""
    found = []
    for segment in segments_of(response, width):
        valid = [index for index in segment if gap_of(response[index]) is not None]
        balance = math.fsum(response[i].advantage for i in valid if math.isfinite(response[i].advantage))
        if len(valid) >= width / 4 and balance > 0:
            found.append(valid)
    return found


def evaluate(
    responses: list[list[Token]],
    params: dict[str, Any],
    step: int,
    aggregation: str = "sequence_mean",
    divisor: float = 1.0,
) -> Outcome:
    gate, repair = params["gate"], params["repair"]
    weights = [gate_weights(response, gate) for response in responses]
    alpha = [alpha_of(response, weight) for response, weight in zip(responses, weights, strict=True)]
    psi, penalty, n_rep = _repair(responses, repair, gate["segment"], step)
    token_count = sum(token.mask for response in responses for token in response)
    filled = sum(any(token.mask for token in response) for response in responses)

    terms, gradient = [], []
    for response, factors, pulls in zip(responses, alpha, psi, strict=True):
        length = sum(token.mask for token in response)
        share = {"sequence_mean": length * filled, "token_mean": token_count, "constant": divisor}[aggregation]
        row = []
        for token, factor, pull in zip(response, factors, pulls, strict=True):
            if token.mask:
                terms.append(factor * token.loss / share)
                row.append(factor * token.slope / share - pull)
            else:
                row.append(0.0)
        gradient.append(row)
    gated = [[weight < 1 for weight in row] for row in weights]
    return Outcome(math.fsum(terms) + penalty, penalty, gradient, alpha, psi, n_rep, gated)


def _repair(
    responses: list[list[Token]], repair: dict[str, Any], width: int, step: int
) -> tuple[list[list[float]], float, int]:
    strength = repair["lambda_rep"] if repair["enabled"] and step >= repair["k_rep"] else 0.0
    beta = repair["beta"]
    targets = [repair_segments(response, width) for response in responses]
    n_rep = sum(len(segments) for segments in targets)
    psi = [[0.0] * len(response) for response in responses]
    penalties = []
    for row, (response, segments) in enumerate(zip(responses, targets, strict=True)):
        for valid in segments:
            gaps = [gap for index in valid if (gap := gap_of(response[index])) is not None]
            q = max(0.0, repair["tau_rep"] - math.fsum(gaps) / len(gaps))
            root = math.sqrt(1 + (q / beta) ** 2)
            penalties.append(beta**2 / 2 * (root - 1))
            for index in valid:
                psi[row][index] = strength / n_rep / len(valid) * q / (2 * root)
    return psi, strength / n_rep * math.fsum(penalties) if n_rep else 0.0, n_rep
