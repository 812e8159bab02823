"""Real reports as inputs: every case about arithmetic, through the public API and through the reference alike.

Inputs and most expected values are read from `inputs/<id>.json`. Where a file's convention differs from ours the
value stands here, worked out by hand, with the reason beside it:

* quantiles: the files interpolate, we take the order statistic at rank ceil(q n);
* tokens: the files count every position, we count those of mask 1;
* a top-5% share follows W/4 eligibility and takes ties pro rata.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from agreement import within_sketch
from case_files import Measure, assert_as_filed, assert_quantiles, case, decoded, rows, unrolled
from reference import Response, Spec


def test_c01_constant_offset_has_no_ratio_and_no_spread(measure: Measure) -> None:
    given, expected = case("C01")
    responses = rows([4, 4], learner=given["learner"], sampler=given["sampler"], advantage=given["advantage"])
    found = measure(responses)
    assert_as_filed(found, expected)
    assert_quantiles(found, -0.105361, -0.105361, -0.105361)
    assert found["reasons"]["rho_asym"] == "no_positive_mass"
    assert found["indicators"]["asym_share"] == 1.0
    assert found["indicators"]["delta_std"] == pytest.approx(0.0, abs=1e-6)
    assert math.exp(found["indicators"]["delta_mean"]) == pytest.approx(expected["surviving_mass_estimate"], rel=1e-5)
    assert found["indicators"]["sign_odds_blind"] is None


def test_c02_other_temperature_gives_the_stated_gap(measure: Measure) -> None:
    given, expected = case("C02")
    found = measure(rows(learner=given["learner"], sampler=given["sampler"], advantage=given["advantage"]))
    assert_as_filed(found, expected)
    # Sorted: -0.178727 four times, 0.249844 twice, 0.678417, 1.106987; ranks 1, 4 and 8 of 8.
    assert_quantiles(found, -0.178727, -0.178727, 1.106987)


def test_c03_missing_value_is_counted_and_never_filled(measure: Measure) -> None:
    given, expected = case("C03")
    missing = [value is None for value in given["sampler"]]
    sampler = [0.0 if value is None else value for value in given["sampler"]]
    flat = rows([5, 5], learner=given["learner"], sampler=sampler, advantage=given["advantage"], mask=given["mask"])
    responses = [
        Response(r.advantage, learner=r.learner, sampler=r.sampler, mask=r.mask, missing=missing[a : a + 5])
        for a, r in zip((0, 5), flat, strict=True)
    ]
    found = measure(responses)
    assert_as_filed(found, expected)
    # Nine values; ranks 1, 5 and 9.
    assert_quantiles(found, -0.04, 0.0, 0.05)
    assert found["counts"]["missing"] == 1
    assert found["counts"]["tokens"] == 10
    # A missing token is counted like a non-finite one.
    assert found["indicators"]["nonfinite_fraction"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("variant", "quantiles"), [("a", (-0.02, 0.0, 0.1)), ("b", (-0.02, 0.0, 0.1)), ("c", (-5.0, -0.02, 0.1))]
)
def test_c05_placeholder_under_the_mask_is_never_looked_at(
    measure: Measure, variant: str, quantiles: tuple[float, float, float]
) -> None:
    given, expected = case("C05")
    columns = given[variant]
    found = measure(
        rows(learner=given["learner"], sampler=columns["sampler"], advantage=given["advantage"], mask=columns["mask"])
    )
    assert_as_filed(found, expected[variant])
    # Six values: ranks 1, 3, 6. Ten values (c): ranks 1, 5, 10.
    assert_quantiles(found, *quantiles)
    assert found["counts"]["tokens"] == sum(columns["mask"])


def test_c07_shifted_column_is_symmetric_and_large(measure: Measure) -> None:
    given, expected = case("C07")
    found = measure(rows(learner=given["learner"], sampler=given["sampler"], advantage=given["advantage"]))
    assert_as_filed(found, expected)
    # Twelve gaps: ranks 1, 6 and 12.
    ordered = sorted(a - b for a, b in zip(given["learner"], given["sampler"], strict=True))
    assert_quantiles(found, ordered[0], ordered[5], ordered[11])


def test_c10_no_segment_spans_two_packed_responses(measure: Measure) -> None:
    given, expected = case("C10")
    gap = unrolled(given["delta_rle"])
    edges = given["offsets"]
    responses = [
        Response(float(a), gap=gap[lo:hi])
        for a, lo, hi in zip(given["advantage_per_response"], edges[:-1], edges[1:], strict=True)
    ]
    found = measure(responses, Spec(phi=0.1))
    assert found["counts"]["segments"] == expected["n_segments"]
    assert found["counts"]["eligible_segments"] == 5
    # c/n = 4/36 = 0.111 and 4/50 = 0.08: one heavy at phi 0.1. (The last segment of 16 is just eligible.)
    assert found["counts"]["heavy_segments"] == 1
    assert found["indicators"]["heavy_segment_fraction"] == pytest.approx(1 / 5)
    # The top 5% of 5 segments is a quarter of the one with 4 of the 8 tail tokens.
    assert found["indicators"]["top5_tail_share"] == pytest.approx(0.25 * 4 / 8)
    assert found["indicators"]["tail_token_fraction"] == pytest.approx(8 / 230)
    assert found["indicators"]["deep_tail_neg"] == pytest.approx(8 / 150)
    # The heavy segment's response has mean (96 * 0.01 - 4 * 2.5) / 100, which the response mean does not hide.
    assert found["indicators"]["masked_response_fraction"] == 0.0


def test_c11_all_masked_update_is_all_absent_and_leaves_the_window_alone(measure: Measure) -> None:
    given, expected = case("C11")
    empty = rows(given["lengths"], gap=given["delta"], advantage=given["advantage"], mask=given["mask"])
    found = measure(empty)
    assert found["counts"]["responses"] == 3
    assert found["counts"]["empty_responses"] == 3
    # The file counts positions (6); the definitions count those of mask 1.
    assert found["counts"]["tokens"] == 0
    assert found["counts"]["valid_tokens"] == expected["n_valid"]
    assert found["reasons"]["rho_asym"] == "no_tokens"
    assert not [name for name, value in found["indicators"].items() if value is not None]
    healthy = [Response(-1.0, gap=[-0.1] * 3, mask=[True] * 3), Response(1.0, gap=[0.1] * 2, mask=[True] * 2)]
    assert measure([*healthy, *empty])["indicators"]["rho_asym"] == measure(healthy)["indicators"]["rho_asym"] == 1.5


def test_c13_one_token_responses_do_not_fill_the_top_five_percent(measure: Measure) -> None:
    given, expected = case("C13")
    want = expected["min_valid_tokens_16"]
    responses = [
        Response(-1.0, gap=unrolled(kind["delta_rle"])) for kind in given["responses_rle"] for _ in range(kind["count"])
    ]
    found = measure(responses)
    assert found["counts"]["segments"] == 39
    assert found["counts"]["eligible_segments"] == want["n_eligible"]
    assert found["indicators"]["top5_tail_share"] == pytest.approx(want["top5_share"], rel=1e-9)
    assert found["indicators"]["tail_concentration"] == pytest.approx(want["top5_share"] / 0.05, rel=1e-9)
    # Over all valid tokens, the short responses included: 32 + 19 + 19 of 64 * 20 + 19.
    assert found["indicators"]["tail_token_fraction"] == pytest.approx(70 / 1299)


def test_c14_three_tail_tokens_show_in_the_extremes_only(measure: Measure) -> None:
    given, expected = case("C14")
    found = measure([Response(-1.0, gap=decoded(given["delta"]))])
    assert_as_filed(found, expected)
    assert_quantiles(found, -0.01, -0.01, 0.01)
    assert within_sketch(found["quantiles"]["all"]["0.001"], -22.1)
    assert found["indicators"]["deep_tail_neg"] == pytest.approx(expected["n_tail"] / 120)


def test_c16_exact_zeros_and_ties_of_bfloat16_are_valid_but_in_no_region(measure: Measure) -> None:
    given, expected = case("C16")
    found = measure(rows(learner=given["learner"], sampler=given["sampler"], advantage=given["advantage"]))
    assert_as_filed(found, expected)
    # Ranks 2, 20 and 38 of 40; the file's q95 interpolates to 0.00494.
    assert_quantiles(found, -0.0078125, 0.0, 0.0048828125)
    assert found["indicators"]["asym_share"] == pytest.approx(5 / 9)


def test_c17_extreme_gaps_overflow_nothing_and_are_not_clamped(measure: Measure) -> None:
    _, expected = case("C17")
    gap = [0.01, -0.01] * 499 + [-42.75, 800.0]
    found = measure(rows(gap=gap, advantage=[-1.0, 1.0] * 500))
    assert_as_filed(found, expected)
    # Ranks 50, 500 and 950 of 1000: the 500 negative gaps come first, so the median is the last of them.
    assert_quantiles(found, -0.01, -0.01, 0.01)
    # The file clamps at +-20 and counts 2; we saturate at 700 only, which one token reaches.
    assert found["counts"]["overflow_tokens"] == 1
    assert found["indicators"]["kl_k3"] == pytest.approx(math.exp(700) / 1000, rel=1e-9)
    assert found["indicators"]["rho_max"] == pytest.approx(math.exp(700), rel=1e-12)
    # One weight outweighs all others: an effective sample of one token in a thousand.
    assert found["indicators"]["ess_fraction"] == pytest.approx(1e-3, rel=1e-9)
    json.dumps(found, allow_nan=False)


def test_c19_two_broken_sequences_show_in_the_response_view(measure: Measure) -> None:
    given, expected = case("C19")
    means = given["sequence_mean_delta_constant_within_sequence"]
    found = measure([Response(-1.0, gap=[value] * given["tokens_per_sequence"]) for value in means])
    assert_as_filed(found, expected)
    assert_quantiles(found, -5.0, 0.005, 0.005)
    assert found["indicators"]["log_ppl_diff_max"] == pytest.approx(5.0)
    assert found["indicators"]["log_ppl_diff_min"] == pytest.approx(-0.005)
    assert found["indicators"]["log_ppl_diff_mean"] == pytest.approx(0.996)
    assert within_sketch(math.log(found["indicators"]["prod_ratio_q05"]), -100.0)


def test_c22_low_tail_is_visible_and_the_masked_one_is_not(measure: Measure) -> None:
    given, expected = case("C22")
    found = measure([Response(-1.0, gap=decoded(given["delta"]), mask=[bool(m) for m in given["mask"]])])
    assert_as_filed(found, expected)
    # Five values: ranks 1, 3 and 5.
    assert_quantiles(found, -4.0, 0.0, 1.0)
    assert found["indicators"]["rho_max"] == pytest.approx(expected["ratio_max"], rel=1e-9)
    assert math.exp(found["indicators"]["delta_min"]) == pytest.approx(expected["ratio_min"], rel=1e-9)


def test_c25_symmetric_heavy_tails_have_no_direction(measure: Measure) -> None:
    given, expected = case("C25")
    found = measure(rows(gap=given["delta"], advantage=given["advantage"]))
    assert_as_filed(found, expected)
    # Ranks 5, 50 and 95 of 100: ten at -6, forty at -0.01, forty at 0.01, ten at 6. (The file interpolates 0.)
    assert_quantiles(found, -6.0, -0.01, 6.0)
    assert found["indicators"]["asym_share"] == 0.5
    # Of each sign's ten heavy tokens five have the advantage of their own sign.
    assert found["indicators"]["rho_asym_tail"] == 1.0
    assert found["indicators"]["tail_token_fraction"] == pytest.approx(expected["n_tail"] / 100)
    assert found["indicators"]["rho_pressure"] == pytest.approx(1.0)


def test_c26_degenerate_sampler_is_counted_everywhere(measure: Measure) -> None:
    given, expected = case("C26")
    learner, sampler = unrolled(given["learner_rle"]), unrolled(given["sampler_rle"])
    found = measure([Response(-1.0, learner=learner, sampler=sampler)])
    assert_as_filed(found, expected)
    assert_quantiles(found, -9.0, -9.0, -9.0)
    assert found["counts"]["eligible_segments"] == found["counts"]["heavy_segments"] == len(expected["segments"])
    assert found["indicators"]["deep_tail_neg"] == expected["share_sampler_exactly_zero"] == 1.0
    # Every segment alike: the top 5% hold 5%, and heavy follows heavy exactly as often as by chance.
    assert found["indicators"]["top5_tail_share"] == pytest.approx(0.05)
    assert found["indicators"]["persistence"] == pytest.approx(1.0)
    assert found["indicators"]["masked_response_fraction"] == 0.0
    assert found["indicators"]["ppl_learner"] == pytest.approx(math.exp(9.0))
    assert found["indicators"]["ppl_sampler"] == 1.0


def test_c28_nan_advantages_leave_magnitude_alone_and_direction_clean(measure: Measure) -> None:
    given, expected = case("C28")
    edges = np.cumsum([0, *given["lengths"]])
    gap = decoded(given["delta"])
    responses = [
        Response(float(a), gap=gap[s : s + 3]) for a, s in zip(given["advantage_per_response"], edges, strict=False)
    ]
    found = measure(responses)
    assert_as_filed(found, expected)
    # Twelve values: ranks 1, 6 and 12.
    assert_quantiles(found, -0.4, -0.1, 0.3)
    assert found["counts"]["unusable_advantage"] == expected["responses_with_nonfinite_advantage"]
    assert found["masses"]["total"] == 6.0


def test_c29_no_advantage_signal_is_its_own_reason_and_moves_no_window(measure: Measure) -> None:
    given, expected = case("C29")
    gap = decoded(given["delta"])
    silent = [Response(0.0, gap=gap[s : s + 3]) for s in range(0, 12, 3)]
    found = measure(silent)
    assert_as_filed(found, expected)
    assert found["reasons"]["rho_asym"] == "no_advantage_signal"
    assert found["reasons"]["asym_share"] == "no_advantage_signal"
    loud = [Response(-1.0, gap=[-0.1] * 3), Response(1.0, gap=[0.1] * 2)]
    assert measure([*loud, *silent])["indicators"]["rho_asym"] == measure(loud)["indicators"]["rho_asym"] == 1.5


def test_c32_declared_padding_never_enters(measure: Measure) -> None:
    given, expected = case("C32")
    flat = rows(given["lengths"], gap=given["delta"], advantage=given["advantage"])
    padded = [
        Response(r.advantage, gap=r.gap, padding=bool(p))
        for r, p in zip(flat, given["is_padding_response"], strict=True)
    ]
    found = measure(padded)
    assert_as_filed(found, expected)
    # Six each of -0.2, -0.02, 0.01, 0.1: ranks 2, 12 and 23 of 24.
    assert_quantiles(found, -0.2, -0.02, 0.1)
    assert measure(flat)["indicators"]["near_zero_fraction"] == expected["frac_near_if_padding_counted"]


def test_c42_undefined_ratio_is_null_in_strict_json(measure: Measure) -> None:
    given, expected = case("C42")
    found = measure(rows(gap=given["delta"], advantage=given["advantage"], mask=given["mask"]))
    text = json.dumps(found, allow_nan=False)
    assert json.loads(text)["indicators"]["rho_asym"] is expected["json_rho_asym"]
    assert found["indicators"]["asym_share"] == 1.0
    assert found["reasons"]["rho_asym"] == "no_positive_mass"


@pytest.mark.parametrize("times", ["x1", "x1000"])
def test_c53_effect_sizes_do_not_move_with_the_sample(measure: Measure, times: str) -> None:
    given, expected = case("C53")
    n = int(times[1:])
    found = measure(rows(gap=given["delta"] * n, advantage=given["advantage"] * n))
    assert_as_filed(found, expected[times])
    # Ranks 1, 4 and 8 of 8, or 400, 4000 and 7600 of 8000: the same values, as no order statistic interpolates.
    assert_quantiles(found, -0.6, -0.02, 0.2)


def test_c55_headline_ratio_is_raw(measure: Measure) -> None:
    given, expected = case("C55")
    found = measure(rows(given["lengths"], gap=given["delta"], advantage=given["advantage"], mask=given["mask"]))
    assert_as_filed(found, expected)
    # Eight values: ranks 1, 4 and 8. The file's median of 0 interpolates.
    assert_quantiles(found, -2.0, -0.1, 0.3)
