"""Reading the case files, and what all of them state alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import within_sketch
from reference import DEFAULT, Response, Spec, report
from strategies import UpdateInput

from triage_monitor.judge.indicators import update_report

Measure = Callable[..., dict[str, Any]]
INPUTS = Path(__file__).parent / "cases" / "inputs"
NAMES = {"mean": "delta_mean", "mean_abs": "abs_delta_mean", "frac_near": "near_zero_fraction", "rho_asym": "rho_asym"}
EXTREMES = {"min": "delta_min", "max": "delta_max"}


def by_product(responses: Sequence[Response], spec: Spec = DEFAULT) -> dict[str, Any]:
    return update_report(UpdateInput(tuple(responses), spec, "float64").summary())


def by_reference(responses: Sequence[Response], spec: Spec = DEFAULT) -> dict[str, Any]:
    return report(list(responses), spec)


def case(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    content = json.loads((INPUTS / f"{name}.json").read_text())
    return content["input"], content["expected"]


def decoded(values: Sequence[Any]) -> list[float | None]:
    return [None if v is None else float(v) for v in values]


def unrolled(runs: Sequence[Sequence[float]]) -> list[float]:
    return [float(value) for value, count in runs for _ in range(int(count))]


def rows(lengths: Sequence[int] | None = None, **columns: Sequence[Any] | None) -> list[Response]:
    """Flat columns (gap or both log-probs, advantage per token, mask) cut into responses."""
    total = len(columns["advantage"] or ())
    edges = np.cumsum([0, *(lengths or [total])])
    parts = [{k: list(v[a:b]) for k, v in columns.items() if v is not None} for a, b in pairwise(edges)]
    return [
        Response(
            advantage=[float(a) for a in part["advantage"]],
            mask=[bool(m) for m in part["mask"]] if "mask" in part else None,
            gap=decoded(part["gap"]) if "gap" in part else None,
            learner=decoded(part["learner"]) if "learner" in part else None,
            sampler=decoded(part["sampler"]) if "sampler" in part else None,
        )
        for part in parts
    ]


def assert_as_filed(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """What every file states: counts, masses, means, ratio, extremes. Quantiles are given by each test."""
    assert found["counts"]["valid_tokens"] == expected["n_valid"]
    unusable = sum(found["counts"][kind] for kind in ("missing", "nan", "pos_inf", "neg_inf"))
    assert unusable == expected["n_nonfinite_masked_in"]
    assert found["masses"]["a_neg"] == pytest.approx(expected["M_minus"], rel=1e-9)
    assert found["masses"]["a_pos"] == pytest.approx(expected["M_plus"], rel=1e-9)
    for ours in (NAMES, EXTREMES):
        for theirs, name in ours.items():
            if theirs in expected:
                want = None if expected[theirs] is None else pytest.approx(expected[theirs], rel=1e-6, abs=1e-9)
                assert found["indicators"][name] == want, name


def assert_quantiles(found: dict[str, Any], q05: float, q50: float, q95: float) -> None:
    have = [found["quantiles"]["all"][q] for q in ("0.05", "0.5", "0.95")]
    assert all(within_sketch(h, w) for h, w in zip(have, (q05, q50, q95), strict=True)), have


def only_version(response: Response, wanted: Sequence[int], current: int) -> Response:
    """The response with all tokens masked out whose staleness is not in `wanted` (for the split by staleness)."""
    versions = response.policy_version
    assert versions is not None
    each = [versions] * len(response) if isinstance(versions, int) else list(versions)
    mask = response.mask if response.mask is not None else [True] * len(response)
    kept = [bool(m) and (current - v) in wanted for m, v in zip(mask, each, strict=True)]
    return replace(response, mask=kept)
