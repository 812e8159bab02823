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
    (False, False): (1.852, 1.0824),
    (True, False): (1.880, 0.6328),
    (False, True): (1.878, 0.1702),
    (True, True): (1.883, 0.1547),
}

# reward sent -> the threshold that stationary healthy series (`evaluation/stationary.py`) pass at most 5 times in 1,000
# updates, whatever their memory: where the lines above would go lower, the run's ordinary noise would alarm.
STATIONARY = {False: 0.4, True: 0.95}


def score_threshold(alarms_per_1000_updates: float, *, reward: bool, grad_norm: bool) -> float:
    intercept, slope = FITTED[reward, grad_norm]
    return max(STATIONARY[reward], (intercept - math.log(alarms_per_1000_updates)) / slope)
