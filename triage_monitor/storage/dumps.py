"""The frameworks' own dumps as recordings: which files are dumps, which of them belong together, and their rows.

    nemo_rl     train_data_step{N}.jsonl             one file a step
    prime_rl    step_{N}/rank_{R}.jsonl + STABLE     one file a rank and step
    slime       .pt, samples of one rollout          one file a step
    miles       .pt, one rank of one rollout         files of one `rollout_id` are joined before they are read

A file is told by its content. A directory that holds dumps holds much else (validation data, checkpoints, metrics), so
only its dumps are read, of one framework; what is still being written (no STABLE, no end of the zip, a newest file of
NeMo RL that stops inside a line) is left out with a warning. The dumps number no attempts and name no run: the run has
the name of the launch's directory, so that files of two launches are refused as two runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from triage_monitor.errors import InputError
from triage_monitor.storage import dumps_nemo, dumps_prime, dumps_slime
from triage_monitor.storage.dumps_miles import miles_rows
from triage_monitor.storage.dumps_nemo import is_nemo, nemo_rows, nemo_step
from triage_monitor.storage.dumps_prime import is_prime, is_stable, prime_rows
from triage_monitor.storage.dumps_rows import DumpRow, tables
from triage_monitor.storage.dumps_slime import MILES_MARKS, SLIME_MARKS, rollout_id, slime_rows
from triage_monitor.storage.json_lines import ends_in_newline, first_object
from triage_monitor.storage.torch_file import TorchFile, mentions

log = logging.getLogger("triage_monitor")

NEMO, PRIME, SLIME, MILES = "nemo_rl", "prime_rl", "slime", "miles"
DUMP_FORMATS = (NEMO, PRIME, SLIME, MILES)


@dataclass(frozen=True, slots=True)
class Unit:
    """Files that are read together, and the directory of the launch they belong to."""

    kind: str
    paths: tuple[Path, ...]
    launch: Path

    @property
    def run(self) -> str:
        """A name for the run: that of the directory which the framework was given."""
        inner = {PRIME: ("token_exports",), SLIME: ("train_data",), MILES: ("train_data",)}.get(self.kind, ())
        named = self.launch.parent if self.launch.name in inner else self.launch
        return named.resolve().name


def dump_kind(path: Path) -> str | None:
    """None for what is no dump. InputError `unfinished_file` for a torch file without its end."""
    if path.suffix == ".pt":
        return SLIME if mentions(path, SLIME_MARKS) else MILES if mentions(path, MILES_MARKS) else None
    if path.suffix == ".jsonl":
        record = first_object(path) or {}
        return NEMO if is_nemo(record) else PRIME if is_prime(record) else None
    return None


def dumps_below(directory: Path) -> list[Path]:
    """The dumps of one framework in a directory; empty when there are none. Hidden names are passed over."""
    named: dict[str, list[Path]] = {}
    for path in directory.rglob("*"):
        kind = kind_by_name(path)
        if kind is not None and is_seen(path, directory):
            named.setdefault(kind, []).append(path)
    found = {kind: files for kind, files in named.items() if kind in (NEMO, PRIME)}
    for path in named.get("pt", ()):
        try:
            kind = dump_kind(path)
        except InputError as error:
            if error.reason != "unfinished_file":
                raise
            log.warning("left out: %s", error)
            continue
        if kind is not None:
            found.setdefault(kind, []).append(path)
    if len(found) > 1:
        detail = f"holds dumps of {' and '.join(sorted(found))}; give one framework's at a time"
        raise InputError("format", detail, path=str(directory))
    return _whole(next(iter(found.values()))) if found else []


def is_seen(path: Path, directory: Path) -> bool:
    """Whether it is a regular file under no hidden name: a pipe would be waited for without end."""
    return path.is_file() and not any(part.startswith(".") for part in path.relative_to(directory).parts)


def kind_by_name(path: Path) -> str | None:
    """NEMO or PRIME, "pt" for a torch file of any kind, None for what cannot be a dump."""
    if dumps_nemo.NAME.fullmatch(path.name):
        return NEMO
    if dumps_prime.RANK.fullmatch(path.name) and dumps_prime.STEP.fullmatch(path.parent.name):
        return PRIME
    return "pt" if path.suffix == ".pt" else None


def _whole(files: list[Path]) -> list[Path]:
    """Without the steps that prime-rl has not marked yet, and without NeMo RL's newest while it is being written."""
    steps = {path.parent for path in files if kind_by_name(path) == PRIME}
    unfinished = sorted(step for step in steps if not is_stable(step))
    if unfinished and len(unfinished) == len(steps):
        detail = "has no STABLE marker: the step is still being written"
        raise InputError("unfinished_file", detail, path=str(unfinished[0]))
    kept = [path for path in files if path.parent not in unfinished]
    newest = max((path for path in kept if kind_by_name(path) == NEMO), key=nemo_step, default=None)
    if newest is not None and len(kept) > 1 and not ends_in_newline(newest):
        unfinished.append(newest)
        kept.remove(newest)
    for place in unfinished:
        log.warning("%s is still being written; left out", place)
    return kept


def units(files: Sequence[tuple[str, Path]]) -> Iterator[Unit]:
    """Dumps (kind and path) in their order, ranks of one rollout together at the place of the first."""
    joined: dict[tuple[Path, int], list[Path]] = {}
    order: list[tuple[str, Path, tuple[Path, int] | None]] = []
    for kind, path in files:
        key = None
        if kind == MILES:
            with TorchFile(path) as file:
                key = (path.parent, rollout_id(file.value, path))
            joined.setdefault(key, []).append(path)
            if len(joined[key]) > 1:
                continue
        order.append((kind, path, key))
    for kind, path, key in order:
        paths = (path,) if key is None else tuple(joined[key])
        yield Unit(kind, paths, path.parent.parent if kind == PRIME else path.parent)


def unit_tables(unit: Unit) -> Iterator[pa.Table]:
    """As the readers of `recordings_arrow`: first an empty table with every column, then the rows."""
    path = unit.paths[0]
    rows: Iterator[DumpRow]
    if unit.kind == NEMO:
        rows, settings = nemo_rows(path), dumps_nemo.SETTINGS
    elif unit.kind == PRIME:
        rows, settings = prime_rows(path), dumps_prime.SETTINGS
    else:
        rows = slime_rows(path) if unit.kind == SLIME else miles_rows(unit.paths)
        settings = dumps_slime.SETTINGS
    yield from tables(rows, {**settings, "run": unit.run})
