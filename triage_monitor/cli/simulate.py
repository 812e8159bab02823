"""`triage-monitor simulate`: writes a synthetic, paper-like run as a recording for `analyze`, `replay` and dashboards.

One Parquet row a response in the contract's form. The run is named `synthetic-paper-..`, and every file's schema
metadata say `synthetic` with a sentence on what it is, so that no figure made of it passes for a measurement.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from triage_monitor.evaluation.simulated import SimulatedRun

EXAMPLE = "Example: triage-monitor simulate --model 4B --out paper-4b && triage-monitor analyze paper-4b"
UPDATES_PER_PART = 25
WHAT = "synthetic: generated to show the published windows of a paper; not measured on any model"


def register(app: typer.Typer) -> None:
    app.command(epilog=EXAMPLE)(simulate)


def simulate(
    model: Annotated[str, typer.Option(help="Whose published windows: 4B or 30B.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Directory of the recording; must be new or empty.", show_default=False)],
    seed: Annotated[int, typer.Option(min=0, help="Another seed, another run.")] = 0,
    updates: Annotated[int, typer.Option(help="Length of the run; at least 100.")] = 300,
    responses: Annotated[int, typer.Option(help="Responses an update, in groups of 8; 128 for all values.")] = 128,
    tokens: Annotated[int, typer.Option(help="Mean length of a response; at least 128.")] = 512,
    rewards: Annotated[bool, typer.Option("--rewards", help="Write rewards as well.")] = False,
) -> None:
    """Write a synthetic run calibrated to the paper's published windows (about 110 MB at the default size)."""
    from rich.console import Console

    from triage_monitor.errors import InputError
    from triage_monitor.evaluation.simulated import SimulatedRun

    run = SimulatedRun(model, seed, updates, responses, tokens, rewards)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(
            "not_empty", "is there already; a synthetic run goes into a directory of its own", path=str(out)
        )
    with Console(stderr=True).status("simulating"):
        _record(run, out)
    windows = ", ".join(f"{name} {span.start}-{span.stop - 1}" for name, span in run.windows().items())
    print(f"{run.name}: {run.updates} synthetic updates in {out}")
    print(f"windows: {windows}")


def _record(run: SimulatedRun, out: Path) -> None:
    from triage_monitor.evaluation.simulated import simulated_updates
    from triage_monitor.storage.recordings import RecordingWriter
    from triage_monitor.summary.rows import rows_from_arrays, table_from_rows

    metadata = {"synthetic": WHAT, "settings": json.dumps(asdict(run))}
    with RecordingWriter(out, run=run.name, updates_per_part=UPDATES_PER_PART) as writer:
        for step, arrays in enumerate(simulated_updates(run)):
            table = table_from_rows(rows_from_arrays(**arrays))
            writer.append(step, 1, table.replace_schema_metadata({**(table.schema.metadata or {}), **metadata}))
