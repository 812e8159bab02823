"""The benchmark's corpus: which real runs it holds, and how they are made (`triage-monitor corpus`).

Every run is a plain testbed run under one of the arms, kept as a recording (`record.RunRecorder`) and determined bit
for bit by its configuration. Runs that collapse are stopped `AFTER_COLLAPSE` updates after the collapse is certain:
what follows says nothing about warning. A run that is falling when its updates are over goes on until its fate is
known, at most `EXTENSION` updates. The split is by seed: a seed chooses the start weights too (`seed % 4`), so
held-out runs start from models that no development run started from.

Making is resumable: a run is there when its `done.json` is; a half-made one is made again.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from triage_monitor.testbed.config import TrainConfig
from triage_monitor.testbed.outcome import HALF_OF_BEST, best_mean, collapse_step, trailing_mean
from triage_monitor.testbed.record import RunRecorder
from triage_monitor.testbed.train import Trainer
from triage_monitor.testbed.update import UpdateResult

WARMUP_SEEDS = 4
DEVELOPMENT_WARMUPS = (0, 1)
AFTER_COLLAPSE = 10
EXTENSION = 100
FALLING = 0.85  # of the best trailing mean
DONE = "done.json"

RunEnd = dict[str, float | int | str | None]


@dataclass(frozen=True, slots=True)
class CorpusRun:
    """`group` names a regime and arm as the tables show it; runs of a group differ by seed alone."""

    group: str
    seed: int
    config: TrainConfig

    @property
    def name(self) -> str:
        return f"{self.group}-s{self.seed}"

    @property
    def split(self) -> str:
        return "development" if self.seed % WARMUP_SEEDS in DEVELOPMENT_WARMUPS else "held-out"


def _group(group: str, seeds: Sequence[int], arm: str, regime: str, **overrides: float) -> list[CorpusRun]:
    base = TrainConfig(arm=arm, regime=regime, **overrides)  # type: ignore[arg-type]  # counts stay int in the table
    return [CorpusRun(group, seed, replace(base, rl_seed=seed, warmup_seed=seed % WARMUP_SEEDS)) for seed in seeds]


FOUR, EIGHT, TWO = range(4), range(8), (0, 2)

GROUPS: tuple[list[CorpusRun], ...] = (
    _group("fast", EIGHT, "nvfp4", "demo", updates=240),
    _group("reuse", EIGHT, "nvfp4", "M4", updates=260),
    _group("ramp", EIGHT, "nvfp4", "D", updates=280),
    _group("fast-tis", EIGHT, "nvfp4+tis", "demo", updates=240),
    _group("fast-triage", EIGHT, "nvfp4+triage", "demo", updates=240),
    _group("reuse-tis", FOUR, "nvfp4+tis", "M4", updates=220),
    _group("reuse-slow", FOUR, "nvfp4", "M4", updates=220, learning_rate=2e-5),
    _group("reuse-kv4", FOUR, "nvfp4-kv4", "M4", updates=240),
    _group("calm", FOUR, "nvfp4", "M1", updates=220, learning_rate=1.2e-4),
    _group("ramp-slow", FOUR, "nvfp4", "D", updates=250, learning_rate=7e-4),
    _group("stale", FOUR, "nvfp4", "M1", updates=240, learning_rate=1.2e-4, stale_updates=4),
    _group("drift", FOUR, "nvfp4", "M1", updates=320),
    _group("hard", FOUR, "nvfp4", "H", updates=160, learning_rate=1.5e-4),
    _group("long", TWO, "nvfp4", "M4", updates=220, response_tokens=256, segment=64),
    _group("long-tis", TWO, "nvfp4+tis", "M4", updates=180, response_tokens=256, segment=64),
    _group("calm-kv8", TWO, "nvfp4-kv8", "M1", updates=220, learning_rate=1.2e-4),
    _group("matched", TWO, "nvfp4-matched", "demo", updates=150),
)


def corpus_runs() -> list[CorpusRun]:
    """All runs, seed by seed across the groups, so that an unfinished corpus is a balanced one."""
    return [run for runs in zip_longest(*GROUPS) for run in runs if run is not None]


def is_made(run: CorpusRun, directory: Path) -> bool:
    return (directory / run.name / DONE).exists()


def make_run(run: CorpusRun, directory: Path) -> RunEnd:
    """Trains one run and keeps it whole; returns what `done.json` says."""
    home = directory / run.name
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    started = time.perf_counter()
    trainer = Trainer(run.config)
    rewards: list[float] = []
    finite: list[bool] = []
    with RunRecorder(home, run.config, run=run.name) as record:
        while not _over(rewards, finite, trainer.regime.updates):
            result = trainer.update()
            rewards.append(result.reward_mean)
            finite.append(_is_finite(result))
            record(result)
    end: RunEnd = {
        "run": run.name,
        "updates": len(rewards),
        "collapse": collapse_step(rewards, finite=finite),
        "last_reward": sum(rewards[-10:]) / len(rewards[-10:]),
        "seconds": time.perf_counter() - started,
    }
    (home / DONE).write_text(json.dumps(end) + "\n", encoding="utf-8")
    return end


def make_corpus(directory: Path, runs: Sequence[CorpusRun], workers: int) -> Iterator[tuple[int, RunEnd]]:
    """Makes what is missing of `runs`, `workers` at a time; yields (runs made so far, how this one ended)."""
    missing = [run for run in runs if not is_made(run, directory)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = [pool.submit(make_run, run, directory) for run in missing]
        for done, future in enumerate(as_completed(futures), 1):
            yield len(runs) - len(missing) + done, future.result()


def _over(rewards: Sequence[float], finite: Sequence[bool], planned: int) -> bool:
    done = len(rewards)
    collapsed = collapse_step(rewards, finite=finite)
    if collapsed is not None and done >= collapsed + HALF_OF_BEST.sustained + AFTER_COLLAPSE:
        return True
    if done < planned or done >= planned + EXTENSION:
        return done >= planned
    return collapsed is None and trailing_mean(rewards, done - 1) >= FALLING * best_mean(rewards)


def _is_finite(result: UpdateResult) -> bool:
    return result.skipped_optimizer_steps == 0
