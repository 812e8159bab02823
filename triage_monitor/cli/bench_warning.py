"""`triage-monitor bench early-warning`: our alarm and its rivals on real runs, tuned on some and scored on others.

Reads the corpus that ships with the package (or one in a file), asks every alarm about every run, prints the tables of
`evaluation.report_tables`. Some minutes of one core, most of them our own detector's; progress goes to stderr.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def register(group: typer.Typer) -> None:
    @group.command("early-warning", epilog="Example: triage-monitor bench early-warning --budget 1 --png curve.png")
    def early_warning(
        corpus: Annotated[Path | None, typer.Option(help="Parquet file of runs, instead of the one shipped.")] = None,
        budget: Annotated[float, typer.Option(min=0.0, help="False alarms per 1,000 healthy updates.")] = 1.0,
        definition: Annotated[
            float, typer.Option(min=0.01, max=0.99, help="A reward below this share of its best has collapsed.")
        ] = 0.5,
        horizon: Annotated[
            int | None, typer.Option(min=1, help="Count the detections further ahead than this (JSON).")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the tables.")] = False,
        png: Annotated[Path | None, typer.Option(help="Draw lead against false alarms into this file.")] = None,
        by_run: Annotated[bool, typer.Option("--by-run", help="Also list the held-out runs one by one.")] = False,
    ) -> None:
        """How early, how often wrongly: alarms tuned on development runs, scored on held-out runs."""
        from triage_monitor.evaluation.contest import ask_all
        from triage_monitor.evaluation.contestants import contestants
        from triage_monitor.evaluation.report import report
        from triage_monitor.evaluation.series import read_corpus

        runs = read_corpus(corpus)
        asked = ask_all(contestants(), runs, _progress)
        typer.echo("\r" + " " * 70 + "\r", nl=False, err=True)
        result = report(asked, definition, budget, horizon)
        if png is not None:
            from triage_monitor.evaluation.curve import draw

            draw(asked, result.contest, png)
        if as_json:
            print(json.dumps(result.document, indent=2, allow_nan=False))
        else:
            _print(result.document, by_run)


def _progress(words: str) -> None:
    typer.echo(f"\rearly-warning: {words[:50]:50}", nl=False, err=True)


def _print(document: dict[str, object], by_run: bool) -> None:
    from rich.console import Console

    from triage_monitor.evaluation.report_tables import PLAIN_WIDTH, render

    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    console.print(render(document, by_run=by_run), highlight=False)
