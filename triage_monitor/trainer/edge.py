"""An update reduced on the training device: what `Monitor(mode="summary")` holds of tensors that live there.

    tensors -> edge_reduce (device) -> one vector -> Landing -> StepSummary and Symptoms (the client's thread) -> bytes

Beside the vector travel, to this host only, the few columns of one number a response and the sample that symptoms are
read off (edge_sample.py). Sent is the encoded report, tens of kB. Left out, as with every summary: worst responses for
the heat map; `raw_every` sends those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triage_monitor.errors import InputError
from triage_monitor.summary.kernel import CALL_COUNTS, FAMILY_COUNTS, RESPONSE_COLUMNS, VALID, ZERO_ADVANTAGE
from triage_monitor.summary.reduced import Reduced, summary_of
from triage_monitor.summary.report import encode_report
from triage_monitor.summary.rows_values import checked_padding, group_codes
from triage_monitor.summary.spec import SummarySpec
from triage_monitor.summary.step import StepSummary
from triage_monitor.summary.symptoms import Symptoms
from triage_monitor.summary.symptoms_rows import symptoms_of
from triage_monitor.trainer.arrays import Held, hold
from triage_monitor.trainer.edge_layout import FAULTS, lay_out
from triage_monitor.trainer.edge_reduce import reduce_tokens, sections
from triage_monitor.trainer.edge_sample import draw
from triage_monitor.trainer.landing import Landing, is_away

_TOLD = ("rewards", "grad_norm", "groups", "response_ids", "engines", "padding_rows")
_TEXTS = ("response_ids", "engines")
_SAMPLE = "sample."
_FAULTS = {
    "offsets": "must start at 0, never decrease and end at the number of tokens",
    "mask": "holds other values; only 0 and 1 are a mask",
    "missing": "holds other values than 0 and 1",
}


class HeldReduction:
    """One update on its way: reduced and sent off while the trainer waits, read in the client's thread.

    Raises InputError for arrays that do not fit together; what only the device knows, `read` says.
    """

    def __init__(self, arrays: Mapping[str, Any], spec: SummarySpec) -> None:
        tokens = lay_out(arrays, spec.segment)
        self._spec = spec
        self._has_logprobs, self._has_versions = tokens.learner is not None, tokens.version is not None
        self._responses = tokens.borders.responses
        vector = reduce_tokens(tokens, spec)
        self._drawn, sample = draw(tokens)
        told = {name: arrays[name] for name in _TOLD if arrays.get(name) is not None}
        away = {name: value for name, value in told.items() if is_away(value)}
        self._told: dict[str, Held] = {name: hold(value) for name, value in told.items() if name not in away}
        self._landing = Landing({"vector": vector, **{_SAMPLE + name: part for name, part in sample.items()}, **away})

    @property
    def nbytes(self) -> int:
        return self._landing.nbytes + sum(item.nbytes for item in self._told.values())

    def restore(self) -> HeldReduction:
        return self

    def report(self, settings: Mapping[str, str], objective: Mapping[str, float]) -> bytes:
        """The body to send. Waits for the device; raises InputError."""
        return encode_report(*self.read(settings, objective))

    def read(
        self, settings: Mapping[str, str] | None = None, objective: Mapping[str, float] | None = None
    ) -> tuple[StepSummary, Symptoms]:
        arrived = self._landing.arrays()
        parts = _split(arrived["vector"], sections(self._spec, self._responses))
        for name, found in zip(FAULTS, parts["faults"], strict=True):
            if found:
                raise InputError("mask_value" if name != "offsets" else "offsets", _FAULTS[name], column=name)
        told: dict[str, Any] = {name: item.restore() for name, item in self._told.items()}
        told |= {name: arrived[name] for name in _TOLD if name in arrived}
        for name in _TEXTS:
            if name in told and np.shape(told[name]) != (self._responses,):
                detail = f"has shape {np.shape(told[name])} for {self._responses} responses"
                raise InputError("length", detail, column=name)
        groups, norm = told.get("groups"), told.get("grad_norm")
        if groups is not None and len(groups) and isinstance(groups[0], str):
            groups = group_codes(groups)
        summary = summary_of(
            self._reduced(parts),
            self._spec,
            groups=groups,
            rewards=told.get("rewards"),
            grad_norms=norm if norm is None or np.ndim(norm) else np.full(self._responses, norm),
            padding_rows=checked_padding(told.get("padding_rows", 0)),
        )
        sample = {name.removeprefix(_SAMPLE): part for name, part in arrived.items() if name.startswith(_SAMPLE)}
        said = {"settings": settings or {}, "objective": objective or {}}
        return summary, symptoms_of(self._drawn.rows_of(sample, told, said))

    def _reduced(self, parts: Mapping[str, NDArray[np.float64]]) -> Reduced:
        counts = np.zeros(CALL_COUNTS, np.int64)
        counts[:7], counts[10:], counts[7:10] = parts["counts"][:7], parts["counts"][7:], parts["segments"][:3]
        families = np.zeros((3, FAMILY_COUNTS), np.int64)
        families[:, :3] = parts["segments"][3:].reshape(3, 3).T
        rows = parts["rows"]
        valid = rows[:, VALID]
        rows[:, ZERO_ADVANTAGE] = (valid > 0) & (rows[:, ZERO_ADVANTAGE] == valid)
        return Reduced(
            counts=counts,
            families=families,
            sums=parts["sums"],
            regions=parts["regions"],
            bounds=np.stack([parts["minima"], parts["maxima"][:3]]),
            rows=rows[:, :RESPONSE_COLUMNS],
            gap=parts["gap"].astype(np.int64),
            segment=parts["segment"].astype(np.int64),
            pair=parts["pair"].astype(np.int64),
            worst=rows[:, -6:-3].astype(np.int64),
            heavy=rows[:, -3:] > 0,
            logprobs=rows[:, RESPONSE_COLUMNS:-6] if self._has_logprobs else None,
            probabilities=parts["probabilities"] if self._has_logprobs else None,
            largest=float(parts["maxima"][3]) if self._has_logprobs else None,
            lags=parts["lags"] if self._has_versions else None,
        )


def _split(vector: NDArray[np.float64], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[np.float64]]:
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    parts = np.split(vector, np.cumsum(sizes)[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
