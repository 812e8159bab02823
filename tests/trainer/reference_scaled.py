"""FP8, MXFP8 and MXFP4 in numpy, block by block, with ml_dtypes doing the rounding: independent of scaled.py."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

ELEMENTS = {"e4m3": (ml_dtypes.float8_e4m3fn, 448.0, 8), "e2m1": (ml_dtypes.float4_e2m1fn, 6.0, 2)}


def scaled(
    x: np.ndarray, element: str, scale: str, block: tuple[int, int], rounding: str = "floor"
) -> tuple[np.ndarray, np.ndarray]:
    """(codes uint8 of x's shape, values float32 of x's shape) of finite x [m, n]."""
    codes, values = np.zeros(x.shape, np.uint8), np.zeros(x.shape, np.float32)
    rows, columns = block[0] or x.shape[0], block[1] or x.shape[1]
    for top in range(0, x.shape[0], rows):
        for left in range(0, x.shape[1], columns):
            place = np.s_[top : top + rows, left : left + columns]
            codes[place], values[place] = _block(x[place], element, scale, rounding)
    return codes, values


def _block(x: np.ndarray, element: str, scale: str, rounding: str) -> tuple[np.ndarray, np.ndarray]:
    kind, largest, exponent = ELEMENTS[element]
    amax = np.abs(x).max()
    if scale == "float32":
        inverse = np.float32(largest) / np.maximum(amax, np.float32(1e-12))
        decode = np.float32(1.0) / inverse
    else:
        power = _exponent(float(amax), largest, exponent, rounding)
        inverse, decode = np.float32(2.0**-power), np.float32(2.0**power)
    rounded = np.clip(x * inverse, -largest, largest).astype(kind)
    return rounded.view(np.uint8), rounded.astype(np.float32) * decode


def _exponent(amax: float, largest: float, exponent: int, rounding: str) -> int:
    if amax == 0.0:
        return -127
    if rounding == "floor":
        power = math.frexp(amax)[1] - 1 - exponent
    else:
        mantissa, power = math.frexp(float(np.float32(amax) / np.float32(largest)))
        power -= mantissa == 0.5
    return min(max(power, -127), 127)
