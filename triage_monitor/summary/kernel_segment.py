"""The inner loops of the kernel: a block of at most 512 gaps, valid and finite, in the first-level cache.

Shapes: x_T the block's gaps, n of them; x_L the large ones; a_T advantages where these differ by token.

For abs(gap) < LARGE no exponential is evaluated. With E, O the even and odd part of (exp(d) - 1 - d) / d**2,

    k3(d)  = d**2 (E + d O)        k3(-d) = d**2 (E - d O)        exp(abs d) - 1 - abs d = d**2 (E + abs(d) O)

are polynomials of d**2, exact to 1e-9 there and free of the cancellation that exp(d) - 1 - d suffers near 0. A segment
with larger gaps takes `large_moments` as well, whose exponential is a float64 polynomial too, so that a terminal run
is not much dearer than a healthy one. Sums of the k3 kind are kept in the gap's own precision and added up in float64
outside; sums of gaps, which are subtracted from one another later, are float64 throughout.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triage_monitor.summary.jit import FINITE, REORDER, compiled

Gaps = NDArray[np.float32] | NDArray[np.float64]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Real = float | np.floating[Any]

LARGE = 0.5  # must stay below ln 2 and at or below every deep-tail threshold's size
MAX_EXPONENT = 700.0  # exp saturates here, and the token is counted
CHI2_LIMIT = math.exp(MAX_EXPONENT / 2)  # so does exp(2 d)
# Weights of the effective sample size stay within exp(+-300): squares neither overflow when summed nor vanish.
WEIGHT_HIGH, WEIGHT_LOW = math.exp(300.0), math.exp(-300.0)
LOG_2 = math.log(2.0)
LOG_1E4 = math.log(1e-4)
LOG2_E = 1.0 / LOG_2
LOG_2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
LOG_2_LOW = LOG_2 - LOG_2_HIGH + float.fromhex("0x1.abc9e3b39803fp-56")
ROUND = 1.5 * 2.0**52  # added and taken away, leaves the nearest whole number, and that number in the low bits


@compiled(REORDER)
def power_sums(x_T: Gaps, n: int) -> tuple[float, float]:
    """Sum and sum of squares in float64; the sum is not finite when a gap is not."""
    total = square = np.float64(0)
    for i in range(n):
        d = np.float64(x_T[i])
        total += d
        square += d * d
    return total, square


@compiled(FINITE)
def threshold_counts(x_T: Gaps, n: int, near: float) -> tuple[Real, Real, Real, Real]:
    """Tokens that are (negative, positive, near zero, large).

    Counted in the gap's own type, exact to 2**24, so that one vector register serves the comparison and the sum.
    """
    kind = x_T.dtype.type
    one, zero = kind(1), kind(0)
    near_, large_ = kind(near), kind(LARGE)
    negative = positive = close = large = zero
    for i in range(n):
        d = x_T[i]
        size = abs(d)
        negative += one if d < zero else zero
        positive += one if d > zero else zero
        close += one if size < near_ else zero
        large += one if size >= large_ else zero
    return negative, positive, close, large


@compiled(FINITE)
def tail_count(x_T: Gaps, start: int, n: int, side: float, tau: float) -> Real:
    """Of n tokens from `start`, how many lie beyond tau on the side of the advantage's sign, 1 or -1."""
    kind, base = x_T.dtype.type, np.uintp(start)
    one, zero = kind(1), kind(0)
    tau_, side_ = kind(tau), kind(side)
    found = zero
    for i in range(n):
        found += one if side_ * x_T[base + np.uintp(i)] >= tau_ else zero
    return found


@compiled(FINITE)
def extremes(x_T: Gaps, n: int) -> tuple[Real, Real]:
    low = high = x_T[0]
    for i in range(n):
        d = x_T[i]
        low = d if d < low else low
        high = d if d > high else high
    return low, high


@compiled(FINITE)
def negative_sum(x_T: Gaps, n: int) -> float:
    """Sum of the negative gaps, in float64: pressures are compared with one another, so nearly equal ones cancel."""
    below = zero = np.float64(0)
    for i in range(n):
        below += min(np.float64(x_T[i]), zero)
    return below


@compiled(FINITE)
def small_moments(x_T: Gaps, n: int) -> tuple[Real, Real, Real, Real]:
    """Over abs(gap) < LARGE: sums of k3(d), k3(-d), exp(abs d) - 1 - abs d, and (exp(d) - 1)**2."""
    kind = x_T.dtype.type
    zero, large = kind(0), kind(LARGE)
    e0, e1, e2, e3, e4 = kind(1 / 2), kind(1 / 24), kind(1 / 720), kind(1 / 40320), kind(1 / 3628800)
    o0, o1, o2, o3 = kind(1 / 6), kind(1 / 120), kind(1 / 5040), kind(1 / 362880)
    forward = backward = excess = square = zero
    for i in range(n):
        d = x_T[i] if abs(x_T[i]) < large else zero
        s = d * d
        even = s * (e0 + s * (e1 + s * (e2 + s * (e3 + s * e4))))
        odd = s * (o0 + s * (o1 + s * (o2 + s * o3)))
        k3 = even + d * odd
        forward += k3
        backward += even - d * odd
        excess += even + abs(d) * odd
        square += (d + k3) * (d + k3)
    return forward, backward, excess, square


@compiled()
def gather_large(x_T: Gaps, n: int, large_L: Floats) -> tuple[int, float]:
    """Packs the gaps of at least LARGE, and sums the others; no branch, so that a few scattered ones cost no
    misprediction."""
    found = 0
    small = 0.0
    for i in range(n):
        d = np.float64(x_T[i])
        large_L[found] = d
        is_large = abs(d) >= LARGE
        found += int(is_large)
        small += 0.0 if is_large else d
    return found, small


@compiled()
def exponentials(x_L: Floats, n: int, grow: Floats, shift: Floats, bits: Ints) -> None:
    """exp(min(abs gap, MAX_EXPONENT)) into `grow`; `bits` is `shift` seen as integers."""
    for i in range(n):
        shift[i] = min(abs(x_L[i]), MAX_EXPONENT) * LOG2_E + ROUND
    for i in range(n):
        whole = shift[i] - ROUND
        r = (min(abs(x_L[i]), MAX_EXPONENT) - whole * LOG_2_HIGH) - whole * LOG_2_LOW
        p = 1 / 3628800 + r * (1 / 39916800)
        p = 1 / 40320 + r * (1 / 362880 + r * p)
        p = 1 / 720 + r * (1 / 5040 + r * p)
        p = 1 / 24 + r * (1 / 120 + r * p)
        p = 1 / 2 + r * (1 / 6 + r * p)
        grow[i] = 1.0 + r * (1.0 + r * p)
    for i in range(n):
        bits[i] = (bits[i] + 1023) << 52
    for i in range(n):
        grow[i] *= shift[i]


@compiled(FINITE)
def large_moments(x_L: Floats, n: int, grow: Floats) -> tuple[float, float, float, float, float, float, float]:
    """Over gaps of at least LARGE: the sums of `small_moments` but for exp(2d) - 1 as the fourth, then exp(d) and the
    bounded weight and its square."""
    forward = backward = excess = double = rho = weight = square = 0.0
    for i in range(n):
        d = x_L[i]
        up_size = grow[i]
        down_size = 1.0 / up_size
        up = up_size if d > 0 else down_size
        down = down_size if d > 0 else up_size
        bounded = min(up, CHI2_LIMIT)
        w = max(min(up, WEIGHT_HIGH), WEIGHT_LOW)
        forward += up - 1.0 - d
        backward += down - 1.0 + d
        excess += up_size - 1.0 - abs(d)
        double += bounded * bounded - 1.0
        rho += up
        weight += w
        square += w * w
    return forward, backward, excess, double, rho, weight, square


@compiled(FINITE)
def large_counts(x_L: Floats, n: int, deep: float) -> tuple[float, float, float, float, float]:
    """Tokens with (rho > 2, rho < 1/2, rho < 1e-4, an exponent beyond MAX_EXPONENT, a gap below `deep`)."""
    above = below = far_below = overflow = deep_tail = 0.0
    for i in range(n):
        d = x_L[i]
        above += 1.0 if d > LOG_2 else 0.0
        below += 1.0 if d < -LOG_2 else 0.0
        far_below += 1.0 if d < LOG_1E4 else 0.0
        overflow += 1.0 if max(d - MAX_EXPONENT / 2, -d - MAX_EXPONENT) > 0.0 else 0.0
        deep_tail += 1.0 if d < deep else 0.0
    return above, below, far_below, overflow, deep_tail


@compiled(FINITE)
def region_sums(x_T: Gaps, n: int, a_T: Floats, tau: float, deep: float, out: Floats) -> None:
    """Adds a segment with an advantage per token (finite; 0 where unusable) to `out`, in REGION_SUMS order."""
    tau_, deep_ = x_T.dtype.type(tau), x_T.dtype.type(deep)
    for i in range(n):
        d, a = x_T[i], a_T[i]
        weight = abs(a)
        push = weight * abs(float(d))
        out[6] += weight
        if a < 0:
            out[4] += weight
            out[13] += 1
            out[15] += d < deep_
            if d < 0:
                out[0] += weight
                out[9] += push
                tail = d <= -tau_
                out[7] += weight * tail
                out[17] += tail
            elif d > 0:
                out[2] += weight
                out[11] += push
        elif a > 0:
            out[5] += weight
            out[14] += 1
            out[16] += d < deep_
            if d > 0:
                out[1] += weight
                out[10] += push
                tail = d >= tau_
                out[8] += weight * tail
                out[18] += tail
            elif d < 0:
                out[3] += weight
                out[12] += push


# mass a_neg a_pos c_neg c_pos | mass A<0, A>0, total | tail mass a_neg a_pos | pressure a_neg a_pos c_neg c_pos |
# tokens A<0, A>0 | deep tokens A<0, A>0 | tail tokens a_neg a_pos
REGION_SUMS = 19


@compiled()
def region_sums_one_sign(advantage: float, n: float, sides: Floats, out: Floats) -> None:
    """The same for a response of one advantage and n valid tokens: no token is looked at again.

    sides: negative and positive tokens, amplifying-tail tokens, sums of the negative and positive gaps, deep tokens.
    """
    negative, positive, tail, below, above, deep = sides[0], sides[1], sides[2], sides[3], sides[4], sides[5]
    weight = abs(advantage)
    out[6] += weight * n
    if advantage < 0:
        out[0] += weight * negative
        out[2] += weight * positive
        out[4] += weight * n
        out[7] += weight * tail
        out[9] += weight * -below
        out[11] += weight * above
        out[13] += n
        out[15] += deep
        out[17] += tail
    elif advantage > 0:
        out[1] += weight * positive
        out[3] += weight * negative
        out[5] += weight * n
        out[8] += weight * tail
        out[10] += weight * above
        out[12] += weight * -below
        out[14] += n
        out[16] += deep
        out[18] += tail
