"""The parameter set: what the monitor may change in a running objective, with its bounds.

One JSON object (public contract, "Parameter set") travels from the policy through the store and HTTP into the
trainer's loss; this module is its only definition. Values are frozen; `with_changes` makes the next set.
Bounds are the widest that either side accepts; a trainer may narrow them, never widen.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeGuard

from triage_monitor.errors import InputError

QUADRANTS = ("a_neg",)
PRECISIONS = ("nvfp4", "fp8", "bf16")
CONTROLS = ("run", "pause", "stop")
ORIGIN = ("epoch", "issuer")  # served beside a set: the fence of the store that it comes from

# dotted name -> (lowest, highest) accepted value
BOUNDS: dict[str, tuple[float, float]] = {
    "lease_updates": (1, 100_000),
    "gate.w_min": (0.0, 1.0),
    "gate.mean_hi": (-100.0, 0.0),
    "gate.mean_lo": (-100.0, 0.0),
    "gate.tail_hi": (0.0, 1.0),
    "gate.tail_lo": (0.0, 1.0),
    "gate.tau_tail": (-100.0, 0.0),
    "gate.segment": (8, 512),
    "repair.lambda_rep": (0.0, 100.0),
    "repair.tau_rep": (-100.0, 0.0),
    "repair.beta": (1e-6, 100.0),
    "repair.k_rep": (0, 1_000_000_000),
    "tis.cap": (1.0, 1000.0),
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "gate.quadrant": QUADRANTS,
    "precision": PRECISIONS,
    "control": CONTROLS,
}


@dataclass(frozen=True, slots=True)
class GateParams:
    """Attenuation of A < 0, gap < 0 tokens inside risky segments (estimands section 9)."""

    enabled: bool = False
    quadrant: str = "a_neg"
    w_min: float = 0.5
    mean_hi: float = -0.02
    mean_lo: float = -0.2
    tail_hi: float = 0.25
    tail_lo: float = 0.02
    tau_tail: float = -0.25
    segment: int = 64


@dataclass(frozen=True, slots=True)
class RepairParams:
    """Bounded pull on segments of A > 0 responses whose mean gap is below tau_rep (estimands section 9)."""

    enabled: bool = False
    lambda_rep: float = 5.0
    tau_rep: float = -0.02
    beta: float = 0.5
    k_rep: int = 0


@dataclass(frozen=True, slots=True)
class TisParams:
    """Truncated importance sampling: weight min(exp(gap), cap)."""

    enabled: bool = False
    cap: float = 2.0


@dataclass(frozen=True, slots=True)
class TriageParams:
    """One version of everything the monitor may set in a trainer."""

    version: int = 0
    issued_at_step: int = 0
    lease_updates: int = 100
    gate: GateParams = field(default_factory=GateParams)
    repair: RepairParams = field(default_factory=RepairParams)
    tis: TisParams = field(default_factory=TisParams)
    precision: str = "nvfp4"
    control: str = "run"
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TriageParams:
        """Reads the JSON form. Unknown, mistyped or out-of-range fields raise InputError naming the field.

        `epoch` and `issuer` may stand beside them: who serves the set, and no part of it.
        """
        if isinstance(data, Mapping):
            data = {name: value for name, value in data.items() if name not in ORIGIN}
        params: TriageParams = _read(cls, data, prefix="")
        params.validate()
        return params

    def with_changes(self, changes: Mapping[str, Any]) -> TriageParams:
        """A set with the dotted names replaced (`{"gate.w_min": 0.4}`), validated."""
        data = self.to_dict()
        for name, value in changes.items():
            group, _, leaf = name.rpartition(".")
            home = data.get(group) if group else data
            if not isinstance(home, dict) or leaf not in home or isinstance(home[leaf], dict):
                raise InputError("unknown_parameter", f"there is no parameter '{name}'", column=name)
            home[leaf] = value
        return TriageParams.from_dict(data)

    def issued(self, *, version: int, step: int, reason: str) -> TriageParams:
        return replace(self, version=version, issued_at_step=step, reason=reason)

    def validate(self) -> None:
        """Raises InputError naming the first field outside BOUNDS or its choices."""
        flat = flatten(self)
        for name, (low, high) in BOUNDS.items():
            if not low <= flat[name] <= high:
                raise InputError("parameter_out_of_range", f"{flat[name]} is outside [{low}, {high}]", column=name)
        for name, choices in _CHOICES.items():
            if flat[name] not in choices:
                raise InputError("parameter_choice", f"{flat[name]!r} is not one of {list(choices)}", column=name)
        for name in ("version", "issued_at_step"):
            if flat[name] < 0:
                raise InputError("parameter_out_of_range", f"{flat[name]} is negative", column=name)
        if self.gate.mean_lo >= self.gate.mean_hi:
            raise InputError("parameter_order", "gate.mean_lo must be below gate.mean_hi", column="gate.mean_lo")
        if self.gate.tail_lo >= self.gate.tail_hi:
            raise InputError("parameter_order", "gate.tail_lo must be below gate.tail_hi", column="gate.tail_lo")


def flatten(params: TriageParams) -> dict[str, Any]:
    """Dotted name -> value, for bounds checks, diffs and tables."""
    flat: dict[str, Any] = {}
    for name, value in params.to_dict().items():
        if isinstance(value, dict):
            flat.update({f"{name}.{leaf}": item for leaf, item in value.items()})
        else:
            flat[name] = value
    return flat


def changed(before: TriageParams, after: TriageParams) -> dict[str, tuple[Any, Any]]:
    """Dotted names whose value differs, version and bookkeeping left out."""
    old, new = flatten(before), flatten(after)
    skip = {"version", "issued_at_step", "reason"}
    return {name: (old[name], new[name]) for name in old if name not in skip and old[name] != new[name]}


_GROUPS: dict[str, type] = {"gate": GateParams, "repair": RepairParams, "tis": TisParams}


def _read(kind: type, data: Mapping[str, Any], prefix: str) -> Any:
    if not isinstance(data, Mapping):
        raise InputError("parameter_type", "expected an object", column=prefix.rstrip(".") or None)
    known = {item.name: item for item in fields(kind)}
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name not in known:
            raise InputError("unknown_parameter", f"there is no parameter '{prefix}{name}'", column=f"{prefix}{name}")
        if name in _GROUPS and not prefix:
            values[name] = _read(_GROUPS[name], value, f"{name}.")
        else:
            values[name] = _scalar(str(known[name].type), value, f"{prefix}{name}")
    return kind(**values)


def _scalar(kind: str, value: Any, name: str) -> Any:
    if kind == "float" and is_finite_number(value):
        return float(value)
    if kind == "int" and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "str" and isinstance(value, str):
        return value
    raise InputError("parameter_type", f"{repr(value)[:100]} is not a finite {kind}", column=name)


def is_finite_number(value: object) -> TypeGuard[float]:
    """JSON and TOML hold whole numbers of any length: one that no float holds is not finite either."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
