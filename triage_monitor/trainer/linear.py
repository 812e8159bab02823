"""W4A4 linear layer: y = dequantised(x) @ dequantised(w).T + b, straight-through in the backward pass.

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

from triage_monitor.trainer.nvfp4 import QuantOptions, fake_quantize


def nvfp4_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: QuantOptions | None,
    weight_options: QuantOptions | None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """x [..., in], weight [out, in], bias [out] -> [..., out]. None leaves that operand unquantised.

    `generator` serves stochastic rounding. InputError if a blocked dimension is no multiple of 16.
    """
    device = x.device.type
    out_dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    with torch.autocast(device, enabled=False):
        x, weight = x.to(dtype), weight.to(dtype)
        if activation is not None:
            x = fake_quantize(x, activation, generator)
        if weight_options is not None:
            weight = fake_quantize(weight, weight_options, generator)
        return functional.linear(x, weight, None if bias is None else bias.to(dtype)).to(out_dtype)


class Nvfp4Linear(nn.Linear):
    """`nn.Linear` with both operands quantised in the forward pass; master weights stay as they are."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        activation: QuantOptions | None = QuantOptions(),  # noqa: B008  # frozen
        weight_options: QuantOptions | None = QuantOptions(tile_2d=True),  # noqa: B008  # frozen
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self.activation = activation
        self.weight_options = weight_options

    def forward(self, input: Tensor) -> Tensor:
        return nvfp4_linear(
            input, self.weight, self.bias, activation=self.activation, weight_options=self.weight_options
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation}, weight_options={self.weight_options}"
