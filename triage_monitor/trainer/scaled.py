"""Emulated FP8, MXFP8 and MXFP4: an element format and one scale a tensor, row or block, beside NVFP4's two levels.

    format       elements       scale                          over
    FP8          E4M3           float32, 448 / amax            a tensor, a row, 1x128 or 128x128 elements
    MXFP8        E4M3           E8M0, a power of two           32 elements of a row
    MXFP4        E2M1           E8M0                           32 elements of a row

Elements are rounded to the nearest value, ties to even, and saturate. The E8M0 exponent is floor(log2 amax) less that
of the largest element, as the OCP specification has it, so that the largest of a block may saturate; with
`scale_rounding="ceil"` it is that of amax / largest rounded up, as Transformer Engine and cuBLAS have it. Codes and
scales are those of torchao 0.18, where it has the format, and of ml_dtypes' casts. Straight-through for gradients.

Odd input. amax is taken over finite elements and is at least 1e-12 for FP8. An infinity saturates. A NaN stays one in
FP8; E8M0 has a NaN for the scale, so in MX it takes its block with it. FP8 blocks may end at the edge of the matrix, MX
blocks must fit. Left out: E5M2 gradients, MXFP6, rotations, real low-precision products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from triage_monitor.errors import ConfigError, InputError
from triage_monitor.trainer.nvfp4_options import E2M1_MAX, E4M3_MAX

Element = Literal["e4m3", "e2m1"]
LARGEST: dict[str, float] = {"e4m3": E4M3_MAX, "e2m1": E2M1_MAX}
LARGEST_EXPONENT: dict[str, int] = {"e4m3": 8, "e2m1": 2}
SMALLEST_AMAX = 1e-12
MIN_EXPONENT, MAX_EXPONENT = -127, 127


@dataclass(frozen=True, slots=True)
class ScaledOptions:
    """How one tensor is quantised. `block`: rows and columns that share a scale, 0 for all of them: (0, 0) a tensor,
    (1, 0) each row, (128, 128) tiles. `scale`: "float32" or "e8m0". Raises ConfigError."""

    element: Element = "e4m3"
    scale: Literal["float32", "e8m0"] = "float32"
    block: tuple[int, int] = (0, 0)
    scale_rounding: Literal["floor", "ceil"] = "floor"

    def __post_init__(self) -> None:
        if self.element not in LARGEST or self.scale not in ("float32", "e8m0"):
            raise ConfigError(f"no format of {self.element!r} elements under {self.scale!r} scales")
        if self.scale_rounding not in ("floor", "ceil"):
            raise ConfigError(f"scale_rounding must be 'floor' or 'ceil', not {self.scale_rounding!r}")
        rows, columns = self.block
        if rows < 0 or columns < 0 or (rows == 0) != (self.block == (0, 0)):
            raise ConfigError(f"block must be (0, 0), (1, 0) or two sizes of at least 1, not {self.block!r}")
        if self.scale == "e8m0" and self.block != (1, 32):
            raise ConfigError(f"E8M0 scales are those of blocks of (1, 32), not {self.block!r}")
        if self.scale == "float32" and self.element == "e2m1":
            raise ConfigError("E2M1 under float32 scales alone is no format in use; see nvfp4.py")


FP8_TENSOR = ScaledOptions()
FP8_ROW = ScaledOptions(block=(1, 0))
FP8_BLOCK = ScaledOptions(block=(1, 128))
FP8_TILE = ScaledOptions(block=(128, 128))
MXFP8 = ScaledOptions("e4m3", "e8m0", (1, 32))
MXFP4 = ScaledOptions("e2m1", "e8m0", (1, 32))


@dataclass(frozen=True, slots=True, eq=False)
class ScaledCodes:
    """codes uint8 of x's shape: E4M3 bytes or E2M1 codes (0-15); scales float32, what a code's value is multiplied by,
    NaN for a block that a NaN took; [], [..., 1], or one a block."""

    codes: Tensor
    scales: Tensor
    options: ScaledOptions


def quantize(x: Tensor, options: ScaledOptions) -> ScaledCodes:
    """Codes and scales of x [..., n], any float dtype, arithmetic in float32. InputError on shapes that do not fit."""
    values, scales = _rounded(x, options)
    if options.element == "e4m3":
        codes = values.to(torch.float8_e4m3fn).view(torch.uint8)
    else:
        table = torch.tensor([0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7], dtype=torch.uint8, device=x.device)
        whole = (values.abs() * 2).nan_to_num(0.0).long()
        codes = table[whole] + torch.signbit(values).to(torch.uint8) * 8
    return ScaledCodes(codes, scales, options)


def dequantize(quantized: ScaledCodes) -> Tensor:
    """float32 value of a code times its scale."""
    codes, options = quantized.codes, quantized.options
    if options.element == "e4m3":
        values = codes.view(torch.float8_e4m3fn).float()
    else:
        grid = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=codes.device)
        values = torch.copysign(grid[(codes & 7).long()], torch.where(codes > 7, -1.0, 1.0))
    return values * _spread(quantized.scales, codes.shape, options)


def fake_quantize(x: Tensor, options: ScaledOptions) -> Tensor:
    """`dequantize(quantize(x))` in x's dtype, with the identity as its gradient."""
    if torch.is_grad_enabled() and x.requires_grad:
        result: Tensor = _StraightThrough.apply(x, options)  # type: ignore[no-untyped-call]  # torch's own
        return result
    values, scales = _rounded(x, options)
    return (values * _spread(scales, x.shape, options)).to(x.dtype)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, options: ScaledOptions) -> Tensor:
        with torch.no_grad():
            return fake_quantize(x, options)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def _rounded(x: Tensor, options: ScaledOptions) -> tuple[Tensor, Tensor]:
    """(element values of x's shape, decoding scales)."""
    _check(x, options)
    x = x.detach().float()
    inverse, scales = _scales(_amax(x, options), options)
    wanted = x * _spread(inverse, x.shape, options)
    size = wanted.abs().clamp(max=LARGEST[options.element])
    return torch.copysign(_round(size, options.element), x), scales


def _check(x: Tensor, options: ScaledOptions) -> None:
    if not x.is_floating_point():
        raise InputError("bad_dtype", f"only floats are quantised, not {x.dtype}")
    rows, columns = options.block
    if x.dim() < (2 if rows > 1 else 1):
        raise InputError("bad_shape", f"blocks of {rows}x{columns} need a matrix; shape is {list(x.shape)}")
    if options.scale == "e8m0" and x.shape[-1] % columns:
        raise InputError("bad_shape", f"the last dimension must be a multiple of {columns}; shape is {list(x.shape)}")


def _amax(x: Tensor, options: ScaledOptions) -> Tensor:
    """Largest finite size, [] or [..., 1] or one a block; NaN for an MX block that holds one."""
    size = x.abs()
    bounded = size.nan_to_num(nan=0.0, posinf=0.0)
    if options.scale == "e8m0":
        bounded = torch.where(size.isnan(), size, bounded)
    rows, columns = options.block
    if rows == 0:
        return bounded.amax() if x.numel() else bounded.new_zeros(())
    if columns == 0:
        return bounded.amax(-1, keepdim=True) if x.shape[-1] else bounded.new_zeros(*x.shape[:-1], 1)
    down = (-x.shape[-2] % rows) if x.dim() > 1 else 0
    bounded = torch.nn.functional.pad(bounded, (0, -x.shape[-1] % columns, *((0, down) if down else ())))
    largest = bounded.reshape(*bounded.shape[:-1], bounded.shape[-1] // columns, columns).amax(-1)
    if rows > 1:
        *outer, height, width = largest.shape
        largest = largest.reshape(*outer, height // rows, rows, width).amax(-2)
    return largest


def _scales(amax: Tensor, options: ScaledOptions) -> tuple[Tensor, Tensor]:
    """(what elements are multiplied by, what codes are multiplied by)."""
    if options.scale == "float32":
        inverse = torch.full_like(amax, E4M3_MAX) / amax.clamp(min=SMALLEST_AMAX)  # a number / tensor rounds twice
        return inverse, 1.0 / inverse
    broken = amax.isnan()
    finite = torch.where(broken, 1.0, amax)
    if options.scale_rounding == "floor":
        exponent = (finite.view(torch.int32) >> 23) - 127 - LARGEST_EXPONENT[options.element]
    else:
        bits = (finite / LARGEST[options.element]).view(torch.int32)
        exponent = (bits >> 23) - 127 + ((bits & 0x7FFFFF) > 0).to(torch.int32)
        exponent = torch.where(bits <= 1 << 22, MIN_EXPONENT, exponent)  # denormal quotients
    exponent = exponent.clamp(MIN_EXPONENT, MAX_EXPONENT)
    return _power(-exponent), torch.where(broken, torch.nan, _power(exponent))


def _power(exponent: Tensor) -> Tensor:
    """2^exponent for -127 to 127, exactly; the smallest is denormal."""
    bits = torch.where(exponent < -126, 1 << 22, (exponent + 127) << 23)
    return bits.to(torch.int32).view(torch.float32)


def _spread(per_block: Tensor, shape: torch.Size, options: ScaledOptions) -> Tensor:
    rows, columns = options.block
    if rows == 0 or columns == 0:
        return per_block
    spread = per_block.repeat_interleave(columns, -1)[..., : shape[-1]]
    return spread.repeat_interleave(rows, -2)[..., : shape[-2], :] if rows > 1 else spread


def _round(size: Tensor, element: str) -> Tensor:
    """Nearest element, ties to even, of 0 <= size <= its largest; NaN stays."""
    least, steps = (2.0**-6, 0.125) if element == "e4m3" else (1.0, 0.5)
    binade = (size.clamp(min=least).view(torch.int32) & 0x7F800000).view(torch.float32)
    step = binade * steps
    return torch.where(size.isnan(), size, (size / step).round() * step)
