"""A bare uvicorn that reads what it is sent and answers: what taking the same bytes in costs by itself.

Run as a process of its own (`python -m triage_monitor.cli.bench_sink`); it prints its address and serves until killed.
"""

from __future__ import annotations

import socket
from typing import Any


async def sink(_: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


def main() -> None:
    import uvicorn

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        config = uvicorn.Config(sink, log_level="error", lifespan="off", access_log=False)
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
