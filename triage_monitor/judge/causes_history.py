"""Causes that only the course of a run shows: a missed sync, a drift without direction, an amplified tail.

A `Trace` is what an update leaves behind for this: a few numbers of its own and of the window it closed. The first
updates of a run are its own measure (their medians); nothing is compared to another run.

    stale_weights   up to three updates with three times the width of those before, back at once, on both sides
    engine_drift    width and mean doubled over the run without a jump, both sides, A < 0 and A > 0 alike
    amplifying      the deep negative tail at 1.5 times its start, rho_pressure at 1.4 times, net amplification above
                    0.03, the negative tail at least twice the positive one, for five updates in a row
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triage_monitor.judge.causes import Finding, Value

HEAD, RECENT, LASTING = 10, 10, 5
EXCURSION, BACK, STEADY, BEFORE = 3.0, 1.5, 1.8, 5
DRIFT, JUMP, EVEN = 2.0, 1.8, 2.0
TAIL_GROWTH, PRESSURE_GROWTH, MIN_BALANCE, LOPSIDED, TAIL_FLOOR = 1.5, 1.4, 0.03, 2.0, 0.1
NEUTRAL_PRESSURE, NEUTRAL_BALANCE = 1.25, 0.08


@dataclass(frozen=True, slots=True)
class Trace:
    """Of the update: mean abs(gap), `width` q0.95 - q0.05, `sides` -q0.05 / q0.95, staleness. Of its window: `tail`
    -q0.001, `far` q0.999, rho_pressure, amplification_balance. None where not defined."""

    step: int
    mean_abs: float | None
    width: float | None
    sides: float | None
    staleness: float | None
    tail: float | None
    far: float | None
    pressure: float | None
    balance: float | None
    flawed: bool = False


def trace_of(step: int, update: Mapping[str, Any], window: Mapping[str, Any], *, flawed: bool) -> Trace:
    """`flawed`: a fault was named in this update, which explains its size."""
    own, merged = update["indicators"], window["indicators"]
    low, high = (update["quantiles"]["all"][q] for q in ("0.05", "0.95"))
    deep, far = (window["quantiles"]["all"][q] for q in ("0.001", "0.999"))
    known = low is not None and high is not None
    return Trace(
        step,
        own.get("abs_delta_mean"),
        high - low if known else None,
        -low / high if known and high > 0 > low else None,
        own.get("staleness_mean"),
        None if deep is None else max(-deep, 0.0),
        None if far is None else max(far, 0.0),
        merged.get("rho_pressure"),
        merged.get("amplification_balance"),
        flawed,
    )


def course(traces: Sequence[Trace]) -> list[Finding]:
    """What the newest trace completes; traces are in order of steps."""
    traces = [trace for trace in traces if trace.width is not None and trace.mean_abs is not None]
    found = [excursion(traces), amplification(traces)]
    if found[1] is None:
        found.append(drift(traces))
    return [finding for finding in found if finding is not None]


def excursion(traces: Sequence[Trace]) -> Finding | None:
    """Named at the update after it, when it is over."""
    for length in (1, 2, 3):
        before, during = traces[: -1 - length][-RECENT:], traces[-1 - length : -1]
        if len(before) < BEFORE or len(during) < length or any(trace.flawed for trace in (*during, *before[-3:])):
            continue
        ratios = [_excess(trace, before) for trace in (*during, traces[-1])]
        if None in ratios or not _steady(before):
            continue
        known = [ratio for ratio in ratios if ratio is not None]
        sides = [trace.sides for trace in during]
        both = all(side is not None and 0.25 <= side <= 4.0 for side in sides)
        if min(known[:-1]) < EXCURSION or known[-1] > BACK or not both:
            continue
        lagged = [trace.staleness or 0.0 for trace in (*before, *during)]
        proved = min(lagged[-length:]) > 1.5 * max(lagged[:-length]) and max(lagged) > 0
        evidence: dict[str, Value] = {
            "pattern": "excursion",
            "first_step": during[0].step,
            "updates_off": length,
            "width_ratio": _short(max(known[:-1])),
            "back_at": _short(known[-1]),
        }
        if max(lagged) > 0:
            evidence["staleness"] = _short(max(lagged[-length:]))
        text = f"the gap was {max(known[:-1]):.2g} times as wide for {length} update{'s' * (length > 1)} from step "
        text += f"{during[0].step} and is back: the sampler missed a weight sync, or one batch was unlike all others"
        return Finding("stale_weights", text, "high" if proved else "medium", evidence)
    return None


def _excess(trace: Trace, before: Sequence[Trace]) -> float | None:
    """The smaller of the growths of width and mean; None without a measure."""
    growths: list[float] = []
    for name in ("width", "mean_abs"):
        usual = statistics.median(getattr(item, name) for item in before)
        if usual <= 0:
            return None
        growths.append(getattr(trace, name) / usual)
    return min(growths)


def _steady(before: Sequence[Trace]) -> bool:
    """No number is known to be None here: `course` left such traces out."""
    widths = [trace.width or 0.0 for trace in before]
    return min(widths) > 0 and max(widths) <= STEADY * statistics.median(widths)


def drift(traces: Sequence[Trace]) -> Finding | None:
    if len(traces) < HEAD + 2 * RECENT or any(trace.flawed for trace in traces[-RECENT:]):
        return None
    first, last = traces[:HEAD], traces[-RECENT:]
    growth = _excess_of(last, first)
    even = [side for trace in last if (side := trace.sides) is not None]
    if growth is None or growth < DRIFT or len(even) < RECENT or _jumps(traces):
        return None
    sides = statistics.median(even)
    deep, far = _middle(last, "tail"), _middle(last, "far")
    pressure, start = _middle(last, "pressure"), _middle(first, "pressure")
    balance, balance_start = _middle(last, "balance"), _middle(first, "balance")
    if None in (deep, far, pressure, start, balance, balance_start):
        return None
    assert deep is not None and far is not None and pressure is not None and start is not None
    assert balance is not None and balance_start is not None
    level = 1 / EVEN <= sides <= EVEN and far > 0 and 1 / EVEN <= deep / far <= EVEN
    neutral = 1 / NEUTRAL_PRESSURE <= pressure / max(start, 1e-9) <= NEUTRAL_PRESSURE
    neutral &= abs(balance) <= NEUTRAL_BALANCE and abs(balance - balance_start) <= NEUTRAL_BALANCE
    if not (level and neutral):
        return None
    evidence: dict[str, Value] = {
        "growth": _short(growth),
        "sides": _short(sides),
        "rho_pressure": _short(pressure),
        "amplification_balance": _short(balance),
    }
    text = f"the gap has grown to {growth:.2g} times its start on both sides, with no direction in it"
    return Finding("engine_drift", text, "medium", evidence)


def _excess_of(last: Sequence[Trace], first: Sequence[Trace]) -> float | None:
    growths = [value for trace in last if (value := _excess(trace, first)) is not None]
    return statistics.median(growths) if len(growths) == len(last) else None


def _jumps(traces: Sequence[Trace]) -> bool:
    """True when some update stands well above the five before it and the level stays there."""
    widths = [trace.width or 0.0 for trace in traces]
    for place in range(BEFORE, len(widths) - BEFORE + 1):
        before, after = (
            statistics.median(widths[place - BEFORE : place]),
            statistics.median(widths[place : place + BEFORE]),
        )
        if before > 0 and after > JUMP * before:
            return True
    return False


def amplification(traces: Sequence[Trace]) -> Finding | None:
    if len(traces) < 2 * HEAD + LASTING or any(trace.flawed for trace in traces[-LASTING:]):
        return None
    first = traces[HEAD - 1 : 2 * HEAD]  # windows that hold the first HEAD updates and more
    tail, pressure = _middle(first, "tail"), _middle(first, "pressure")
    if tail is None or pressure is None or pressure <= 0:
        return None
    tail = max(tail, TAIL_FLOOR)
    for trace in traces[-LASTING:]:
        if trace.tail is None or trace.far is None or trace.pressure is None or trace.balance is None:
            return None
        grown = trace.tail >= TAIL_GROWTH * tail and trace.pressure >= PRESSURE_GROWTH * pressure
        if not (grown and trace.balance >= MIN_BALANCE and trace.tail >= LOPSIDED * trace.far and trace.pressure > 1):
            return None
    now = traces[-1]
    assert now.tail is not None and now.pressure is not None and now.balance is not None
    evidence: dict[str, Value] = {
        "tail_growth": _short(now.tail / tail),
        "q0.001": _short(-now.tail),
        "rho_pressure": _short(now.pressure),
        "rho_pressure_start": _short(pressure),
        "amplification_balance": _short(now.balance),
    }
    text = f"the deep negative tail has grown to {now.tail / tail:.2g} times its start and rho_pressure from "
    text += f"{pressure:.2g} to {now.pressure:.2g}: the error grows where the update pushes"
    sure = now.tail >= 2 * TAIL_GROWTH * tail and now.pressure >= 1.5 * PRESSURE_GROWTH * pressure
    return Finding("amplifying_quantisation", text, "high" if sure else "medium", evidence)


def _middle(traces: Sequence[Trace], name: str) -> float | None:
    known = [value for trace in traces if (value := getattr(trace, name)) is not None]
    return statistics.median(known) if 2 * len(known) > len(traces) else None


def _short(number: float) -> float:
    return float(f"{number:.6g}")
