"""Runs of made-up updates calibrated to the paper's published windows. SYNTHETIC: nothing here was measured on a model.

A run passes through healthy, drift, pre-terminal and terminal: its regime is constant over the 25 updates that end at
25, 50, 75 and 100% of its horizon and moves from one to the next in between, field by field on a logarithmic scale. The
tokens come from `simulated_tokens`, the constants from `simulated_regimes`. Measured by `summarize`, window merge and
indicators under the default SummarySpec, each published value is hit within 5% (tests/evaluation/test_simulated.py)
at 128 responses an update or more; with fewer, 0.0036 of a window's responses is less than a whole one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from triage_monitor.errors import ConfigError
from triage_monitor.evaluation.simulated_regimes import MODELS, STAGES, Regime, regimes_of
from triage_monitor.evaluation.simulated_tokens import GROUP, Course, draw_gaps, draw_responses

WINDOW = 25
FEWEST_UPDATES = WINDOW * len(STAGES)

Arrays = dict[str, Any]  # keyword arguments of `summarize` and of `rows_from_arrays`


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """Fully determined by its fields. `jitter`: spread over updates of log rho and of the log depth of the tail.

    `tail_growth` is an exponent on how far the deep tail grows before terminal, which no published value says: 1 as on
    our own testbed, 0 not at all.
    """

    model: str
    seed: int = 0
    updates: int = 300
    responses: int = 128
    tokens_per_response: int = 512
    rewards: bool = False
    jitter: float = 0.02
    tail_growth: float = 1.0

    def __post_init__(self) -> None:
        regimes_of(self.model)
        if self.updates < FEWEST_UPDATES:
            raise ConfigError(f"updates is {self.updates}; four windows of {WINDOW} need at least {FEWEST_UPDATES}")
        if self.responses < GROUP or self.responses % GROUP:
            raise ConfigError(f"responses is {self.responses}; it must be a multiple of {GROUP}, the size of a group")
        if self.tokens_per_response < 128:
            raise ConfigError(f"tokens_per_response is {self.tokens_per_response}; at least 128")
        if not 0 <= self.jitter <= 0.5:
            raise ConfigError(f"jitter must be in [0, 0.5], not {self.jitter}")
        if not 0 <= self.tail_growth <= 5:
            raise ConfigError(f"tail_growth must be in [0, 5], not {self.tail_growth}")

    @property
    def name(self) -> str:
        return f"synthetic-paper-{self.model}-s{self.seed}"

    def windows(self) -> dict[str, range]:
        """Stage -> steps of its published window; the first update is step 0."""
        ends = [self.updates * (place + 1) // len(STAGES) for place in range(len(STAGES))]
        return {stage: range(end - WINDOW, end) for stage, end in zip(STAGES, ends, strict=True)}

    def regime(self, step: int) -> Regime:
        """The regime at a step, without its jitter."""
        windows, regimes = list(self.windows().values()), self._regimes()
        for place, window in enumerate(windows):
            if step < window.stop:
                way = 1.0 if place == 0 else min((step - windows[place - 1].stop + 1) / self._gap(place), 1.0)
                return regimes[max(place - 1, 0)].towards(regimes[place], way)
        return regimes[-1]

    def _regimes(self) -> list[Regime]:
        healthy, *between, terminal = regimes_of(self.model)
        return [healthy, *(regime.tail_grown(healthy, self.tail_growth) for regime in between), terminal]

    def _gap(self, place: int) -> int:
        """Updates from the end of the window before to the beginning of this one, that one included."""
        windows = list(self.windows().values())
        return windows[place].start - windows[place - 1].stop + 1


def simulated_updates(run: SimulatedRun) -> Iterator[Arrays]:
    """The arrays of each update in turn, step 0 first; `rewards` among them only when the run switches them on."""
    course = Course(np.random.default_rng([run.seed, MODELS.index(run.model)]))
    begins = {window.start for window in run.windows().values()}
    wander = np.zeros(2)
    for step in range(run.updates):
        if step in begins:
            course.begin_window()
        wander = 0.5 * wander + math.sqrt(0.75) * course.rng.standard_normal(2)
        regime = run.regime(step).jittered(*np.exp(run.jitter * wander))
        yield update_arrays(course, regime, run.responses, run.tokens_per_response, rewards=run.rewards)


def update_arrays(
    course: Course, regime: Regime, responses: int, tokens_per_response: int, *, rewards: bool = False
) -> Arrays:
    """One update under a regime: gap [T] in nats, advantages and groups [R], offsets [R + 1], and rewards [R]."""
    groups = responses // GROUP
    drawn = draw_responses(course, regime, groups, tokens_per_response)
    arrays: Arrays = {
        "gap": draw_gaps(course, regime, drawn),
        "advantages": drawn.advantage_R,
        "offsets": drawn.offset_R1,
        "groups": np.repeat(np.arange(groups), GROUP),
    }
    return arrays | ({"rewards": drawn.solved_R.astype(np.float64)} if rewards else {})
