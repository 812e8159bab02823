"""One number of a run over its steps, read from the stored reports.

Names are indicators, a quantile of the gap as `q0.05_all`, `q0.001_neg`, or `warning_score`, which only a window has.
Every series of one call shares its steps; where a value is absent it is None, in Arrow a null.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa

from triage_monitor.judge.score import SCORE
from triage_monitor.storage.base import Store, effective_updates
from triage_monitor.storage.records import UpdateRow

CHUNK_UPDATES = 512
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
    steps: list[int] = []
    values: list[list[float | None]] = [[] for _ in wanted]
    for row in _newest_first(store, run, first_step, last_step):
        steps.append(row.step)
        for column, (scope, name) in zip(values, wanted, strict=True):
            column.append(_value(row.report.get(scope) or {}, name))
    return [
        Series(name, scope, tuple(reversed(steps)), tuple(reversed(column)))
        for (scope, name), column in zip(wanted, values, strict=True)
    ]


def _newest_first(store: Store, run: str, first_step: int | None, last_step: int | None) -> Iterator[UpdateRow]:
    """A bounded number of whole reports at a time: a long run has gigabytes of them."""
    rows: list[UpdateRow]
    while rows := effective_updates(store, run, first_step=first_step, last_step=last_step, newest=CHUNK_UPDATES):
        yield from reversed(rows)
        last_step = rows[0].step - 1
    if last_step is None or last_step >= (first_step or 0):
        # Nothing left, or as many damaged rows in a row as a chunk has.
        yield from reversed(effective_updates(store, run, first_step=first_step, last_step=last_step))


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


def _value(report: dict[str, Any], name: str) -> float | None:
    if name == SCORE:
        score: float | None = (report.get("score") or {}).get("value")
        return score
    match = _QUANTILE.fullmatch(name)
    if match is None:
        value: float | None = report.get("indicators", {}).get(name)
        return value
    quantile: float | None = report.get("quantiles", {}).get(match[2], {}).get(match[1])
    return quantile
