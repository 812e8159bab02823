"""A summary with its symptoms in one body, for senders that reduce at the edge.

    encoded summary | encoded symptoms | length of the symptoms, 4 bytes little-endian | TSYE

A body without this ending is a summary alone: it is judged like any other and only names fewer causes. What comes so
was reduced by somebody else, so `decode_report` also refuses numbers that no update can give (a negative count, a count
that would overflow when shards are merged): merged with others they would be believed.
"""

from __future__ import annotations

import struct

import numpy as np

from triage_monitor.errors import InputError
from triage_monitor.summary.codec import decode, encode
from triage_monitor.summary.objective import LARGEST, UNITS
from triage_monitor.summary.rows_values import checked_settings
from triage_monitor.summary.step import COUNT_NAMES, MIN_NAMES, StepSummary
from triage_monitor.summary.symptoms import Symptoms
from triage_monitor.summary.symptoms_codec import decode_symptoms, encode_symptoms

END = b"TSYE"
_TAIL = struct.Struct("<I4s")
LARGEST_COUNT = 1 << 48
LARGEST_SUM = 1 << 60  # fixed-point sums of squares, of the sampled responses alone


def encode_report(summary: StepSummary, symptoms: Symptoms) -> bytes:
    encoded = encode_symptoms(symptoms)
    return b"".join((encode(summary), encoded, _TAIL.pack(len(encoded), END)))


def decode_report(body: bytes) -> tuple[StepSummary, Symptoms | None]:
    """Symptoms are None for a summary alone. Raises InputError when either is not as it was encoded."""
    if not body.endswith(END):
        return _possible(decode(body)), None
    if len(body) < _TAIL.size:
        raise InputError("summary_damaged", f"{len(body)} bytes are no summary")
    length, _ = _TAIL.unpack(body[-_TAIL.size :])
    start = len(body) - _TAIL.size - length
    if start < 0:
        raise InputError("summary_damaged", f"claims {length} bytes of symptoms in a body of {len(body)}")
    symptoms = decode_symptoms(body[start : -_TAIL.size])
    _check_symptoms(symptoms)
    return _possible(decode(body[:start])), symptoms


def _possible(summary: StepSummary) -> StepSummary:
    wrong = [name for name, count in zip(COUNT_NAMES, summary.counters, strict=True) if not 0 <= count <= LARGEST_COUNT]
    wrong += [name for name, cells in summary.histograms.items() if cells.min() < 0 or cells.max() > LARGEST_COUNT]
    if wrong:
        raise InputError("summary_values", f"'{wrong[0]}' is negative or too large for a count", column=wrong[0])
    for name, low, high in zip(MIN_NAMES, summary.minima, summary.maxima, strict=False):
        known = np.isfinite(low) and np.isfinite(high) and low <= high
        if not known and (low, high) != (np.inf, -np.inf):
            raise InputError("summary_values", f"the extremes of '{name}' are {low} and {high}", column=name)
    for name, low, cells in zip(MIN_NAMES[:3], summary.minima, summary.histograms["gap"], strict=False):
        if np.isfinite(low) != bool(cells.any()):
            raise InputError("summary_values", f"'{name}' has extremes without tokens, or tokens without", column=name)
    tokens = summary.count("valid_tokens")
    if int(summary.histograms["gap"].sum()) != tokens:
        raise InputError("summary_values", f"holds {tokens} valid tokens and a histogram of others", column="gap")
    return summary


def _check_symptoms(symptoms: Symptoms) -> None:
    checked_settings({name: value for name, values in symptoms.settings.items() for value in values})
    too_large = [name for name, units in symptoms.objective.items() if units > LARGEST * UNITS]
    arrays = (symptoms.counts, symptoms.cells.counts, *symptoms.engines.values())
    if too_large or any(np.abs(array.astype(float)).max(initial=0.0) > LARGEST_SUM for array in arrays):
        column = too_large[0] if too_large else None
        raise InputError("summary_values", "the symptoms hold a sum that no update has", column=column)
