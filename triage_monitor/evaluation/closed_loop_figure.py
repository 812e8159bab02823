"""The closed loop's picture: the reward under each arm in the main regime, and every regime's difference to `none`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from triage_monitor.errors import ConfigError
from triage_monitor.evaluation.closed_loop import LAST, REFERENCE, ArmScore, Floats, scores
from triage_monitor.testbed.closed_loop_run import LoopRun

# Okabe and Ito's colours; the marks differ as well
STYLES = {
    "none": ("#444444", "x", ":"),
    "tis": ("#E69F00", "s", "-."),
    "paper": ("#0072B2", "^", "--"),
    "adaptive": ("#D55E00", "o", "-"),
    "fallback": ("#009E73", "D", "-"),
}
MAIN = "fast"
TITLES = {
    "none": "nothing",
    "tis": "TIS from the start",
    "paper": "gate + repair from the start",
    "adaptive": "adaptive policy",
    "fallback": "bf16 from the pre-terminal alarm",
}


def draw(runs: Sequence[LoopRun], path: Path) -> None:
    """Writes a PNG. Raises ConfigError when matplotlib is not installed."""
    figure = _figure_class()(figsize=(11.0, 4.6), dpi=150, layout="constrained")
    curves, differences = figure.subplots(1, 2, width_ratios=(1.25, 1.0))
    _curves(curves, [run for run in runs if run.group == MAIN])
    _differences(differences, [row for row in scores(runs) if row.arm in STYLES and row.arm != REFERENCE])
    figure.savefig(path, format="png")


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("drawing needs matplotlib, which is not installed: pip install matplotlib") from None
    return Figure


def smoothed(rewards: Sequence[float]) -> Floats:
    """Trailing mean of 25 updates, of fewer at the start."""
    sums = np.concatenate([[0.0], np.cumsum(rewards)])
    ends = np.arange(1, len(sums))
    starts = np.maximum(0, ends - LAST)
    means: Floats = (sums[ends] - sums[starts]) / (ends - starts)
    return means


def _curves(axes: Any, runs: Sequence[LoopRun]) -> None:
    for arm, (color, _, dash) in STYLES.items():
        lines = [smoothed(run.rewards) for run in runs if run.arm == arm]
        if not lines:
            continue
        for line in lines:
            axes.plot(line, color=color, linestyle=dash, linewidth=0.6, alpha=0.35)
        axes.plot(np.mean(lines, axis=0), color=color, linestyle=dash, linewidth=2.2, label=TITLES[arm])
    starts = len({run.seed for run in runs})
    axes.set_title(f"Reward in the main regime, {starts} starts (thin) and their mean", loc="left", fontsize=10)
    axes.set_xlabel("update")
    axes.set_ylabel(f"mean reward of {LAST} updates")
    if axes.get_lines():
        axes.legend(frameon=False, fontsize=8, loc="lower left")
    _plain(axes)


def _differences(axes: Any, rows: Sequence[ArmScore]) -> None:
    groups = list(dict.fromkeys(row.group for row in rows))
    arms = [arm for arm in STYLES if arm != REFERENCE]
    for row in rows:
        estimate = row.to_none
        if estimate is None or estimate.value is None or estimate.low is None or estimate.high is None:
            continue
        color, mark, _ = STYLES[row.arm]
        y = -groups.index(row.group) - 0.17 * (arms.index(row.arm) - 1.5)
        axes.plot([estimate.low, estimate.high], [y, y], color=color, linewidth=1.6)
        axes.plot([estimate.value], [y], mark, color=color, markersize=5)
    axes.axvline(0.0, color="#444444", linewidth=0.8)
    axes.set_yticks([-index for index in range(len(groups))], groups)
    axes.set_title("Final reward less that of nothing, with 95% intervals", loc="left", fontsize=10)
    axes.set_xlabel("difference in reward")
    _plain(axes)


def _plain(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=8)
