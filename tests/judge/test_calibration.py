import numpy as np
import pytest

from triage_monitor.judge.calibration import calibrate
from triage_monitor.summary.build import summarize
from triage_monitor.summary.spec import SummarySpec
from triage_monitor.summary.step import StepSummary


def test_thresholds_are_the_quantiles_of_the_gaps() -> None:
    # gaps -1.00, -0.99, .. 0.99, 1.00 but 0: 95% of their magnitudes lie at or below 0.95, 5% of them at or below -0.91
    gap = np.array([k / 100 for k in range(-100, 101) if k != 0])
    found = calibrate(summarize(gap=gap, advantages=[1.0], offsets=[0, gap.size]))
    assert found.tau_ana == pytest.approx(0.95, rel=0.005)
    assert found.tau_tail == pytest.approx(-0.91, rel=0.005)


def test_phi_leaves_five_percent_of_segments_heavy() -> None:
    # 100 responses of one segment of 64 tokens; response r has r amplifying-tail tokens (A > 0, gap > 0) up to 60.
    counts = [*range(1, 61), *([0] * 40)]
    gap = np.concatenate([np.r_[np.full(c, 0.2), np.full(64 - c, -0.01)] for c in counts])
    arrays = {"gap": gap, "advantages": np.ones(100), "offsets": np.arange(0, 6401, 64)}
    found = calibrate(summarize(**arrays))
    assert found.phi == 56 / 64  # 56, 57, .. 60: five of a hundred
    again = summarize(**arrays, spec=SummarySpec(phi=found.phi))
    assert again.count("heavy_segments_all") == 5


def test_common_worst_segments_leave_phi_unknown() -> None:
    gap = np.full(640, 0.2)  # every segment is all tail: no phi makes at most 5% heavy
    assert calibrate(summarize(gap=gap, advantages=np.ones(10), offsets=np.arange(0, 641, 64))).phi is None


def test_nothing_is_calibrated_from_nothing() -> None:
    assert calibrate(StepSummary.empty()).to_dict() == {}


def test_gaps_that_are_never_negative_have_no_deep_tail() -> None:
    assert calibrate(summarize(gap=np.full(100, 0.1), advantages=[1.0], offsets=[0, 100])).tau_tail is None
