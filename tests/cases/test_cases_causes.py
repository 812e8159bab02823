"""The cause that each report's case shows; the inputs come from the files, the names are ours.

C14 has no hint of its turns in the gaps alone: without turn starts nothing is named. C02 is also tried without its
settings, C05 with the dummies rightly masked.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from case_files import case, decoded, unrolled

from triage_monitor.judge.causes import Finding
from triage_monitor.judge.causes_run import CauseTracker
from triage_monitor.judge.indicators import update_report
from triage_monitor.summary.rows_values import UpdateRows, rows_from_arrays
from triage_monitor.summary.symptoms_rows import symptoms_of


def floats(values: list[Any]) -> np.ndarray[Any, Any]:
    return np.array([math.nan if value is None else float(value) for value in decoded(values)])


def pairs(given: dict[str, Any], lengths: list[int] | None = None, **more: Any) -> UpdateRows:
    count = len(given["learner"])
    arrays: dict[str, Any] = {
        "learner_logprobs": floats(given["learner"]),
        "sampler_logprobs": floats(given["sampler"]),
        "offsets": np.cumsum([0, *(lengths or [count])]),
        "advantages": floats(given["advantage"]),
    }
    if isinstance(given.get("mask"), list):
        arrays["mask"] = np.array(given["mask"], np.bool_)
    return rows_from_arrays(**(arrays | more))


def gaps(values: list[Any], advantage: Any, lengths: list[int], **more: Any) -> UpdateRows:
    advantages = floats(advantage) if isinstance(advantage, list) else np.full(len(lengths), float(advantage))
    return rows_from_arrays(gap=floats(values), offsets=np.cumsum([0, *lengths]), advantages=advantages, **more)


def findings(rows: UpdateRows) -> dict[str, Finding]:
    report = update_report(rows.summarize())
    return {item.cause: item for item in CauseTracker(25).accept(0, report, report, symptoms_of(rows))}


def test_c01_constant_offset_is_a_support_mismatch_with_the_kept_mass() -> None:
    given, expected = case("C01")
    for settings in ({}, {"top_p": given["top_p"], "logprobs_mode": "processed_logprobs"}):
        found = findings(pairs(given, [4, 4], settings=settings))
        assert set(found) == {"renormalised_sampler_logprobs"}
        evidence = found["renormalised_sampler_logprobs"].evidence
        assert evidence["kept_mass"] == pytest.approx(expected["surviving_mass_estimate"], abs=1e-3)
    assert found["renormalised_sampler_logprobs"].confidence == "high"


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}])
def test_c02_slope_is_a_temperature_mismatch(settings: dict[str, float]) -> None:
    given, expected = case("C02")
    found = findings(pairs(given, settings=settings))
    assert set(found) == {"temperature_mismatch"}
    slope = found["temperature_mismatch"].evidence["slope"]
    assert slope == pytest.approx(expected["slope_learner_on_sampler"], abs=1e-3)


def test_c05_dummies_are_named_only_where_the_mask_lets_them_in() -> None:
    given, expected = case("C05")
    for variant in ("a", "b"):
        columns = {**given, **given[variant]}
        columns["sampler"] = [-math.inf if value == "-inf" else value for value in columns["sampler"]]
        assert findings(pairs(columns)) == {}
    found = findings(pairs({**given, **given["c"]}))
    assert set(found) == {"dummy_tokens"}
    longest = expected["c"]["longest_run_sampler_exactly_zero_while_learner_below_minus_1"]
    assert found["dummy_tokens"].evidence["tokens"] == longest


def test_c07_shift_is_named_with_both_correlations() -> None:
    given, expected = case("C07")
    found = findings(pairs(given))
    assert set(found) == {"token_misalignment"}
    evidence = found["token_misalignment"].evidence
    assert evidence["lag"] == expected["best_lag"]
    assert evidence["correlation_lag_0"] == pytest.approx(expected["corr_lag0"], abs=1e-3)
    assert evidence["correlation_best_lag"] == pytest.approx(expected["corr_lag1"], abs=1e-3)


def test_c13_one_word_answers_are_short_responses_and_nothing_else() -> None:
    given, _ = case("C13")
    kinds = [unrolled(kind["delta_rle"]) for kind in given["responses_rle"] for _ in range(kind["count"])]
    rows = gaps([gap for kind in kinds for gap in kind], -1.0, [len(kind) for kind in kinds])
    found = findings(rows)
    assert set(found) == {"short_responses"}
    assert found["short_responses"].evidence["responses"] == 19


def test_c14_tail_after_declared_turns_is_a_boundary_pattern() -> None:
    given, expected = case("C14")
    assert findings(gaps(given["delta"], -1.0, given["lengths"])) == {}
    found = findings(gaps(given["delta"], -1.0, given["lengths"], turn_starts=[given["turn_starts"]]))
    assert set(found) == {"retokenised_turn_borders"}
    evidence = found["retokenised_turn_borders"].evidence
    assert evidence["share"] == expected["share_of_tail_within_4_tokens_after_a_turn_start"]
    assert evidence["large_gaps"] == expected["n_tail"]


def test_c16_bfloat16_columns_are_low_precision() -> None:
    given, expected = case("C16")
    found = findings(pairs(given))
    assert set(found) == {"low_precision_logprobs"}
    share = expected["zero_delta_tokens"] / expected["n_valid"]
    assert found["low_precision_logprobs"].evidence["exact_zero_share"] == pytest.approx(share)


def test_c19_broken_sequences_are_named_by_row() -> None:
    given, expected = case("C19")
    means, tokens = given["sequence_mean_delta_constant_within_sequence"], given["tokens_per_sequence"]
    rows = gaps([mean for mean in means for _ in range(tokens)], -1.0, [tokens] * len(means))
    found = findings(rows)
    assert set(found) == {"broken_responses"}
    evidence = found["broken_responses"].evidence
    assert evidence["share"] == expected["outlier_sequence_share"]
    assert evidence["response_ids"] == [str(row) for row in expected["outlier_sequences"]]


def test_c25_tails_both_ways_are_symmetric() -> None:
    given, expected = case("C25")
    found = findings(gaps(given["delta"], given["advantage"], [100]))
    assert set(found) == {"symmetric_heavy_tails"}
    assert found["symmetric_heavy_tails"].evidence["below_minus_1"] == expected["n_tail"]


def test_c26_sampler_sure_of_everything_is_degenerate_and_blinds() -> None:
    given, _ = case("C26")
    columns = {"learner": unrolled(given["learner_rle"]), "sampler": unrolled(given["sampler_rle"])}
    found = findings(pairs({**columns, "advantage": [-1.0] * 128}, response_ids=["a"], engines=["gpu-3"]))
    assert set(found) == {"degenerate_sampler"}
    assert found["degenerate_sampler"].evidence["response_ids"] == ["a"]
    assert found["degenerate_sampler"].evidence["engines"] == ["gpu-3"]


@pytest.mark.parametrize(("name", "cause"), [("C28", "unusable_advantage"), ("C29", "no_advantage_signal")])
def test_c28_c29_advantages_that_are_no_number_or_no_signal(name: str, cause: str) -> None:
    given, _ = case(name)
    assert set(findings(gaps(given["delta"], given["advantage_per_response"], given["lengths"]))) == {cause}


def test_c32_undeclared_padding_is_hinted_at_and_declared_padding_is_not() -> None:
    given, expected = case("C32")
    found = findings(gaps(given["delta"], given["advantage"], given["lengths"]))
    assert set(found) == {"undeclared_padding"}
    assert (
        found["undeclared_padding"].evidence["tokens"] == expected["n_pad_tokens"] if "n_pad_tokens" in expected else 8
    )
    kept = 4 * (len(given["lengths"]) - sum(given["is_padding_response"]))
    rows = gaps(given["delta"][:kept], given["advantage"][:kept], given["lengths"][: kept // 4], padding_rows=2)
    assert findings(rows) == {}


def test_c37_versions_are_reported_by_lag() -> None:
    given, _ = case("C37")
    responses = given["responses"]
    rows = gaps(
        [gap for item in responses for gap in item["delta"]],
        [float(item["advantage"]) for item in responses],
        [4] * 4,
        policy_versions=np.array([item["sampler_version"] for item in responses]),
    )
    found = findings(rows)
    assert set(found) == {"mixed_policy_versions"}
    shares = {"share_lag_0": 0.5, "share_lag_1": 0.25, "share_lag_2_plus": 0.25}
    assert found["mixed_policy_versions"].evidence == shares


@pytest.mark.parametrize("name", ["C11", "C22", "C42", "C53", "C55"])
def test_cases_without_a_cause_name_none(name: str) -> None:
    given, _ = case(name)
    count = len(given["delta"])
    mask = {"mask": np.array(given["mask"], np.bool_)} if isinstance(given.get("mask"), list) else {}
    advantage = given["advantage"] if isinstance(given["advantage"], list) else [given["advantage"]] * count
    assert findings(gaps(given["delta"], advantage, given.get("lengths") or [count], **mask)) == {}
