"""One update in each form that a trainer may hand to the edge reduction: packed, listed, padded on either side."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from strategies import UpdateInput
from torch import Tensor

from triage_monitor.summary.spec import SummarySpec
from triage_monitor.summary.step import StepSummary
from triage_monitor.trainer.edge import HeldReduction

FORMS = ("packed", "listed", "right", "left")
TOKEN_COLUMNS = ("gap", "learner_logprobs", "sampler_logprobs", "mask", "missing")


def arguments(update: UpdateInput) -> tuple[dict[str, Any], SummarySpec]:
    """As lists of arrays, and the spec."""
    given = UpdateInput(update.responses, update.spec, update.dtype, flat=False).arguments()
    return given, given.pop("spec")


def tensors(given: dict[str, Any], form: str, device: str = "cpu") -> dict[str, Any]:
    """`given`: lists of arrays a response. Padding holds NaN and is masked."""
    columns = {name: value for name, value in given.items() if isinstance(value, list)}
    rest = {name: value for name, value in given.items() if name not in columns}
    rest = {n: torch.tensor(v, device=device) if n == "advantages" else v for n, v in rest.items()}
    if form == "listed":
        return rest | {name: [torch.tensor(row, device=device) for row in rows] for name, rows in columns.items()}
    lengths = [len(row) for row in next(iter(columns.values()))]
    if form == "packed":
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
        flat = {name: torch.tensor(np.concatenate(rows), device=device) for name, rows in columns.items()}
        return rest | flat | {"offsets": offsets}
    columns.setdefault("mask", [np.ones(n, bool) for n in lengths])
    width = max(lengths) + 3
    return rest | {name: _padded(rows, width, form).to(device) for name, rows in columns.items()}


def _padded(rows: list[NDArray[Any]], width: int, side: str) -> Tensor:
    fill = np.nan if rows[0].dtype.kind == "f" else 0
    out = np.full((len(rows), width), fill, rows[0].dtype)
    for line, row in zip(out, rows, strict=True):
        at = 0 if side == "right" else width - len(row)
        line[at : at + len(row)] = row
    return torch.from_numpy(out)


def reduced(given: dict[str, Any], spec: SummarySpec, form: str) -> StepSummary:
    return HeldReduction(tensors(given, form), spec).read()[0]


def assert_same_summary(got: StepSummary, want: StepSummary) -> None:
    """Counts, histograms and exact extremes bit for bit, sums to 1e-6."""
    assert got.counts == want.counts, {k: (got.counts[k], v) for k, v in want.counts.items() if got.counts[k] != v}
    for name, histogram in want.histograms.items():
        np.testing.assert_array_equal(got.histograms[name], histogram, err_msg=name)
    np.testing.assert_array_equal(got.minima[:3], want.minima[:3])
    np.testing.assert_array_equal(got.maxima[:3], want.maxima[:3])
    np.testing.assert_allclose(got.minima, want.minima, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(got.maxima, want.maxima, rtol=1e-12, atol=1e-15)
    scale = {"gap": "gap_abs", "chi2": "gap_abs", "response_mean_gap": "response_mean_gap_abs"}
    for name, value in want.sums.items():
        # a sum that cancels is good to the size of what was added
        size = max(abs(value), want.sums[scale[name]] if name in scale else 0.0)
        if np.isfinite(value):
            assert abs(got.sums[name] - value) <= 1e-6 * size + 1e-300, (name, got.sums[name], value)
        else:
            np.testing.assert_equal(got.sums[name], value, err_msg=name)
