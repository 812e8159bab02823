"""What a quantisation lost: counts worked by hand, and sums that merge."""

from __future__ import annotations

import math

import pytest
import torch

from triage_monitor.trainer.nvfp4 import QuantOptions, quantize
from triage_monitor.trainer.nvfp4_stats import QuantStats, quantization_stats

UNIT = QuantOptions(static_amax=2688.0)  # S = 1


def stats(x: torch.Tensor, options: QuantOptions) -> QuantStats:
    return quantization_stats(x, quantize(x, options))


def test_underflows_and_squared_error_worked_by_hand() -> None:
    x = torch.zeros(2, 16)
    x[0, :5] = torch.tensor(
        [6.0, 0.25, -0.2, 0.3, 5.0]
    )  # s_b = 1; 0.25 and -0.2 become 0, 0.3 becomes 0.5, 5 becomes 4
    x[1, 0] = 1e-4  # the block scale underflows
    got = stats(x, UNIT)
    assert got.element_count == 32
    assert got.underflow_count == 3
    assert got.underflow_ratio == 3 / 32
    assert got.saturated_count == got.nonfinite_count == got.lost_count == 0
    assert got.squared_error_sum == pytest.approx(0.25**2 + 0.2**2 + 0.2**2 + 1.0 + 1e-8, rel=1e-6)
    assert got.mse == pytest.approx(got.squared_error_sum / 32)


def test_elements_above_a_static_amax_are_counted_as_saturated() -> None:
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 1], x[0, 16] = 5.0, -3.0, 1.99
    got = stats(x, QuantOptions(static_amax=2.0))
    assert got.saturated_count == 2
    assert got.saturated_ratio == 2 / 32


@pytest.mark.parametrize("row", [False, True])
def test_nothing_saturates_under_its_own_amax(row: bool) -> None:
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)) * 3.7
    assert stats(x, QuantOptions(row_scaled_activation=row)).saturated_count == 0
    assert stats(x, QuantOptions(four_over_six=True)).saturated_count == 0


def test_non_finite_elements_and_those_lost_with_them_are_counted_apart() -> None:
    x = torch.ones(1, 48)
    x[0, 16:32] = 0.01
    x[0, 3] = math.nan
    x[0, 20] = math.inf
    got = stats(x, QuantOptions())
    assert got.nonfinite_count == 2
    assert got.lost_count == 15
    assert got.error_count == 48 - 16 - 1
    assert got.underflow_count == 15  # beside the infinity s_b is 448, so anything under a 24th of amax is lost
    assert got.mse is not None
    assert math.isfinite(got.mse)


def test_stats_add_up_as_if_taken_at_once() -> None:
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(2))
    options = QuantOptions(static_amax=2.5)
    parts = stats(x[:20], options) + stats(x[20:], options)
    whole = stats(x, options)
    assert parts.squared_error_sum == pytest.approx(whole.squared_error_sum, rel=1e-12)
    assert parts.underflow_count == whole.underflow_count
    assert parts.saturated_count == whole.saturated_count > 0
    assert QuantStats() + whole == whole


def test_ratios_of_nothing_are_absent() -> None:
    empty = stats(torch.zeros(0, 16), QuantOptions())
    assert empty == QuantStats()
    assert empty.underflow_ratio is None
    assert empty.saturated_ratio is None
    assert empty.mse is None
