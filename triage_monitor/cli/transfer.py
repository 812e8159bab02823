"""`triage-monitor export` and `import`: one run of a data directory as one file, and back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

DataDir = Annotated[Path, typer.Option(help="The sidecar's data directory.")]


def register(app: typer.Typer) -> None:
    @app.command(name="export", epilog="Example: triage-monitor export my-run my-run.triage --data-dir ./triage-data")
    def export(
        run: Annotated[str, typer.Argument(help="The run's name.", show_default=False)],
        file: Annotated[Path, typer.Argument(help="Where to write it.", show_default=False)],
        data_dir: DataDir = Path("triage-data"),
    ) -> None:
        """Write everything stored of a run into one checksummed file; the sidecar may go on meanwhile."""
        from triage_monitor.storage.transfer import export_run

        done = export_run(data_dir, run, file)
        print(f"{done.run}: {sum(done.rows.values())} rows, {done.rows.get('updates', 0)} updates, in {file}")
        if done.damaged:
            print(f"triage-monitor: {done.damaged} damaged rows were left out", file=sys.stderr)
            raise typer.Exit(1)

    @app.command(name="import", epilog="Example: triage-monitor import my-run.triage --data-dir ./triage-data")
    def import_(
        file: Annotated[Path, typer.Argument(help="What `export` wrote.", show_default=False)],
        data_dir: DataDir = Path("triage-data"),
    ) -> None:
        """Add an exported run to a data directory whose sidecar is stopped; refused when the run exists there."""
        from triage_monitor.storage.transfer import import_run

        done = import_run(data_dir, file)
        print(f"{done.run}: {sum(done.rows.values())} rows, {done.rows.get('updates', 0)} updates, in {data_dir}")
