"""NVFP4 by numpy and ml_dtypes, written from the definition; knows nothing of the package.

Casts are ml_dtypes' own (float8_e4m3fn, float4_e2m1fn); everything else is float32, one operation at a time, in the
order x -> amax -> S -> s_b -> x * ((1 / S) / s_b) -> code.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

F = np.float32
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Reference:
    codes: npt.NDArray[np.uint8]  # [m, n]
    block_scales: Floats  # [m, n/16], or [m/16, n/16] for tiles
    tensor_scale: Floats  # [] or [m, 1]
    values: Floats  # [m, n]


def to_e4m3(x: Floats) -> Floats:
    return np.minimum(x, F(448)).astype(ml_dtypes.float8_e4m3fn).astype(F)


def to_e2m1(x: Floats) -> tuple[npt.NDArray[np.uint8], Floats]:
    cast = np.clip(x, F(-6), F(6)).astype(ml_dtypes.float4_e2m1fn)
    return cast.view(np.uint8), cast.astype(F)


def nvfp4(
    x: Floats,
    *,
    tile: bool = False,
    rows: bool = False,
    static_amax: float | None = None,
    smallest_scale: float = 0.0,
    four_over_six: tuple[int, str] | None = None,
) -> Reference:
    """x [m, n] finite. four_over_six: (bound, "MSE" or "MAE")."""
    m, n = x.shape
    size = np.abs(x)
    amax = F(static_amax) if static_amax is not None else size.max(axis=1, keepdims=True) if rows else size.max()
    bound = four_over_six[0] if four_over_six else 448
    S = np.maximum(F(amax) / F(6 * bound), F(2.0**-117))
    wanted = size.reshape(m, n // 16, 16).max(axis=2) / F(6)
    if tile:
        wanted = wanted.reshape(m // 16, 16, n // 16).max(axis=1).repeat(16, axis=0)
    with np.errstate(over="ignore"):  # infinite is as good as any value above 448
        wanted = wanted / S
    scales = to_e4m3(np.maximum(wanted, F(smallest_scale)))
    if four_over_six:
        stretched = to_e4m3(np.maximum(wanted * F(1.5), F(smallest_scale)))
        errors = [_block_errors(x, s, S, four_over_six[1], tile) for s in (stretched, scales)]
        scales = np.where(errors[0] < errors[1], stretched, scales)
    codes, values = _encode(x, scales, S)
    return Reference(codes, scales[::16] if tile else scales, np.asarray(S), values)


def _encode(x: Floats, scales: Floats, S: Floats) -> tuple[npt.NDArray[np.uint8], Floats]:
    with np.errstate(divide="ignore"):
        inverse = np.where(scales > 0, F(1) / S / scales, F(0)).astype(F)
    with np.errstate(over="ignore"):
        codes, grid = to_e2m1(x * inverse.repeat(16, axis=1))
    return codes, grid * (S * scales).repeat(16, axis=1)


def _block_errors(x: Floats, scales: Floats, S: Floats, mode: str, tile: bool) -> Floats:
    # Measured in units of a power of two near S: squares of what is left fit float32.
    difference = np.ldexp(_encode(x, scales, S)[1] - x, -np.frexp(S)[1])
    error = (difference * difference if mode == "MSE" else np.abs(difference)).reshape(*scales.shape, 16)
    total = np.zeros(scales.shape, F)
    for i in range(16):
        total = total + error[:, :, i]
    if not tile:
        return total
    total = total.reshape(-1, 16, scales.shape[1])
    while total.shape[1] > 1:
        half = total.shape[1] // 2
        total = total[:, :half] + total[:, half:]
    return total[:, 0].repeat(16, axis=0)
