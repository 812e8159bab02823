"""Single numbers out of many stored reports, without reading each report into Python.

A report is some 10 kB of JSON, a chart wants a few dozen numbers of it. SQLite picks them where the row lies; the
row's checksum is still verified over all of it, and a row that fails is left out like everywhere. `pick_from` does the
same with a report in memory. A path is the names from the report down: ("window", "indicators", "rho_asym").
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from triage_monitor.storage.records import UpdateRow
from triage_monitor.storage.rowcodec import Cell, checksum

Path = tuple[str, ...]
Picked = tuple[int, list[float | None]]  # step, one value a path
NOTHING = "$.''"
MOST_PATHS = 100  # SQLite's functions take no more than 127 arguments
_STEP = UpdateRow.columns().index("step")
_CELLS = len(UpdateRow.columns()) + 1


def pick_from(report: Mapping[str, Any], path: Path) -> float | None:
    found: Any = report
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    value: float | None = found
    return value


def picked_rows(
    db: sqlite3.Connection,
    where: str,
    values: tuple[object, ...],
    paths: Sequence[Path],
    damaged: Callable[[tuple[Cell, ...]], None],
) -> Iterator[Picked]:
    """In order of steps. `damaged` is told every row whose checksum does not hold."""
    columns = ", ".join((*UpdateRow.columns(), "checksum"))
    # Damaged text need not be JSON, and one such row would end the whole query. Two paths or more come as they are
    # written, a single number would be rounded to 15 digits: hence one more path, to nothing.
    groups = [paths[first : first + MOST_PATHS] for first in range(0, len(paths), MOST_PATHS)]
    picks = "".join(
        f", CASE WHEN json_valid(report) THEN json_extract(report{', ?' * (len(group) + 1)}) END" for group in groups
    )
    sql = f"SELECT {columns}{picks} FROM {UpdateRow.TABLE} WHERE {where} ORDER BY run, step, attempt"
    wanted = [path for group in groups for path in (*map(_in_sql, group), NOTHING)]
    for cells in db.execute(sql, (*wanted, *values)):
        row, found = cells[:_CELLS], cells[_CELLS:]
        if None in found or checksum(row[:-1]) != row[-1]:
            damaged(row)
        else:
            yield int(row[_STEP]), [value for group in found for value in json.loads(group)[:-1]]


def _in_sql(path: Path) -> str:
    return "$" + "".join(f'."{name}"' for name in path)
