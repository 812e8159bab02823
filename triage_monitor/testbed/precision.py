"""What one execution path does to the operands of the block linears: its quantisers, by name.

`float32`        nothing: the master weights' own arithmetic.
`bfloat16`       both operands rounded to bfloat16, products accumulated in float32, as a BF16 tensor core does.
`nvfp4-sampler`  W4A4: weights in 1x16 blocks, activations with one float32 scale per row (token).
`nvfp4-learner`  W4A4: weights in 16x16 tiles, activations with one float32 scale per tensor (minibatch).
A sampler may also keep its keys and values rounded (`cache`): `fp8` is E4M3 at scale 1, `nvfp4` has one scale a token.

The two NVFP4 forms are both in use in real stacks; their difference is the whole source of the gap. Emulated: values
are those of 4-bit arithmetic, the products run in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from triage_monitor.trainer.linear import nvfp4_linear
from triage_monitor.trainer.nvfp4 import QuantOptions, fake_quantize


@dataclass(frozen=True, slots=True)
class Precision:
    """Rounding of activations [..., in] and weights [out, in]; None and False leave an operand as it is."""

    name: str
    activation: QuantOptions | None = None
    weight: QuantOptions | None = None
    bfloat16: bool = False
    cache: str = "exact"

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x @ weight^T with both operands rounded, straight-through backward."""
        if self.bfloat16:
            return functional.linear(_through_bfloat16(x), _through_bfloat16(weight))
        return nvfp4_linear(x, weight, activation=self.activation, weight_options=self.weight)

    def round_weight(self, weight: Tensor) -> Tensor:
        """The rounded weight alone, for a path that reads it many times."""
        weight = weight.detach()
        if self.bfloat16:
            return _through_bfloat16(weight)
        return weight if self.weight is None else fake_quantize(weight, self.weight)

    def round_activation(self, x: Tensor) -> Tensor:
        if self.bfloat16:
            return _through_bfloat16(x)
        return x if self.activation is None else fake_quantize(x, self.activation)


def _through_bfloat16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).to(torch.float32)


FLOAT32 = Precision("float32")
BFLOAT16 = Precision("bfloat16", bfloat16=True)
NVFP4_SAMPLER = Precision("nvfp4-sampler", QuantOptions(row_scaled_activation=True), QuantOptions())
NVFP4_SAMPLER_FP8_CACHE = replace(NVFP4_SAMPLER, name="nvfp4-sampler-kv8", cache="fp8")
NVFP4_SAMPLER_NVFP4_CACHE = replace(NVFP4_SAMPLER, name="nvfp4-sampler-kv4", cache="nvfp4")
NVFP4_LEARNER = Precision("nvfp4-learner", QuantOptions(), QuantOptions(tile_2d=True))
