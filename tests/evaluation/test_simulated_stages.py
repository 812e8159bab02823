"""The detector, as it is set up by default, on the paper-like synthetic runs: its stage at the end of each window.

Whether it gives the paper's window names hangs on what the paper does not publish: the growth of the deep tail before
terminal (`tail_growth`, an exponent on what the testbed's fast-s0 showed). Where that is squared the names match. As on
the testbed, drift is named late or not at all, and so it is where rewards are sent, whose score has a higher threshold.
Published values alone do not make them: rho_asym at 2.32 and 1.85 raises the directional notice.
"""

from __future__ import annotations

import pytest

from triage_monitor.evaluation.simulated import SimulatedRun, simulated_updates
from triage_monitor.judge.run import JudgeSettings, RunMonitor
from triage_monitor.summary.build import summarize


def stages(run: SimulatedRun) -> dict[str, str]:
    """Window -> stage after its last update."""
    monitor = RunMonitor(JudgeSettings())
    last = {steps[-1]: name for name, steps in run.windows().items()}
    found = {}
    for step, arrays in enumerate(simulated_updates(run)):
        judgement = monitor.accept(step, 0, summarize(**arrays))
        if step in last:
            found[last[step]] = judgement.stage.value
    return found


NAMES = ("healthy", "drift", "pre_terminal", "terminal")
MATCHING_GROWTH = 2.0


@pytest.mark.parametrize("model", ["4B", "30B"])
def test_stages_are_the_papers_window_names_where_the_tail_grows_enough(model: str) -> None:
    run = SimulatedRun(model, updates=200, responses=64, tail_growth=MATCHING_GROWTH)
    assert stages(run) == dict(zip(NAMES, NAMES, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("model", ["4B", "30B"])
def test_stages_are_the_papers_window_names_by_every_seed(model: str, seed: int) -> None:
    run = SimulatedRun(model, seed=seed, tail_growth=MATCHING_GROWTH)
    found = stages(run)
    # Seed 1 of 4B ends its drift window just under the level and is named a window late.
    assert found["drift"] in (("healthy", "drift") if (model, seed) == ("4B", 1) else ("drift",))
    assert {**found, "drift": "drift"} == dict(zip(NAMES, NAMES, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("growth", [0.0, 1.0])
@pytest.mark.parametrize("model", ["4B", "30B"])
def test_with_a_smaller_growth_stages_come_late_but_never_early_or_back(model: str, growth: float) -> None:
    found = stages(SimulatedRun(model, tail_growth=growth))
    places = [NAMES.index(found[name]) for name in NAMES]
    assert places == sorted(places)
    assert all(place <= own for own, place in enumerate(places))
    assert (places[0], places[-1]) == (0, 3)
