"""Where two runs part: for each indicator the first shared update from which on they differ by more than their noise.

Compared are values of single updates at steps that both runs have. `rho_asym` parts where its two 95% intervals do not
touch. Any other indicator parts where abs(b - a) exceeds BAND noises, one noise being sqrt(sa^2 + sb^2) with s = 1.4826
times the median of abs(x_k - x_k-1) over sqrt(2): what a run's neighbouring updates differ by, which a slow drift does
not inflate. It must hold for LASTING shared updates in a row, so that one odd update parts nothing. It says that two
runs differ, not why: two seeds differ too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from triage_monitor.cli.forensics_sides import Side
from triage_monitor.judge.baseline import MAD_TO_SIGMA

BAND = 4.0
LASTING = 3
INTERVALS = {"rho_asym": ("rho_asym_low", "rho_asym_high")}
NOT_COMPARED = {"rho_asym_low", "rho_asym_high", "log_rho_se"}  # they are the interval
VERSIONS = {"params.version", "params.issued_at_step", "params.reason"}


def compared(first: Side, second: Side) -> dict[str, Any]:
    shared = sorted(first.updates.keys() & second.updates.keys())
    names = list(dict.fromkeys(name for step in shared for name in first.updates[step]["indicators"]))
    return {
        "runs": [first.name, second.name] if first.name != second.name else [f"{first.name} (A)", f"{first.name} (B)"],
        "updates": [len(first.updates), len(second.updates)],
        "shared_updates": len(shared),
        "settings": settings_that_differ(first.settings, second.settings),
        "partings": [_parting(name, first, second, shared) for name in names if name not in NOT_COMPARED],
        "stages": [_stages(first), _stages(second)],
    }


def settings_that_differ(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Groups that one side has nothing of are left out: a recording holds no parameters and no thresholds."""
    both = {_group(name) for name in first} & {_group(name) for name in second} | {""}
    names = [name for name in dict.fromkeys((*first, *second)) if name not in VERSIONS and _group(name) in both]
    return [
        {"name": name, "values": [first.get(name), second.get(name)]}
        for name in names
        if first.get(name) != second.get(name)
    ]


def _group(name: str) -> str:
    return name.partition(".")[0] if "." in name else ""


def _parting(name: str, first: Side, second: Side, shared: Sequence[int]) -> dict[str, Any]:
    pairs = [(step, _value(first, step, name), _value(second, step, name)) for step in shared]
    known = [(step, a, b) for step, a, b in pairs if a is not None and b is not None]
    if name in INTERVALS:
        apart = [_intervals_apart(first.updates[step], second.updates[step], *INTERVALS[name]) for step, _, _ in known]
    else:
        noise = math.hypot(_noise([a for _, a, _ in known]), _noise([b for _, _, b in known]))
        apart = [abs(b - a) > BAND * noise for _, a, b in known]
    place = _first_lasting(apart)
    if place is None:
        return {"indicator": name, "step": None, "values": None, "compared_updates": len(known)}
    step, a, b = known[place]
    return {"indicator": name, "step": step, "values": [a, b], "compared_updates": len(known)}


def _value(side: Side, step: int, name: str) -> float | None:
    value: float | None = side.updates[step]["indicators"].get(name)
    return value


def _intervals_apart(first: Mapping[str, Any], second: Mapping[str, Any], low: str, high: str) -> bool:
    ends = [report["indicators"].get(name) for report in (first, second) for name in (low, high)]
    return None not in ends and (ends[1] < ends[2] or ends[3] < ends[0])


def _noise(values: Sequence[float]) -> float:
    steps = [abs(b - a) for a, b in pairwise(values)]
    return MAD_TO_SIGMA * statistics.median(steps) / math.sqrt(2) if steps else 0.0


def _first_lasting(apart: Sequence[bool]) -> int | None:
    places = range(len(apart) - LASTING + 1)
    return next((place for place in places if all(apart[place : place + LASTING])), None)


def _stages(side: Side) -> list[dict[str, Any]]:
    return [{"step": item["step"], "stage": item["to_stage"], "rule": item["rule"]} for item in side.transitions]
