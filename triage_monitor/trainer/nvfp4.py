"""Emulated NVFP4: E2M1 values, one E4M3 scale per 16 elements, one float32 scale per tensor (or per row).

    x  ~  S * s_b * q,    S = amax / (6 * 448),    s_b = e4m3(amax_b / 6 / S),    q = e2m1(x * ((1 / S) / s_b))

q is on {0, .5, 1, 1.5, 2, 3, 4, 6}, nearest with ties to the even code. The order of the operations is that of torchao
0.18, so codes and scales agree bit for bit; s_b saturates at 448 before it is rounded. The options carry the meaning of
Transformer Engine's `NVFP4BlockScaling` recipe, whose own names `Nvfp4Recipe` takes. `fake_quantize` is
straight-through for gradients and, for float32 on the CPU, runs the fused kernels of nvfp4_cpu.py (the same bits).

Odd input. Zero tensors and zero blocks give zeros. A NaN makes its own block NaN (E4M3 has one, E2M1 has not); amax of
the tensor or row is taken over finite elements, so no other block changes. An infinity saturates: its block gets scale
448 and it gets 6. S never falls below 2^-117, where 1 / (S * s_b) would overflow: tensors with amax under 1.6e-32 lose
precision and then become zero. `quantization_stats` counts all of these.

Left out: random Hadamard transforms (as `disable_rht=True`), quantised gradients in a layer's backward, real FP4 GEMMs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from triage_monitor.errors import InputError
from triage_monitor.trainer import nvfp4_cpu
from triage_monitor.trainer.nvfp4_options import (
    BLOCK,
    E2M1_MAX,
    E4M3_MAX,
    MIN_TENSOR_SCALE,
    SCALE_FLOORS,
    Nvfp4Recipe,
    QuantOptions,
)

__all__ = [
    "Nvfp4Recipe",
    "QuantOptions",
    "Quantized",
    "dequantize",
    "fake_quantize",
    "fake_quantize_torch",
    "pack",
    "quantize",
]

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """codes uint8 [..., n], one E2M1 code (0-15) each; block_scales float32 holding E4M3 values, [..., n/16] or, for
    tiles, [..., m/16, n/16]; tensor_scale float32 [] or, row-scaled, [..., 1]."""

    codes: Tensor
    block_scales: Tensor
    tensor_scale: Tensor
    tile_2d: bool = False


def quantize(x: Tensor, options: QuantOptions, generator: torch.Generator | None = None) -> Quantized:
    """Codes and scales of x [..., n] (any float dtype; arithmetic in float32). InputError if n is no multiple of 16."""
    _check(x, options)
    values, block_scales, tensor_scale = _rounded(x.detach().float(), options, generator)
    table = torch.tensor([0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7], dtype=torch.uint8, device=x.device)
    codes = table[(values.abs() * 2).nan_to_num(0.0).long()] + torch.signbit(values).to(torch.uint8) * 8
    codes = torch.where(values.isnan(), 0, codes).to(torch.uint8)
    block_scales = block_scales.squeeze(-1)
    if options.tile_2d:
        block_scales = block_scales.squeeze(-2)
    return Quantized(codes.reshape(x.shape), block_scales, tensor_scale, options.tile_2d)


def pack(codes: Tensor) -> Tensor:
    """Two codes a byte along the last dimension, the earlier one in the low nibble (torchao's and the GEMMs' order)."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def dequantize(quantized: Quantized) -> Tensor:
    """float32 q * (S * s_b)."""
    codes = quantized.codes
    grid = torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)], device=codes.device)
    values = _blocked(grid[codes.long()], quantized.tile_2d)
    scales = quantized.block_scales.unsqueeze(-1)
    if quantized.tile_2d:
        scales = scales.unsqueeze(-3)
    return (values * (_over_blocks(quantized.tensor_scale) * scales)).reshape(codes.shape)


def fake_quantize(x: Tensor, options: QuantOptions, generator: torch.Generator | None = None) -> Tensor:
    """`dequantize(quantize(x))` in x's dtype, with the identity as its gradient. InputError on a bad shape."""
    if torch.is_grad_enabled() and x.requires_grad:
        result: Tensor = _StraightThrough.apply(x, options, generator)  # type: ignore[no-untyped-call]  # torch's own
        return result
    return _forward(x, options, generator)


def fake_quantize_torch(x: Tensor, options: QuantOptions, generator: torch.Generator | None = None) -> Tensor:
    """The plain torch form, on any device and under torch.compile; no gradient."""
    _check(x, options)
    values, block_scales, tensor_scale = _rounded(x.detach().float(), options, generator)
    return (values * (_over_blocks(tensor_scale) * block_scales)).reshape(x.shape).to(x.dtype)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, options: QuantOptions, generator: torch.Generator | None) -> Tensor:
        return _forward(x, options, generator)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0], None, None


def _forward(x: Tensor, options: QuantOptions, generator: torch.Generator | None) -> Tensor:
    if torch.compiler.is_compiling() or not _fusable(x, options):
        return fake_quantize_torch(x, options, generator)
    _check(x, options)
    x = x.detach().contiguous()
    out = torch.empty_like(x)  # torch aligns to 64 bytes: products of the result do not vary with the address
    try:
        nvfp4_cpu.fake_quantize(x.numpy(), out.numpy(), options)
    except RuntimeError:  # wrapped by vmap or a tracer: there is no memory to read
        return fake_quantize_torch(x, options, generator)
    return out


def _fusable(x: Tensor, options: QuantOptions) -> bool:
    """A plain float32 tensor in CPU memory, and options that the kernels know."""
    plain = type(x) in (Tensor, nn.Parameter) and x.device.type == "cpu" and x.dtype == torch.float32
    return plain and not (options.four_over_six or options.stochastic_rounding) and x.numel() > 0


def _check(x: Tensor, options: QuantOptions) -> None:
    """Raises InputError unless x is a float tensor whose blocked dimensions are multiples of 16."""
    if not x.is_floating_point():
        raise InputError("bad_dtype", f"NVFP4 quantises floats, not {x.dtype}")
    blocked = x.shape[-2:] if options.tile_2d else x.shape[-1:]
    if len(blocked) < (2 if options.tile_2d else 1) or any(size % BLOCK for size in blocked):
        which = "last two dimensions" if options.tile_2d else "last dimension"
        raise InputError("bad_shape", f"the {which} must be a multiple of {BLOCK}; shape is {list(x.shape)}")


def _blocked(x: Tensor, tile_2d: bool) -> Tensor:
    """[..., n/16, 16], or [..., m/16, 16, n/16, 16] for tiles."""
    columns = (x.shape[-1] // BLOCK, BLOCK)
    if not tile_2d:
        return x.reshape(*x.shape[:-1], *columns)
    return x.reshape(*x.shape[:-2], x.shape[-2] // BLOCK, BLOCK, *columns)


def _over_blocks(tensor_scale: Tensor) -> Tensor:
    return tensor_scale.unsqueeze(-1) if tensor_scale.dim() else tensor_scale


def _tensor_scale(x: Tensor, options: QuantOptions) -> Tensor:
    if options.static_amax is not None:
        amax = torch.tensor(options.static_amax, dtype=torch.float32, device=x.device)
    else:
        size = x.abs().nan_to_num(nan=0.0, posinf=0.0)
        if options.row_scaled_activation:
            amax = size.amax(-1, keepdim=True) if x.shape[-1] else size.new_zeros(*x.shape[:-1], 1)
        else:
            amax = size.amax() if x.numel() else size.new_zeros(())
    return (amax / options.scale_divisor).clamp(min=MIN_TENSOR_SCALE)


def _binade(x: Tensor) -> Tensor:
    """The largest power of two not above x (x positive and normal)."""
    return (x.view(torch.int32) & 0x7F800000).view(torch.float32)


def _round_e4m3(x: Tensor) -> Tensor:
    """Nearest E4M3 value, ties to even, of 0 <= x <= 448; NaN stays."""
    step = _binade(x.clamp(min=2.0**-6)) * 0.125
    return (x / step).round() * step


def _round_e2m1(x: Tensor, noise: Tensor | None = None) -> Tensor:
    """Nearest E2M1 value, ties to the even code, of |x| <= 6; with noise in [0, 1), up where noise < fraction."""
    step = _binade(x.abs().clamp(min=1.0)) * 0.5
    if noise is None:
        return (x / step).round() * step
    steps = x.abs() / step
    below = steps.floor()
    return torch.copysign((below + (noise < steps - below)) * step, x)


def _rounded(x: Tensor, options: QuantOptions, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Tensor]:
    """E2M1 values in block layout, block scales that broadcast over them, tensor scale [] or [..., 1]."""
    tensor_scale = _tensor_scale(x, options)
    S = _over_blocks(tensor_scale)
    x = _blocked(x, options.tile_2d)
    amax = x.abs().amax((-3, -1) if options.tile_2d else -1, keepdim=True) if x.numel() else x[..., :1]
    wanted = amax / E2M1_MAX / S
    block_scales = _block_scales(wanted, options)
    if options.four_over_six:
        stretched = _block_scales(wanted * 1.5, options)
        four = _error(x, stretched, S, options) < _error(x, block_scales, S, options)
        block_scales = torch.where(four, stretched, block_scales)
    noise = None
    if options.stochastic_rounding:
        noise = torch.rand(x.shape, generator=generator, dtype=torch.float32, device=x.device)
    return _round_e2m1(_scaled(x, block_scales, S), noise), block_scales, tensor_scale


def _block_scales(wanted: Tensor, options: QuantOptions) -> Tensor:
    return _round_e4m3(wanted.clamp(SCALE_FLOORS[options.scale_floor], E4M3_MAX))


def _scaled(x: Tensor, block_scales: Tensor, S: Tensor) -> Tensor:
    inverse = torch.where(block_scales > 0, (1.0 / S) / block_scales, 0.0)
    return (x * inverse).clamp(-E2M1_MAX, E2M1_MAX)


def _error(x: Tensor, block_scales: Tensor, S: Tensor, options: QuantOptions) -> Tensor:
    """Error of each block, added left to right, then (tiles) rows pairwise: the same bits on every device.

    In units of the power of two below S, which changes no comparison but keeps squares within float32.
    """
    error = (_round_e2m1(_scaled(x, block_scales, S)) * (S * block_scales) - x) / _binade(S)
    error = error.abs() if options.four_over_six_error == "MAE" else error * error
    total = error[..., 0]
    for column in range(1, BLOCK):
        total = total + error[..., column]
    if options.tile_2d:
        for half in (8, 4, 2, 1):
            total = total[..., :half, :] + total[..., half : 2 * half, :]
    return total.unsqueeze(-1)
