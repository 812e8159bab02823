"""What the trainer's objective did to an update: sums that add over micro-batches and shards, and ratios formed once.

    gate_mass_removed     sum abs(A) max(0, 1 - alpha) / sum abs(A), the share of the advantage mass that the gate took
                          from gated tokens (and gave to the rest of their responses)
    effective_rho_asym    rho_asym as the update felt it: sums of abs(A) alpha of the amplifying regions
    repair_fire_fraction  segments that repair pushed on, of those it looked at

They are told by the trainer (`submit(objective=stats)`), never measured here, and stand beside the raw indicators
under names of their own: no alarm reads them, or the gate would cure its own alarm. Kept as integers of 2**-20, so
that shards add to the same value in any order. A sum that is not a finite number of 0 or more is left out.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from triage_monitor.errors import InputError

UNITS = 1 << 20
LARGEST = 1e15
# ratio -> (numerator, denominator, what it is)
RATIOS: dict[str, tuple[str, str, str]] = {
    "gate_mass_removed": (
        "gate_mass_moved",
        "mass_total",
        "Share of the advantage mass that the gate took away",
    ),
    "gated_token_fraction": ("gated_tokens", "tokens", "Share of tokens whose update was gated"),
    "wbar_mean": ("wbar_sum", "responses", "Mean over responses of the mean gate weight"),
    "repair_fire_fraction": ("repair_fired_segments", "repair_segments", "Share of the segments that repair acts on"),
    "correction_weight_mean": ("correction_weight_sum", "tokens", "Mean importance correction of a token (TIS)"),
    "effective_rho_asym": ("effective_mass_a_neg", "effective_mass_a_pos", "rho_asym of the update after gating"),
}
SUMS: tuple[str, ...] = tuple(dict.fromkeys(name for top, bottom, _ in RATIOS.values() for name in (top, bottom)))


def added(parts: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The known sums of several calls; one that is not usable in any of them is left out of the whole."""
    told = list(parts)
    sums: dict[str, float] = {}
    for name in SUMS:
        values = [_usable(part.get(name)) for part in told]
        known = [value for value in values if value is not None]
        if known and len(known) == len(values):
            sums[name] = math.fsum(known)
    return sums


def _usable(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if 0 <= number <= LARGEST else None


def to_units(sums: Mapping[str, float]) -> dict[str, int]:
    return {name: round(value * UNITS) for name, value in sums.items()}


def merged_units(several: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Over shards that told any; the order makes no difference."""
    total: Counter[str] = Counter()
    for one in several:
        total.update(one)
    return dict(sorted(total.items()))


def ratios(units: Mapping[str, int]) -> dict[str, float | None]:
    """Each formed once from merged sums, None where nothing divides; empty when nothing was told."""
    found: dict[str, float | None] = {}
    for name, (top, bottom, _) in RATIOS.items():
        if top in units and bottom in units:
            found[name] = units[top] / units[bottom] if units[bottom] else None
    return found


def to_text(sums: Mapping[str, float]) -> str:
    return json.dumps(dict(sums), separators=(",", ":"))


def from_text(text: str) -> dict[str, float]:
    """Sums as they travel. Raises InputError for what is not an object of finite numbers of 0 or more."""
    try:
        told = json.loads(text) if len(text) <= 4096 else None
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise InputError("bad_objective", "must be a JSON object of the objective's sums", column="objective")
    for name in sorted(told.keys() & set(SUMS)):
        if isinstance(told[name], bool) or _usable(told[name]) is None:
            raise InputError("bad_objective", f"'{name}' must be a number from 0 to {LARGEST:g}", column="objective")
    return {name: float(told[name]) for name in SUMS if name in told}
