"""Reading needs the memory of an update, not of the recording: peak resident size of a process that reads a file.

The file has 82 MB and the batches are set to 2 MB, so that the ratio of a large recording shows in a short test.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")

TOKENS, RESPONSES, UPDATES = 1000, 64, 320

# Where pandas is installed pyarrow imports it at its first conversion: 40 MB that no recording causes.
READER = """
import contextlib, sys
with contextlib.suppress(ImportError):
    import pandas
from triage_monitor.storage import recordings_arrow
from triage_monitor.storage.recordings import iter_updates
recordings_arrow.BATCH_BYTES = 2 << 20
def peak():
    # Not ru_maxrss: that one remembers the process this one was forked from.
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
base = peak()
updates, total = 0, 0.0
for update in iter_updates(sys.argv[1]):
    updates += 1
    total += float(update.rows.gap.sum(dtype="f8"))
print(peak() - base, updates, total)
"""


def one_update(step: int) -> pa.Table:
    gap = np.full(TOKENS * RESPONSES, 0.25 * (step % 3), np.float32) + np.arange(TOKENS * RESPONSES, dtype=np.float32)
    offsets = np.arange(RESPONSES + 1, dtype=np.int32) * TOKENS
    columns = {"step": np.full(RESPONSES, step), "advantage": np.ones(RESPONSES)}
    return pa.table(columns | {"gap": pa.ListArray.from_arrays(pa.array(offsets), pa.array(gap))})


@pytest.mark.parametrize("form", ["one-batch.arrow", "parts.parquet", "one-row-group.parquet"])
def test_reading_stays_far_below_the_size_of_the_file(tmp_path: Path, form: str) -> None:
    path = tmp_path / form
    updates = (one_update(step) for step in range(UPDATES))
    if form == "parts.parquet":
        with pq.ParquetWriter(path, one_update(0).schema, compression="none", use_dictionary=False) as writer:
            for update in updates:
                writer.write_table(update)
    else:
        whole = pa.concat_tables(list(updates)).combine_chunks()
        if form.endswith("arrow"):
            with pa.ipc.new_file(path, whole.schema) as writer:
                writer.write_table(whole)
        else:
            pq.write_table(whole, path, compression="none", use_dictionary=False, row_group_size=len(whole))
        del whole
    size = path.stat().st_size
    assert size > 80_000_000
    done = subprocess.run([sys.executable, "-c", READER, str(path)], capture_output=True, text=True, check=True)
    grown, count, total = done.stdout.split()
    assert int(count) == UPDATES
    tokens = TOKENS * RESPONSES
    by_hand = UPDATES * tokens * (tokens - 1) / 2 + tokens * sum(0.25 * (step % 3) for step in range(UPDATES))
    assert float(total) == pytest.approx(by_hand, rel=1e-6)
    assert int(grown) < 0.5 * size, f"reading {size} bytes took {grown}"
