"""The CRC-32 of a stream whose parts were summed apart.

The checksum of our streams covers a head, in which the checksum's own digits count as not filled in, and the content
behind it. A CRC is a remainder of polynomials over GF(2), so the one of two parts in a row is the first one's times x
to the power of the second part's bits, plus the second one's: a large content can be summed while it comes in.
"""

from __future__ import annotations

import struct
from zlib import crc32

_POLYNOMIAL = 0xEDB88320  # of CRC-32, lowest power in the highest bit
_ONE = 1 << 31
_X = 1 << 30


def content_start(body: memoryview) -> int | None:
    """Where the first message of an Arrow stream ends, its schema; None when that cannot be told yet or at all."""
    if len(body) < 8:
        return None
    marker, size = struct.unpack_from("<Ii", body)
    return 8 + size if marker == 0xFFFFFFFF and size > 0 else None


def stream_crc(head: bytes, content: memoryview, content_crc: int | None = None) -> int:
    """CRC-32 of both in a row; `content_crc` is the content's own, where it is known."""
    if content_crc is None:
        return crc32(content, crc32(head))
    return joined_crc(crc32(head), content_crc, len(content))


def joined_crc(first: int, second: int, second_bytes: int) -> int:
    """CRC-32 of two parts in a row, from theirs."""
    return _product(first, _power_of_x(8 * second_bytes)) ^ second


def _power_of_x(exponent: int) -> int:
    power, square = _ONE, _X
    while exponent:
        if exponent & 1:
            power = _product(power, square)
        square = _product(square, square)
        exponent >>= 1
    return power


def _product(a: int, b: int) -> int:
    """Of two remainders."""
    total = 0
    for place in range(31, -1, -1):
        if a >> place & 1:
            total ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return total
