"""RecordingWriter: what it wrote is what is read, whole parts only, and a run goes on where it stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arrow_tables import table

from triage_monitor.errors import ConflictError, InputError
from triage_monitor.storage.recordings import RecordingWriter, iter_updates
from triage_monitor.summary.rows import rows_from_arrays

ARRAYS = {"gap": [[0.5, -0.25], [1.0]], "advantages": [1.0, -1.0]}


def test_arrays_rows_and_tables_are_read_back(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, run="run-a") as writer:
        writer.append(
            0, 1, ARRAYS | {"mask": [[1, 0], [1]], "missing": [[0, 0], [1]], "settings": {"temperature": 0.7}}
        )
        writer.append(1, 1, rows_from_arrays(**ARRAYS, groups=["p", "q"], rewards=[1.0, 0.0]))
        writer.append(2, 1, table([[0.5, None]], [1.0], padding=[False]))
    first, second, third = iter_updates(tmp_path)
    assert [(u.run, u.step, u.attempt) for u in (first, second, third)] == [("run-a", step, 1) for step in range(3)]
    assert first.rows.mask.tolist() == [True, False, True] and first.rows.missing.tolist() == [False, False, True]
    assert first.rows.settings == {"temperature": "0.7"}
    assert second.rows.gap.tolist() == [0.5, -0.25, 1.0] and second.rows.rewards.tolist() == [1.0, 0.0]
    assert third.rows.mask.tolist() == [True, False]


def test_anyone_can_read_it_and_extra_columns_are_left_alone(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, run="run-a") as writer:
        writer.append(4, 2, ARRAYS, extra={"entropy": 0.5, "loss": None, "note": "warm"})
    frame = pl.read_parquet(tmp_path)
    assert frame.columns == ["step", "attempt", "gap", "advantage", "entropy", "loss", "note"]
    assert frame.rows()[1] == (4, 2, [1.0], -1.0, 0.5, None, "warm")
    (update,) = iter_updates(tmp_path)
    assert update.rows.ignored_columns == ("entropy", "loss", "note")


def test_parts_hold_a_row_group_an_update(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, run="run-a", updates_per_part=4) as writer:
        for step in range(6):
            writer.append(step, 1, ARRAYS)
    parts = sorted(tmp_path.iterdir())
    assert [part.name for part in parts] == [
        "a0001-s000000000-to000000003.parquet",
        "a0001-s000000004-to000000005.parquet",
    ]
    assert [pq.ParquetFile(part).num_row_groups for part in parts] == [4, 2]
    assert [update.step for update in iter_updates(tmp_path)] == list(range(6))


def test_a_new_form_of_rows_begins_a_new_part(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, run="run-a", updates_per_part=10) as writer:
        writer.append(0, 1, ARRAYS)
        writer.append(1, 1, ARRAYS | {"rewards": [1.0, 2.0]})
        writer.append(0, 2, ARRAYS)
    assert len(list(tmp_path.iterdir())) == 3
    assert [(u.attempt, u.step) for u in iter_updates(tmp_path)] == [(1, 0), (1, 1), (2, 0)]


def test_steps_go_up_and_a_resumed_run_is_a_new_attempt(tmp_path: Path) -> None:
    RecordingWriter(tmp_path, run="run-a").append(5, 1, ARRAYS)
    writer = RecordingWriter(tmp_path, run="run-a")
    assert writer.newest == (1, 5)
    for step in (5, 3):
        with pytest.raises(ConflictError, match="new attempt"):
            writer.append(step, 1, ARRAYS)
    writer.append(3, 2, ARRAYS)
    assert [(u.attempt, u.step) for u in iter_updates(tmp_path)] == [(1, 5), (2, 3)]


def test_directory_of_another_run_is_refused(tmp_path: Path) -> None:
    RecordingWriter(tmp_path, run="run-a").append(0, 1, ARRAYS)
    with pytest.raises(InputError, match="run 'run-a', not 'run-b'"):
        RecordingWriter(tmp_path, run="run-b")


def test_ranks_write_beside_each_other(tmp_path: Path) -> None:
    for step in (0, 1):
        for rank in (0, 1):
            RecordingWriter(tmp_path, run="run-a", shard=rank).append(step, 1, ARRAYS)
    updates = list(iter_updates(tmp_path))
    assert [(u.step, u.rows.responses) for u in updates] == [(0, 4), (1, 4)]


def test_wrong_rows_leave_nothing(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path, run="run-a")
    with pytest.raises(InputError):
        writer.append(0, 1, {"gap": [[0.5]], "advantages": [1.0, 2.0, 3.0]})
    with pytest.raises(InputError):
        writer.append(0, 1, pa.table({"gap": [["a"]], "advantage": [1.0]}))
    with pytest.raises(InputError, match="reward"):
        writer.append(0, 1, ARRAYS, extra={"reward": 1.0})
    writer.close()
    assert writer.newest is None and list(tmp_path.iterdir()) == []
    writer.append(0, 1, ARRAYS)


def test_update_that_the_disk_did_not_take_counts_as_never_given(tmp_path: Path) -> None:
    """It may come again with other content; nobody knows that it will, so it waits in no memory."""
    home = tmp_path / "home"
    writer = RecordingWriter(home, run="run-a")
    writer.append(0, 1, ARRAYS)
    home.rename(tmp_path / "away")
    home.touch()
    for step in (1, 2):
        with pytest.raises(OSError, match=r"exists|directory"):
            writer.append(step, 1, ARRAYS | {"advantages": [5.0, 5.0]})
        assert writer.newest == (1, 0) and not writer._pending
    home.unlink()
    writer.append(1, 1, ARRAYS)  # on disk when this returns: no `close`
    (update,) = iter_updates(home)
    assert (update.step, update.rows.advantages.tolist()) == (1, [1.0, -1.0])
    assert [update.step for update in iter_updates(tmp_path / "away")] == [0]


_FULL = """
    import resource, sys
    import numpy as np
    from triage_monitor.storage.recordings import RecordingWriter
    writer = RecordingWriter(sys.argv[1], run="run-a", updates_per_part=2)
    gap = np.random.default_rng(0).normal(size=20_000).astype("f4")
    rows = {"gap": gap, "offsets": [0, 20_000], "advantages": [1.0]}
    writer.append(0, 1, rows)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
    try:
        writer.append(1, 1, rows)
    except OSError as error:
        print(error.strerror, *writer.directory.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    writer.append(2, 1, rows)
"""


def test_part_that_finds_no_room_leaves_no_piece_of_a_file_and_loses_no_other_update(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(_FULL), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "File too large\n"), done.stderr
    assert [update.step for update in iter_updates(tmp_path)] == [0, 2]


KILLED = """
import os, sys
import numpy as np
from triage_monitor.storage.recordings import RecordingWriter
writer = RecordingWriter(sys.argv[1], run="run-a")
gap = np.random.default_rng(0).normal(size=200_000).astype("f4")
for step in range(10_000):
    writer.append(step, 1, {"gap": gap, "offsets": np.arange(0, 200_001, 1000), "advantages": np.ones(200)})
    print(step, flush=True)
"""


def test_killed_writer_leaves_whole_updates_only(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    acknowledged = [int(process.stdout.readline()) for _ in range(5)]
    os.kill(process.pid, signal.SIGKILL)
    acknowledged += [int(line) for line in process.stdout.read().split("\n") if line]
    process.stdout.close()
    process.wait()
    updates = list(iter_updates(tmp_path))
    steps = [update.step for update in updates]
    assert steps[: len(acknowledged)] == acknowledged  # what append returned for is there
    assert steps == list(range(len(steps))) and len(steps) - len(acknowledged) <= 1
    assert all(update.rows.tokens == 200_000 for update in updates)
    gap = np.random.default_rng(0).normal(size=200_000).astype("f4")
    assert np.array_equal(updates[-1].rows.gap, gap)
    writer = RecordingWriter(tmp_path, run="run-a")
    assert writer.newest == (1, steps[-1])
