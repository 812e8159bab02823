"""The learner's execution path: the whole sequence at once, under teacher forcing, with gradients.

Weights are rounded on every forward pass (they move with every optimiser step) and activations are rounded over the
whole minibatch; both are straight-through: the backward pass sees the rounded operands and an identity rounding.
Attention is one causal kernel over all positions. Nothing here knows how the tokens were sampled.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from triage_monitor.testbed.model import NORM_EPS, Shape, Weights
from triage_monitor.testbed.precision import Precision


def learner_logits(weights: Weights, shape: Shape, precision: Precision, tokens: Tensor, first: int = 0) -> Tensor:
    """[B, T - first, vocabulary] logits that follow positions first..T-1 of `tokens` [B, T] int64."""
    x = weights["embedding"][tokens] + weights["position"][: tokens.shape[1]]
    for layer in range(shape.layers):
        x = x + _attention(weights, shape, precision, layer, x)
        x = x + _mlp(weights, precision, layer, x)
    return functional.linear(_norm(x[:, first:], weights["norm"]), weights["head"])


def response_logprobs(
    weights: Weights, shape: Shape, precision: Precision, prompts: Tensor, responses: Tensor
) -> tuple[Tensor, Tensor]:
    """The learner's log-probs of the sampled tokens and its entropies, both [B, R] in nats; entropy is detached."""
    tokens = torch.cat([prompts, responses[:, :-1]], 1)
    logits = learner_logits(weights, shape, precision, tokens, first=prompts.shape[1] - 1)
    logprobs = functional.log_softmax(logits, -1)
    entropy = -(logprobs.detach().exp() * logprobs.detach()).sum(-1)
    return logprobs.gather(2, responses[:, :, None]).squeeze(2), entropy


def _attention(weights: Weights, shape: Shape, precision: Precision, layer: int, x: Tensor) -> Tensor:
    batch, length, width = x.shape
    normed = _norm(x, weights[f"{layer}.norm_attention"])
    qkv = precision.linear(normed, weights[f"{layer}.qkv"])
    query, key, value = qkv.view(batch, length, 3, shape.heads, shape.head_width).transpose(1, 3).unbind(2)
    mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return precision.linear(mixed.transpose(1, 2).reshape(batch, length, width), weights[f"{layer}.out"])


def _mlp(weights: Weights, precision: Precision, layer: int, x: Tensor) -> Tensor:
    hidden = precision.linear(_norm(x, weights[f"{layer}.norm_mlp"]), weights[f"{layer}.up"])
    return precision.linear(functional.relu(hidden).square(), weights[f"{layer}.down"])


def _norm(x: Tensor, gain: Tensor) -> Tensor:
    return functional.rms_norm(x, gain.shape, gain, NORM_EPS)
