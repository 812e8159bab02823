"""Every byte of a store's files, and of a recording's, flipped or made the last: read rightly, or refused and counted.

A small store with a row of every kind that damage tests know, once closed and once killed with all of it in the log.
The short forms draw places from a seed; the long ones take every `TRIAGE_FAULT_STRIDE`th (1). Synthetic rows.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from faults.damage import WORST, killed_store, verdict
from service.live_server import masses
from service.served_process import served
from storage.store_rows import params_row, run_row, shard_row, update_row

from triage_monitor.errors import InputError
from triage_monitor.storage.recordings import iter_updates
from triage_monitor.storage.records import Record, SummaryRow, SymptomRow, WorstRow

pytestmark = pytest.mark.filterwarnings("error")
FILES = (("closed", "triage.db"), ("killed", "triage.db"), ("killed", "triage.db-wal"))
CONTENT = bytes(range(1, 251)) * 4
Places = Callable[[bytes], Sequence[int]]


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    log = logging.getLogger("triage_monitor")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


def _rows() -> list[Record]:
    rows: list[Record] = [run_row(), params_row(1)]
    for step in range(2):
        rows += [replace(shard_row(step), summary=CONTENT), update_row(step), SummaryRow("run-a", 0, step, CONTENT)]
        rows += [SymptomRow("run-a", 0, step, 0, b"TSYM%d" % step), WorstRow("run-a", 0, step, 0, WORST + b"%d" % step)]
    return rows


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    closed, killed = tmp_path_factory.mktemp("closed"), tmp_path_factory.mktemp("killed") / "data"
    killed_store(closed, killed, _rows())
    return {"closed": closed, "killed": killed}


def _sweep(source: Path, name: str, places: Places, seed: int) -> Counter[str]:
    """Every damage is one of: nothing is gone, or no more than what the store says it lost; nothing is ever wrong."""
    rows, rng, found = _rows(), random.Random(seed), Counter[str]()
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
            gone, wrong, known = verdict(work, rows)
            assert wrong == 0 and gone <= known, f"{name} {harm} at {at}: {gone} gone, {wrong} wrong, {known} known"
            found[f"{harm}, {'nothing' if not gone else 'rows'} gone"] += 1
    shutil.rmtree(work)
    return found


def _fast_folder(source: Path) -> Path:
    """Where syncing costs nothing, if there is such a place: only what is read back counts here."""
    memory = Path("/dev/shm")
    return (memory if os.access(memory, os.W_OK) else source.parent) / f"triage-bytes-{os.getpid()}"


def _drawn(whole: bytes) -> list[int]:
    """Most of a small store's pages are zeros that mean nothing: few of those."""
    rng = random.Random(1)
    return rng.sample([at for at, byte in enumerate(whole) if byte], 40) + rng.sample(range(len(whole)), 5)


@pytest.mark.parametrize(("state", "name"), FILES)
def test_damage_at_drawn_bytes_of_a_store_is_never_a_wrong_value(
    stores: dict[str, Path], state: str, name: str
) -> None:
    found = _sweep(stores[state], name, _drawn, seed=2)
    assert found["cut, rows gone"] > 0 or state == "killed"
    assert found["flipped, nothing gone"] > 0


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize(("state", "name"), FILES)
def test_damage_at_every_byte_of_a_store(stores: dict[str, Path], state: str, name: str) -> None:
    stride = int(os.environ.get("TRIAGE_FAULT_STRIDE", "1"))
    found = _sweep(stores[state], name, lambda whole: range(0, len(whole), stride), seed=3)
    print(f"{name} of a {state} store, {(stores[state] / name).stat().st_size} bytes, every {stride}: {dict(found)}")


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
