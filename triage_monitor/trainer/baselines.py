"""The arms a run is compared under, by name, all behind TriageLoss.

A name fixes which parts of the parameter set are enabled and which fixed correction stands beside them; every value
keeps its default unless overridden. A monitor that later sets `loss.params` decides about gate, repair and TIS again;
a fixed correction stays. TIS with gate and repair ("triage+tis") collapsed small runs that TIS alone held: it exists
for study and is never a default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from triage_monitor.errors import ConfigError
from triage_monitor.parameters import TriageParams
from triage_monitor.trainer.corrections import Correction, GeometricMask, IcePop, OffPolicyMask
from triage_monitor.trainer.loss import TriageLoss

CorrectionKind = Callable[..., Correction]


@dataclass(frozen=True, slots=True)
class Objective:
    gate: bool = False
    repair: bool = False
    tis: bool = False
    correction: CorrectionKind | None = None
    settings: tuple[str, ...] = ()  # the correction's own


OBJECTIVES: dict[str, Objective] = {
    "none": Objective(),
    "tis": Objective(tis=True),
    "icepop": Objective(correction=IcePop, settings=("low", "high", "weighted")),
    "mask": Objective(correction=lambda **bounds: IcePop(**bounds, weighted=False), settings=("low", "high")),
    "geometric_mask": Objective(correction=GeometricMask, settings=("low", "high")),
    "off_policy_mask": Objective(correction=OffPolicyMask, settings=("mean_gap_low",)),
    "gate": Objective(gate=True),
    "repair": Objective(repair=True),
    "triage": Objective(gate=True, repair=True),
    "gate+tis": Objective(gate=True, tis=True),
    "triage+tis": Objective(gate=True, repair=True, tis=True),
}
_LOSS_SETTINGS = ("aggregation", "divisor", "device")


def objective(name: str, *, params: TriageParams | None = None, **overrides: Any) -> TriageLoss:
    """The named loss. `params` gives the values (not which parts are on; the name does).

    Overrides: parameters by dotted name (`**{"tis.cap": 3.0}`), a correction's own settings (`low=0.9`), and
    TriageLoss's aggregation, divisor, device. Raises ConfigError on an unknown name or override, InputError on a bad
    value of a parameter.
    """
    if name not in OBJECTIVES:
        raise ConfigError(f"no objective '{name}'; there are {', '.join(OBJECTIVES)}")
    recipe = OBJECTIVES[name]
    changes = {key: value for key, value in overrides.items() if "." in key}
    settings = {key: value for key, value in overrides.items() if key in recipe.settings}
    loss_settings = {key: value for key, value in overrides.items() if key in _LOSS_SETTINGS}
    unknown = overrides.keys() - changes.keys() - settings.keys() - loss_settings.keys()
    if unknown:
        known = (*recipe.settings, *_LOSS_SETTINGS)
        raise ConfigError(f"objective '{name}' takes {', '.join(known)} and dotted parameters, not {sorted(unknown)}")
    enabled = {"gate.enabled": recipe.gate, "repair.enabled": recipe.repair, "tis.enabled": recipe.tis}
    return TriageLoss(
        (params or TriageParams()).with_changes(changes | enabled),
        correction=recipe.correction(**settings) if recipe.correction else None,
        **loss_settings,
    )
