"""Made-up rollouts with one known fault each: synthetic, but tokens are really sampled from a softmax.

A world draws contexts (about half of them deterministic), samples a token from the sampler's softmax and looks it up in
both; the learner's logits carry noise, so healthy gaps obey E[exp(gap)] = 1. Faults are then done to these columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triage_monitor.summary.rows_values import UpdateRows, rows_from_arrays

VOCABULARY = 48
Floats = NDArray[np.float64]


@dataclass
class World:
    """Columns per response; `settings`, `engines` and `versions` only where a fault needs them."""

    random: np.random.Generator
    learner: list[Floats]
    sampler: list[Floats]
    advantage: list[float]
    mask: list[NDArray[np.bool_]] | None = None
    turns: list[list[int]] | None = None
    versions: list[int] | None = None
    engines: list[str] | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def responses(self) -> int:
        return len(self.learner)

    def some(self, share: float) -> list[int]:
        """A random share of the responses, at least one."""
        count = max(1, round(share * self.responses))
        return sorted(self.random.choice(self.responses, count, replace=False).tolist())

    def rows(self, *, gap_only: bool = False, dtype: str = "float32") -> UpdateRows:
        columns: dict[str, Any] = {"advantages": np.array(self.advantage), "settings": self.settings}
        if gap_only:
            gaps = zip(self.learner, self.sampler, strict=True)
            columns["gap"] = [(left - right).astype(dtype) for left, right in gaps]
        else:
            columns["learner_logprobs"] = [values.astype(dtype) for values in self.learner]
            columns["sampler_logprobs"] = [values.astype(dtype) for values in self.sampler]
        for name, values in (("mask", self.mask), ("policy_versions", self.versions), ("engines", self.engines)):
            if values is not None:
                columns[name] = values
        if self.turns is not None:
            columns["turn_starts"] = self.turns
        return rows_from_arrays(**columns)


def rollout(
    random: np.random.Generator,
    *,
    responses: int = 32,
    tokens: tuple[int, int] = (40, 160),
    noise: float = 0.03,
    tail: float = 0.0,
    sampler_temperature: float = 1.0,
    learner_temperature: float = 1.0,
    top_p: float = 1.0,
    sure: float = 0.5,
) -> World:
    """`noise`: sd of the learner's logits around the sampler's; `tail`: share of tokens the learner makes unlikely."""
    lengths = random.integers(*tokens, size=responses)
    total = int(lengths.sum())
    logits = random.normal(size=(total, VOCABULARY)) * random.uniform(1.5, 4.0, size=(total, 1))
    logits[random.random(total) < sure, 0] += random.uniform(10, 25)
    sampler = _log_softmax(logits / sampler_temperature)
    if top_p < 1.0:
        sampler = _nucleus(sampler, top_p)
    chosen = (np.cumsum(np.exp(sampler), axis=1) < random.random((total, 1))).sum(axis=1).clip(max=VOCABULARY - 1)
    learner = _log_softmax((logits + noise * random.normal(size=logits.shape)) / learner_temperature)
    row = np.arange(total)
    left, right = learner[row, chosen], sampler[row, chosen]
    left = left - np.where(random.random(total) < tail, random.exponential(2.0, total), 0.0)
    edges = np.cumsum(lengths)[:-1]
    advantage = [float(value) for value in np.where(np.arange(responses) % 2, 1.0, -1.0)]
    return World(random, np.split(left, edges), np.split(right, edges), advantage)


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def _nucleus(log_probs: Floats, top_p: float) -> Floats:
    order = np.argsort(-log_probs, axis=1)
    ordered = np.take_along_axis(np.exp(log_probs), order, axis=1)
    kept = np.cumsum(ordered, axis=1) - ordered < top_p
    mask = np.zeros_like(kept)
    np.put_along_axis(mask, order, kept, axis=1)
    cut = np.where(mask, log_probs, -np.inf)
    with np.errstate(divide="ignore"):
        result: Floats = cut - np.log(np.exp(cut).sum(axis=1, keepdims=True))
    return result


def bfloat16(values: Floats) -> Floats:
    """Rounded to nearest, ties to even."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


Fault = Callable[[np.random.Generator], World]
