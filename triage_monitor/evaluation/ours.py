"""The product's own detector as a contender: the very code the sidecar runs, fed with a run's stored series.

The alarm is on while the stage is `pre_terminal` or `terminal`. Its parameter is the rate of false alarms that is asked
for, `alarms_per_1000_updates`, as a user sets it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np

from triage_monitor.evaluation.series import RunSeries
from triage_monitor.judge.defaults import DetectorSettings
from triage_monitor.judge.detector import DetectorState, detect
from triage_monitor.judge.observation import Observation
from triage_monitor.judge.stages import Stage

ALARMING = (Stage.PRE_TERMINAL, Stage.TERMINAL)
COUNTS = ("tokens", "responses", "updates")


def observations(run: RunSeries, without: Collection[str] = ()) -> Iterator[Observation]:
    """What the detector was given live: the trailing window's values, `reward_mean` and `grad_norm` among them.

    `without` leaves indicators out, as of a trainer that does not send them.
    """
    names = [name for name in run.window if name not in COUNTS and name not in without]
    table = np.column_stack([run.window[name] for name in names])
    for k, row in enumerate(table):
        yield Observation(
            step=int(run.steps[k]),
            attempt=0,
            updates=int(run.window["updates"][k]),
            responses=int(run.window["responses"][k]),
            tokens=int(run.window["tokens"][k]),
            values={name: None if np.isnan(value) else float(value) for name, value in zip(names, row, strict=True)},
        )


def states(run: RunSeries, settings: DetectorSettings, without: Collection[str] = ()) -> Iterator[DetectorState]:
    """The detector's state after each update."""
    state, learned = DetectorState(), settings.learned()
    for seen in observations(run, without):
        state, _ = detect(settings, state, seen, learned)
        yield state


def alarms(run: RunSeries, settings: DetectorSettings, without: Collection[str] = ()) -> list[int]:
    """Indices at which the stage is an alarming one."""
    return [k for k, state in enumerate(states(run, settings, without)) if state.stage in ALARMING]


@dataclass(frozen=True, slots=True)
class OurDetector:
    """An `Alarm` of the benchmark; its one parameter is the budget itself. `without`: signals no trainer sends."""

    name: str
    without: tuple[str, ...] = ()
    family: str = "ours"
    grid: tuple[float, ...] = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
    fixed: float | None = 1.0

    def alarms(self, run: RunSeries, parameter: float) -> list[int]:
        return alarms(run, replace(DetectorSettings(), alarms_per_1000_updates=parameter), self.without)


OURS = OurDetector("early warning")
VARIANTS = (
    OurDetector("early warning, no gradient norm", ("grad_norm",)),
    OurDetector("early warning, mismatch alone", ("grad_norm", "reward_mean")),
)
