"""Signed messages: HMAC-SHA256 over `timestamp:body`, as Grafana's contact points sign them, in hexadecimal.

    Triage-Timestamp: 1767225600
    Triage-Signature: 5f0c...      hmac(secret, b"1767225600:" + body)

The same form goes out with webhooks and comes in with hooks. A signature counts for five minutes around its timestamp;
within them a repeat changes nothing, because alerts and deliveries have idempotency keys.
"""

from __future__ import annotations

import hmac
import re
from hashlib import sha256

from triage_monitor.config_access import Secret

TIMESTAMP_HEADER = "Triage-Timestamp"
SIGNATURE_HEADER = "Triage-Signature"
TOLERANCE_SECONDS = 300.0
_TIMESTAMP = re.compile(r"[0-9]{1,12}")
_SIGNATURE = re.compile(r"[0-9a-f]{64}")


def sign(secret: Secret, timestamp: int, body: bytes) -> str:
    return hmac.new(secret.value, b"%d:" % timestamp + body, sha256).hexdigest()


def is_signed(secret: Secret, timestamp: str, signature: str, body: bytes, now: float) -> bool:
    """True when the signature is of this body under this secret and its timestamp is near `now` (Unix seconds)."""
    if _TIMESTAMP.fullmatch(timestamp) is None or _SIGNATURE.fullmatch(signature) is None:
        return False
    expected = hmac.new(secret.value, timestamp.encode() + b":" + body, sha256).hexdigest()
    return hmac.compare_digest(expected, signature) and abs(now - int(timestamp)) <= TOLERANCE_SECONDS
