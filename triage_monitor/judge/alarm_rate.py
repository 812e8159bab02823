"""The score's threshold for a rate of false alarms: h = (intercept - ln rate) / slope, rate in alarms a 1,000 updates.

Fitted to the development runs of the benchmark that survived: how often their scores rose above h for long enough to
alarm, h from where twenty did to where none did (`evaluation/calibration.py` makes the numbers, a test compares them).
One line for each set of signals a trainer may send, because a score that knows more also fluctuates more. What the fit
promises on runs nobody tuned on is measured, not assumed: `bench early-warning`, and stationary series in the tests.
"""

from __future__ import annotations

import math

LOWEST_RATE, HIGHEST_RATE = 0.05, 5.0  # rarer or more often than the lines below reach

# (reward sent, gradient norm sent) -> intercept, slope
FITTED: dict[tuple[bool, bool], tuple[float, float]] = {
    (False, False): (1.856, 1.0846),
    (True, False): (1.880, 0.6323),
    (False, True): (1.881, 0.1715),
    (True, True): (1.869, 0.1537),
}


def score_threshold(alarms_per_1000_updates: float, *, reward: bool, grad_norm: bool) -> float:
    intercept, slope = FITTED[reward, grad_norm]
    return (intercept - math.log(alarms_per_1000_updates)) / slope
