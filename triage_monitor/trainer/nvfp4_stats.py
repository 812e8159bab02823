"""What quantising one tensor lost, in counts and sums that add over tensors and steps.

`underflow_ratio` and `mse` are the `underflows%` (as a ratio) and `mse` of Transformer Engine's `LogNvfp4TensorStats`:
elements that were not zero and became zero, over all elements, and the mean squared difference. One difference: a block
whose scale underflowed to zero counts as underflow here; there it has non-zero codes under a zero scale and does not.
Non-finite elements, and the finite ones a NaN takes with it, are counted and left out of the squared error.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from triage_monitor.trainer.nvfp4 import Quantized, dequantize
from triage_monitor.trainer.nvfp4_options import E2M1_MAX, E4M3_MAX


@dataclass(frozen=True, slots=True)
class QuantStats:
    element_count: int = 0
    nonfinite_count: int = 0
    lost_count: int = 0  # finite, in a block that a NaN made NaN
    underflow_count: int = 0
    saturated_count: int = 0  # finite, beyond what the tensor scale can express (a static amax was too small)
    error_count: int = 0  # elements in squared_error_sum
    squared_error_sum: float = 0.0

    def __add__(self, other: QuantStats) -> QuantStats:
        return QuantStats(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(QuantStats)))

    @property
    def underflow_ratio(self) -> float | None:
        return self.underflow_count / self.element_count if self.element_count else None

    @property
    def saturated_ratio(self) -> float | None:
        return self.saturated_count / self.element_count if self.element_count else None

    @property
    def mse(self) -> float | None:
        return self.squared_error_sum / self.error_count if self.error_count else None


def quantization_stats(x: Tensor, quantized: Quantized) -> QuantStats:
    """x as it was given to `quantize`, and the result. Waits for the device."""
    original = x.detach().double()
    restored = dequantize(quantized)
    finite = original.isfinite()
    kept = finite & ~restored.isnan()
    error = torch.where(kept, restored.double() - original, 0.0)
    # S is rounded: the element it was made from may stand above the range by a bit.
    limit = quantized.tensor_scale.double() * (E4M3_MAX * E2M1_MAX * (1 + 1e-6))
    return QuantStats(
        element_count=x.numel(),
        nonfinite_count=int((~finite).sum()),
        lost_count=int((finite & restored.isnan()).sum()),
        underflow_count=int((kept & (original != 0) & (restored == 0)).sum()),
        saturated_count=int((kept & (original.abs() > limit)).sum()),
        error_count=int(kept.sum()),
        squared_error_sum=float(error.square().sum()),
    )
