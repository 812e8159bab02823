"""The tokens of one recorded update, where a recording holds them: a column `tokens` (texts) or `token_ids` (numbers).

They are no column of the contract and enter no indicator; this is for a person who looks at one update. One list a
response in the order of the files, padding rows left out, so that entry i belongs to response i of the update's shards
laid end to end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from triage_monitor.storage.dumps import DUMP_FORMATS
from triage_monitor.storage.recordings_arrow import read_arrow_file, read_arrow_stream, read_parquet
from triage_monitor.storage.recordings_find import detect_format, find_files

TOKENS = ("tokens", "token_ids")
_WANTED = ("step", "attempt", "padding", *TOKENS)
_READERS = {"arrow_file": read_arrow_file, "arrow_stream": read_arrow_stream, "parquet": read_parquet}


def read_tokens(paths: Iterable[str | Path], attempt: int, step: int) -> list[list[int | str]]:
    """Empty when the recording has no such column; a response without tokens has an empty list."""
    rows = [
        row
        for path in find_files(paths)
        for row in _rows(path, step)
        if row.get("step") == step and row.get("attempt", 1) == attempt and not row.get("padding")
    ]
    if not any(row.get(name) for row in rows for name in TOKENS):
        return []
    return [_tokens(row) for row in rows]


def _tokens(row: dict[str, Any]) -> list[int | str]:
    found: list[Any] = next((row[name] for name in TOKENS if isinstance(row.get(name), list)), [])
    return [item if isinstance(item, int) else str(item) for item in found]


def _rows(path: Path, step: int) -> Iterator[dict[str, Any]]:
    kind = detect_format(path)
    if kind in _READERS:
        for table in _READERS[kind](path, _WANTED):
            if "step" in table.column_names and len(table):
                yield from table.filter(pc.equal(table["step"], step)).to_pylist()
        return
    if kind in DUMP_FORMATS:
        return
    with path.open(encoding="utf-8-sig") as lines:
        yield from (json.loads(line) for line in lines if line.strip())
