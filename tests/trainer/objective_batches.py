"""Batches for the objective's tests: made once as reference tokens, then laid out as tensors in any form."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from trainer.reference_objective import Token

from triage_monitor.parameters import TriageParams

ACTIVE = TriageParams().with_changes(
    {"gate.enabled": True, "repair.enabled": True, "gate.segment": 16, "gate.w_min": 0.3, "repair.beta": 0.2}
)


def make_responses(
    seed: int, count: int = 7, longest: int = 90, *, per_token: bool = False, holes: float = 0.1, nonfinite: float = 0.0
) -> list[list[Token]]:
    """Quiet, drifting and deep-tailed stretches in turn; advantages of both signs; loss -A exp(learner - old)."""
    draw = random.Random(seed)
    responses = []
    for index in range(count):
        sign = 1.0 if index % 2 else -1.0
        response = []
        level = 0.0
        for position in range(draw.randint(1, longest)):
            if position % 12 == 0:
                level = draw.choice([0.0, 0.0, -0.05, -0.15, -0.6, 0.1])
            learner = -draw.random() * 3
            gap = level + draw.gauss(0, 0.05) - (draw.random() * 2 if draw.random() < 0.05 else 0)
            if draw.random() < nonfinite:
                gap = draw.choice([math.nan, math.inf, -math.inf])
            advantage = sign * (0.5 + index / count) if not per_token else draw.gauss(sign * 0.4, 1)
            loss = -advantage * math.exp(draw.gauss(0, 0.1))
            response.append(Token(learner, learner - gap, advantage, draw.random() >= holes, loss, loss))
        responses.append(response)
    return responses


@dataclass
class Tensors:
    """Arguments of a loss call. `learner` is the leaf gradients are read from; `place` says where each token lies."""

    learner: Tensor
    sampler: Tensor
    advantages: Tensor
    mask: Tensor
    base: Tensor  # loss value of each token at the leaf's present value
    place: list[list[tuple[int, ...]]]
    cu_seqlens: Tensor | None = None

    def token_loss(self) -> Tensor:
        """Equal to `base`, with d loss / d learner = base."""
        return self.base * torch.exp(self.learner - self.learner.detach())

    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.token_loss(), self.learner, self.sampler, self.advantages, self.mask

    def rows(self, values: Tensor) -> list[list[float]]:
        return [[float(values[where]) for where in row] for row in self.place]


def lay_out(
    responses: list[list[Token]],
    layout: str = "right",
    *,
    per_token: bool = False,
    dtype: torch.dtype = torch.float64,
    padding: float = 0.0,
) -> Tensors:
    """layout: right or left padded (responses at the start or the end of a row), or packed."""
    width = max(len(response) for response in responses) + 3
    shape: tuple[int, ...] = (len(responses), width)
    starts = [0 if layout == "right" else width - len(response) for response in responses]
    place: list[list[tuple[int, ...]]] = [
        [(row, start + index) for index in range(len(response))]
        for row, (response, start) in enumerate(zip(responses, starts, strict=True))
    ]
    cu_seqlens = None
    if layout == "packed":
        offsets = [0]
        for response in responses:
            offsets.append(offsets[-1] + len(response))
        shape = (offsets[-1],)
        place = [[(offset + i,) for i in range(len(r))] for offset, r in zip(offsets, responses, strict=False)]
        cu_seqlens = torch.tensor(offsets, dtype=torch.int32)

    def fill(name: str, outside: Any) -> Tensor:
        values = torch.full(shape, outside, dtype=torch.bool if name == "mask" else dtype)
        for row, response in zip(place, responses, strict=True):
            for where, token in zip(row, response, strict=True):
                values[where] = getattr(token, name)
        return values

    one_each = torch.tensor([response[0].advantage for response in responses], dtype=dtype)
    return Tensors(
        learner=fill("learner", padding).requires_grad_(),
        sampler=fill("sampler", padding),
        advantages=fill("advantage", padding) if per_token else one_each,
        mask=fill("mask", False),
        base=fill("loss", padding),
        place=place,
        cu_seqlens=cu_seqlens,
    )
