"""`bench flight` at a small size: both ways ran against one real process, and the figures fit each other."""

from __future__ import annotations

import json
import math


def test_small_updates_by_both_ways_give_ratios_of_one_run(cli) -> None:
    done = cli("bench", "flight", "--tokens", "2000", "--turns", "3", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    (row,) = report["rows"]
    assert (report["synthetic"], report["turns"], row["tokens"]) == (True, 3, 2000)
    assert row["megabytes"] > 4 * 2000 / 1e6
    for way in ("http", "flight"):
        assert math.isclose(row[f"{way}_megabytes_per_second"], 1e3 * row["megabytes"] / row[f"{way}_ms"])
    assert 0 < row["times_low"] <= row["times"] <= row["times_high"]
