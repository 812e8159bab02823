"""What an HTTP answer means to a sender that must neither lose an update nor send one for ever.

`OK`, `AGAIN` (connection trouble, timeouts, 408, 429, 5xx, a 2xx that is not the monitor's JSON, a redirect) or
`NEVER` (any other 4xx). The reason for the counters is the slug of the problem document where there is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import Enum
from time import time
from typing import Any

_LONGEST_RETRY_AFTER = 300.0
_SLUG = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class Verdict(Enum):
    OK = "ok"
    AGAIN = "again"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Answer:
    verdict: Verdict
    reason: str = ""
    detail: str = ""
    status: int = 0
    body: Mapping[str, Any] = field(default_factory=dict)
    retry_after: float = 0.0

    @property
    def is_server_error(self) -> bool:
        """5xx that may be this request's fault; 502 to 504 and 507 speak of the server's state."""
        return self.status >= 500 and self.status not in (502, 503, 504, 507)


def read_answer(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    document = _json_object(body)
    if 200 <= status < 300 or status == 304:
        if document is None and (body or status not in (204, 304)):
            return Answer(Verdict.AGAIN, "garbage", f"HTTP {status} whose body is not a JSON object", status)
        return Answer(Verdict.OK, status=status, body=document or {})
    reason = _reason(status, document or {})
    detail = f"HTTP {status} {reason}" + _sentence(document or {})
    if status in (408, 429) or not 400 <= status < 500:
        retry_after = _seconds(headers.get("retry-after", ""))
        return Answer(Verdict.AGAIN, reason, detail, status, retry_after=retry_after)
    return Answer(Verdict.NEVER, reason, detail, status)


def confirmed(answer: Answer, step: int, shard: int) -> Answer:
    """`answer` if it is the monitor's word that it has this shard. Any 2xx of a proxy between would pass for one
    otherwise, and the update would count as delivered."""
    body = answer.body
    if answer.verdict is not Verdict.OK or (body.get("step"), body.get("shard")) == (step, shard):
        return answer
    return Answer(Verdict.AGAIN, "garbage", f"HTTP {answer.status} that does not name this shard", answer.status)


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _reason(status: int, problem: Mapping[str, Any]) -> str:
    for value in (problem.get("reason"), re.split("[/:]", str(problem.get("type", "")))[-1]):
        if isinstance(value, str) and _SLUG.fullmatch(value):
            return value
    return f"http_{status}"


def _sentence(problem: Mapping[str, Any]) -> str:
    detail = problem.get("detail")
    return f": {detail[:300]}" if isinstance(detail, str) else ""


def _seconds(retry_after: str) -> float:
    """Retry-After in either of its forms, as seconds from now within [0, 300]; 0 when it cannot be read."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return min(max(seconds, 0.0), _LONGEST_RETRY_AFTER) if seconds == seconds else 0.0
