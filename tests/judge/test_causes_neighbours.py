"""Faults beside the causes that resemble them: the right name or none, on synthetic rollouts (`fault_worlds`)."""

from __future__ import annotations

import fault_kinds
import numpy as np
import pytest
from fault_worlds import World, rollout

from triage_monitor.judge.causes import Finding
from triage_monitor.judge.causes_run import CauseTracker
from triage_monitor.judge.indicators import update_report
from triage_monitor.summary.rows_values import UpdateRows
from triage_monitor.summary.symptoms_rows import symptoms_of

SEEDS = (1, 2, 3)


def found_in(rows: UpdateRows) -> dict[str, Finding]:
    report = update_report(rows.summarize())
    return {item.cause: item for item in CauseTracker(25).accept(0, report, report, symptoms_of(rows))}


def sure_text(seed: int, **more: object) -> World:
    """Most tokens are no choice: a handful of a response's gaps says all there is to say."""
    options: dict[str, object] = {"responses": 48, "tokens": (60, 110), "noise": 0.01, "sure": 0.9}
    return rollout(np.random.default_rng(seed), **(options | more))  # type: ignore[arg-type]  # keyword arguments by name


@pytest.mark.parametrize("seed", SEEDS)
def test_broken_responses_far_off_are_not_called_strangers(seed: int) -> None:
    world = sure_text(seed)
    for row in world.some(0.15):
        world.learner[row] = world.sampler[row] - np.abs(world.random.normal(9, 3, len(world.learner[row])))
    assert set(found_in(world.rows())) == {"broken_responses"}


@pytest.mark.parametrize("seed", SEEDS)
def test_huge_gaps_at_turn_borders_are_not_called_strangers(seed: int) -> None:
    world = sure_text(seed)
    world.turns = [[0, 20, 40]] * world.responses
    for row in range(world.responses):
        for start in (20, 40):
            world.learner[row][start : start + 3] -= world.random.uniform(10, 20, 3)
    assert set(found_in(world.rows())) == {"retokenised_turn_borders"}


@pytest.mark.parametrize("gap_only", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_exchanged_responses_of_sure_text_are_no_expert_routing(seed: int, gap_only: bool) -> None:
    world = sure_text(seed, tokens=(80, 81))
    world.learner = [world.learner[row] for row in np.roll(np.arange(world.responses), 1)]
    assert set(found_in(world.rows(gap_only=gap_only))) <= {"unrelated_columns", "undetermined"}


@pytest.mark.parametrize("seed", SEEDS)
def test_large_gaps_of_a_few_responses_are_no_expert_routing(seed: int) -> None:
    world = sure_text(seed, tokens=(80, 81), sure=0.5)
    rows = world.some(0.15)
    for row, other in zip(rows, [world.learner[row] for row in np.roll(rows, 1)], strict=True):
        world.learner[row] = other
    assert set(found_in(world.rows())) <= {"undetermined", "broken_responses"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("sure", [0.3, 0.9])
def test_top_p_that_cuts_another_mass_in_every_context_is_named(sure: float, seed: int) -> None:
    world = rollout(np.random.default_rng(seed), responses=64, tokens=(60, 110), noise=0.01, top_p=0.6, sure=sure)
    finding = found_in(world.rows())["renormalised_sampler_logprobs"]
    assert 0.6 <= float(str(finding.evidence["kept_mass"])) < 1


@pytest.mark.parametrize("noise", [0.002, 0.1, 0.5])
def test_noise_between_two_paths_over_one_support_is_no_cut(noise: float) -> None:
    for seed in SEEDS:
        assert found_in(sure_text(seed, noise=noise, sure=0.5).rows()) == {}


def blurred_slope(mode: str, temperature: float) -> World:
    """Slope 1.35 where 1 / T is 1.67, as contexts of many kinds blur it; likely tokens are above, unlikely below."""
    world = fault_kinds.plain(np.random.default_rng(4), responses=48, noise=0.0, sure=0.1)
    world.learner = [np.minimum(1.35 * values + 0.5, -1e-3) for values in world.sampler]
    world.settings = {"temperature": temperature, "logprobs_mode": mode}
    return world


def test_raw_log_probs_are_named_where_the_slope_falls_short_of_the_temperature() -> None:
    found = found_in(blurred_slope("raw_logprobs", 0.6).rows())
    assert {name: item.confidence for name, item in found.items()} == {"raw_versus_processed_logprobs": "medium"}
    for mode, temperature in (("processed_logprobs", 0.6), ("raw_logprobs", 1.4)):
        assert set(found_in(blurred_slope(mode, temperature).rows())) == {"temperature_mismatch"}, mode


@pytest.mark.parametrize("filler", [0.0, -9999.0])
def test_filler_before_sure_tokens_or_at_the_end_is_not_an_appended_token(filler: float) -> None:
    world = sure_text(5)
    for row in world.some(0.3):
        world.sampler[row][40:46] = filler
        world.learner[row][40:46] = -world.random.uniform(1.5, 4.0, 6)
        stop = 46 if filler else len(world.sampler[row])
        world.sampler[row][46:stop] = 0.0
        world.learner[row][46:stop] = -1e-6
        if filler:  # up to the last token; no engine gives such a number, however broken
            world.sampler[row][-20:] = filler
    assert set(found_in(world.rows())) == {"dummy_tokens"}


def test_broken_response_of_sure_text_is_not_filled_in() -> None:
    world = sure_text(11, sure=0.5)
    world.sampler[3] = np.array([-1e-8] * 24 + [-4e-6, -1e-8, -3e-6])
    world.learner[3] = world.sampler[3] - world.random.uniform(1.5, 9.0, 27)
    assert set(found_in(world.rows())) == {"broken_responses"}


def test_doubts_that_come_in_clusters_are_not_fillers() -> None:
    """A learner that falls apart doubts sure tokens in pairs and triples, too; nobody filled anything in."""
    random = np.random.default_rng(6)
    world = sure_text(6, sure=1.0)
    for row in range(world.responses):
        world.sampler[row][:] = 0.0
        for length in (1, 1, 1, 2, 2, 3):
            start = int(random.integers(2, 50))
            world.learner[row][start : start + length] = -random.uniform(1.5, 4.0, length)
    assert "dummy_tokens" not in found_in(world.rows())


def test_fit_that_rests_on_one_large_value_is_no_shift() -> None:
    world = sure_text(7, responses=4, tokens=(12, 13), sure=1.0)
    for row in range(4):
        world.learner[row][:], world.sampler[row][:] = -1e-4, -1e-4
        world.learner[row][5], world.sampler[row][6] = -4.0, -4.0
    assert "token_misalignment" not in found_in(world.rows())


def test_shift_of_some_needs_the_others_to_fit_as_they_are() -> None:
    """Short responses in another order: a few of them land beside their own place by chance."""
    world = sure_text(8, responses=96, tokens=(9, 10), sure=0.6)
    world.learner = [world.learner[row] for row in np.random.default_rng(8).permutation(96)]
    for row in range(3):
        world.learner[row] = np.roll(world.sampler[row], 1)
    assert "token_misalignment" not in found_in(world.rows())


@pytest.mark.parametrize("temperature", [0.6, 1.4])
def test_temperature_is_named_by_the_few_choices_of_sure_text(temperature: float) -> None:
    world = sure_text(9, sure=0.97, sampler_temperature=temperature)
    finding = found_in(world.rows())["temperature_mismatch"]
    assert float(str(finding.evidence["slope"])) == pytest.approx(temperature, rel=0.2)
