"""Who outranks whom: a store made later an older one, a restarted one its past, and whoever takes over."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

from triage_monitor.storage.fence import Fence, new_fence
from triage_monitor.storage.memory import MemoryStore
from triage_monitor.storage.sqlite import SqliteStore


def opened(directory: Path, epoch_above: int = 0) -> Fence:
    store = SqliteStore(directory, epoch_above)
    store.close()
    return store.fence


def test_every_start_of_a_store_is_a_higher_epoch_of_the_same_store(tmp_path: Path) -> None:
    first, second, third = (opened(tmp_path) for _ in range(3))
    assert [second.epoch, third.epoch] == [first.epoch + 1, first.epoch + 2]
    assert first.store_id == second.store_id == third.store_id
    assert len({first.issuer, second.issuer, third.issuer}) == 3


def test_copy_of_a_store_comes_to_the_same_epoch_as_another_issuer(tmp_path: Path) -> None:
    opened(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    original, copy = opened(tmp_path / "a"), opened(tmp_path / "b")
    assert (original.epoch, original.store_id) == (copy.epoch, copy.store_id)
    assert original.issuer != copy.issuer


def test_store_made_later_outranks_an_older_one_that_restarts(tmp_path: Path) -> None:
    old, new = new_fence(1_000), new_fence(2_000)
    assert new.epoch > old.epoch + 1 and new.store_id != old.store_id


def test_taking_over_is_above_the_others_epoch_and_another_store_once(tmp_path: Path) -> None:
    first = opened(tmp_path)
    rival = first.epoch + 1_000_000
    taken = opened(tmp_path, epoch_above=rival)
    assert taken.epoch > rival and taken.store_id != first.store_id
    again = opened(tmp_path, epoch_above=rival)
    assert (again.epoch, again.store_id) == (taken.epoch + 1, taken.store_id), "a setting left in place does no more"
    assert MemoryStore(rival).fence.epoch > rival


def test_store_of_before_the_fence_is_named_by_its_making_and_outranks_what_it_was(tmp_path: Path) -> None:
    opened(tmp_path)
    last = opened(tmp_path)
    with sqlite3.connect(tmp_path / "triage.db") as db:
        db.execute("DELETE FROM meta WHERE name IN ('store_id', 'fence')")
        (made,) = db.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()
    db.close()
    fence = opened(tmp_path)
    assert int(fence.store_id, 16) == made and fence.epoch > made
    assert fence.store_id != last.store_id
