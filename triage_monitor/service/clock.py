"""The clock, passed in: `wall` stamps records (Unix seconds), `monotonic` counts deadlines and never goes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
