"""Runs of the closed-loop benchmark: what became of one start (weights, prompts, sampling noise) under each arm.

| arm | parameters |
|---|---|
| `none`, `tis`, `paper`, `gate` | the same from the start; paper is gate and repair, gate the paper's without repair |
| `adaptive` | the adaptive policy's, with an in-process monitor after every update |
| `fallback` | bf16 on both sides from the pre-terminal alarm on, the same monitor |
| `tis-later`, `none-later` | the paper's up to the middle of the run, then TIS alone or nothing |

A steered run (`adaptive`, `fallback`) is the `none` run up to its first change, bit for bit; so `none` is trained once,
a checkpoint taken at each arm's first change, and a run whose policy changed nothing is the `none` run itself. Runs
that the corpus has recorded in full are read from there; one that was cut after its collapse is trained again, so that
every arm's last reward is taken at the same update. Making is resumable: a run is there when its file is.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from triage_monitor.errors import ConfigError
from triage_monitor.judge.policy import Mode
from triage_monitor.judge.remedies import Remedy
from triage_monitor.judge.run import JudgeSettings, RunMonitor
from triage_monitor.parameters import TriageParams
from triage_monitor.storage.recordings import iter_updates
from triage_monitor.summary.rows import UpdateRows
from triage_monitor.summary.spec import SummarySpec
from triage_monitor.testbed.closed_loop_plan import (
    FIXED,
    LATER,
    STEERED,
    Cell,
    is_made,
    made_run,
    read_recorded,
    recording_of,
)
from triage_monitor.testbed.closed_loop_run import LoopRun, in_words, write_run
from triage_monitor.testbed.train import Trainer
from triage_monitor.testbed.update import UpdateResult

TAU_ANA = 0.25  # as in the demo: on this model a quarter of healthy tokens exceed the default 0.05
AS_SHIPPED = JudgeSettings()


def make_missing(
    cells: Sequence[Cell],
    directory: Path,
    recordings: Path | None,
    workers: int,
    judge: JudgeSettings = AS_SHIPPED,
) -> Iterator[tuple[Cell, list[LoopRun]]]:
    """Makes every run that is not there yet, a cell a worker at a time; yields cells as they are done."""
    missing = [cell for cell in cells if not all(is_made(cell, arm, directory) for arm in cell.arms)]
    if workers == 1:
        for cell in missing:
            yield cell, make_cell(cell, directory, recordings, judge)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(make_cell, cell, directory, recordings, judge): cell for cell in missing}
        for future in as_completed(futures):
            yield futures[future], future.result()


def make_cell(cell: Cell, directory: Path, recordings: Path | None, judge: JudgeSettings = AS_SHIPPED) -> list[LoopRun]:
    """What is missing of one start's arms, each written as soon as it is done. Raises ConfigError when a recorded run
    is not what this build trains."""
    directory.mkdir(parents=True, exist_ok=True)
    for arm in cell.arms:
        if arm in FIXED and arm != "none" and not is_made(cell, arm, directory):
            recorded = read_recorded(cell, arm, recordings)
            write_run(directory, _fixed(cell, arm) if recorded is None else recorded)
    _make_steered(cell, directory, recordings, judge)
    _make_later(cell, directory)
    return [made_run(cell, arm, directory) for arm in cell.arms]


class Loop:
    """The monitor beside one steered run: judges each update and says what the next one runs under."""

    def __init__(self, cell: Cell, arm: str, judge: JudgeSettings) -> None:
        regime = cell.config.resolved_regime()
        steered = replace(judge.policy, mode=Mode.ADAPTIVE, base={"gate": {"segment": regime.segment}})
        policy = steered if arm == "adaptive" else replace(steered, remedies=_lasting(steered.remedies))
        self.arm = arm
        self.spec = SummarySpec(segment=regime.segment, tau_ana=TAU_ANA)
        self._monitor = RunMonitor(replace(judge, policy=policy), self.spec)
        self.seconds: list[float] = []
        self.changes: list[tuple[int, str, str]] = []

    @property
    def params(self) -> TriageParams:
        return self._monitor.params

    def see(self, step: int, rows: UpdateRows) -> bool:
        """Judges update `step`; True when its answer is a change, in force from the next update on."""
        started = time.thread_time()
        change = self._monitor.accept(step, 1, rows.summarize(self.spec)).change
        self.seconds.append(time.thread_time() - started)
        if change is not None:
            self.changes.append((step + 1, change.kind, change.reason))
        return change is not None


def _lasting(remedies: tuple[Remedy, ...]) -> tuple[Remedy, ...]:
    return tuple(item for item in remedies if item.lasting)


@dataclass(slots=True)
class _Course:
    """A run as it is being made."""

    rewards: list[float]
    finite: list[bool]
    seconds: list[float]
    in_force: list[tuple[int, str]]

    def train(self, trainer: Trainer, params: TriageParams | None) -> UpdateResult:
        started = time.thread_time()
        result = trainer.update(params)
        self.seconds.append(time.thread_time() - started)
        self.rewards.append(result.reward_mean)
        self.finite.append(result.skipped_optimizer_steps == 0)
        words = in_words(trainer.loss.params)
        if not self.in_force or self.in_force[-1][1] != words:
            self.in_force.append((result.step, words))
        return result

    def done(self, cell: Cell, arm: str, loop: Loop | None = None) -> LoopRun:
        return LoopRun(
            group=cell.group,
            arm=arm,
            seed=cell.seed,
            rewards=tuple(self.rewards),
            finite=tuple(self.finite),
            in_force=tuple(self.in_force),
            seconds=sum(self.seconds),
            monitor_seconds=None if loop is None else sum(loop.seconds),
            changes=() if loop is None else tuple(loop.changes),
        )

    def copy(self) -> _Course:
        return _Course(list(self.rewards), list(self.finite), list(self.seconds), list(self.in_force))


def _new_course() -> _Course:
    return _Course([], [], [], [])


def _fixed(cell: Cell, arm: str) -> LoopRun:
    course, trainer = _new_course(), Trainer(replace(cell.config, arm=FIXED[arm]))
    while trainer.step < cell.updates:
        course.train(trainer, None)
    return course.done(cell, arm)


def _make_steered(cell: Cell, directory: Path, recordings: Path | None, judge: JudgeSettings) -> None:
    """`none` and the arms that branch off it."""
    arms = [arm for arm in STEERED if arm in cell.arms and not is_made(cell, arm, directory)]
    recorded = read_recorded(cell, "none", recordings)
    if recorded is not None and not is_made(cell, "none", directory):
        write_run(directory, recorded)
    whole = made_run(cell, "none", directory) if is_made(cell, "none", directory) else None
    if whole is not None and not arms:
        return
    unchanged: list[Loop] = []
    if recorded is not None and recordings is not None:
        unchanged = _unchanged([Loop(cell, arm, judge) for arm in arms], cell, recordings)
    for loop in unchanged:
        assert whole is not None
        monitored = replace(whole, arm=loop.arm, monitor_seconds=sum(loop.seconds))
        write_run(directory, monitored)
    done = {loop.arm for loop in unchanged}
    waiting = {arm: Loop(cell, arm, judge) for arm in arms if arm not in done}
    if waiting or whole is None:
        with tempfile.TemporaryDirectory() as scratch:
            _branch(cell, waiting, whole, directory, Path(scratch))


def _unchanged(loops: list[Loop], cell: Cell, recordings: Path) -> list[Loop]:
    """Those whose policy changes nothing in the whole recorded run."""
    for update in iter_updates([recording_of(cell, "none", recordings) / "updates"]):
        if update.step < cell.updates:
            loops = [loop for loop in loops if not loop.see(update.step, update.rows)]
    return loops


def _branch(cell: Cell, watching: dict[str, Loop], whole: LoopRun | None, directory: Path, scratch: Path) -> None:
    """Trains `none` as far as it is needed, then each arm on from its own first change."""
    trainer, course = Trainer(replace(cell.config, arm=FIXED["none"])), _new_course()
    branches: dict[str, tuple[Loop, _Course]] = {}
    while trainer.step < cell.updates and (watching or whole is None):
        result = course.train(trainer, None)
        _same_as(cell, whole, result)
        for arm, loop in list(watching.items()):
            if loop.see(result.step, result.rows):
                trainer.save(scratch / arm)
                branches[arm] = watching.pop(arm), course.copy()
    if whole is None:
        write_run(directory, course.done(cell, "none"))
    for arm, loop in watching.items():
        write_run(directory, course.done(cell, arm, loop))
    for arm, (loop, begun) in branches.items():
        write_run(directory, _steered(cell, Trainer.restore(scratch / arm), loop, begun))


def _steered(cell: Cell, trainer: Trainer, loop: Loop, course: _Course) -> LoopRun:
    while trainer.step < cell.updates:
        result = course.train(trainer, loop.params)
        loop.see(result.step, result.rows)
    return course.done(cell, loop.arm, loop)


def _same_as(cell: Cell, whole: LoopRun | None, result: UpdateResult) -> None:
    if whole is not None and whole.rewards[result.step] != result.reward_mean:
        raise ConfigError(
            f"{cell.name}: update {result.step} has reward {result.reward_mean}, the recorded run "
            f"{whole.rewards[result.step]}: it was made by another build; train without its recordings"
        )


def _make_later(cell: Cell, directory: Path) -> None:
    """Arms that leave the paper's run in its middle."""
    arms = [arm for arm in LATER if arm in cell.arms and not is_made(cell, arm, directory)]
    if not arms:
        return
    trainer, course = Trainer(replace(cell.config, arm=FIXED["paper"])), _new_course()
    while trainer.step < cell.updates // 2:
        course.train(trainer, None)
    with tempfile.TemporaryDirectory() as scratch:
        trainer.save(Path(scratch) / "paper")
        for arm in arms:
            branch, begun = Trainer.restore(Path(scratch) / "paper", arm=LATER[arm]), course.copy()
            while branch.step < cell.updates:
                begun.train(branch, None)
            write_run(directory, begun.done(cell, arm))
