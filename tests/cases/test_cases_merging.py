"""Real reports about merging: sizes, ranks, versions, resumed and repeated updates. Conventions as in test_cases.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import within_sketch
from case_files import Measure, assert_as_filed, assert_quantiles, case, decoded, only_version, rows
from reference import Response, Update, report, trailing_window
from strategies import UpdateInput

from triage_monitor import indicators, summarize
from triage_monitor.judge.indicators import update_report
from triage_monitor.summary.step import StepSummary, merge_all
from triage_monitor.summary.window import TrailingWindow


def test_c20_more_than_2_to_the_24_tokens_keep_their_quantiles() -> None:
    _, expected = case("C20")
    thousandths = (np.arange(2**24 + 1, dtype=np.int64) * 7919) % 1000
    gap = (-thousandths / 1000).astype(np.float32)
    offsets = np.asarray([0, 2**23, 2**24 + 1], dtype=np.int64)
    found = update_report(summarize(gap=gap, advantages=np.asarray([-1.0, -1.0]), offsets=offsets))
    assert found["counts"]["valid_tokens"] == expected["n_valid"]
    assert found["masses"]["a_neg"] == expected["M_minus"]
    assert found["masses"]["a_pos"] == expected["M_plus"]
    assert found["indicators"]["rho_asym"] is None
    assert found["indicators"]["delta_mean"] == pytest.approx(expected["mean"], rel=1e-6)
    # Order statistics at ranks ceil(q n), from a sorted copy; the file's q05 of -0.9492 interpolates.
    assert_quantiles(found, -0.95, -0.5, -0.049)
    assert within_sketch(found["quantiles"]["all"]["0.01"], expected["q01"])


def merge_of(window: TrailingWindow) -> tuple[int, int, int, StepSummary]:
    merged = window.merged()
    assert merged is not None
    return merged.first_step, merged.last_step, merged.updates, merged.summary


def test_c23_flat_high_level_stays_flat() -> None:
    given, expected = case("C23")
    window = TrailingWindow(25)
    levels = []
    for step, level in enumerate(given["mean_abs_per_update"]):
        update = UpdateInput((Response(-1.0, gap=[-level] * 100), Response(1.0, gap=[level] * 100)), dtype="float64")
        window.put(step, 1, update.summary())
        levels.append(indicators(merge_of(window)[3]))
    assert levels[-1]["rho_asym"] == pytest.approx(expected["rho_window"], rel=1e-12)
    assert levels[-1]["abs_delta_mean"] == pytest.approx(0.271, rel=1e-12)
    assert levels[24]["abs_delta_mean"] == pytest.approx(levels[-1]["abs_delta_mean"], rel=1e-12)


def test_c30_uneven_ranks_are_pooled_never_averaged(measure: Measure) -> None:
    given, expected = case("C30")
    ranks = [rows(gap=given[r]["delta"], advantage=given[r]["advantage"]) for r in ("rank0", "rank1")]
    assert [measure(rank)["indicators"]["rho_asym"] for rank in ranks] == expected["rank_rho"]
    found = measure([*ranks[0], *ranks[1]])
    assert_as_filed(found, expected)
    # Ten values: ranks 1, 5 and 10.
    assert_quantiles(found, -0.5, -0.2, 0.6)
    merged = merge_all([UpdateInput(tuple(rank), dtype="float64").summary() for rank in ranks])
    assert_as_filed(update_report(merged), expected)


def test_c33_empty_shard_adds_nothing() -> None:
    given, expected = case("C33")
    for variant, shards in (("a", given["a_all_arrive"]), ("b", given["b_shard_3_never_arrives"])):
        merged = merge_all([summary_of_masses(s["M_minus"], s["M_plus"], s["n_valid"]) for s in shards])
        found = update_report(merged)
        assert found["indicators"]["rho_asym"] == expected[variant]["rho_asym"]
        assert found["counts"]["valid_tokens"] == expected[variant]["n_valid"]


def responses_of_masses(minus: float, plus: float, tokens: int = 12) -> tuple[Response, ...]:
    """Two responses with the given amplifying masses; what is left of the tokens has a gap of 0."""
    if tokens == 0:
        return ()
    gap_minus = [-0.1] * int(minus)
    gap_plus = [0.1] * int(plus) + [0.0] * (tokens - int(minus) - int(plus))
    return Response(-1.0, gap=gap_minus), Response(1.0, gap=gap_plus)


def summary_of_masses(minus: float, plus: float, tokens: int = 12) -> StepSummary:
    return UpdateInput(responses_of_masses(minus, plus, tokens), dtype="float64").summary()


def test_c34_resumed_run_replaces_the_steps_it_repeats() -> None:
    given, expected = case("C34")
    window = TrailingWindow(25)
    updates = []
    for record in given["in_order_of_arrival"]:
        masses = record["M_minus"], record["M_plus"]
        window.put(record["step"], record["attempt"], summary_of_masses(*masses))
        updates.append(Update(record["step"], responses_of_masses(*masses), record["attempt"]))
    first, last, count, merged = merge_of(window)
    assert [first, last] == expected["window_steps"]
    assert count == expected["window_updates"]
    assert indicators(merged)["rho_asym"] == pytest.approx(expected["rho_window"], rel=1e-12)
    kept = trailing_window(updates)
    assert [kept[0].step, kept[-1].step, len(kept)] == [first, last, count]
    assert report(kept)["indicators"]["rho_asym"] == pytest.approx(expected["rho_window"], rel=1e-12)


def test_c35_sending_again_replaces_and_never_adds() -> None:
    given, expected = case("C35")
    window = TrailingWindow(25)
    for post in given["posts"]:
        window.put(post["step"], 1, summary_of_masses(post["M_minus"], post["M_plus"]))
    _, _, count, merged = merge_of(window)
    masses = update_report(merged)["masses"]
    assert (count, masses["a_neg"], masses["a_pos"]) == (
        expected["updates"],
        expected["M_minus_total"],
        expected["M_plus_total"],
    )


def versioned() -> tuple[list[Response], int, dict[str, Any]]:
    given, expected = case("C37")
    responses = [
        Response(float(r["advantage"]), gap=decoded(r["delta"]), policy_version=r["sampler_version"])
        for r in given["responses"]
    ]
    return responses, given["trainer_version"], expected


def test_c37_mixed_versions_give_the_overall_value(measure: Measure) -> None:
    responses, _, expected = versioned()
    found = measure(responses)
    assert_as_filed(found, expected)
    # Sixteen values: ranks 1, 8 and 16. The file's median of 0 interpolates between -0.1 and 0.1.
    assert_quantiles(found, -1.0, -0.1, 0.9)


def test_c37_reference_splits_by_staleness() -> None:
    responses, current, expected = versioned()
    for bucket, lags in (("0", [0]), ("1", [1]), ("2+", range(2, 100))):
        found = report([only_version(r, list(lags), current) for r in responses])
        assert_as_filed(found, expected["by_staleness"][bucket])


@pytest.mark.parametrize("per_token", [False, True])
def test_c37_split_by_staleness_is_bounded(per_token: bool) -> None:
    responses, current, expected = versioned()
    versions = [[r.policy_version] * len(r) if per_token else r.policy_version for r in responses]
    summary = summarize(
        gap=[np.asarray(r.gap) for r in responses],
        advantages=[r.advantage for r in responses],
        policy_versions=versions,
        current_version=current,
    )
    found = indicators(summary)
    for bucket, name in (("0", "0"), ("1", "1"), ("2+", "2_plus")):
        want = expected["by_staleness"][bucket]
        assert summary.counts[f"lag_tokens_{name}"] == want["n_valid"]
        ratio = None if want["rho_asym"] is None else pytest.approx(want["rho_asym"], rel=1e-9)
        assert found[f"rho_asym_lag_{name}"] == ratio
    assert found["staleness_mean"] == pytest.approx((0 * 8 + 1 * 4 + 3 * 4) / 16)


def test_c37_tokens_of_one_response_go_to_the_bucket_of_their_own_version() -> None:
    """Variant b: versions 9, 9, 10, 10 with the learner at 10."""
    summary = summarize(
        gap=[[-0.1, 0.2, -0.3, -0.4], [0.5, -0.1, 0.2, 0.3]],
        advantages=[-1.0, 1.0],
        policy_versions=[[9, 9, 10, 10], [10, 9, 9, 10]],
        current_version=10,
    )
    found = indicators(summary)
    assert (summary.counts["lag_tokens_0"], summary.counts["lag_tokens_1"]) == (4, 4)
    assert found["rho_asym_lag_0"] == 2 / 2
    assert found["rho_asym_lag_1"] == 1 / 1


def test_c39_window_rebuilt_from_stored_updates_is_the_old_one() -> None:
    given, expected = case("C39")
    window = TrailingWindow(25)
    total = given["updates_before_restart"]
    for step in range(total - 25, total + 1):
        window.put(step, 1, summary_of_masses(given["M_minus_each"], given["M_plus_each"]))
    first, last, count, merged = merge_of(window)
    assert (first, last) == (total - 24, total)
    assert count == expected["with_state_store"]["window_updates"]
    assert indicators(merged)["rho_asym"] == expected["with_state_store"]["rho_window"]
