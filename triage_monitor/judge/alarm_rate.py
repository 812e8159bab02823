"""The score's threshold for a rate of false alarms: h = (intercept - ln rate) / slope, rate in alarms a 1,000 updates.

Fitted to the development runs of the benchmark that survived: how often their scores rose above h for long enough to
alarm, h from where twenty did to where none did (`evaluation/calibration.py` makes the numbers, a test compares them).
One line for each set of signals a trainer may send, because a score that knows more also fluctuates more. What the fit
promises on runs nobody tuned on is measured, not assumed: `bench early-warning`, and stationary series in the tests.
"""

from __future__ import annotations

import math

LOWEST_RATE, HIGHEST_RATE = 0.05, 20.0

# (reward sent, gradient norm sent) -> intercept, slope
FITTED: dict[tuple[bool, bool], tuple[float, float]] = {
    (False, False): (1.975, 1.4264),
    (True, False): (1.773, 0.8760),
    (False, True): (1.993, 0.3565),
    (True, True): (1.941, 0.3110),
}


def score_threshold(alarms_per_1000_updates: float, *, reward: bool, grad_norm: bool) -> float:
    intercept, slope = FITTED[reward, grad_norm]
    return (intercept - math.log(alarms_per_1000_updates)) / slope
