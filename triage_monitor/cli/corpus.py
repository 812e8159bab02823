"""`triage-monitor corpus`: trains the benchmark's runs and writes their indicator series (`make corpus`).

Resumable: what is made stays made, so it may be stopped at any time. About a hundred CPU seconds a run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    @app.command(epilog="Example: triage-monitor corpus --workers 2")
    def corpus(
        directory: Annotated[Path, typer.Option(help="Where the recordings are kept.")] = Path(".corpus"),
        workers: Annotated[int, typer.Option(min=1, help="Runs trained at the same time.")] = 1,
        out: Annotated[Path | None, typer.Option(help="Write the series here, not into the package.")] = None,
        only: Annotated[str, typer.Option(help="Just the runs whose group starts so.")] = "",
    ) -> None:
        """Trains what is missing of the early-warning benchmark's runs and writes their indicator series."""
        from triage_monitor.evaluation.corpus_series import all_series
        from triage_monitor.evaluation.series import shipped_corpus, write_corpus
        from triage_monitor.testbed.corpus import corpus_runs, make_corpus

        runs = [run for run in corpus_runs() if run.group.startswith(only)]
        if not runs:
            groups = sorted({run.group for run in corpus_runs()})
            raise typer.BadParameter(f"no group starts with '{only}'; there are {', '.join(groups)}")
        for made, end in make_corpus(directory, runs, workers):
            fate = "survived" if end["collapse"] is None else f"collapsed at {end['collapse']}"
            typer.echo(f"{made}/{len(runs)} {end['run']}: {end['updates']} updates, {fate}", err=True)
        series = list(all_series(runs, directory))
        target = out or shipped_corpus()
        write_corpus(target, series)
        typer.echo(f"{len(series)} runs, {sum(map(len, series))} updates: {target}")
