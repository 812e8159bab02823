"""Numbers picked by SQLite are those of the reports, bit for bit; a damaged row is left out; it costs little."""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from storage.store_rows import run_row, update_row

from triage_monitor.storage.memory import MemoryStore
from triage_monitor.storage.records import UpdateRow
from triage_monitor.storage.series import Scope, read_series
from triage_monitor.storage.sqlite import SqliteStore

NAMES = [*(f"i{number}" for number in range(36)), "frac_rho_lt_1e-4"]


def report_of(step: int) -> UpdateRow:
    draw = random.Random(step)
    values = {f"i{number}": draw.uniform(-1, 1) * 10.0 ** draw.randint(-300, 300) for number in range(100)}
    values |= {"i1": None, "i2": 0.1 + 0.2, "i3": 5e-324, "frac_rho_lt_1e-4": step / 3}  # type: ignore[dict-item]
    quantiles = {"all": {"0.05": draw.random()}, "neg": {}}
    half = {"indicators": values, "quantiles": quantiles, "score": {"value": draw.random()}}
    return replace(update_row(step), report={"update": half, "window": {**half, "score": None}})


MANY = [f"i{number}" for number in range(100)]  # in two scopes more than SQLite's functions take at once


@pytest.mark.parametrize("names", [["i2"], MANY, [*NAMES, "q0.05_all", "q0.05_neg", "warning_score"]])
def test_picked_numbers_equal_those_of_the_reports(tmp_path: Path, names: list[str]) -> None:
    rows = [report_of(step) for step in range(30)]
    disk, memory = SqliteStore(tmp_path), MemoryStore()
    for store in (disk, memory):
        store.write(run_row(), *rows).result()
    found = read_series(disk, "run-a", names, list(Scope), 3, 28)
    assert found == read_series(memory, "run-a", names, list(Scope), 3, 28)
    assert found[0].steps == tuple(range(3, 29))
    by_name = {(item.scope, item.name): item.values for item in found}
    wanted = [row.report["update"]["indicators"]["i2"] for row in rows[3:29]]
    assert by_name[Scope.UPDATE, "i2"] == tuple(wanted)
    if "q0.05_all" in names:
        assert by_name[Scope.UPDATE, "i1"] == by_name[Scope.WINDOW, "q0.05_neg"] == (None,) * 26
        assert by_name[Scope.WINDOW, "q0.05_all"][0] == rows[3].report["window"]["quantiles"]["all"]["0.05"]
        assert by_name[Scope.UPDATE, "warning_score"][0] == rows[3].report["update"]["score"]["value"]
        assert by_name[Scope.WINDOW, "warning_score"] == (None,) * 26
    disk.close()


@pytest.mark.parametrize("damage", ['{"update":', '{"update":{"indicators":{"i2":77}}}'])
def test_damaged_report_is_left_out_and_counted_once(tmp_path: Path, damage: str) -> None:
    store = SqliteStore(tmp_path)
    store.write(run_row(), *(report_of(step) for step in range(5))).result()
    with sqlite3.connect(tmp_path / "triage.db") as db:
        db.execute("UPDATE updates SET report = ? WHERE step = 2", (damage,))
    db.close()
    for _ in range(2):
        (found,) = read_series(store, "run-a", ["i2"], [Scope.UPDATE])
        assert found.steps == (0, 1, 3, 4)
    assert store.corrupt_rows == 1
    assert len(store.rows(UpdateRow, "run-a")) == 4 and store.corrupt_rows == 1
    store.close()


@pytest.mark.perf
def test_a_pages_series_cost_a_fraction_of_reading_the_reports(tmp_path: Path) -> None:
    """The baseline is what reading the same rows as JSON costs in this process."""
    store = SqliteStore(tmp_path)
    for step in range(0, 1000, 100):
        store.write(run_row(), *(report_of(at) for at in range(step, step + 100))).result()
    db = sqlite3.connect(tmp_path / "triage.db")

    def cost(work: Callable[[], object]) -> float:
        started = time.thread_time()
        work()
        return time.thread_time() - started

    whole = min(cost(lambda: [json.loads(row) for (row,) in db.execute("SELECT report FROM updates")]) for _ in "123")
    ours = min(cost(lambda: read_series(store, "run-a", NAMES, [Scope.WINDOW])) for _ in "123")
    db.close()
    store.close()
    print(f"reports as JSON {whole * 1e3:.0f} ms, {len(NAMES)} series {ours * 1e3:.0f} ms")
    assert ours < 1.2 * whole
