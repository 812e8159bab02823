"""Which files a recording consists of, and what each one is, told by its first bytes and not by its name."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable
from pathlib import Path

from triage_monitor.errors import InputError
from triage_monitor.storage.dumps import DUMP_FORMATS, dump_kind, dumps_below

FORMATS = ("arrow", "parquet", "jsonl", *DUMP_FORMATS)
SUFFIXES = (".parquet", ".pq", ".arrow", ".arrows", ".ipc", ".feather", ".jsonl", ".ndjson")

_OTHERS = (
    (b"\x1f\x8b", "is gzip-compressed; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "is zstd-compressed; unpack it first"),
    (
        b"PK\x03\x04",
        "is a zip archive, or a torch file but no training dump of slime or miles (--save-debug-train-data)",
    ),
    (b"\x80\x02", "is a pickle, or a torch file of the form before torch 1.6; neither is read"),
    (b"FEA1", "is a Feather file of version 1; write it as version 2"),
    (b"[", "is a JSON array; JSONL has one object per line"),
)


def find_files(paths: Iterable[str | Path]) -> list[Path]:
    """Files as given; of a directory its framework's dumps, or every recording below it by suffix, in natural order
    (part-9 before part-10).

    A path that does not exist is taken for a glob pattern. Hidden names (unfinished parts) are passed over.
    """
    found: list[Path] = []
    for path in paths:
        own = [Path(path)] if Path(path).exists() else [Path(name) for name in glob.glob(str(path), recursive=True)]  # noqa: PTH207
        if not own:
            raise InputError("not_found", "there is no such file or directory", path=str(path))
        for one in sorted(own, key=_natural):
            found.extend(_below(one) if one.is_dir() else [one])
    return list(dict.fromkeys(found))


def _below(directory: Path) -> list[Path]:
    dumps = dumps_below(directory)
    if dumps:
        return sorted(dumps, key=_natural)
    files = [
        path
        for path in directory.rglob("*")
        if path.suffix in SUFFIXES
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(directory).parts)
    ]
    if not files:
        raise InputError(
            "not_found",
            f"holds no file that ends in {', '.join(SUFFIXES)}, and no dump of a framework",
            path=str(directory),
        )
    return sorted(files, key=_natural)


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", str(path))]


def detect_format(path: Path) -> str:
    """'arrow_file', 'arrow_stream', 'parquet', 'jsonl' or one of DUMP_FORMATS; raises InputError with what the file
    looks like instead."""
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise InputError("unreadable", f"cannot be read: {error.strerror}", path=str(path)) from error
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"ARROW1"):
        return "arrow_file"
    if head.startswith(b"\xff\xff\xff\xff"):
        return "arrow_stream"
    if not head.strip():
        raise InputError("format", "is empty", path=str(path))
    dump = dump_kind(path)
    if dump is not None:
        return dump
    for magic, detail in _OTHERS:
        if head.startswith(magic):
            raise InputError("format", detail, path=str(path))
    if head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
        return "jsonl"
    raise InputError("format", "is no Arrow, Parquet or JSONL file", path=str(path))
