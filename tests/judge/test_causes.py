"""Which cause is named for which fault: the right one or none, never another, over sizes, noise and seeds.

All rollouts here are synthetic (`fault_worlds`, `fault_kinds`). A fault may also be seen as a part of what it truly is
(`ALSO`): minus infinity inside the mask is a filler and a non-finite gap.
"""

from __future__ import annotations

import fault_kinds
import numpy as np
import pytest
from fault_worlds import World, rollout

from triage_monitor.judge.causes import Finding, blinding
from triage_monitor.judge.causes_run import CauseTracker
from triage_monitor.judge.causes_table import CAUSE
from triage_monitor.judge.indicators import update_report
from triage_monitor.summary.rows_values import UpdateRows
from triage_monitor.summary.symptoms_rows import symptoms_of

FAULTS = {
    "constant_offset": "renormalised_sampler_logprobs",
    "nucleus": "renormalised_sampler_logprobs",
    "temperatures": "temperature_mismatch",
    "raw": "raw_versus_processed_logprobs",
    "shifted": "token_misalignment",
    "shifted_far": "unrelated_columns",
    "reordered": "unrelated_columns",
    "placeholders": "dummy_tokens",
    "sentinels": "dummy_tokens",
    "appended": "appended_tokens",
    "turn_borders": "retokenised_turn_borders",
    "declared_turn_borders": "retokenised_turn_borders",
    "coarse": "low_precision_logprobs",
    "degenerate": "degenerate_sampler",
    "broken": "broken_responses",
    "engine": "one_engine",
    "versions": "mixed_policy_versions",
    "padding": "undeclared_padding",
    "one_worders": "short_responses",
    "routing": "symmetric_heavy_tails",
    "same_array": "not_observable",
    "missing_numbers": "nonfinite_gap",
}
# Of responses laid end to end in another order some may land a token beside their own place.
ALSO = {"sentinels": {"nonfinite_gap"}, "reordered": {"token_misalignment"}}
# Gaps alone cannot tell a degenerate sampler from other broken responses; broken they are.
ALSO_FROM_GAPS = ALSO | {"degenerate": {"broken_responses"}}
FAULT_FREE = ("healthy", "noisy", "one_sided_tail", "terminal", "wide_learner_noise", "wide_sampler_noise")
SEEDS = (1, 2, 3)


def found_in(rows: UpdateRows) -> list[Finding]:
    report = update_report(rows.summarize())
    return CauseTracker(25).accept(0, report, report, symptoms_of(rows))


def made(kind: str, seed: int) -> World:
    world: World = getattr(fault_kinds, kind)(np.random.default_rng([seed, len(kind)]))
    return world


def causes(findings: list[Finding]) -> set[str]:
    return {item.cause for item in findings}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", FAULTS)
def test_fault_is_named_and_nothing_else_is(kind: str, seed: int) -> None:
    assert causes(found_in(made(kind, seed).rows())) - ALSO.get(kind, set()) == {FAULTS[kind]}


@pytest.mark.parametrize("kind", FAULTS)
def test_from_gaps_alone_a_fault_is_named_rightly_or_not_at_all(kind: str) -> None:
    for seed in SEEDS:
        found = causes(found_in(made(kind, seed).rows(gap_only=True)))
        assert found - ALSO_FROM_GAPS.get(kind, set()) <= {FAULTS[kind], "undetermined"}, seed


def test_one_dominant_token_under_another_temperature_is_no_constant_offset() -> None:
    named = [causes(found_in(made("one_context", seed).rows())) for seed in range(30)]
    assert all(found <= {"temperature_mismatch", "undetermined"} for found in named)
    assert sum(found == {"temperature_mismatch"} for found in named) >= 20


@pytest.mark.parametrize("gap_only", [False, True])
@pytest.mark.parametrize("kind", FAULT_FREE)
def test_nothing_is_named_without_a_fault(kind: str, gap_only: bool) -> None:
    for seed in SEEDS:
        assert found_in(made(kind, seed).rows(gap_only=gap_only)) == [], seed


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*FAULTS, *FAULT_FREE])
def test_over_many_seeds_no_other_cause_is_named(kind: str) -> None:
    wrong = {}
    for seed in range(100, 160):
        found = causes(found_in(made(kind, seed).rows()))
        allowed = {FAULTS.get(kind, ""), "undetermined"} | ALSO.get(kind, set())
        if found - allowed or (kind in FAULT_FREE and found):
            wrong[seed] = found
    assert wrong == {}


def test_small_shards_lend_one_another_evidence() -> None:
    tracker = CauseTracker(25)
    found: list[Finding] = []
    for step in range(12):
        world = rollout(np.random.default_rng(step), responses=2, tokens=(6, 12), noise=0.02, sampler_temperature=0.7)
        report = update_report(world.rows().summarize())
        found = tracker.accept(step, report, report, symptoms_of(world.rows()))
    assert causes(found) == {"temperature_mismatch"}
    (entry,) = tracker.current()
    assert entry["step"] < 11 and entry["evidence"]["last_step"] == 11


def test_kept_mass_is_exp_of_the_gap_to_a_thousandth() -> None:
    world = fault_kinds.plain(np.random.default_rng(5), noise=0.0)
    world.sampler = [values + 0.2231435513 for values in world.learner]  # -log 0.8
    (finding,) = found_in(world.rows(dtype="float64"))
    assert finding.evidence["kept_mass"] == pytest.approx(0.8, abs=1e-3)


def test_setting_makes_a_small_temperature_difference_namable() -> None:
    world = rollout(np.random.default_rng(8), responses=48, noise=0.003, sampler_temperature=0.97)
    assert found_in(world.rows()) == []
    world.settings = {"temperature": 0.97}
    assert causes(found_in(world.rows())) == {"temperature_mismatch"}


def test_learner_alone_renormalising_is_raw_against_processed_only_if_settings_say_so() -> None:
    world = fault_kinds.plain(np.random.default_rng(4), noise=0.003)
    world.sampler = [values - 0.1 for values in world.learner]
    assert causes(found_in(world.rows())) == {"undetermined"}
    world.settings = {"top_p": 0.9, "logprobs_mode": "raw_logprobs"}
    assert causes(found_in(world.rows())) == {"raw_versus_processed_logprobs"}


def test_columns_that_have_nothing_to_do_with_one_another_are_unrelated() -> None:
    random = np.random.default_rng(6)
    world = fault_kinds.plain(random)
    world.learner = [random.permutation(values) for values in world.learner]
    assert causes(found_in(world.rows())) == {"unrelated_columns"}


def test_two_faults_at_once_are_both_named() -> None:
    random = np.random.default_rng(9)
    world = fault_kinds.padding(random)
    for row in range(0, world.responses, 5):
        if world.advantage[row] != 0.0:
            world.sampler[row][4:12], world.learner[row][4:12] = 0.0, -3.0 - random.random(8)
    assert causes(found_in(world.rows())) == {"undeclared_padding", "dummy_tokens"}


def test_blinding_causes_are_those_under_which_gaps_mean_nothing() -> None:
    world = fault_kinds.shifted(np.random.default_rng(2))
    assert blinding(found_in(world.rows())) == ("token_misalignment",)
    assert CauseTracker(25).blinded(0, symptoms_of(world.rows())) == ("token_misalignment",)
    assert blinding(found_in(made("broken", 1).rows())) == ()


def test_every_finding_carries_what_to_do() -> None:
    tracker = CauseTracker(25)
    world = made("degenerate", 2)
    report = update_report(world.rows().summarize())
    tracker.accept(7, report, report, symptoms_of(world.rows()))
    (entry,) = tracker.current()
    assert set(entry) == {"cause", "step", "kind", "confidence", "text", "remedy", "evidence"}
    assert (entry["cause"], entry["step"], entry["confidence"]) == ("degenerate_sampler", 7, "high")
    assert entry["remedy"] == CAUSE["degenerate_sampler"].remedy
    broken = [row for row in range(world.responses) if (world.sampler[row][-8:] == 0).all()]
    assert entry["evidence"]["response_ids"] == [str(row) for row in broken][:20]


@pytest.mark.parametrize(("flawed", "blinds"), [(1, False), (7, False), (8, True), (32, True)])
def test_few_flawed_responses_do_not_blind(flawed: int, blinds: bool) -> None:
    found = Finding("dummy_tokens", "", "high", {"responses": flawed})
    assert blinding([found], 32) == (("dummy_tokens",) if blinds else ())


def test_constant_offset_does_not_blind() -> None:
    """The baseline takes it in; a collapse on top of it must be seen."""
    assert blinding([Finding("renormalised_sampler_logprobs", "", "high", {})], 32) == ()


def test_terminal_stage_that_nothing_explains_is_undetermined() -> None:
    rows = fault_kinds.healthy(np.random.default_rng(7)).rows()
    report = update_report(rows.summarize())
    tracker = CauseTracker(25)
    assert causes(tracker.accept(0, report, report | {"stage": "healthy"}, symptoms_of(rows))) == set()
    assert causes(tracker.accept(1, report, report | {"stage": "terminal"}, symptoms_of(rows))) == {"undetermined"}


def test_terminal_stage_with_a_named_fault_says_nothing_more() -> None:
    rows = fault_kinds.shifted(np.random.default_rng(7)).rows()
    report = update_report(rows.summarize())
    assert causes(CauseTracker(25).accept(0, report, report | {"stage": "terminal"}, symptoms_of(rows))) == {
        "token_misalignment"
    }
