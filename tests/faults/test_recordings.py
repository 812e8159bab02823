"""A recorded part with a bit flipped anywhere or cut anywhere is named as damaged, or reads exactly as it was."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from service.live_server import masses
from service.served_process import served

from triage_monitor.errors import InputError
from triage_monitor.storage.recordings import RecordingWriter, iter_updates


def _recorded(directory: Path) -> Path:
    rng = np.random.default_rng(4)
    with RecordingWriter(directory, run="run-a", updates_per_part=3) as writer:
        for step in range(3):
            gap = rng.normal(0, 0.1, 60).astype(np.float32)
            writer.append(step, 0, {"gap": gap, "advantages": np.ones(6), "offsets": np.arange(0, 61, 10)})
    (part,) = directory.iterdir()
    return part


def _read(part: Path) -> list[tuple[object, ...]]:
    return [
        (
            item.run,
            item.step,
            item.attempt,
            item.rows.gap.tobytes(),
            item.rows.advantages.tobytes(),
            item.rows.offsets.tobytes(),
        )
        for item in iter_updates([part])
    ]


def _flips(part: Path, positions: list[int], rng: random.Random) -> tuple[int, int]:
    """(named as damaged, read as it was); anything else fails."""
    whole, expected = part.read_bytes(), _read(part)
    named = same = 0
    for at in positions:
        part.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
        try:
            assert _read(part) == expected, at
            same += 1
        except InputError:
            named += 1
    part.write_bytes(whole)
    return named, same


def test_flipped_or_cut_part_is_never_read_as_another(tmp_path: Path) -> None:
    part = _recorded(tmp_path / "recording")
    size, rng = part.stat().st_size, random.Random(2)
    named, same = _flips(part, rng.sample(range(size), 150), rng)
    assert named > same
    whole = part.read_bytes()
    for end in rng.sample(range(size), 40):
        part.write_bytes(whole[:end])
        with pytest.raises(InputError):
            _read(part)


@pytest.mark.parametrize("at", [4, 42, -9, -200, -600])
def test_flip_in_a_page_header_or_the_footer_is_named(tmp_path: Path, at: int) -> None:
    """No checksum of Parquet's covers these: another step was read, or its reader ended the process."""
    part = _recorded(tmp_path / "recording")
    whole = part.read_bytes()
    for bit in range(8):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        part.write_bytes(damaged)
        with pytest.raises(InputError, match="damaged"):
            _read(part)


@pytest.mark.parametrize("writer", ["pyarrow", "polars"])
def test_part_written_anew_by_another_program_is_read_without_a_digest(tmp_path: Path, writer: str) -> None:
    part = _recorded(tmp_path / "recording")
    expected = _read(part)
    if writer == "pyarrow":
        pq.write_table(pq.read_table(part), part, compression="none")
        assert _read(part) == expected
    else:
        pl.read_parquet(part).write_parquet(part)
        assert [row[1:] for row in _read(part)] == [row[1:] for row in expected]  # polars keeps no name of a run
    assert b"triage_digest" not in part.read_bytes()


@pytest.mark.slow
def test_part_flipped_at_every_byte(tmp_path: Path) -> None:
    part = _recorded(tmp_path / "recording")
    size = part.stat().st_size
    named, same = _flips(part, list(range(size)), random.Random(3))
    print(f"{size} bytes flipped: {named} named as damaged, {same} read as they were")
    assert named > size - 100  # what is the same lies in the digest's own name


def test_damaged_newest_part_is_set_aside_and_the_shard_is_taken(tmp_path: Path) -> None:
    env = {"TRIAGE_STORE__RETAIN_RAW": "true"}
    with served(tmp_path, env) as server:
        for step in (1, 2):
            assert server.put("run", step, masses(3, 2)).status_code == 201
        assert server.end() == 0
    newest = sorted((tmp_path / "recordings" / "run").glob("*.parquet"))[-1]
    newest.write_bytes(newest.read_bytes()[:-20])
    with served(tmp_path, env) as server:
        assert server.put("run", 3, masses(3, 2)).status_code == 201
        assert "triage_recordings_damaged_total 1.0" in server.http.get("/metrics").text
    kept = [item.step for item in iter_updates([tmp_path / "recordings" / "run"])]
    assert kept == [1, 3]
