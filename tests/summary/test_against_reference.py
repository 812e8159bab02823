"""The kernel and the indicators against the slow reference, on drawn and on hand-made updates."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from agreement import assert_agrees
from hypothesis import given, settings
from reference import DEFAULT, Response, Spec, Update
from strategies import UpdateInput, realistic_update, seeded_updates, sharded, small_updates

from triage_monitor import indicators
from triage_monitor.summary import build
from triage_monitor.summary.step import StepSummary, merge_all

# Deterministic everywhere: the same examples on a laptop and in CI. Compiling the kernel is no reason to fail.
DRAWN = settings(max_examples=100, deadline=None, derandomize=True)
SEEDED = settings(max_examples=30, deadline=None, derandomize=True)


def agrees(*responses: Response, spec: Spec = DEFAULT, dtype: str = "float64") -> None:
    update = UpdateInput(responses, spec, dtype)
    assert_agrees(update.summary(), responses, spec)


@given(small_updates())
@DRAWN
def test_small_updates_give_what_the_definitions_say(update: UpdateInput) -> None:
    assert_agrees(update.summary(), update.responses, update.spec)


@given(seeded_updates())
@SEEDED
def test_realistic_updates_give_what_the_definitions_say(update: UpdateInput) -> None:
    assert_agrees(update.summary(), update.responses, update.spec)


@given(sharded())
@SEEDED
def test_merged_shards_give_what_the_whole_batch_should(
    split: tuple[UpdateInput, list[UpdateInput]],
) -> None:
    whole, parts = split
    merged = merge_all((part.summary() for part in parts), whole.summary_spec())
    assert_agrees(merged, whole.responses, whole.spec)


@pytest.mark.parametrize("segment", [8, 9, 16, 64])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_long_ragged_update_agrees(segment: int, dtype: str) -> None:
    spec = Spec(segment=segment)
    update = realistic_update(seed=segment, responses=60, spec=spec, dtype=dtype, holes=True, grouped=True)
    assert_agrees(update.summary(), update.responses, spec)


@pytest.mark.parametrize("segment", [100, 128, 512])
def test_long_segments_agree(segment: int) -> None:
    spec = Spec(segment=segment, tau_ana=0.25)
    update = realistic_update(seed=segment, responses=40, spec=spec, longest=2000, holes=True)
    assert_agrees(update.summary(), update.responses, spec)


@pytest.mark.parametrize("kind", ["plain", "a NaN", "a masked token", "both"])
@pytest.mark.parametrize("segment", [8, 64, 300])
def test_long_responses_with_a_single_flaw_agree(segment: int, kind: str) -> None:
    """Segments are looked at by the block where nothing is in the way: a flaw ends that, and only near it."""
    spec = Spec(segment=segment)
    plain = realistic_update(seed=segment, responses=6, spec=spec, longest=6000).responses
    assert max(len(response) for response in plain) > 2048
    rows = []
    for number, response in enumerate(plain):
        gap, mask = list(response.gap or ()), [True] * len(response)
        place = (37 + 611 * number) % len(gap)
        if kind in ("a NaN", "both"):
            gap[place] = math.nan
        if kind in ("a masked token", "both"):
            mask[len(gap) // 2] = False
        rows.append(Response(response.advantage, gap=gap, mask=mask if "mask" in kind or kind == "both" else None))
    agrees(*rows, spec=spec, dtype="float32")


@pytest.mark.parametrize("per_token", [False, True])
def test_large_shard_reduced_in_two_threads_is_the_same_to_the_bit(
    monkeypatch: pytest.MonkeyPatch, per_token: bool
) -> None:
    """And what it says is what the definitions say, wherever it is cut."""
    update = realistic_update(seed=9, responses=40, per_token=per_token, grouped=True, holes=True)
    monkeypatch.setattr(build, "LARGE_SHARD", 100)
    gap = [np.asarray(response.gap, np.float32) for response in update.responses]
    given = {
        "gap": gap,
        "advantages": [np.asarray(response.advantage) for response in update.responses],
        "mask": [np.asarray(response.mask) for response in update.responses],
        "groups": np.array([response.group for response in update.responses]),
    }
    with ThreadPoolExecutor(2) as threads:
        apart = build.summarize(**given, each=threads.map)
    assert apart == build.summarize(**given)
    assert_agrees(update.summary(), update.responses, update.spec)


def test_absurd_gaps_warn_in_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """What numpy is told to overlook is told a thread at a time."""
    monkeypatch.setattr(build, "LARGE_SHARD", 100)
    given = {"gap": np.full(200, 1e308), "advantages": np.full(2, 1e300), "offsets": np.array([0, 100, 200])}
    with ThreadPoolExecutor(2) as threads:
        summary = build.summarize(**given, each=threads.map)
    assert (summary.counts["valid_tokens"], summary.counts["overflow_tokens"]) == (200, 200)


@pytest.mark.parametrize("per_token", [False, True])
def test_both_log_probs_agree(per_token: bool) -> None:
    update = realistic_update(seed=3, responses=50, both=True, per_token=per_token, holes=True)
    assert_agrees(update.summary(), update.responses, update.spec)


def test_window_of_updates_is_the_pool_of_their_tokens() -> None:
    updates = [realistic_update(seed=k, responses=12, grouped=True, both=k % 2 == 0) for k in range(6)]
    merged = merge_all([u.summary() for u in updates])
    assert_agrees(merged, [Update(k, u.responses) for k, u in enumerate(updates)], DEFAULT)


def test_no_responses_at_all_agree() -> None:
    assert_agrees(StepSummary.empty(), (), DEFAULT)
    agrees()


@pytest.mark.parametrize("gap", [0.0, -0.0, 1e-300, 1e-9, -1e-5, 9.9e-5, 1e-4, 0.05, -0.05, -1.0, 1.0, 999.0, -999.0])
@pytest.mark.parametrize("advantage", [-1.0, 1.0, 0.0])
def test_one_token_agrees(gap: float, advantage: float) -> None:
    agrees(Response(advantage, gap=[gap]))


@pytest.mark.parametrize("gap", [-42.75, -20.0, -9.0, 20.0, 300.0])
def test_equal_extreme_gaps_keep_their_digits(gap: float) -> None:
    """A weight of exp(-42.75) is small but not 0: every token equal gives an effective sample of all tokens."""
    agrees(Response(-1.0, gap=[gap] * 40), Response(1.0, gap=[gap] * 3))


@pytest.mark.parametrize("gap", [349.0, 351.0, 699.0, 701.0, -699.0, -701.0, 5000.0, -5000.0])
def test_saturating_exponents_agree(gap: float) -> None:
    agrees(Response(-1.0, gap=[gap, 0.01, -0.01]), Response(1.0, gap=[0.02, gap]))


def test_many_saturated_tokens_stay_finite() -> None:
    """20,000 times exp(700) is above the largest double: what is published then is finite, and no smaller than due."""
    rows = [Response(1.0, gap=[800.0] * 1000) for _ in range(20)]
    summary = UpdateInput(tuple(rows)).summary()
    for found in (indicators(summary), indicators(merge_all([summary] * 25))):
        assert all(value is None or math.isfinite(value) for value in found.values())
        assert found["rho_max"] == pytest.approx(math.exp(700), rel=1e-12)
        assert found["ess_fraction"] == pytest.approx(1.0, rel=1e-9)
        for name in ("kl_k3", "chi2_token", "mult_prob_error", "rho_mean"):
            value = found[name]
            assert value is not None and value >= math.exp(700) * (1 - 1e-9), name
    agrees(*[Response(1.0, gap=[-800.0] * 1000) for _ in range(3)])


def test_float32_threshold_is_compared_in_float64() -> None:
    """float32(0.05) lies above 0.05 and float16(0.05) below it: near zero is strict, the tail is not."""
    for dtype in ("float16", "float32", "float64"):
        value = float(np.asarray(0.05, dtype=dtype))
        agrees(Response(1.0, gap=[value, -value] * 20), dtype=dtype)


def test_ties_at_the_cut_enter_pro_rata_by_number_not_by_size() -> None:
    """Ratios 4/16 and 16/64 tie at the cut: a fraction of them enters, with that fraction of all they hold."""
    full = Response(-1.0, gap=[-0.5] * 16 + [0.01] * 48)
    short = Response(-1.0, gap=[-0.5] * 4 + [0.01] * 12)
    agrees(*[full] * 15, *[short] * 15, *[Response(1.0, gap=[0.01] * 64)] * 17)


def test_leading_masked_positions_shift_the_segments_and_inner_ones_do_not_close_up() -> None:
    spec = Spec(segment=8)
    gap = [-0.5] * 3 + [0.01] * 29
    mask = [False] * 3 + [True] * 5 + [False] * 14 + [True] * 10
    agrees(Response(-1.0, gap=gap, mask=mask), Response(1.0, gap=gap, mask=[True] * 32), spec=spec)


def test_neighbours_across_a_gap_of_ineligible_segments_are_not_adjacent() -> None:
    spec = Spec(segment=8)
    heavy = [-0.5] * 4 + [0.01] * 4
    gap = heavy * 3
    hole = [True] * 8 + [False] * 8 + [True] * 8
    agrees(Response(-1.0, gap=gap, mask=hole), Response(-1.0, gap=gap), Response(-1.0, gap=heavy), spec=spec)


def test_missing_wins_over_the_value_and_mask_wins_over_missing() -> None:
    rows = Response(
        -1.0,
        gap=[-0.1, math.nan, 5.0, -0.2, math.inf],
        mask=[True, True, True, False, False],
        missing=[False, True, True, True, False],
    )
    agrees(rows, Response(1.0, gap=[0.1] * 3, mask=[True] * 3, missing=[False] * 3))


def test_infinite_log_probs_give_the_kind_of_their_difference() -> None:
    learner = [-math.inf, -0.5, -math.inf, math.nan, -0.5]
    sampler = [-0.5, -math.inf, -math.inf, -0.5, -0.25]
    agrees(Response(-1.0, learner=learner, sampler=sampler))


def test_constant_gap_has_no_spread() -> None:
    agrees(Response(-1.0, gap=[-0.105361] * 400), Response(1.0, gap=[-0.105361] * 400))


@pytest.mark.parametrize("zeros", [998, 999, 1000])
@pytest.mark.parametrize("tokens", [999, 1000, 1001])
def test_not_observable_needs_a_thousand_tokens_and_999_zeros_of_them(zeros: int, tokens: int) -> None:
    agrees(Response(1.0, gap=[0.0] * zeros + [0.3] * max(tokens - zeros, 0)))


@pytest.mark.parametrize("count", [1, 2, 19, 20, 21, 99, 100, 101, 999, 1000, 1001])
def test_quantile_ranks_round_up(count: int) -> None:
    """Gaps a factor apart: one rank off would miss by far more than the sketch's error."""
    agrees(Response(1.0, gap=[-(1.01 ** (i % 1000)) * (1 + i // 1000) * 0.01 for i in range(count)]))


def test_groups_are_the_units_of_the_interval_when_given() -> None:
    rng = np.random.default_rng(5)
    rows = [
        Response(float(rng.choice([-1, 1])), gap=[float(g) for g in rng.normal(0, 0.1, 20)], group=i % 7)
        for i in range(40)
    ]
    agrees(*rows)
    halves = [UpdateInput(tuple(rows[i] for i in order), dtype="float64") for order in (range(40), range(39, -1, -1))]
    assert halves[0].summary().counts == halves[1].summary().counts


def test_padding_rows_never_enter_and_are_counted() -> None:
    real = [Response(s, gap=[-0.2, 0.01, 0.1, -0.02]) for s in (-1.0, 1.0)]
    update = UpdateInput((*real, Response(0.0, gap=[0.0] * 4, padding=True)), dtype="float64")
    assert_agrees(update.summary(), update.responses, DEFAULT)
    assert update.summary().counts["padding_rows"] == 1


def test_any_order_of_responses_gives_the_same_counts() -> None:
    update = realistic_update(seed=11, responses=30, holes=True)
    shuffled = UpdateInput(update.responses[::-1], update.spec, update.dtype)
    assert update.summary().counts == shuffled.summary().counts
    one, other = update.summary().histograms, shuffled.summary().histograms
    assert all(np.array_equal(one[name], other[name]) for name in one)
