"""The store's ledger: how much was written and how much should be there, kept twice.

    in the database   rows of `meta`, changed in the transaction that they count, under a seal
    in `triage.mark`  the same numbers and a checksum, written after every commit and before anybody is told of it

Whoever opens the store compares the two: a database behind its mark has lost writes that were acknowledged (SQLite
takes a broken or cut log for one that ends there, and says nothing). The mark is written but not synced: it survives a
killed process, and after a power cut it may be older than the database, never newer.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path

from triage_monitor.storage.records import ALL_KINDS
from triage_monitor.storage.schema import SCHEMA_VERSION

MARK_NAME = "triage.mark"
_MAGIC = b"triagemk"
_SEAL = "seal"


@dataclass(frozen=True, slots=True)
class Ledger:
    """`written` counts record writes ever committed, `rows` the rows there are; `lost` and `damages` what was found."""

    epoch: int
    written: int = 0
    rows: int = 0
    lost: int = 0
    damages: int = 0

    def values(self) -> tuple[int, ...]:
        """In the order of `NAMES`."""
        return self.epoch, self.written, self.rows, self.lost, self.damages

    def seal(self, schema_version: int) -> int:
        """63 bits over all of it and the schema's version."""
        text = repr((*self.values(), schema_version))
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True, slots=True)
class Mended:
    """The ledger after a repair, and how many acknowledged writes that repair found to be gone."""

    ledger: Ledger
    lost: int = 0


NAMES = tuple(item.name for item in fields(Ledger))
_FORM = struct.Struct(f"<8s{len(NAMES)}q8s")


def ledger_from(values: dict[str, int]) -> Ledger | None:
    """The ledger in rows of `meta`; None when it is not whole or its seal does not hold.

    The version under the seal may be older than the stored one: a migration was killed before the ledger was written.
    """
    try:
        ledger = Ledger(*(values[name] for name in NAMES))
        version = values["schema_version"]
    except KeyError:
        return None
    sealed = {version} if version > SCHEMA_VERSION else set(range(1, version + 1))
    return ledger if values.get(_SEAL) in {ledger.seal(each) for each in sealed} else None


def is_sealed(values: dict[str, int]) -> bool:
    return _SEAL in values


def write_ledger(db: sqlite3.Connection, ledger: Ledger) -> None:
    """Into `meta`, within the caller's transaction."""
    values = [*zip(NAMES, ledger.values(), strict=True), (_SEAL, ledger.seal(SCHEMA_VERSION))]
    db.executemany(
        "INSERT INTO meta VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        " WHERE value <> excluded.value",
        values,
    )


def stored_ledger(db: sqlite3.Connection, epoch: int) -> Ledger:
    """The ledger of a whole store; of one from before there were ledgers the rows are counted once."""
    stored = ledger_from(dict(db.execute("SELECT name, value FROM meta").fetchall()))
    if stored is not None:
        return stored
    rows = sum(db.execute(f"SELECT count(*) FROM {kind.TABLE}").fetchone()[0] for kind in ALL_KINDS)
    return Ledger(epoch, rows=rows)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if db.in_transaction:  # as in `schema.prepare`
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


class Mark:
    """The file beside the database. Open for one writer at a time."""

    def __init__(self, directory: Path) -> None:
        self._descriptor = os.open(directory / MARK_NAME, os.O_RDWR | os.O_CREAT, 0o644)

    def write(self, ledger: Ledger) -> None:
        """Never fails: what it guards is committed, and the next write makes good for this one."""
        with suppress(OSError):
            os.pwrite(self._descriptor, packed(ledger), 0)

    def close(self) -> None:
        with suppress(OSError):
            os.fsync(self._descriptor)
        os.close(self._descriptor)


def packed(ledger: Ledger) -> bytes:
    body = _FORM.pack(_MAGIC, *ledger.values(), b"")[:-8]
    return body + blake2b(body, digest_size=8).digest()


def read_mark(directory: Path) -> tuple[Ledger | None, bool]:
    """The mark, and whether one that does not verify is there instead."""
    try:
        stored = (directory / MARK_NAME).read_bytes()
    except FileNotFoundError:
        return None, False
    if (
        len(stored) == _FORM.size
        and stored[:8] == _MAGIC
        and blake2b(stored[:-8], digest_size=8).digest() == stored[-8:]
    ):
        return Ledger(*_FORM.unpack(stored)[1:-1]), False
    return None, bool(stored)
