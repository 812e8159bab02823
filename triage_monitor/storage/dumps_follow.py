"""A directory of dumps that a trainer is writing: which steps are whole now.

    prime_rl    marked STABLE after its newest file, or marked at all and quiet for long (copied files)
    slime       the end of the zip is there
    miles       the same ranks as in the last whole rollout, or a later rollout has begun, or quiet for `settle` seconds
    nemo_rl     ends with a line, and a later step has begun or the file is quiet for `settle` seconds

A step is known by its files' names, sizes and times; when these change it is another step under the same number (a
resumed trainer writes its steps again). Quiet is measured by the caller's clock from when a state was first seen, so
the clock of a file server does not matter. Nothing of a file but its step is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from triage_monitor.errors import InputError
from triage_monitor.storage import dumps_nemo, dumps_prime
from triage_monitor.storage.dumps import MILES, NEMO, PRIME, Unit, dump_kind, is_seen, kind_by_name
from triage_monitor.storage.dumps_prime import is_current, is_stable
from triage_monitor.storage.dumps_slime import rollout_id
from triage_monitor.storage.json_lines import ends_in_newline
from triage_monitor.storage.torch_file import TorchFile

Key = tuple[Path, int]  # launch, step
Stamp = tuple[int, int]  # size, time in nanoseconds
LONG_QUIET = 6  # times `settle`; a rank's file grows by micro-batches


@dataclass(frozen=True, slots=True)
class DumpedStep:
    """One whole step: `units` in the order in which they are read; `stamp` tells two writings of it apart, `written` is
    the time of its newest file in nanoseconds."""

    step: int
    launch: Path
    units: tuple[Unit, ...]
    stamp: str
    written: int

    @property
    def key(self) -> Key:
        return self.launch, self.step

    @property
    def run(self) -> str:
        return self.units[0].run

    def is_unchanged(self) -> bool:
        try:
            return stamp_of(path for unit in self.units for path in unit.paths) == self.stamp
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A torch file of which not even the step can be told."""

    path: Path
    stamp: str
    sentence: str


@dataclass(slots=True)
class Follower:
    """Looks at `directory` whenever `whole` is called. `unreadable`: what the last look found to be no dump and no file
    on its way to one; each once, until it changes."""

    directory: Path
    settle: float
    unreadable: list[Unreadable] = field(default_factory=list)
    _odd: dict[Path, tuple[Stamp, float]] = field(default_factory=dict)
    _seen: dict[Key, tuple[str, float]] = field(default_factory=dict)
    _torch: dict[Path, tuple[Stamp, tuple[str, int] | None]] = field(default_factory=dict)
    _ranks: dict[Path, frozenset[str]] = field(default_factory=dict)
    _known: dict[Key, str] = field(default_factory=dict)

    def whole(self, now: float, *, is_last_look: bool = False) -> list[DumpedStep]:
        """The whole steps, lowest first; with `is_last_look` nothing more will come, and what stops in the middle of a
        line or of a zip is all that is left out. Raises InputError when two frameworks write here."""
        found: dict[Key, tuple[str, list[Path]]] = {}
        self.unreadable = []
        for path in self._files():
            told = self._told(path, float("inf") if is_last_look else now)
            if told is not None:
                kind, key = told
                found.setdefault(key, (kind, []))[1].append(path)
        kinds = sorted({kind for kind, _ in found.values()})
        if len(kinds) > 1:
            detail = f"holds dumps of {' and '.join(kinds)}; follow one framework's at a time"
            raise InputError("format", detail, path=str(self.directory))
        newest: dict[Path, int] = {}
        for launch, step in found:
            newest[launch] = max(step, newest.get(launch, step))
        steps = []
        for key in sorted(found, key=lambda key: (str(key[0]), key[1])):
            kind, paths = found[key]
            made = self._step(key, kind, sorted(paths, key=_by_number), newest[key[0]], now, is_last_look)
            steps += [] if made is None else [made]
        self._forget(found)
        return steps

    def _files(self) -> list[Path]:
        return [
            path
            for path in self.directory.rglob("*")
            if kind_by_name(path) is not None and is_seen(path, self.directory)
        ]

    def _told(self, path: Path, now: float) -> tuple[str, Key] | None:
        kind = kind_by_name(path)
        if kind == NEMO:
            return NEMO, (path.parent, dumps_nemo.nemo_step(path))
        if kind == PRIME:
            match = dumps_prime.STEP.fullmatch(path.parent.name)
            assert match is not None
            return PRIME, (path.parent.parent, int(match[1]))
        told = self._inside(path, now)
        return None if told is None else (told[0], (path.parent, told[1]))

    def _inside(self, path: Path, now: float) -> tuple[str, int] | None:
        """Kind and step of a torch file; None for one that is no dump, or no whole file yet."""
        try:
            stamp = _stamp(path)
            if path in self._torch and self._torch[path][0] == stamp:
                return self._torch[path][1]
            kind = dump_kind(path)
            told = None
            if kind is not None:
                with TorchFile(path) as file:
                    told = kind, rollout_id(file.value, path)
        except OSError:
            return None
        except InputError as error:
            if error.reason != "unfinished_file" and self._is_quiet(path, stamp, now):
                self.unreadable.append(Unreadable(path, stamp_of([path]), str(error)))
                self._torch[path] = stamp, None
            return None
        self._torch[path] = stamp, told
        return told

    def _is_quiet(self, path: Path, stamp: Stamp, now: float) -> bool:
        """Whether a file that makes no sense stays as it is: one that is written over in place makes none meanwhile."""
        before = self._odd.get(path)
        since = before[1] if before is not None and before[0] == stamp else now
        self._odd[path] = stamp, since
        return now - since >= self.settle if math.isfinite(now) else True

    def _step(
        self, key: Key, kind: str, paths: list[Path], newest: int, now: float, is_last_look: bool
    ) -> DumpedStep | None:
        try:
            stamp = stamp_of(paths)
            before = self._seen.get(key)
            since = before[1] if before is not None and before[0] == stamp else now
            self._seen[key] = stamp, since
            quiet = float("inf") if is_last_look else now - since
            if self._known.get(key) != stamp and not self._is_whole(key, kind, paths, newest, quiet):
                return None
            self._known[key] = stamp
            written = max(_stamp(path)[1] for path in paths)
        except OSError:
            return None
        together = [tuple(paths)] if kind == MILES else [(path,) for path in paths]
        units = tuple([Unit(kind, files, key[0]) for files in together])
        return DumpedStep(key[1], key[0], units, stamp, written)

    def _is_whole(self, key: Key, kind: str, paths: list[Path], newest: int, quiet: float) -> bool:
        launch, step = key
        is_over = newest > step or quiet >= self.settle
        if kind == PRIME:
            here = paths[0].parent
            return is_current(here) or (is_stable(here) and quiet >= LONG_QUIET * self.settle)
        if kind == NEMO:
            return is_over and ends_in_newline(paths[0])
        if kind == MILES:
            ranks = frozenset(path.stem.rpartition("_")[2] for path in paths)
            if not is_over and self._ranks.get(launch) != ranks:
                return False
            self._ranks[launch] = ranks
        return True

    def _forget(self, found: Mapping[Key, object]) -> None:
        self._seen = {key: value for key, value in self._seen.items() if key in found}
        self._known = {key: value for key, value in self._known.items() if key in found}
        self._torch = {path: value for path, value in self._torch.items() if path.exists()}
        self._odd = {path: value for path, value in self._odd.items() if path.exists()}


def stamp_of(paths: Iterable[Path]) -> str:
    digest = blake2b(digest_size=12)
    for path in sorted(paths):
        digest.update(f"{path.name}:{_stamp(path)}\n".encode())
    return digest.hexdigest()


def _stamp(path: Path) -> Stamp:
    state = path.stat()
    return state.st_size, state.st_mtime_ns


def _by_number(path: Path) -> tuple[int, str]:
    last = path.stem.rpartition("_")[2]
    return (int(last) if last.isdigit() else 0, path.name)
