"""Failed token attempts by address: whoever presents wrong tokens again and again is answered 429 for a while.

An address may fail `FREE` times; after that it earns one more try every `SECONDS` seconds, and what it sends meanwhile
with a wrong token is refused without a look at why. A right token always passes, from any address, at any time: it is
looked up first, so nobody is locked out by a neighbour behind the same address. The table is bounded; when it is full
the address that failed longest ago is forgotten.

Tokens are 256 random bits, so this does not stop guessing (there is none to stop) but the load and the log of it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

FREE = 100
SECONDS = 1.0
MAX_ADDRESSES = 4096


class Guesses:
    """Not thread-safe: the event loop calls it. Each address has a level of failures that drains with time."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def failed(self, address: str) -> int | None:
        """Notes a failure. None while it may still fail, else after how many seconds it may again."""
        now = self._monotonic()
        level, at = self._levels.pop(address, (0.0, now))
        level = max(0.0, level - max(0.0, now - at) / SECONDS)
        allowed = level < FREE
        self._levels[address] = (level + 1.0 if allowed else level, now)
        if len(self._levels) > MAX_ADDRESSES:
            self._levels.popitem(last=False)
        return None if allowed else max(1, math.ceil((level - FREE + 1.0) * SECONDS))
