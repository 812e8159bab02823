"""What one execution path does to the operands of the block linears: its quantisers, by name.

`float32`        nothing: the master weights' own arithmetic.
`bfloat16`       both operands rounded to bfloat16, products accumulated in float32, as a BF16 tensor core does.
`nvfp4-sampler`  W4A4: weights in 1x16 blocks, activations with one float32 scale per row (token).
`nvfp4-learner`  W4A4: weights in 16x16 tiles, activations with one float32 scale per tensor (minibatch).
`fp8-*`          W8A8: weights with one scale a tensor; a row's scale for the sampler's activations, a tensor's for the
                 learner's. `fp8-block`: 128x128 tiles and 1x128 blocks on either side.
`mxfp8`, `mxfp4` 1x32 blocks under powers of two for both operands on either side.
`*-qat`          bfloat16 with the weights through the sampler's quantiser of that format: the quantisation-aware
                 learner that does no low-precision product, a baseline.
A sampler may also keep its keys and values rounded (`cache`): `fp8` is E4M3 at scale 1, `nvfp4` has one scale a token.

The two forms of NVFP4 and of FP8 are both in use in real stacks; their difference is a source of the gap. Emulated:
values are those of low-precision arithmetic, the products run in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from triage_monitor.trainer.linear import Options, quantized_linear, round_operand
from triage_monitor.trainer.nvfp4 import QuantOptions
from triage_monitor.trainer.scaled import FP8_BLOCK, FP8_ROW, FP8_TENSOR, FP8_TILE, MXFP4, MXFP8


@dataclass(frozen=True, slots=True)
class Precision:
    """Rounding of activations [..., in] and weights [out, in]; None leaves an operand as it is, or to bfloat16."""

    name: str
    activation: Options | None = None
    weight: Options | None = None
    bfloat16: bool = False
    cache: str = "exact"

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x @ weight^T with both operands rounded, straight-through backward."""
        if self.bfloat16:
            return functional.linear(self._operand(x, self.activation), self._operand(weight, self.weight))
        return quantized_linear(x, weight, activation=self.activation, weight_options=self.weight)

    def round_weight(self, weight: Tensor) -> Tensor:
        """The rounded weight alone, for a path that reads it many times."""
        return self._operand(weight.detach(), self.weight)

    def round_activation(self, x: Tensor) -> Tensor:
        return self._operand(x, self.activation)

    def _operand(self, x: Tensor, options: Options | None) -> Tensor:
        if options is not None:
            x = round_operand(x, options)
        return _through_bfloat16(x) if self.bfloat16 else x


def _through_bfloat16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).to(torch.float32)


FLOAT32 = Precision("float32")
BFLOAT16 = Precision("bfloat16", bfloat16=True)
NVFP4_SAMPLER = Precision("nvfp4-sampler", QuantOptions(row_scaled_activation=True), QuantOptions())
NVFP4_SAMPLER_FP8_CACHE = replace(NVFP4_SAMPLER, name="nvfp4-sampler-kv8", cache="fp8")
NVFP4_SAMPLER_NVFP4_CACHE = replace(NVFP4_SAMPLER, name="nvfp4-sampler-kv4", cache="nvfp4")
NVFP4_LEARNER = Precision("nvfp4-learner", QuantOptions(), QuantOptions(tile_2d=True))
FP8_SAMPLER = Precision("fp8-sampler", FP8_ROW, FP8_TENSOR)
FP8_LEARNER = Precision("fp8-learner", FP8_TENSOR, FP8_TENSOR)
FP8_BLOCKS = Precision("fp8-block", FP8_BLOCK, FP8_TILE)
MXFP8_BLOCKS = Precision("mxfp8", MXFP8, MXFP8)
MXFP4_BLOCKS = Precision("mxfp4", MXFP4, MXFP4)


def quantization_aware(sampler: Precision, name: str) -> Precision:
    """The learner in bfloat16 whose weights pass through the sampler's quantiser."""
    return Precision(name, None, sampler.weight, bfloat16=True)
