"""The detector, as it is set up by default, on the paper-like synthetic runs: one stage at the end of each window.

The deep tail of these runs grows before terminal because we say so; the paper publishes none. So the first test says
that the detector tells the four windows apart once a tail like the testbed's leads, and no more. The second leaves that
tail out: then only what the paper publishes moves. What is asserted of it is the least that the detector gives.
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


@pytest.mark.parametrize(("model", "rewards"), [("4B", True), ("30B", False)])
def test_stages_are_the_papers_window_names(model: str, rewards: bool) -> None:
    assert stages(SimulatedRun(model, updates=200, responses=64, rewards=rewards)) == {
        "healthy": "healthy",
        "drift": "drift",
        "pre_terminal": "pre_terminal",
        "terminal": "terminal",
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("model", ["4B", "30B"])
def test_stages_are_the_papers_window_names_by_every_seed(model: str, seed: int) -> None:
    found = stages(SimulatedRun(model, seed=seed, rewards=True))
    assert all(stage == window for window, stage in found.items()), found


@pytest.mark.slow
@pytest.mark.parametrize("model", ["4B", "30B"])
def test_without_an_early_tail_there_is_no_alarm_before_pre_terminal(model: str) -> None:
    found = stages(SimulatedRun(model, early_tail=False))
    assert (found["healthy"], found["drift"], found["terminal"]) == ("healthy", "healthy", "terminal")
    # Today 4B gives drift and 30B pre_terminal: 1 - masked_response_fraction rises to 0.028 and to 0.2, whose deep gaps
    # are energy too. rho_asym at 2.32 and 1.85 is a notice.
    assert found["pre_terminal"] in ("drift", "pre_terminal")
