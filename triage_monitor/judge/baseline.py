"""What is normal for this run: the median of each indicator over its first healthy windows.

Learned from trailing windows, the same values that are judged later. Learning starts when a window holds
`first_updates` updates, gives a provisional answer after `min_windows` and is frozen after `windows`. A window is left
out when any indicator lies further than `excursion_mads` robust deviations from the median so far (one deviation is
1.4826 MAD, never below `excursion_floor_ratio` of the median), or when the caller says that it is not a healthy one.
Learning never takes longer than `span_windows` windows: a run that is unsettled from the start is frozen with what was
learned, and with nothing if that is fewer than `min_windows`; then only `reset` starts it again.

A baseline follows the run, not the hardware: an offset that was there from the start is normal (an FP8 gap 25 times
the bf16 one). What it cannot know is whether the start itself was healthy.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from triage_monitor.errors import ConfigError

MAD_TO_SIGMA = 1.4826
Row = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class BaselineSettings:
    first_updates: int = 25
    min_windows: int = 10
    windows: int = 50
    span_windows: int = 100
    excursion_mads: float = 6.0
    excursion_floor_ratio: float = 0.1

    def __post_init__(self) -> None:
        if not 1 <= self.min_windows <= self.windows <= self.span_windows:
            raise ConfigError("1 <= min_windows <= windows <= span_windows must hold")
        if self.first_updates < 1 or self.excursion_mads <= 0 or self.excursion_floor_ratio <= 0:
            raise ConfigError("first_updates, excursion_mads and excursion_floor_ratio must be positive")


@dataclass(frozen=True, slots=True)
class Level:
    """One indicator's normal: median and MAD (not scaled) of `windows` windows; medians of their first and last third.

    A late median well away from the early one says that the run had not settled while it was learned.
    """

    median: float
    mad: float
    windows: int
    early: float
    late: float


@dataclass(frozen=True, slots=True)
class Baseline:
    """Learned so far. `rows` holds the windows still counted on until the baseline is frozen, then only levels stay."""

    rows: tuple[tuple[int, Row], ...] = ()
    offered: int = 0
    excluded: int = 0
    frozen: bool = False
    levels: Mapping[str, Level] = field(default_factory=dict)

    def medians(self) -> dict[str, float]:
        return {name: level.median for name, level in self.levels.items()}

    @property
    def ready(self) -> bool:
        return bool(self.levels)

    def to_dict(self) -> dict[str, Any]:
        return {
            "rows": [[step, dict(row)] for step, row in self.rows],
            "offered": self.offered,
            "excluded": self.excluded,
            "frozen": self.frozen,
            "levels": {name: asdict(item) for name, item in self.levels.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Baseline:
        return cls(
            rows=tuple((step, row) for step, row in data["rows"]),
            offered=data["offered"],
            excluded=data["excluded"],
            frozen=data["frozen"],
            levels={name: Level(**numbers) for name, numbers in data["levels"].items()},
        )


def learn(
    settings: BaselineSettings, baseline: Baseline, *, step: int, updates: int, values: Row, healthy: bool
) -> Baseline:
    """The baseline after one more window of `updates` updates. `values`: the indicators to learn, None if absent."""
    if baseline.frozen or updates < settings.first_updates:
        return baseline
    keep = healthy and not _is_excursion(settings, baseline.levels, values)
    rows = (*baseline.rows, (step, values)) if keep else baseline.rows
    offered, excluded = baseline.offered + 1, baseline.excluded + (not keep)
    done = len(rows) >= settings.windows or offered >= settings.span_windows
    levels = _levels(rows, settings.min_windows)
    return Baseline(() if done else rows, offered, excluded, done, levels)


def forget_from(settings: BaselineSettings, baseline: Baseline, step: int) -> Baseline:
    """Drops what was learned at `step` or later: a new attempt replaces those updates. A frozen baseline stays."""
    if baseline.frozen:
        return baseline
    rows = tuple(item for item in baseline.rows if item[0] < step)
    return replace(baseline, rows=rows, levels=_levels(rows, settings.min_windows))


def _levels(rows: tuple[tuple[int, Row], ...], needed: int) -> dict[str, Level]:
    """Median and MAD of every indicator known in at least `needed` of the learned windows."""
    levels = {}
    for name in sorted({name for _, row in rows for name in row}):
        known = [value for _, row in rows if (value := row.get(name)) is not None]
        if len(known) >= needed:
            median = _median(known)
            mad = _median([min(abs(value - median), sys.float_info.max) for value in known])
            third = -(-len(known) // 3)
            early, late = _median(known[:third]), _median(known[-third:])
            levels[name] = Level(median, mad, len(known), early, late)
    return levels


def _median(values: Sequence[float]) -> float:
    """Halved before it is added: two saturated values would overflow."""
    return statistics.median_low(values) / 2 + statistics.median_high(values) / 2


def _is_excursion(settings: BaselineSettings, levels: Mapping[str, Level], values: Row) -> bool:
    for name, level in levels.items():
        value = values.get(name)
        spread = max(MAD_TO_SIGMA * level.mad, settings.excursion_floor_ratio * abs(level.median))
        if value is not None and spread > 0 and abs(value - level.median) > settings.excursion_mads * spread:
            return True
    return False
