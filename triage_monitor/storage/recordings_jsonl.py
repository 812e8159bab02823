"""Batches of rows from JSONL, one response per line, with the contract's names.

Whole lines are taken in blocks. A block goes through Arrow's JSON reader under a schema taken from its first line;
whatever that reader does not take is read again line by line, which either finds the wrong line and says what is wrong
with it, or accepts what only looks unusual. Numbers may be NaN, Infinity and -Infinity as Python writes them, or those
words (also nan, inf, -inf) as strings; null means what it means in the Arrow form. Keys not known are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from triage_monitor.errors import InputError

BLOCK_BYTES = 8 << 20
LINE_BYTES = 256 << 20
_WORDS = {"nan", "inf", "-inf", "infinity", "-infinity"}
_LISTS = ("gap", "learner_logprobs", "sampler_logprobs")
_LISTED = (*_LISTS, "mask", "turn_starts")


def read_jsonl(path: Path, wanted: tuple[str, ...]) -> Iterator[pa.Table]:
    """Rows count from 0 over the lines that are not blank; errors name the line too."""
    first_row = 0
    example: dict[str, Any] = {}
    present: set[str] = set()
    for block in _blocks(path):
        first = _object(path, first_row, *block[0])
        example |= {name: value for name, value in first.items() if value not in (None, []) or name not in example}
        table = _fast(block, _schema(example, wanted))
        if table is None:
            table = _line_by_line(path, first_row, block, wanted)
        present |= {name for name in table.column_names if table[name].null_count < len(table)}
        present |= first.keys() & {"step", "advantage"}
        if first_row == 0:
            yield pa.table({name: pa.array([], pa.null()) for name in dict.fromkeys((*first, *sorted(present)))})
        yield table.select([name for name in table.column_names if name in present])
        first_row += len(block)


def _blocks(path: Path) -> Iterator[list[tuple[int, bytes]]]:
    """Numbered lines that are not blank, about BLOCK_BYTES of them at a time."""
    number, rest = 1, b""
    with path.open("rb") as file:
        while chunk := file.read(BLOCK_BYTES):
            is_last = len(chunk) < BLOCK_BYTES
            whole, newline, rest = (rest + chunk, b"", b"") if is_last else (rest + chunk).rpartition(b"\n")
            if len(rest) > LINE_BYTES:
                raise InputError("json", f"line {number} is longer than {LINE_BYTES} bytes", path=str(path))
            if newline or is_last:
                yield from _numbered(whole.split(b"\n"), number)
                number += whole.count(b"\n") + 1
    yield from _numbered([rest], number)


def _numbered(lines: list[bytes], number: int) -> Iterator[list[tuple[int, bytes]]]:
    if number == 1:
        lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
    block = [(place, line) for place, line in enumerate(lines, number) if line.strip()]
    if block:
        yield block


def _fast(block: list[tuple[int, bytes]], schema: pa.Schema) -> pa.Table | None:
    """None: to be read line by line."""
    joined = b"\n".join(line for _, line in block)
    try:
        joined.decode()
        table = pa.json.read_json(
            pa.BufferReader(joined),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=len(joined) + 1),
            parse_options=pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except (pa.ArrowException, UnicodeDecodeError):
        return None
    return _with_flags(table) if len(table) == len(block) else None


def _with_flags(table: pa.Table) -> pa.Table:
    """A mask of 0 and 1 as booleans, so that every block of a file has the same form."""
    if "mask" not in table.column_names or table["mask"].type == pa.list_(pa.bool_()):
        return table
    values = pc.list_flatten(table["mask"])
    if len(values) and (pc.min(values).as_py() or 0) >= 0 and (pc.max(values).as_py() or 0) <= 1:
        place = table.column_names.index("mask")
        return table.set_column(place, "mask", table["mask"].cast(pa.list_(pa.bool_())))
    return table


def _schema(example: dict[str, Any], wanted: tuple[str, ...]) -> pa.Schema:
    return pa.schema([(name, _type(name, example.get(name))) for name in wanted])


def _type(name: str, value: Any) -> pa.DataType:
    """What a column holds, from one value of it."""
    if name in _LISTS:
        return pa.list_(pa.float64())
    if name == "mask":
        numbers = isinstance(value, list) and value and not isinstance(value[0], bool)
        return pa.list_(pa.int64() if numbers else pa.bool_())
    if name == "turn_starts":
        return pa.list_(pa.int64())
    if name == "advantage":
        return pa.list_(pa.float64()) if isinstance(value, list) else pa.float64()
    if name == "policy_version":
        return pa.list_(pa.int64()) if isinstance(value, list) else pa.int64()
    if name == "padding":
        return pa.int64() if isinstance(value, int) and not isinstance(value, bool) else pa.bool_()
    if name in ("step", "attempt"):
        return pa.int64()
    if name in ("reward", "grad_norm"):
        return pa.float64()
    return pa.string() if isinstance(value, str) or value is None else pa.int64()


def _object(path: Path, row: int, line_number: int, line: bytes) -> dict[str, Any]:
    def fail(detail: str) -> InputError:
        return InputError("json", f"line {line_number} {detail}", path=str(path), row=row)

    try:
        value = json.loads(line, object_pairs_hook=_no_repeats)
    except json.JSONDecodeError as error:
        raise fail(f"is no JSON: {error.msg} at character {error.pos + 1}") from error
    except UnicodeDecodeError as error:
        raise fail("is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise fail(f"cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise fail("is no JSON object")
    return value


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands in it twice")
    return found


def _line_by_line(path: Path, first_row: int, block: list[tuple[int, bytes]], wanted: tuple[str, ...]) -> pa.Table:
    types: dict[str, pa.DataType] = {"mask": pa.list_(pa.bool_()), "padding": pa.bool_()}
    columns: dict[str, list[Any]] = {}
    for row, (number, line) in enumerate(block):
        record = _object(path, first_row + row, number, line)
        for name in wanted:
            value = record.get(name)
            columns.setdefault(name, []).append(_converted(path, first_row + row, number, name, value))
            if value is None or name in ("mask", "padding"):
                continue
            if types.setdefault(name, _type(name, value)) != _type(name, value):
                detail = f"line {number} holds {_type(name, value)} where lines before hold {types[name]}"
                raise InputError("wrong_type", detail, column=name, path=str(path), row=first_row + row)
    return pa.table({name: pa.array(column, type=types.get(name)) for name, column in columns.items()})


def _converted(path: Path, row: int, line_number: int, name: str, value: Any) -> Any:
    """The value with number words as numbers; raises for what cannot be in this column."""
    check = _CHECKS[name]
    listed = name in _LISTED or (name in ("advantage", "policy_version") and isinstance(value, list))
    if value is None:
        return None
    if not listed:
        converted = check(value)
        wrong = [] if converted is not None else [value]
    elif isinstance(value, list):
        converted = [None if item is None else check(item) for item in value]
        wrong = [item for item, done in zip(value, converted, strict=True) if done is None and item is not None]
    else:
        wrong = [value]
    if wrong:
        detail = f"line {line_number} holds {json.dumps(wrong[0])[:40]}, which cannot stand there"
        raise InputError("wrong_type", detail, column=name, path=str(path), row=row)
    return converted


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return float(value) if value.lower() in _WORDS else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1 or abs(value) >= 2**63:
        return None
    return int(value)


def _flag(value: Any) -> bool | None:
    return bool(value) if isinstance(value, (bool, int, float)) and value in (0, 1) else None


def _name_or_whole(value: Any) -> str | int | None:
    return value if isinstance(value, str) else _whole(value)


_CHECKS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys((*_LISTS, "advantage", "reward", "grad_norm"), _number),
    **dict.fromkeys(("step", "attempt", "policy_version", "turn_starts"), _whole),
    **dict.fromkeys(("mask", "padding"), _flag),
    **dict.fromkeys(("group", "response_id", "engine"), _name_or_whole),
}
