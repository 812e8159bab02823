"""The model's master weights: a pre-norm transformer with squared-ReLU MLP and learned positions, about 70k numbers.

    x = embedding[token] + position[t]
    x = x + out(attention(qkv(norm(x))));   x = x + down(relu(up(norm(x)))^2)        for each layer
    logits = norm(x) @ head^T

Weights are a plain dict of float32 tensors, read by both execution paths (`learner.py`, `sampler.py`); neither owns
them. The four linears of a block (`ROUNDED`) are what a precision rounds; embeddings, norms, head and softmax stay
float32, as in the published NVFP4 recipes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = dict[str, Tensor]
ROUNDED = ("qkv", "out", "up", "down")
NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model. `vocabulary` and `positions` come from the task."""

    vocabulary: int
    positions: int
    width: int = 64
    layers: int = 2
    heads: int = 4
    hidden: int = 128

    @property
    def head_width(self) -> int:
        return self.width // self.heads


def initial_weights(shape: Shape, seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int, columns: int, scale: float) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * scale

    width, hidden = shape.width, shape.hidden
    depth_scale = 1 / math.sqrt(2 * shape.layers)  # residual branches start small
    weights = {
        "embedding": normal(shape.vocabulary, width, 0.5),
        "position": normal(shape.positions, width, 0.2),
        "head": normal(shape.vocabulary, width, 1 / math.sqrt(width)),
        "norm": torch.ones(width),
    }
    for layer in range(shape.layers):
        weights |= {
            f"{layer}.norm_attention": torch.ones(width),
            f"{layer}.qkv": normal(3 * width, width, 1 / math.sqrt(width)),
            f"{layer}.out": normal(width, width, depth_scale / math.sqrt(width)),
            f"{layer}.norm_mlp": torch.ones(width),
            f"{layer}.up": normal(hidden, width, 1 / math.sqrt(width)),
            f"{layer}.down": normal(width, hidden, depth_scale / math.sqrt(hidden)),
        }
    return weights


def is_rounded(name: str) -> bool:
    return name.rpartition(".")[2] in ROUNDED
