"""Fused fake quantisation of float32 in CPU memory: the same bits as the torch form, without its temporaries.

Each step of nvfp4.py is exact or is one IEEE operation done in the same order. Rounding to a grid whose step is a power
of two is adding and subtracting 2^23 steps (nearest, ties to even). Maxima are taken over the bits as integers, where
NaN sorts above infinity. No fastmath. The kernel releases the GIL and runs on one thread.

Covered: 1x16 blocks with a tensor, row or static scale; 16x16 tiles with a tensor or static scale; both scale floors.
4over6 and stochastic rounding stay with the torch form.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from triage_monitor.summary.jit import compiled
from triage_monitor.trainer import nvfp4_options
from triage_monitor.trainer.nvfp4_options import BLOCK, SCALE_FLOORS, QuantOptions

Bits = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
I32, F32 = np.int32, np.float32

MAGNITUDE = I32(0x7FFFFFFF)
SIGN = I32(-0x80000000)
INFINITY = I32(0x7F800000)
MIN_TENSOR_SCALE = F32(nvfp4_options.MIN_TENSOR_SCALE)
E4M3_MAX, E2M1_MAX = F32(nvfp4_options.E4M3_MAX), F32(nvfp4_options.E2M1_MAX)
DIVISOR = F32(nvfp4_options.E2M1_MAX * nvfp4_options.E4M3_MAX)
_FLOORS = {name: F32(floor) for name, floor in SCALE_FLOORS.items()}


def _reinterpretation(source: Any, target: Any, target_ir: ir.Type) -> Any:
    """A function for kernels that reads the bits of one 32-bit type as another's."""

    def typed(_context: Any, _value: Any) -> Any:
        def emit(_ctx: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], target_ir)

        return target(source), emit

    return intrinsic(typed)


_as_float = _reinterpretation(types.int32, types.float32, ir.FloatType())
_as_bits = _reinterpretation(types.float32, types.int32, ir.IntType(32))


def fake_quantize(x: Floats, out: Floats, options: QuantOptions) -> None:
    """x, out [..., n], C-contiguous, not empty and of a shape the options allow; out is written."""
    static_scale = (
        F32(0.0) if options.static_amax is None else max(F32(options.static_amax) / DIVISOR, MIN_TENSOR_SCALE)
    )
    quantize_bits(
        x.reshape(-1).view(I32),
        out.reshape(-1).view(I32),
        x.shape[-1] if options.row_scaled_activation else x.size,
        x.shape[-1] // BLOCK if options.tile_2d else 0,
        static_scale,
        _FLOORS[options.scale_floor],
        BLOCK,
    )


@compiled()
def quantize_bits(
    bits: Bits, out: Bits, span: int, tile_stride: int, static_scale: np.float32, floor: np.float32, width: int
) -> None:
    """bits, out [R * n]; each `span` elements share a tensor scale; tile_stride is n / 16, or 0 for no tiles.

    static_scale 0 means from amax. width is 16 and comes from outside because a trip count that the compiler cannot
    see keeps the inner loop vectorised.
    """
    amax = np.empty(bits.size // width, np.int32)
    scale = np.empty(amax.size, np.float32)
    inverse = np.empty(amax.size, np.float32)
    _block_amax(bits, amax)
    if tile_stride > 0:
        _share_over_tiles(amax, tile_stride)
    per_span = span // width
    for start in range(0, amax.size, per_span):
        at = start * width
        S = static_scale if static_scale > F32(0.0) else _tensor_scale(bits[at : at + span])
        for b in range(start, start + per_span):
            scale[b] = S
    _block_scales(amax, scale, inverse, floor)
    for b in range(amax.size):
        at = b * width
        _round(bits[at : at + width], out[at : at + width], inverse[b], scale[b])


@compiled()
def _block_amax(bits: Bits, amax: Bits) -> None:
    for b in range(amax.size):
        block = bits[b * 16 : b * 16 + 16]
        largest = I32(0)
        for i in range(4):
            left = max(I32(block[i] & MAGNITUDE), I32(block[i + 4] & MAGNITUDE))
            right = max(I32(block[i + 8] & MAGNITUDE), I32(block[i + 12] & MAGNITUDE))
            largest = max(largest, max(left, right))
        amax[b] = largest


@compiled()
def _share_over_tiles(amax: Bits, stride: int) -> None:
    """Every 16 rows of `stride` blocks take the largest amax of their column."""
    for top in range(0, amax.size, 16 * stride):
        for column in range(top, top + stride):
            largest = I32(0)
            for row in range(16):
                largest = max(largest, amax[column + row * stride])
            for row in range(16):
                amax[column + row * stride] = largest


@compiled()
def _tensor_scale(bits: Bits) -> np.float32:
    """max(finite amax / (6 * 448), 2^-117)."""
    largest = I32(0)
    for i in range(bits.size):
        magnitude = I32(bits[i] & MAGNITUDE)
        largest = max(largest, magnitude if magnitude < INFINITY else I32(0))
    return max(F32(_as_float(largest) / DIVISOR), MIN_TENSOR_SCALE)


@compiled()
def _block_scales(amax: Bits, scale: Floats, inverse: Floats, floor: np.float32) -> None:
    """inverse: (1 / S) / s_b, 0 for a zero block. scale: S on entry, S * s_b on return, NaN for a NaN block."""
    for b in range(amax.size):
        S = scale[b]
        block_scale = round_e4m3(F32(F32(_as_float(min(amax[b], INFINITY)) / E2M1_MAX) / S), floor)
        inverse[b] = F32(F32(F32(1.0) / S) / block_scale) if block_scale > F32(0.0) else F32(0.0)
        scale[b] = F32(S * block_scale) if amax[b] <= INFINITY else F32(np.nan)


@compiled()
def round_e4m3(wanted: np.float32, floor: np.float32) -> np.float32:
    """Nearest E4M3 value, ties to even, within floor and 448."""
    wanted = min(max(wanted, floor), E4M3_MAX)
    binade = I32(_as_bits(max(wanted, F32(2.0**-6))) & INFINITY)
    steps = _as_float(I32(binade + I32(20 << 23)))  # 2^23 steps of an eighth of the binade
    return F32(F32(wanted + steps) - steps)


@compiled()
def _round(bits: Bits, out: Bits, inverse: np.float32, scale: np.float32) -> None:
    """scale * e2m1(x * inverse), the sign carried over as a bit so that -0 stays -0."""
    for i in range(bits.size):
        size = F32(_as_float(I32(bits[i] & MAGNITUDE)) * inverse)
        size = size if size < E2M1_MAX else E2M1_MAX
        steps = F32(2.0**22) if size < F32(2.0) else F32(2.0**23)  # 2^23 steps of 1/2, 1 and 2
        steps = steps if size < F32(4.0) else F32(2.0**24)
        value = F32(F32(F32(size + steps) - steps) * scale)
        out[i] = I32(_as_bits(value) | I32(bits[i] & SIGN))
