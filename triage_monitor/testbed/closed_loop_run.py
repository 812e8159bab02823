"""One run of the closed-loop benchmark: what it earned, under what, and the small JSON file that keeps it.

Knows nothing of how runs are trained, so that results are read without torch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from triage_monitor.errors import InputError
from triage_monitor.parameters import TriageParams


@dataclass(frozen=True, slots=True)
class LoopRun:
    """One run under one arm. `in_force`: from which update on which parts of the objective were on (`in_words`).

    `seconds` and `monitor_seconds` are CPU time of the training and of the monitor beside it, None where not measured.
    `changes` are (first update under it, kind, reason).
    """

    group: str
    arm: str
    seed: int
    rewards: tuple[float, ...]
    finite: tuple[bool, ...]
    in_force: tuple[tuple[int, str], ...]
    seconds: float | None = None
    monitor_seconds: float | None = None
    changes: tuple[tuple[int, str, str], ...] = ()

    def updates_with(self, part: str) -> int:
        """How many updates had `part` (gate, repair, tis, bf16) on."""
        ends = [*(first for first, _ in self.in_force[1:]), len(self.rewards)]
        return sum(
            end - first for (first, words), end in zip(self.in_force, ends, strict=True) if part in words.split("+")
        )


def run_path(directory: Path, group: str, seed: int, arm: str) -> Path:
    return directory / f"{group}-s{seed}-{arm}.json"


def in_words(params: TriageParams) -> str:
    """The parts that are on, joined by `+`; `none` when the objective is the trainer's own in the arm's precision."""
    parts = {
        "gate": params.gate.enabled,
        "repair": params.repair.enabled,
        "tis": params.tis.enabled,
        "bf16": params.precision == "bf16",
    }
    return "+".join(name for name, on in parts.items() if on) or "none"


def write_run(directory: Path, run: LoopRun) -> None:
    """One JSON file, which appears whole."""
    path = run_path(directory, run.group, run.seed, run.arm)
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_text(json.dumps(asdict(run), allow_nan=False) + "\n", encoding="utf-8")
    beside.replace(path)


def read_run(path: Path) -> LoopRun:
    """Raises InputError for a file that does not hold such a run."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        for name in ("rewards", "finite"):
            data[name] = tuple(data[name])
        for name in ("in_force", "changes"):
            data[name] = tuple(tuple(item) for item in data[name])
        return LoopRun(**data)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("format", f"not a run of the closed-loop benchmark: {error}", path=str(path)) from error
