"""Does acting help: the closed-loop runs scored, each against `none` from the same start.

    final       mean reward of the last 25 updates; every run of a regime ends at the same update
    best        best trailing mean of 25 updates
    survived    the reward never collapsed (`testbed/outcome.py`: below half its best for 20 updates, or not finite)
    to none     final minus the final of `none` with the same start weights, prompts and sampling noise
    gated, bf16 updates with the gate on, and updates in bf16 (in which the 4-bit speed is given up)
    overhead    the monitor's CPU seconds over those of update and monitor, where measured

Intervals are the central 95% over resampled starts. With four starts they are rough: a percentile bootstrap of four
values is too narrow. `harm` says of each arm and regime whether it is worse than doing nothing beyond its interval.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from triage_monitor.errors import InputError
from triage_monitor.evaluation.bootstrap import Estimate, draws, share
from triage_monitor.testbed.closed_loop_run import LoopRun
from triage_monitor.testbed.outcome import best_mean, collapse_step

Floats = NDArray[np.float64]

SHIPPED = "closed_loop.parquet"
METADATA_KEY = b"triage_closed_loop"
LAST = 25
REFERENCE = "none"
FEWEST_STARTS = 3  # below, an interval over starts is only their range


@dataclass(frozen=True, slots=True)
class ArmScore:
    """One arm in one regime. `to_none` is absent for `none` itself; `same` counts starts at which the arm's run and
    `none` are one and the same."""

    group: str
    arm: str
    starts: int
    same: int
    survivors: int
    final: Estimate
    best: Estimate
    survived: Estimate
    to_none: Estimate | None
    gated: float
    bf16: float
    changes: float
    overhead: float | None

    @property
    def harm(self) -> str:
        """`worse` when the whole interval of the difference lies below 0, `better` when above, else `not worse`."""
        if self.to_none is None:
            return ""
        if self.same == self.starts:
            return "the same runs"
        if self.starts < FEWEST_STARTS:
            return "too few starts"
        low, high = self.to_none.low, self.to_none.high
        if high is None or low is None:
            return "unknown"
        return "worse" if high < 0 else "better" if low > 0 else "not worse"


def scores(runs: Sequence[LoopRun]) -> list[ArmScore]:
    """By regime and arm, in the order of the runs; an arm is compared on the starts it shares with `none`."""
    by_start = {(run.group, run.arm, run.seed): run for run in runs}
    pairs = list(dict.fromkeys((run.group, run.arm) for run in runs))
    found = []
    for group, arm in pairs:
        own = [run for run in runs if (run.group, run.arm) == (group, arm)]
        reference = [by_start.get((group, REFERENCE, run.seed)) for run in own]
        found.append(_score(own, reference))
    return found


def _score(own: Sequence[LoopRun], reference: Sequence[LoopRun | None]) -> ArmScore:
    shared = [(run, other) for run, other in zip(own, reference, strict=True) if other is not None]
    is_reference = own[0].arm == REFERENCE
    differences = np.array([final(run) - final(other) for run, other in shared])
    alive = np.array([collapse_step(run.rewards, finite=run.finite) is None for run in own])
    cpu = sum(run.seconds for run in own if run.seconds is not None and run.monitor_seconds is not None)
    watching = sum(run.monitor_seconds or 0.0 for run in own if run.seconds is not None)
    return ArmScore(
        group=own[0].group,
        arm=own[0].arm,
        starts=len(own),
        same=sum(run.rewards == other.rewards for run, other in shared),
        survivors=int(alive.sum()),
        final=mean(np.array([final(run) for run in own])),
        best=mean(np.array([best_mean(run.rewards, LAST) for run in own])),
        survived=share(alive),
        to_none=None if is_reference or not shared else mean(differences),
        gated=_average(run.updates_with("gate") for run in own),
        bf16=_average(run.updates_with("bf16") for run in own),
        changes=_average(len(run.changes) for run in own),
        overhead=watching / (cpu + watching) if watching and cpu else None,
    )


def final(run: LoopRun) -> float:
    newest = run.rewards[-LAST:]
    return sum(newest) / len(newest)


def mean(values: Floats) -> Estimate:
    """Mean over starts with its interval."""
    low, high = np.quantile(values[draws(values.size)].mean(axis=1), [0.025, 0.975])
    return Estimate(float(values.mean()), float(low), float(high))


def _average(numbers: Any) -> float:
    return float(np.mean(list(numbers)))


def document(runs: Sequence[LoopRun]) -> dict[str, Any]:
    """Everything in the table, and run by run what the table averages."""
    rows = scores(runs)
    return {
        "arms": [{**asdict(row), "harm": row.harm} for row in rows],
        "no_harm": {row.group: row.harm for row in rows if row.arm == "adaptive"},
        "runs": [
            {
                "group": run.group,
                "arm": run.arm,
                "seed": run.seed,
                "final": final(run),
                "collapse": collapse_step(run.rewards, finite=run.finite),
                "in_force": [list(item) for item in run.in_force],
                "changes": [list(item) for item in run.changes],
            }
            for run in runs
        ],
    }


def write_runs(path: Path, runs: Sequence[LoopRun]) -> None:
    """All runs in one Parquet file, an update a row; it appears whole."""
    table = pa.table(
        {
            "run": pa.array([_name(run) for run in runs for _ in run.rewards]).dictionary_encode(),
            "reward": pa.array([reward for run in runs for reward in run.rewards], pa.float64()),
            "finite": pa.array([finite for run in runs for finite in run.finite]),
        }
    )
    described = {_name(run): {k: v for k, v in asdict(run).items() if k not in ("rewards", "finite")} for run in runs}
    beside = path.with_name(f".{path.name}.tmp")
    table = table.replace_schema_metadata({METADATA_KEY: json.dumps(described).encode()})
    pq.write_table(table, beside, compression="zstd", compression_level=12)
    beside.replace(path)


def read_runs(path: Path | None = None) -> list[LoopRun]:
    """The shipped runs, or those in `path`. Raises InputError for a file that holds none."""
    where = Path(str(files("triage_monitor.evaluation").joinpath(SHIPPED))) if path is None else path
    try:
        table = pq.read_table(where)
    except FileNotFoundError:
        raise InputError("missing", "no runs there; `bench closed-loop --make` trains them", path=str(where)) from None
    except (OSError, pa.ArrowException) as error:
        raise InputError("format", f"not a readable Parquet file: {error}", path=str(where)) from error
    described = json.loads((table.schema.metadata or {}).get(METADATA_KEY, b"{}"))
    if not described or "run" not in table.column_names:
        raise InputError("format", "no runs of the closed-loop benchmark", path=str(where))
    names = np.array(table["run"].to_pylist())
    rewards, finite = table["reward"].to_numpy(), table["finite"].to_numpy(zero_copy_only=False)
    return [_run(described[name], rewards[names == name], finite[names == name]) for name in described]


def _run(described: dict[str, Any], rewards: Floats, finite: NDArray[np.bool_]) -> LoopRun:
    lists = {name: tuple(tuple(item) for item in described[name]) for name in ("in_force", "changes")}
    return LoopRun(**{**described, **lists}, rewards=tuple(rewards.tolist()), finite=tuple(finite.tolist()))


def _name(run: LoopRun) -> str:
    return f"{run.group}-s{run.seed}-{run.arm}"
