"""The CRC-32 of parts that were summed apart is that of the whole."""

from __future__ import annotations

import random
from zlib import crc32

import pytest

from triage_monitor.summary.checksum import content_start, joined_crc, stream_crc
from triage_monitor.summary.rows import encode_arrays


@pytest.mark.parametrize("size", [0, 1, 2, 3, 64, 65_537, 3_000_001])
def test_parts_summed_apart_join_to_the_sum_of_the_whole(size: int) -> None:
    rng = random.Random(size)
    head, content = rng.randbytes(rng.randrange(200)), rng.randbytes(size)
    assert joined_crc(crc32(head), crc32(content), size) == crc32(head + content)
    assert stream_crc(head, memoryview(content), crc32(content)) == crc32(head + content)
    assert stream_crc(head, memoryview(content)) == crc32(head + content)


def test_check_value_of_the_standard_comes_out_of_its_halves() -> None:
    """0xCBF43926 is the CRC-32 of "123456789" in every catalogue of CRCs."""
    assert joined_crc(crc32(b"1234"), crc32(b"56789"), 5) == 0xCBF43926


def test_content_begins_behind_the_first_message_and_nowhere_in_other_bytes() -> None:
    body = encode_arrays(gap=[[0.5, -0.25]], advantages=[1.0])
    start = content_start(memoryview(body))
    assert start is not None
    assert body[start : start + 4] == b"\xff\xff\xff\xff"  # the batch's own message
    assert b"checksum" in body[:start] and b"checksum" not in body[start:]
    for other in (b"", body[:7], b"TSUM" * 10, b"\xff\xff\xff\xff\x00\x00\x00\x00"):
        assert content_start(memoryview(other)) is None
