"""When do the package and the reference agree? Counts and reasons exactly, values to 1e-9, sketched ones as promised.

Sums of exponentials may be formed in the gap's own precision within a segment: 1e-6, the promise to users.

Relative tolerances alone would ask for digits that no sum of signed numbers has, so a value that may cancel also gets
an absolute one, scaled by what was added up. Values that hinge on a last bit (a mean that lies on its threshold, a
correlation of constants) are named by `fragile` and left to the hand-made tests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from reference import Response, Spec, Update, mean_gap, report, rows_of, tokens_of

from triage_monitor.judge.indicators import update_report
from triage_monitor.summary.step import StepSummary

RELATIVE = 1e-9
QUANTILE_RELATIVE, QUANTILE_ABSOLUTE, QUANTILE_CEILING = 0.005, 1e-4, 1e3
EXPONENTIALS = ("kl_k3", "kl_k3_reverse", "mult_prob_error", "chi2_token", "rho_mean", "ess_fraction")
EXPONENTIAL_RELATIVE = 1e-6
SKETCHED = ("prod_ratio_q05", "prod_ratio_q50", "prod_ratio_q95")


def assert_agrees(summary: StepSummary, inputs: Sequence[Update | Response], spec: Spec) -> None:
    """The summary's report against the reference's on the raw inputs."""
    found = update_report(summary)
    json.dumps(found, allow_nan=False)
    assert_report_agrees(found, inputs, spec)


def assert_report_agrees(found: dict[str, Any], inputs: Sequence[Update | Response], spec: Spec) -> None:
    expected = report(inputs, spec)
    assert_counts_equal(found["counts"], expected["counts"])
    for region, mass in expected["masses"].items():
        assert close(found["masses"][region], mass, 1e-12, 0.0), (region, found["masses"][region], mass)
    assert_quantiles_close(found["quantiles"], expected["quantiles"])
    assert_indicators_agree(found["indicators"], expected["indicators"], fragile(inputs, spec))
    assert_reasons_agree(found, expected["reasons"])


def assert_counts_equal(found: dict[str, int], expected: dict[str, int]) -> None:
    picked = {name: found.get(name) for name in expected}
    assert picked == expected


def assert_reasons_agree(found: dict[str, Any], expected: dict[str, str]) -> None:
    """Fixed reasons are equal; every absent number has a reason and no present one has."""
    reasons = found["reasons"]
    assert {name: reasons.get(name) for name in expected} == expected
    absent = {name for name, value in found["indicators"].items() if value is None}
    assert set(reasons) == absent
    assert all(isinstance(reason, str) and reason for reason in reasons.values())


def assert_indicators_agree(
    found: dict[str, float | None], expected: dict[str, float | None], leave_out: set[str]
) -> None:
    wrong = {}
    for name, want in expected.items():
        if name in leave_out:
            continue
        have = found[name]
        if want is None or have is None:
            if want is not have:
                wrong[name] = (have, want)
        elif name in SKETCHED:
            if not close_exponent(have, want):
                wrong[name] = (have, want)
        elif not close(have, want, *tolerances(name, expected)):
            wrong[name] = (have, want)
    assert not wrong, f"(found, expected): {wrong}"
    assert all(value is None or math.isfinite(value) for value in found.values())


def tolerances(name: str, expected: dict[str, float | None]) -> tuple[float, float]:
    """(relative, absolute) of one indicator; the absolute part is what cancellation can leave."""
    largest = expected["abs_delta_max"] or 0.0
    if name in ("delta_mean", "kl_k1") or name.startswith("log_ppl_diff"):
        return RELATIVE, 1e-12 * largest
    if name == "delta_std":
        return RELATIVE, 1e-7 * largest
    if name == "log_rho_se":
        return RELATIVE, 1e-7
    if name == "chi2_token":
        return EXPONENTIAL_RELATIVE, 1e-6 * (expected["kl_k3"] or 0.0)
    if name in EXPONENTIALS:
        return EXPONENTIAL_RELATIVE, 1e-18
    if name in ("amplification_balance", "prob_abs_diff_mean", "prob_abs_diff_max"):
        return RELATIVE, 1e-12
    if name == "prob_pearson":
        return 1e-6, 1e-6
    return RELATIVE, 0.0


def close(have: float, want: float, relative: float, absolute: float) -> bool:
    return abs(have - want) <= max(relative * abs(want), absolute)


def close_exponent(have: float, want: float) -> bool:
    """exp of a sketched sum: the promise of the sketch holds for the logarithm."""
    if want < 1e-300 or have < 1e-300:
        return have < 1e-290 and want < 1e-290
    return within_sketch(math.log(have), math.log(want))


def within_sketch(have: float, want: float) -> bool:
    if abs(want) > QUANTILE_CEILING:
        return math.isfinite(have) and math.copysign(1.0, have) == math.copysign(1.0, want)
    if abs(want) >= 1e-4:
        return abs(have - want) <= QUANTILE_RELATIVE * abs(want) * (1 + 1e-12)
    return abs(have - want) <= QUANTILE_ABSOLUTE


def assert_quantiles_close(found: dict[str, dict[str, Any]], expected: dict[str, dict[str, float | None]]) -> None:
    for group, values in expected.items():
        for q, want in values.items():
            have = found[group].get(q)
            if want is None:
                assert have is None, (group, q, have)
            else:
                assert have is not None and within_sketch(have, want), (group, q, have, want)


def fragile(inputs: Sequence[Update | Response], spec: Spec) -> set[str]:
    """Indicators whose value a rounding error may flip on these inputs."""
    usable = [[t for t in tokens_of(r) if t.kind == "valid"] for _, r in rows_of(inputs)]
    names: set[str] = set()
    if any(tokens and abs(abs(mean_gap(tokens)) - spec.near_zero) < 1e-12 for tokens in usable):
        names |= {"masked_response_fraction", "masked_response_fraction_a_neg", "masked_response_fraction_a_pos"}
    for side in ("learner", "sampler"):
        values = [getattr(t, side) for tokens in usable for t in tokens]
        p = [math.exp(min(v, 700.0)) for v in values if v is not None]
        centre = math.fsum(p) / len(p) if p else 0.0
        if p and math.fsum((v - centre) ** 2 for v in p) < 1e-9 * math.fsum(v * v for v in p):
            names.add("prob_pearson")
    return names
