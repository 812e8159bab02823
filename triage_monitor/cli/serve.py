"""`triage-monitor serve`: runs the sidecar."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    @app.command(
        epilog="Example: triage-monitor serve --data-dir ./triage-data    (then point a trainer's Monitor at it)"
    )
    def serve(
        config: Annotated[Path | None, typer.Option(help="TOML file; deploy/triage-monitor.toml shows it all.")] = None,
        host: Annotated[str | None, typer.Option(help="Address to listen on [127.0.0.1].")] = None,
        port: Annotated[int | None, typer.Option(help="Port, 0 for a free one [8750].")] = None,
        flight_port: Annotated[
            int | None, typer.Option(help="Take raw updates by Arrow Flight at this port too, 0 for a free one [off].")
        ] = None,
        data_dir: Annotated[Path | None, typer.Option(help="Where everything is kept [./triage-data].")] = None,
        take_over: Annotated[
            bool, typer.Option("--take-over", help="Command trainers that obey another monitor, or a newer copy.")
        ] = False,
    ) -> None:
        """Run the sidecar. Prints its address once it answers, then that of Flight; ends on Ctrl-C or SIGTERM."""
        import os
        import time

        from triage_monitor.config import Settings

        given = {
            "server.host": host,
            "server.port": port,
            "server.flight_port": flight_port,
            "store.data_dir": None if data_dir is None else str(data_dir),
            "store.epoch_above": int(time.time()) if take_over else None,
        }
        overrides = {name: value for name, value in given.items() if value is not None}
        settings = Settings.load(config, os.environ, overrides)

        from triage_monitor.service.server import serve as serve_until_told

        serve_until_told(settings, lambda address: print(f"triage-monitor answers at {address}", flush=True))
