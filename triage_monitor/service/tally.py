"""Counts of the process as a whole: what came in, what was refused and why, how long taking in took.

Reasons are slugs from a fixed vocabulary in code; should more than `MAX_REASONS` ever appear, the rest is `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

MAX_REASONS = 64
BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Tally:
    """Changed on the event loop only; read anywhere."""

    def __init__(self) -> None:
        self.updates = 0
        self.shards = 0
        self.body_bytes = 0
        self.rejected: Counter[str] = Counter()
        self.last_accepted_at: float | None = None
        self.last_rejected_at: float | None = None
        self.seconds_sum = 0.0
        self._bucket_counts = [0] * (len(BUCKETS_SECONDS) + 1)

    def accept(self, body_bytes: int, seconds: float, now: float) -> None:
        self.shards += 1
        self.body_bytes += body_bytes
        self.last_accepted_at = now
        self.seconds_sum += seconds
        self._bucket_counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1

    def reject(self, reason: str, now: float | None = None) -> None:
        known = reason in self.rejected or len(self.rejected) < MAX_REASONS
        self.rejected[reason if known else "other"] += 1
        if now is not None:
            self.last_rejected_at = max(now, self.last_rejected_at or now)

    def cumulative_buckets(self) -> list[tuple[str, float]]:
        """(upper bound, shards at most that slow), as Prometheus wants them."""
        bounds = [*(str(bound) for bound in BUCKETS_SECONDS), "+Inf"]
        totals: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip(bounds, self._bucket_counts, strict=True):
            total += count
            totals.append((bound, total))
        return totals
