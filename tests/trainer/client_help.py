"""Shared by the client's tests: updates to send, waiting without guessing, and scripts in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np

from triage_monitor import Monitor

FAST: dict[str, Any] = {"connect_timeout": 1.0, "timeout": 1.0, "call_timeout": 2.0, "poll_seconds": 5.0}


def an_update(seed: int, tokens: int = 600, responses: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "gap": rng.normal(0.0, 0.1, tokens).astype(np.float32),
        "advantages": rng.normal(0.0, 1.0, responses),
        "offsets": np.linspace(0, tokens, responses + 1).astype(np.int64),
    }


def eventually(condition: Callable[[], bool], seconds: float = 90.0) -> bool:
    """For what no event announces: the client's own counters."""
    end = monotonic() + seconds
    while monotonic() < end:
        if condition():
            return True
        sleep(0.005)
    return condition()


def balance(monitor: Monitor) -> int:
    """Accepted updates not accounted for; 0 unless something was lost without being counted."""
    stats = monitor.stats
    door = stats["submitted"] - stats["accepted"]
    gone = sum(count for reason, count in stats["dropped"].items() if reason != "acknowledgement") - door
    return int(stats["accepted"] - stats["acknowledged"] - gone - stats["queue_depth"])


def start_script(source: str, *arguments: str) -> subprocess.Popen[str]:
    """`source` as a program of its own, warnings as errors."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", source, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
    )


def run_script(source: str, *arguments: str, seconds: float = 60.0) -> str:
    """What the script printed; its errors fail the test."""
    process = start_script(source, *arguments)
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, err
    return out
