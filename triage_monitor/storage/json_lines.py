"""Lines of a JSONL file one at a time, each a JSON object; errors name file and line.

For the dumps of other programs: no schema, one line in memory. A last line without its newline that is no whole object
is a file still being written (`unfinished_file`), not a damaged one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triage_monitor.errors import InputError

LINE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class JsonLine:
    """`number` counts from 1, `row` from 0 over the lines that are not blank."""

    path: Path
    number: int
    row: int
    value: dict[str, Any]

    def placed(self, error: InputError) -> InputError:
        detail = f"line {self.number} {error.detail}"
        return InputError(error.reason, detail, column=error.column, row=self.row, path=str(self.path))


def json_lines(path: Path) -> Iterator[JsonLine]:
    row = 0
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LINE_BYTES):
                number += 1
                if len(line) >= LINE_BYTES:
                    detail = f"line {number} is longer than {LINE_BYTES} bytes"
                    raise InputError("json", detail, path=str(path), row=row)
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if not line.strip():
                    continue
                yield JsonLine(path, number, row, _object(path, number, row, line))
                row += 1
    except OSError as error:
        raise InputError("unreadable", f"cannot be read: {error.strerror}", path=str(path)) from error


def first_object(path: Path) -> dict[str, Any] | None:
    """The first line's object; None when it is none (yet)."""
    try:
        return next((line.value for line in json_lines(path)), None)
    except InputError:
        return None


def ends_in_newline(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 1))
        return file.read(1) == b"\n"


def _object(path: Path, number: int, row: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        if not line.endswith(b"\n"):
            detail = f"line {number} stops in the middle: it is still being written, or its writer was stopped"
            raise InputError("unfinished_file", detail, path=str(path), row=row) from None
        told = str(error)[:120]
        raise InputError("json", f"line {number} is no JSON: {told}", path=str(path), row=row) from error
    if not isinstance(value, dict):
        raise InputError("json", f"line {number} is no JSON object", path=str(path), row=row)
    return value
