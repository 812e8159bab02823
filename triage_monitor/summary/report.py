"""A summary with its symptoms in one body, for senders that reduce at the edge.

    encoded summary | encoded symptoms | length of the symptoms, 4 bytes little-endian | TSYE

A body without this ending is a summary alone: it is judged like any other and only names fewer causes.
"""

from __future__ import annotations

import struct

from triage_monitor.errors import InputError
from triage_monitor.summary.codec import decode, encode
from triage_monitor.summary.step import StepSummary
from triage_monitor.summary.symptoms import Symptoms
from triage_monitor.summary.symptoms_codec import decode_symptoms, encode_symptoms

END = b"TSYE"
_TAIL = struct.Struct("<I4s")


def encode_report(summary: StepSummary, symptoms: Symptoms) -> bytes:
    encoded = encode_symptoms(symptoms)
    return b"".join((encode(summary), encoded, _TAIL.pack(len(encoded), END)))


def decode_report(body: bytes) -> tuple[StepSummary, Symptoms | None]:
    """Symptoms are None for a summary alone. Raises InputError when either is not as it was encoded."""
    if not body.endswith(END):
        return decode(body), None
    if len(body) < _TAIL.size:
        raise InputError("summary_damaged", f"{len(body)} bytes are no summary")
    length, _ = _TAIL.unpack(body[-_TAIL.size :])
    start = len(body) - _TAIL.size - length
    if start < 0:
        raise InputError("summary_damaged", f"claims {length} bytes of symptoms in a body of {len(body)}")
    return decode(body[:start]), decode_symptoms(body[start : -_TAIL.size])
