"""Every byte of a store's files, and of a recording's, flipped or made the last: read rightly, or refused and counted.

A small store with a row of every kind that damage tests know, once closed and once killed with all of it in the log.
The short forms draw places from a seed; the long one takes every `TRIAGE_FAULT_STRIDE`th (1) of a store of SQLite's
smallest pages, with every kind of page in a few ten thousand bytes. Synthetic rows.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from faults.damage import WORST, killed_store, verdict
from service.live_server import masses
from service.served_process import served
from storage.store_rows import params_row, run_row, shard_row, update_row

from triage_monitor.errors import InputError
from triage_monitor.storage.pages import PAGE
from triage_monitor.storage.recordings import iter_updates
from triage_monitor.storage.records import Record, SummaryRow, SymptomRow, WorstRow

pytestmark = pytest.mark.filterwarnings("error")
FILES = (("closed", "triage.db"), ("killed", "triage.db"), ("killed", "triage.db-wal"))
EVERY_FILE = (*FILES, ("killed", "triage.db-shm"), ("closed", "triage.mark"), ("killed", "triage.mark"))
SMALL = 512  # SQLite's smallest pages: the same trees in a file small enough for every byte of it
CONTENT = bytes(range(1, 251)) * 4
Places = Callable[[bytes], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Stores:
    """The same rows twice: closed in order, and as a kill leaves them, all in the log."""

    page_bytes: int
    closed: Path
    killed: Path


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    log = logging.getLogger("triage_monitor")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


def _replaced() -> Record:
    """Its overflow pages are free ones once it is replaced."""
    return replace(update_row(0), report={"update": {"long": "x" * 1200}})


def _writes() -> list[tuple[Record, ...]]:
    """Rows for trees of two levels (large keys make few of them enough) and for chains of overflow pages."""
    large = 1 << 50
    many = [WorstRow("run-a", large, large + step, large, WORST + b"%d" % step) for step in range(16)]
    symptoms = [SymptomRow("run-a", 0, step, 0, b"TSYM%d" % step) for step in range(2)]
    return [
        (run_row(), params_row(1), _replaced()),
        (replace(shard_row(0), summary=CONTENT), SummaryRow("run-a", 0, 0, CONTENT), *symptoms),
        (replace(shard_row(1), summary=CONTENT[:600]), SummaryRow("run-a", 0, 1, b"merged"), update_row(1), *many),
        (update_row(0, revision=1),),
    ]


@pytest.fixture(scope="module", params=[SMALL, PAGE], ids=["small-pages", "pages"])
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    closed, killed = tmp_path_factory.mktemp("closed"), tmp_path_factory.mktemp("killed") / "data"
    killed_store(closed, killed, _writes(), page_bytes=request.param)
    return Stores(request.param, closed, killed)


def test_small_store_has_every_kind_of_page(stores: Stores) -> None:
    with closing(sqlite3.connect(stores.closed / "triage.db")) as db:
        sizes = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")]
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    whole, log = (stores.closed / "triage.db").read_bytes(), (stores.killed / "triage.db-wal").read_bytes()
    assert sizes[0] == stores.page_bytes == int.from_bytes(log[8:12], "big")
    kinds = Counter(whole[at] for at in range(0, len(whole), stores.page_bytes))
    inner_index, inner_table, leaf_index, leaf_table = (kinds[kind] for kind in (2, 5, 10, 13))
    overflow = sizes[1] - 1 - sizes[2] - inner_index - inner_table - leaf_index - leaf_table
    if stores.page_bytes == SMALL:
        assert min(inner_index, inner_table, leaf_index, leaf_table, overflow, sizes[2]) > 0


def _sweep(stores: Stores, state: str, name: str, places: Places, seed: int) -> Counter[str]:
    """Every damage is one of: nothing is gone, or no more than what the store says it lost; nothing is ever wrong."""
    source = stores.closed if state == "closed" else stores.killed
    rows = [row for rows in _writes() for row in rows if row != _replaced()]
    rng, found = random.Random(seed), Counter[str]()
    bad: list[str] = []
    parts = {path.name: path.read_bytes() for path in source.iterdir()}
    whole = parts[name]
    work = _fast_folder(source)
    for at in places(whole):
        for harm, content in (
            ("cut", whole[:at]),
            ("flipped", whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :]),
        ):
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            for other, bytes_of in parts.items():
                (work / other).write_bytes(bytes_of if other != name else content)
            gone, wrong, known = verdict(work, rows, [_replaced()], page_bytes=stores.page_bytes)
            if wrong or gone > known:
                bad.append(f"{harm} at {at}: {gone} gone, {wrong} wrong, {known} known")
            found[f"{harm}, {'nothing' if not gone else 'rows'} gone"] += 1
    shutil.rmtree(work)
    assert not bad, (name, len(bad), bad[:20])
    return found


@pytest.mark.parametrize("stores", [SMALL], ids=["small-pages"], indirect=True)
def test_name_in_the_schema_that_became_a_blob_or_another_case_is_found_and_the_store_opens(stores: Stores) -> None:
    """One bit of the schema's own record: the table was there and could not be found, and no start succeeded."""
    whole = (stores.closed / "triage.db").read_bytes()
    types = whole.index(b"tablemetameta") - 4  # of name, tbl_name, rootpage and the statement (two bytes)
    assert whole[types - 1 : types + 1] == bytes([2 * 4 + 13, 2 * 4 + 13])  # texts of four characters
    found = Counter[str]()
    for at in (types - 1, types, *range(types + 4, types + 13)):
        found += _sweep(stores, "closed", "triage.db", lambda _, at=at: [at] * 12, seed=at)
    assert found.total() == 11 * 24


def _fast_folder(source: Path) -> Path:
    """Where syncing costs nothing, if there is such a place: only what is read back counts here."""
    memory = Path("/dev/shm")
    return (memory if os.access(memory, os.W_OK) else source.parent) / f"triage-bytes-{os.getpid()}"


def _drawn(whole: bytes) -> list[int]:
    """Most of a small store's pages are zeros that mean nothing: few of those."""
    rng = random.Random(1)
    return rng.sample([at for at, byte in enumerate(whole) if byte], 40) + rng.sample(range(len(whole)), 5)


@pytest.mark.parametrize(("state", "name"), FILES)
def test_damage_at_drawn_bytes_of_a_store_is_never_a_wrong_value(stores: Stores, state: str, name: str) -> None:
    found = _sweep(stores, state, name, _drawn, seed=2)
    assert found["cut, rows gone"] > 0 or state == "killed"
    assert found["flipped, nothing gone"] > 0


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("stores", [SMALL], ids=["small-pages"], indirect=True)
@pytest.mark.parametrize(("state", "name"), EVERY_FILE)
def test_damage_at_every_byte_of_a_store(stores: Stores, state: str, name: str) -> None:
    stride, started = int(os.environ.get("TRIAGE_FAULT_STRIDE", "1")), time.process_time()
    found = _sweep(stores, state, name, lambda whole: range(0, len(whole), stride), seed=3)
    spent = 1000 * (time.process_time() - started) / found.total()
    print(
        f"{name} of a {state} store, every {stride} bytes: {found.total()} openings, {spent:.1f} ms each: {dict(found)}"
    )


def _foreign(path: Path, form: str) -> None:
    """An Arrow recording as another program writes it: it has no checksum."""
    columns = {
        "step": pa.array([1, 1, 2, 2], pa.int64()),
        "gap": pa.array([[0.5, -0.25], [0.125], [0.5], [-0.5, 1.5]], pa.list_(pa.float32())),
        "advantage": pa.array([1.0, -1.0, 1.0, -1.0]),
    }
    table = pa.table(columns)
    writer = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
    with writer(str(path), table.schema) as out:
        for start in (0, 2):
            out.write_table(table.slice(start, 2))


def _steps(path: Path) -> list[tuple[int, bytes]] | None:
    """What is read of it; None where it is refused. Anything but InputError fails the test."""
    try:
        return [(item.step, item.rows.gap.tobytes()) for item in iter_updates([path]) if item.rows.gap is not None]
    except InputError as error:
        assert error.reason and error.path == str(path)
        return None


@pytest.mark.parametrize("form", ["file", "stream"])
def test_arrow_recording_of_another_program_cut_anywhere_is_refused_and_flipped_anywhere_does_no_harm(
    tmp_path: Path, form: str
) -> None:
    """Without a checksum a changed value cannot be known from another; all else is named, and nothing crashes."""
    path, rng = tmp_path / "run.arrow", random.Random(4)
    _foreign(path, form)
    whole, expected = path.read_bytes(), _steps(path)
    assert expected is not None and [step for step, _ in expected] == [1, 2]
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        assert _steps(path) is None, end
    seen = Counter[str]()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
        found = _steps(path)
        seen["refused" if found is None else "same" if found == expected else "another"] += 1
    print(form, dict(seen))
    assert seen["refused"] > len(whole) // 5


def test_log_damaged_after_a_kill_is_said_and_the_rest_is_served(tmp_path: Path) -> None:
    """Half the log is gone: what it held is counted on /readyz and /metrics, and service goes on with the rest."""
    with served(tmp_path) as server:
        for step in range(1, 13):
            assert server.put("run", step, masses(3, 2)).status_code == 201
        server.kill()
    log = tmp_path / "triage.db-wal"
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    with served(tmp_path) as server:
        ready = server.http.get("/readyz").json()
        assert (ready["status"], ready["damaged"], ready["set_aside"]) == ("ready", 1, 1)
        assert ready["lost_writes"] > 0
        assert f"triage_store_lost_writes_total {float(ready['lost_writes'])}" in server.http.get("/metrics").text
        assert set(_values(server.http)) == {1.5}
        again = [server.put("run", step, masses(3, 2)).status_code for step in range(1, 14)]
        assert set(again) == {200, 201} and again[-1] == 201
        assert _values(server.http) == [1.5] * 13


def _values(http: httpx.Client) -> list[float]:
    found: list[float] = http.get("/v1/runs/run/series", params={"name": "rho_asym"}).json()["series"][0]["values"]
    return found
