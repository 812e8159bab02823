"""The indicator series of a run as one tidy table on disk, for notebooks: Parquet or CSV by the file's ending.

One row an update and scope (`update`, `window`): step, attempt, stage, every indicator and quantile as a column; what
has no value is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from triage_monitor.errors import InputError

_ENDINGS = (".parquet", ".csv")


def write_series(document: Mapping[str, Any], path: Path) -> None:
    """`document` is the object of `analyze --json`. Raises InputError for an ending that is no known form."""
    if path.suffix not in _ENDINGS:
        raise InputError("format", f"write the series as {' or '.join(_ENDINGS)}, not '{path.suffix}'", path=str(path))
    rows = [*_rows("update", document["updates"]), *_rows("window", document["windows"])]
    frame = pl.DataFrame(rows, infer_schema_length=None).sort("attempt", "step", "scope")
    beside = path.with_name(f".{path.name}.tmp")
    if path.suffix == ".parquet":
        frame.write_parquet(beside)
    else:
        frame.write_csv(beside)
    beside.replace(path)


def _rows(scope: str, reports: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for report in reports:
        quantiles = {
            f"q{q}_{side}": value for side, values in report["quantiles"].items() for q, value in values.items()
        }
        place = {"step": report["step"], "attempt": report["attempt"], "scope": scope, "stage": report.get("stage")}
        yield place | report["indicators"] | quantiles
