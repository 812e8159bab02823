"""A data directory as an older program left it: the tables it knew, its version, and its ledger under its own seal."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from triage_monitor.storage.ledger import MARK_NAME, NAMES, Ledger

NEWER = {
    1: ("symptoms", "audit", "cursors", "worst", "alerts", "halves", "half_contents"),
    2: ("audit", "cursors", "worst", "alerts", "halves", "half_contents"),
}


def age(directory: Path, version: int) -> list[str]:
    """The closed store in `directory` becomes one of `version`; the schema's text. Version 1 kept no ledger."""
    with closing(sqlite3.connect(directory / "triage.db", isolation_level=None)) as db:
        for table in NEWER[version]:
            db.execute(f"DROP TABLE {table}")
        db.execute("UPDATE meta SET value = ? WHERE name = 'schema_version'", (version,))
        values = dict(db.execute("SELECT name, value FROM meta"))
        if version == 1:
            db.execute("DELETE FROM meta WHERE name NOT IN ('schema_version', 'epoch')")
            (directory / MARK_NAME).unlink()
        else:
            seal = Ledger(*(values[name] for name in NAMES)).seal(version)
            db.execute("UPDATE meta SET value = ? WHERE name = 'seal'", (seal,))
        return [row[0] for row in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")]
