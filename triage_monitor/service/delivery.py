"""One HTTP POST to somebody else's server, and how it ended; shared by webhooks and the push to Alertmanager.

The connection goes to an address that was looked at (webhook_address), no proxy and no redirect is followed, and the
whole try is bounded in time. Timeouts, connection trouble, 408, 425, 429 and 5xx `failed` and are worth another try
(Retry-After is heeded); any other answer, a redirect included, is `refused` for good, and so is a forbidden address.
Nothing here logs: addresses may hold secrets.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

import httpx

from triage_monitor.service.webhook_address import ForbiddenAddress, resolved

LONGEST_PAUSE = 300.0
DELIVERED, FAILED, REFUSED, FORBIDDEN, GAVE_UP = OUTCOMES = (
    "delivered",
    "failed",
    "refused",
    "forbidden_address",
    "gave_up",
)
_AGAIN = frozenset({408, 425, 429})


class Courier:
    """Made on the event loop that uses it; `close` it there."""

    def __init__(self, *, allow_private: bool, timeout_seconds: float) -> None:
        self._allow_private = allow_private
        self._timeout = timeout_seconds
        self._client = httpx.AsyncClient(
            verify=ssl.create_default_context(),
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def post(self, address: str, body: bytes, headers: Mapping[str, str]) -> tuple[str, float]:
        """One try: its outcome, and the pause in seconds that the receiver asked for."""
        url = httpx.URL(address)
        try:
            async with asyncio.timeout(self._timeout):
                port = url.port or (443 if url.scheme == "https" else 80)
                found = await resolved(url.host, port, allow_private=self._allow_private)
                host = url.netloc.decode("ascii")
                about = {"Host": host, "Content-Type": "application/json", "User-Agent": "triage-monitor"}
                request = self._client.build_request(
                    "POST",
                    url.copy_with(host=found),
                    content=body,
                    headers={**about, **headers},
                    extensions={"sni_hostname": url.host},
                )
                answer = await self._client.send(request, stream=True)
                await answer.aclose()
        except ForbiddenAddress:
            return FORBIDDEN, 0.0
        except (TimeoutError, httpx.HTTPError, OSError):
            return FAILED, 0.0
        if answer.is_success:
            return DELIVERED, 0.0
        if answer.status_code in _AGAIN or answer.is_server_error:
            text = answer.headers.get("retry-after", "")
            return FAILED, float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0
        return REFUSED, 0.0
