"""Linear layer with rounded operands (W4A4, W8A8), straight-through in the backward pass:

    y = dequantised(x) @ dequantised(w).T + b

    dx = dy @ w_q        dw = dy.T @ x_q        (w_q, x_q the dequantised operands; dy not quantised)

Transformer Engine calls this `backward_override="dequantized"`. The product runs in float32 (float64 for float64 input)
with autocast off, as an FP4 GEMM accumulates in float32; the result has the autocast dtype if autocast is on, else x's.
The weight is quantised on every call: where many calls share one weight (decoding), pass `fake_quantize(weight, ...)`
once made and `weight_options=None`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from triage_monitor.trainer import scaled
from triage_monitor.trainer.nvfp4 import QuantOptions, fake_quantize
from triage_monitor.trainer.scaled import ScaledOptions

Options = QuantOptions | ScaledOptions  # NVFP4, or one of FP8, MXFP8 and MXFP4


def round_operand(x: Tensor, options: Options, generator: torch.Generator | None = None) -> Tensor:
    """x through any of the formats, straight-through; `generator` serves NVFP4's stochastic rounding."""
    if isinstance(options, ScaledOptions):
        return scaled.fake_quantize(x, options)
    return fake_quantize(x, options, generator)


def quantized_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Options | None,
    weight_options: Options | None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """x [..., in], weight [out, in], bias [out] -> [..., out]. None leaves that operand unquantised.

    `generator` serves stochastic rounding. InputError if a blocked dimension does not fit the format.
    """
    device = x.device.type
    out_dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    with torch.autocast(device, enabled=False):
        x, weight = x.to(dtype), weight.to(dtype)
        if activation is not None:
            x = round_operand(x, activation, generator)
        if weight_options is not None:
            weight = round_operand(weight, weight_options, generator)
        return functional.linear(x, weight, None if bias is None else bias.to(dtype)).to(out_dtype)


class QuantizedLinear(nn.Linear):
    """`nn.Linear` with both operands rounded in the forward pass; master weights stay as they are. By default NVFP4."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        activation: Options | None = QuantOptions(),  # noqa: B008  # frozen
        weight_options: Options | None = QuantOptions(tile_2d=True),  # noqa: B008  # frozen
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self.activation = activation
        self.weight_options = weight_options

    def forward(self, input: Tensor) -> Tensor:
        return quantized_linear(
            input, self.weight, self.bias, activation=self.activation, weight_options=self.weight_options
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation}, weight_options={self.weight_options}"
