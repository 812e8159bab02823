"""`bench ingest` at a small size: every phase ran against real processes, and what it says is consistent."""

from __future__ import annotations

import json
import math


def test_small_load_tells_every_phase_and_loses_nothing(cli) -> None:
    done = cli(
        *("bench", "ingest", "--runs", "2", "--shards", "4", "--hour", "20", "--tokens", "20000"),
        *("--senders", "2", "--json"),
    )
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["synthetic"] is True
    burst, hour, large, slow = report["burst"], report["hour"], report["large"], report["slow"]
    assert (burst["shards"], burst["not_taken"]) == (8, {})
    assert burst["p99_times_sink"] > 0 and burst["metrics_ms"] > 0
    assert math.isclose(burst["shards_per_second"], 4 * burst["updates_per_second"])
    assert hour["updates"] == 20 and hour["memory_slope_mb_per_1000_updates"] is not None
    assert large["tokens"] == 20_000 and large["times_sink"] > 0
    assert slow["not_taken"] == {}
    assert (report["full"]["status"], report["full"]["retry_after"], report["full"]["status_afterwards"]) == (
        503,
        "1",
        201,
    )
    assert (report["end"]["exit_code"], report["end"]["unanswered"]) == (0, 0)
    assert report["end"]["answered"] >= 1


def test_wrong_size_is_refused_before_anything_is_started(cli) -> None:
    assert cli("bench", "ingest", "--runs", "0").code == 2
