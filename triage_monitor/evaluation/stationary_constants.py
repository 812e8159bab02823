"""Level, spread and memory of the indicators of healthy runs, as `stationary_fit` estimated them.

From four stable testbed runs of the development part: real reinforcement learning of a small model under emulated
NVFP4, 64 responses of 128 tokens an update. Levels are that testbed's; another model has others. Most of the spread is
sampling noise, new in each update; what wanders slowly is a tenth of its variance and up to a half in the bulk of the
distribution (near_zero_fraction, rho_asym, q0.05); in a window of 25 updates, where the noise averages out, it leads.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray


class Kind(Enum):
    """What a window of updates comes to: the mean of values, or of logs, of a quantity that stays positive."""

    MEAN = "mean of values"
    MEAN_COMPLEMENT = "mean of 1 - value"
    LOG = "mean of logs"
    LOG_NEGATIVE = "mean of logs of -value"
    ADDED = "mean of values of either sign"


@dataclass(frozen=True, slots=True)
class Noise:
    """`level` of a window; `spread` of an update: of the log, by the mean, or (ADDED) as it is; `slow_share` of its
    variance has the autocorrelation AUTOCORRELATION ** lag, the rest none."""

    kind: Kind
    level: float
    spread: float
    slow_share: float


AUTOCORRELATION = 0.97  # of the slow part, from one update to the next

NOISES: dict[str, Noise] = {
    "q0.001_all": Noise(Kind.LOG_NEGATIVE, -3.196, 0.54, 0.17),
    "q0.001_neg": Noise(Kind.LOG_NEGATIVE, -5.58, 0.551, 0.06),
    "q0.001_pos": Noise(Kind.LOG_NEGATIVE, -1.81, 0.525, 0.26),
    "q0.01_all": Noise(Kind.LOG_NEGATIVE, -0.3452, 0.183, 0.23),
    "q0.05_all": Noise(Kind.LOG_NEGATIVE, -0.1578, 0.103, 0.47),
    "rho_asym": Noise(Kind.LOG, 1.217, 0.061, 0.48),
    "rho_asym_tail": Noise(Kind.LOG, 1.18, 0.0904, 0.19),
    "rho_pressure": Noise(Kind.LOG, 2.412, 0.336, 0.04),
    "sign_odds_blind": Noise(Kind.LOG, 1.214, 0.0559, 0.51),
    "persistence": Noise(Kind.LOG, 1.16, 0.165, 0.00),
    "mismatch_energy": Noise(Kind.MEAN, 0.03127, 0.672, 0.13),
    "abs_delta_mean": Noise(Kind.MEAN, 0.05767, 0.127, 0.33),
    "deep_tail_neg": Noise(Kind.MEAN, 0.006548, 0.627, 0.04),
    "deep_tail_pos": Noise(Kind.MEAN, 0.001703, 0.692, 0.23),
    "heavy_segment_fraction": Noise(Kind.MEAN, 0.6751, 0.16, 0.10),
    "tail_token_fraction": Noise(Kind.MEAN, 0.1346, 0.151, 0.09),
    "top5_tail_share": Noise(Kind.MEAN, 0.09865, 0.15, 0.00),
    "kl_k3": Noise(Kind.MEAN, 0.01395, 0.725, 0.04),
    "near_zero_fraction": Noise(Kind.MEAN_COMPLEMENT, 0.6854, 0.0578, 0.66),
    "masked_response_fraction": Noise(Kind.MEAN_COMPLEMENT, 0.9399, 0.751, 0.19),
    "reward_mean": Noise(Kind.MEAN_COMPLEMENT, 0.7539, 0.3, 0.00),
    "delta_mean": Noise(Kind.ADDED, -0.01429, 0.00552, 0.21),
    "amplification_balance": Noise(Kind.ADDED, 0.1453, 0.107, 0.00),
}

# Below the diagonal, in the order of NOISES; of the positive quantities (-q, 1 - share) by ranks.
_CORRELATION = """
    .72
    .45 .10
    .50 .37 .33
    .24 .16 .19 .54
    -.04 -.05 .00 -.04 .00
    .25 .24 -.03 .13 .10 .32
    .71 .79 .09 .46 .19 .00 .49
    -.03 -.05 .02 -.04 .01 .89 .25 -.03
    -.20 -.07 -.09 -.21 -.10 .01 -.05 -.10 .02
    .84 .75 .34 .54 .26 -.04 .26 .75 -.03 -.21
    .77 .60 .39 .77 .65 .02 .27 .63 .03 -.23 .81
    .73 .73 .15 .55 .24 -.09 .29 .84 -.10 -.10 .73 .70
    .40 .08 .72 .35 .20 -.02 -.02 .09 .01 -.10 .33 .39 .15
    .23 .09 .13 .30 .32 -.01 .01 .09 -.02 -.78 .23 .38 .11 .09
    .27 .13 .12 .33 .32 .01 .09 .15 .00 -.82 .27 .41 .16 .10 .96
    .02 .13 -.09 .00 -.01 .03 .16 .18 .04 .75 .03 .01 .20 -.07 -.78 -.76
    .78 .65 .35 .60 .34 -.02 .25 .66 -.01 -.23 .86 .82 .70 .35 .29 .33 .00
    .14 .08 .12 .35 .66 .12 .07 .08 .13 -.07 .14 .54 .15 .08 .39 .37 -.03 .22
    .67 .54 .39 .45 .20 -.07 .15 .56 -.05 -.08 .74 .61 .56 .39 .08 .11 .08 .64 .05
    .22 -.02 .18 .17 .11 .04 -.03 -.06 .05 -.43 .18 .22 -.05 .17 .44 .46 -.37 .21 .07 .09
    -.85 -.68 -.39 -.67 -.42 -.03 -.37 -.76 -.05 .22 -.90 -.87 -.76 -.42 -.25 -.30 -.04 -.81 -.23 -.71 -.20
    .54 .70 -.10 .34 .12 -.01 .40 .87 -.06 -.05 .57 .48 .75 -.11 .07 .11 .21 .48 .06 .37 -.09 -.56
"""


def correlation() -> NDArray[np.float64]:
    """[N, N] in the order of NOISES."""
    matrix = np.eye(len(NOISES))
    for place, line in enumerate(_CORRELATION.split("\n")[1:-1], start=1):
        matrix[place, :place] = matrix[:place, place] = [float(item) for item in line.split()]
    return matrix
