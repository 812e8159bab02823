"""How a run's parameters may move: the mode, the set it starts from, the remedies, and the pace of changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from triage_monitor.errors import ConfigError, InputError
from triage_monitor.judge.actions import combines_tis_with_triage
from triage_monitor.judge.harm import HarmSettings
from triage_monitor.judge.remedies import REMEDIES, Remedy
from triage_monitor.parameters import TriageParams, flatten

_BOOKKEEPING = ("version", "issued_at_step", "reason")
_PAPER = {"gate.enabled": True, "repair.enabled": True}


class Mode(StrEnum):
    OBSERVE = "observe"
    PAPER = "paper"
    ADAPTIVE = "adaptive"


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """`base` is the parameter set (JSON form, missing fields at their defaults) that a run starts from.

    `dry_run`: what the policy would change is recorded and nothing is pushed. It goes on as if each change had been
    made, so what follows the first one of an episode is indicative only.
    """

    mode: Mode = Mode.OBSERVE
    base: Mapping[str, Any] = field(default_factory=dict)
    remedies: tuple[Remedy, ...] = REMEDIES
    harm: HarmSettings = field(default_factory=HarmSettings)
    min_dwell_updates: int = 15
    calm_updates: int = 200
    watch_updates: int = 60
    max_changes: int = 6
    allow_tis_with_triage: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        if min(self.min_dwell_updates, self.calm_updates, self.max_changes) < 1:
            raise ConfigError("min_dwell_updates, calm_updates and max_changes must be at least 1")
        if self.watch_updates < self.harm.trial_updates:
            raise ConfigError("watch_updates must not be below harm.trial_updates")
        names = [item.name for item in self.remedies]
        if len(names) != len(set(names)):
            raise ConfigError("remedies need different names")
        taken = [name for item in self.remedies for name in item.changes if name in _BOOKKEEPING]
        if taken:
            raise ConfigError(f"remedies cannot set {taken[0]}: the store does")
        try:
            sets = [self.initial(), *(self.under(self.base_params(), item) for item in self.remedies)]
        except InputError as error:
            raise ConfigError(f"parameter {error}") from None
        if (
            self.mode is not Mode.OBSERVE
            and not self.allow_tis_with_triage
            and any(map(combines_tis_with_triage, sets))
        ):
            raise ConfigError("TIS with gate and repair is known to collapse runs; allow_tis_with_triage asks for it")

    def base_params(self) -> TriageParams:
        return TriageParams.from_dict(self.base)

    def initial(self) -> TriageParams:
        """The set a new run begins with."""
        base = self.base_params()
        return base.with_changes(_PAPER) if self.mode is Mode.PAPER else base

    def under(self, params: TriageParams, remedy: Remedy | None) -> TriageParams:
        """`params` with all that remedies govern at the base, and `remedy` laid over it. The rest is left as it is."""
        governed = {name for item in self.remedies for name in item.changes}
        base = flatten(self.base_params())
        changes = {name: base[name] for name in governed if name in base}
        return params.with_changes(changes | dict(remedy.changes if remedy else {}))

    def named(self, name: str) -> Remedy | None:
        return next((item for item in self.remedies if item.name == name), None)
