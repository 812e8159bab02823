"""scaled.py for float32 rows in CPU memory, fused: the same bits, for the testbed's compiled decode step.

Covers one scale for `span` elements lying side by side: a row's blocks, a row, or a whole tensor. Tiles stay with the
torch form. No fastmath; rounding to a grid is adding and taking away 2^23 of its steps.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from triage_monitor.summary.jit import compiled
from triage_monitor.trainer.nvfp4_cpu import round_e4m3

F32, I32 = np.float32, np.int32
Floats = npt.NDArray[np.float32]
FP8_SCALE, MXFP8_SCALE, MXFP4_SCALE = 0, 1, 2
_E4M3_MAX, _E2M1_MAX, _SMALLEST = F32(448.0), F32(6.0), F32(1e-12)


@compiled()
def round_spans(x: Floats, out: Floats, width: int, span: int, kind: int) -> None:
    """x, out [N * width] flat: spans of `span` elements, the last of each `width` may be shorter."""
    for row in range(0, x.size, width):
        for start in range(row, row + width, span):
            end = min(start + span, row + width)
            _round_span(x[start:end], out[start:end], kind)


@compiled()
def _round_span(x: Floats, out: Floats, kind: int) -> None:
    amax, broken = F32(0.0), False
    for i in range(x.size):
        size = abs(x[i])
        if np.isfinite(size):
            amax = max(amax, size)
        broken |= np.isnan(size)
    inverse, scale = _scale(amax, kind)
    if broken and kind != FP8_SCALE:
        scale = F32(np.nan)
    for i in range(x.size):
        if np.isnan(x[i]):
            out[i] = x[i]
            continue
        size = F32(abs(x[i]) * inverse)
        value = _e2m1(min(size, _E2M1_MAX)) if kind == MXFP4_SCALE else round_e4m3(size, F32(0.0))
        out[i] = F32(np.copysign(value, x[i]) * scale)


@compiled()
def _scale(amax: np.float32, kind: int) -> tuple[np.float32, np.float32]:
    if kind == FP8_SCALE:
        inverse = F32(_E4M3_MAX / max(amax, _SMALLEST))
        return inverse, F32(F32(1.0) / inverse)
    exponent = -127
    if amax > F32(0.0):
        exponent = max(int(np.floor(np.log2(np.float64(amax)))), -126)
        if np.float64(amax) < 2.0**exponent:
            exponent -= 1
    exponent = max(exponent - (8 if kind == MXFP8_SCALE else 2), -127)
    return F32(2.0**-exponent), F32(2.0**exponent)


@compiled()
def _e2m1(size: np.float32) -> np.float32:
    steps = F32(2.0**22) if size < F32(2.0) else F32(2.0**23)
    steps = steps if size < F32(4.0) else F32(2.0**24)
    return F32(F32(size + steps) - steps)
