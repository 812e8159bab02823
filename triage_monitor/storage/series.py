"""One number of a run over its steps, read from the stored reports.

Names are indicators, a quantile of the gap as `q0.05_all`, `q0.001_neg`, or `warning_score`, which only a window has.
Every series of one call shares its steps; where a value is absent it is None, in Arrow a null.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa

from triage_monitor.judge.score import SCORE
from triage_monitor.storage.base import Store, step_limits
from triage_monitor.storage.picking import Path, Picked

_QUANTILE = re.compile(r"q(0\.\d{1,6})_(all|neg|pos)")


class Scope(StrEnum):
    UPDATE = "update"
    WINDOW = "window"


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    scope: Scope
    steps: tuple[int, ...]
    values: tuple[float | None, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "scope": self.scope.value, "steps": list(self.steps), "values": list(self.values)}


def is_series_name(name: str, indicators: Collection[str]) -> bool:
    return name in indicators or name == SCORE or _QUANTILE.fullmatch(name) is not None


def read_series(
    store: Store,
    run: str,
    names: Sequence[str],
    scopes: Sequence[Scope],
    first_step: int | None = None,
    last_step: int | None = None,
) -> list[Series]:
    """One series for each name and scope, over the steps within the bounds (inclusive). Blocking."""
    wanted = [(Scope(scope), name) for scope in scopes for name in names]
    paths = [_path(scope, name) for scope, name in wanted]
    found: list[Picked] = []
    for attempt, limit in step_limits(store.first_steps(run)):
        bounds = [bound for bound in (limit, last_step) if bound is not None]
        last = min(bounds) if bounds else None
        found[:0] = store.picked(run, paths, attempt=attempt, first_step=first_step, last_step=last)
    steps = tuple(step for step, _ in found)
    return [
        Series(name, scope, steps, tuple(values[place] for _, values in found))
        for place, (scope, name) in enumerate(wanted)
    ]


def series_arrow(series: Sequence[Series]) -> bytes:
    """An Arrow IPC stream with columns step, name, scope, value; one row for each step of each series."""
    table = pa.table(
        {
            "step": pa.array([step for item in series for step in item.steps], pa.int64()),
            "name": pa.array([item.name for item in series for _ in item.steps], pa.string()),
            "scope": pa.array([item.scope.value for item in series for _ in item.steps], pa.string()),
            "value": pa.array([value for item in series for value in item.values], pa.float64()),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def _path(scope: Scope, name: str) -> Path:
    if name == SCORE:
        return (scope.value, "score", "value")
    match = _QUANTILE.fullmatch(name)
    return (scope.value, "indicators", name) if match is None else (scope.value, "quantiles", match[2], match[1])
