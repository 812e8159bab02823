"""The sampler's execution path: one token at a time against a key-value cache, as a serving engine decodes.

Weights are rounded once per rollout; every decode step rounds the activations of its own tokens only. The prompts of
a group share one prefill, whose cache rows are then repeated. Sampling is at temperature 1 from the full vocabulary
by the Gumbel-max rule; the reported log-probs are the log-softmax of the very logits that were sampled from.
The decode step itself is `engine.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from triage_monitor.errors import ConfigError
from triage_monitor.testbed import engine
from triage_monitor.testbed.model import Shape, Weights
from triage_monitor.testbed.precision import Precision
from triage_monitor.trainer.nvfp4 import QuantOptions
from triage_monitor.trainer.scaled import ScaledOptions
from triage_monitor.trainer.scaled_cpu import FP8_SCALE, MXFP4_SCALE, MXFP8_SCALE

_SCALES = {("e4m3", "float32"): FP8_SCALE, ("e4m3", "e8m0"): MXFP8_SCALE, ("e2m1", "e8m0"): MXFP4_SCALE}
_CACHES = {"exact": engine.EXACT, "fp8": engine.FP8, "nvfp4": engine.NVFP4_PER_ROW}


@dataclass(frozen=True, slots=True)
class Rollout:
    """B responses of R positions, prompts repeated to match. `mask` [B, R] is true up to and including the end token;
    beyond it tokens are the end token again and log-probs 0."""

    prompts: Tensor
    responses: Tensor
    logprobs: Tensor
    mask: Tensor


class Sampler:
    """Decodes `repeats` responses to each of `prompts` prompts; holds the preallocated caches."""

    def __init__(self, shape: Shape, prompts: int, repeats: int) -> None:
        if prompts % 2 or shape.width % 4 or shape.hidden % 4:
            raise ConfigError("the decode loop needs an even number of prompts and widths that are multiples of 4")
        self._repeats = repeats
        self._prefix = _allocate(shape, prompts)
        self._cache = _allocate(shape, prompts * repeats)

    @torch.no_grad()
    def sample(
        self,
        weights: Weights,
        precision: Precision,
        prompts: Tensor,
        length: int,
        end_token: int | None,
        generator: torch.Generator,
    ) -> Rollout:
        """Responses of at most `length` tokens to prompts [N, P] int64; B = N * repeats rows, groups side by side."""
        packed, rounding = pack(weights, precision), _rounding(precision)
        first, columns = prompts.shape[1], prompts.t().contiguous()
        logits = torch.empty(len(prompts), weights["head"].shape[0])
        for position in range(first):
            engine.step(packed, self._prefix, columns[position].numpy(), position, rounding, logits.numpy())
        for shared, own in zip(self._prefix, self._cache, strict=True):
            own[..., :first] = np.repeat(shared[..., :first], self._repeats, axis=1)
        logits = logits.repeat_interleave(self._repeats, 0).repeat(length, 1, 1)
        gumbel = torch.empty_like(logits).exponential_(generator=generator).log_().neg_()
        tokens = torch.empty(logits.shape[:2], dtype=torch.int64)
        for t in range(length):
            torch.argmax(gumbel[t].add_(logits[t]), 1, out=tokens[t])
            if t + 1 < length:
                engine.step(packed, self._cache, tokens[t].numpy(), first + t, rounding, logits[t + 1].numpy())
        logprobs = functional.log_softmax(logits, -1).gather(2, tokens[:, :, None]).squeeze(2).t().contiguous()
        responses = tokens.t().contiguous()
        mask = _until_end(responses, end_token)
        if end_token is not None:
            responses.masked_fill_(~mask, end_token)
        return Rollout(prompts.repeat_interleave(self._repeats, 0), responses, logprobs * mask, mask)


def pack(weights: Weights, precision: Precision) -> engine.EngineWeights:
    """The engine's copy of the weights: block linears rounded, matrices transposed to [in, out], layers stacked."""

    def stacked(name: str) -> engine.Floats:
        layers = [weight for key, weight in weights.items() if key.endswith(f".{name}")]
        if layers[0].dim() == 2:
            layers = [precision.round_weight(weight).t() for weight in layers]
        return _array(torch.stack(layers))

    return engine.EngineWeights(
        embedding=_array(weights["embedding"]),
        position=_array(weights["position"]),
        norm=_array(weights["norm"]),
        head=_array(weights["head"].t()),
        norm_attention=stacked("norm_attention"),
        qkv=stacked("qkv"),
        out=stacked("out"),
        norm_mlp=stacked("norm_mlp"),
        up=stacked("up"),
        down=stacked("down"),
    )


def _array(x: Tensor) -> engine.Floats:
    array: engine.Floats = x.detach().contiguous().numpy()
    return array


def _allocate(shape: Shape, rows: int) -> engine.EngineCache:
    size = (shape.layers, rows, shape.heads, shape.head_width, shape.positions)
    return engine.EngineCache(np.zeros(size, np.float32), np.zeros(size, np.float32))


def _rounding(precision: Precision) -> engine.Rounding:
    options = precision.activation
    cache = _CACHES[precision.cache]
    if options is None:
        return engine.Rounding(engine.BFLOAT16 if precision.bfloat16 else engine.EXACT, cache)
    if isinstance(options, ScaledOptions):
        if precision.bfloat16 or options.block[0] != 1 or options.scale_rounding != "floor":
            raise ConfigError(f"the decode loop rounds activations within rows only, not by {options}")
        return engine.Rounding(engine.SCALED + _SCALES[options.element, options.scale], cache, span=options.block[1])
    if precision.bfloat16 or options != QuantOptions(row_scaled_activation=options.row_scaled_activation):
        raise ConfigError(f"the decode loop rounds activations per tensor or per row only, not by {options}")
    kind = engine.NVFP4_PER_ROW if options.row_scaled_activation else engine.NVFP4_PER_TENSOR
    return engine.Rounding(kind, cache)


def _until_end(responses: Tensor, end_token: int | None) -> Tensor:
    if end_token is None:
        return torch.ones_like(responses, dtype=torch.bool)
    is_end = responses == end_token
    return (is_end.cumsum(1) - is_end.to(torch.int64)) == 0
