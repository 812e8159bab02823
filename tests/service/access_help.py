"""A token file and a server that asks for its tokens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service.live_server import LiveServer, serving

from triage_monitor.config import Settings
from triage_monitor.service.token_file import add_token
from triage_monitor.service.tokens import Scope
from triage_monitor.storage.base import Store

ONE_SCOPE = {"trainer-a": Scope.INGEST, "grafana-viewer": Scope.READ, "ops": Scope.CONTROL}


def make_tokens(path: Path) -> dict[str, str]:
    """A token of each scope alone, and `all` with every scope: name -> secret."""
    now = time.time()
    secrets = {name: add_token(path, name, [scope], now, None) for name, scope in ONE_SCOPE.items()}
    return {**secrets, "all": add_token(path, "all", list(Scope), now, None)}


@contextmanager
def guarded(directory: Path, kept: Store | None = None, **sections: Any) -> Iterator[tuple[LiveServer, dict[str, str]]]:
    """A live server whose own client carries the token `all`."""
    path = directory / "tokens.json"
    secrets = make_tokens(path)
    auth = {"tokens_file": str(path), **sections.pop("auth", {})}
    data = {"server": {"port": 0}, "judge": {"policy": {"mode": "adaptive"}}, "auth": auth, **sections}
    with serving(Settings.from_dict(data), kept) as live:
        live.http.headers["Authorization"] = f"Bearer {secrets['all']}"
        yield live, secrets


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
