"""A summary and its symptoms in one body."""

import fault_kinds
import numpy as np
import pytest

from triage_monitor.errors import InputError
from triage_monitor.summary.codec import encode
from triage_monitor.summary.report import decode_report, encode_report
from triage_monitor.summary.symptoms_rows import symptoms_of

ROWS = fault_kinds.shifted(np.random.default_rng(4)).rows()
SUMMARY, SYMPTOMS = ROWS.summarize(), symptoms_of(ROWS)
BODY = encode_report(SUMMARY, SYMPTOMS)


def test_both_come_back_as_they_were() -> None:
    assert decode_report(BODY) == (SUMMARY, SYMPTOMS)


def test_summary_alone_is_one_without_symptoms() -> None:
    assert decode_report(encode(SUMMARY)) == (SUMMARY, None)


def test_truncation_anywhere_is_refused() -> None:
    for length in (*range(0, len(BODY), 97), len(BODY) - 1, len(BODY) - 5):
        with pytest.raises(InputError):
            decode_report(BODY[:length])


def test_flipped_bytes_are_refused() -> None:
    for place in range(0, len(BODY), 61):
        damaged = bytearray(BODY)
        damaged[place] ^= 0x40
        try:
            found = decode_report(bytes(damaged))
        except InputError:
            continue
        assert found == (SUMMARY, SYMPTOMS), place  # padding that says nothing


@pytest.mark.parametrize("body", [b"TSYE", b"\0TSYE", b"\xff\xff\xff\xffTSYE", b"\0\0\0\0TSYE"])
def test_nothing_but_an_ending_is_refused(body: bytes) -> None:
    with pytest.raises(InputError):
        decode_report(body)
