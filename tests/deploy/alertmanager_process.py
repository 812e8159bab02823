"""Debian's Alertmanager alone on loopback, on a port of the caller's, telling nobody."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from deploy.monitoring import _is_ready, wait_for
from programs import program


@contextmanager
def alertmanager(folder: Path, port: int) -> Iterator[httpx.Client]:
    (folder / "alertmanager.yml").write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    command = [
        program("prometheus-alertmanager"), f"--config.file={folder}/alertmanager.yml",
        f"--storage.path={folder}/alerts", f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=", "--log.level=error",
    ]  # fmt: skip
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for("Alertmanager is ready", lambda: _is_ready(client))
        yield client
    finally:
        client.close()
        process.terminate()
        process.wait(30)


def alerts(client: httpx.Client) -> list[dict[str, Any]]:
    """Those it holds as firing."""
    found: list[dict[str, Any]] = client.get("/api/v2/alerts").raise_for_status().json()
    return found
