"""What a position of a response is: not a token, a token with a value, a token whose value the engine did not give."""

from __future__ import annotations

MASKED, PRESENT, MISSING = 0, 1, 2
