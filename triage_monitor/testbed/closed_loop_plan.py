"""The closed-loop benchmark's plan: which starts are trained under which arms.

A *cell* is one start (regime, seed) with the arms that are compared on it. `demo` is the main regime with eight starts
and the paper's ablations on four of them; the others have fewer starts and fewer arms. Where little or nothing should
happen only the adaptive policy is trained beside `none`, from two or four starts whose seeds nothing was chosen on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from triage_monitor.testbed.closed_loop_run import LoopRun, read_run, run_path
from triage_monitor.testbed.config import TrainConfig
from triage_monitor.testbed.corpus import DONE, WARMUP_SEEDS

FIXED = {"none": "nvfp4", "tis": "nvfp4+tis", "paper": "nvfp4+triage", "gate": "nvfp4+gate"}
STEERED = ("adaptive", "fallback")
LATER = {"tis-later": "nvfp4+tis", "none-later": "nvfp4"}
MAIN = "fast"

_ALL = ("none", "tis", "paper", *STEERED)
_WATCHED = ("none", "adaptive")


@dataclass(frozen=True, slots=True)
class Cell:
    """`recorded` names the corpus group that holds an arm's run of this seed."""

    group: str
    seed: int
    config: TrainConfig
    arms: tuple[str, ...]
    recorded: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"{self.group}-s{self.seed}"

    @property
    def updates(self) -> int:
        return self.config.resolved_regime().updates


def _cells(
    group: str,
    seeds: Sequence[int],
    regime: str,
    arms: Sequence[str],
    recorded: Mapping[str, str],
    ablated: Sequence[int] = (),
    **overrides: float,
) -> list[Cell]:
    base = TrainConfig(regime=regime, **overrides)  # type: ignore[arg-type]  # counts stay int in the table
    return [
        Cell(
            group,
            seed,
            replace(base, rl_seed=seed, warmup_seed=seed % WARMUP_SEEDS),
            (*arms, *(("gate", *LATER) if seed in ablated else ())),
            recorded,
        )
        for seed in seeds
    ]


# Nothing was chosen on the seeds from 2 on.
FOUR, EIGHT, FRESH_TWO, FRESH_FOUR = range(4), range(8), (2, 3), (2, 3, 4, 5)

CELLS: tuple[Cell, ...] = (
    *_cells(
        MAIN,
        EIGHT,
        "demo",
        _ALL,
        {"none": "fast", "tis": "fast-tis", "paper": "fast-triage"},
        ablated=FOUR,
        updates=240,
    ),
    *_cells("reuse", FOUR, "M4", _ALL, {"none": "reuse", "tis": "reuse-tis"}, updates=260),
    *_cells("ramp", FOUR, "D", ("none", "paper", *STEERED), {"none": "ramp"}, updates=280),
    *_cells("drift", FRESH_FOUR, "M1", _WATCHED, {"none": "drift"}, updates=320),
    *_cells("hard", FRESH_TWO, "H", _WATCHED, {"none": "hard"}, updates=160, learning_rate=1.5e-4),
    *_cells("stale", FRESH_FOUR, "M1", _WATCHED, {"none": "stale"}, updates=240, learning_rate=1.2e-4, stale_updates=4),
    *_cells("calm", FRESH_FOUR, "M1", _WATCHED, {"none": "calm"}, updates=220, learning_rate=1.2e-4),
    *_cells("reuse-slow", FRESH_FOUR, "M4", _WATCHED, {"none": "reuse-slow"}, updates=220, learning_rate=2e-5),
    *_cells("ramp-slow", FRESH_TWO, "D", _WATCHED, {"none": "ramp-slow"}, updates=250, learning_rate=7e-4),
)


def is_made(cell: Cell, arm: str, directory: Path) -> bool:
    return run_path(directory, cell.group, cell.seed, arm).exists()


def made_run(cell: Cell, arm: str, directory: Path) -> LoopRun:
    return read_run(run_path(directory, cell.group, cell.seed, arm))


def recording_of(cell: Cell, arm: str, recordings: Path) -> Path:
    return recordings / f"{cell.recorded.get(arm, 'no-group')}-s{cell.seed}"


def read_recorded(cell: Cell, arm: str, recordings: Path | None) -> LoopRun | None:
    """The arm's run from the corpus; None when it is not there, not finished, or shorter than the cell's."""
    if recordings is None or arm not in cell.recorded:
        return None
    home = recording_of(cell, arm, recordings)
    if not (home / DONE).exists():
        return None
    lines = [json.loads(line) for line in (home / "updates.jsonl").read_text(encoding="utf-8").splitlines()]
    if len(lines) < cell.updates:
        return None
    lines = lines[: cell.updates]
    words = {"none": "none", "tis": "tis", "paper": "gate+repair"}[arm]
    return LoopRun(
        cell.group,
        arm,
        cell.seed,
        tuple(line["reward_mean"] for line in lines),
        tuple(line["skipped_optimizer_steps"] == 0 for line in lines),
        ((0, words),),
    )
