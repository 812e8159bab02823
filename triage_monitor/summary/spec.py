"""What a summary was made under: segment length and thresholds, with a fingerprint of all of them.

Two summaries merge only under equal fingerprints: nothing is ever re-binned. Defaults are those of the estimands;
`tau_ana` and `phi` are model-specific (on some models a quarter of healthy tokens exceed 0.05), so calibrate them.
Thresholds are compared in the gap's own type: a float32 gap written as 0.7 reaches a threshold of 0.7.
The fingerprint also covers the sketch's grid, which is a constant of this version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from hashlib import sha256
from typing import Any

from triage_monitor.errors import ConfigError
from triage_monitor.parameters import is_finite_number

SKETCH_VERSION = 1
MIN_SEGMENT, MAX_SEGMENT = 8, 512
MAX_DEEP_TAIL = -0.5


@dataclass(frozen=True)
class SummarySpec:
    """Segment length in tokens; thresholds in nats, `phi` a share of a segment's valid tokens."""

    segment: int = 64
    tau_ana: float = 0.05
    phi: float = 0.125
    near_zero: float = 0.05
    deep_tail: float = -1.0

    def __post_init__(self) -> None:
        if not isinstance(self.segment, int) or not MIN_SEGMENT <= self.segment <= MAX_SEGMENT:
            raise ConfigError(f"segment must be a whole number in [{MIN_SEGMENT}, {MAX_SEGMENT}], not {self.segment!r}")
        for name, low, high in (
            ("tau_ana", 0.0, 1e3),
            ("phi", 0.0, 1.0),
            ("near_zero", 0.0, 1e3),
            ("deep_tail", -1e3, MAX_DEEP_TAIL),
        ):
            value = getattr(self, name)
            if not (is_finite_number(value) and low <= value <= high):
                raise ConfigError(f"{name} must be in [{low}, {high}], not {value!r}")
            object.__setattr__(self, name, float(value))
        if self.tau_ana == 0.0 or self.phi == 0.0:
            raise ConfigError("tau_ana and phi must be above 0")

    @property
    def minimum_valid(self) -> int:
        """Fewest valid tokens of an eligible segment: W/4, rounded up."""
        return -(-self.segment // 4)

    @cached_property
    def fingerprint(self) -> str:
        return sha256(f"{SKETCH_VERSION}:{self.to_json()}".encode()).hexdigest()[:16]

    @cached_property
    def _json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    def to_json(self) -> str:
        return self._json

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> SummarySpec:
        unknown = set(data) - {item.name for item in fields(cls)}
        if unknown:
            raise ConfigError(f"unknown summary setting '{sorted(unknown)[0]}'")
        return cls(**data)


DEFAULT_SPEC = SummarySpec()
