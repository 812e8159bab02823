"""`triage-monitor analyze`: recorded updates in; indicators, windows, stages and findings out, as table or JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from triage_monitor.cli.analysis import Analysis

EXAMPLE = "Example: triage-monitor analyze recordings/run-a --window 25 --json > run-a.json"


def register(app: typer.Typer) -> None:
    app.command(epilog=EXAMPLE)(analyze)


def analyze(
    paths: Annotated[list[str], typer.Argument(help="Recordings: files, directories or patterns.", show_default=False)],
    format: Annotated[
        str | None,
        typer.Option(
            help="arrow, parquet, jsonl or a framework (nemo_rl, prime_rl, slime, miles); else told by content."
        ),
    ] = None,
    window: Annotated[int, typer.Option(min=1, help="Updates in the trailing window.")] = 25,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    segment: Annotated[int, typer.Option(help="Segment length in tokens.")] = 64,
    tau_ana: Annotated[float, typer.Option(help="A gap at least this large (nats) is a tail token.")] = 0.05,
    phi: Annotated[float, typer.Option(help="Share of tail tokens from which a segment is heavy.")] = 0.125,
    near_zero: Annotated[float, typer.Option(help="A gap below this (nats) is near zero.")] = 0.05,
    rows: Annotated[int, typer.Option(min=2, help="Rows of the tables; longer runs are thinned out.")] = 24,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 on findings or a stage beyond healthy.")] = False,
    series: Annotated[Path | None, typer.Option(help="Also write every series to this .parquet or .csv.")] = None,
    calibrated: Annotated[
        bool, typer.Option("--calibrate", help="Print thresholds fit to the first window, as settings, and no table.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Also write a self-contained page with figures (extra: plots).")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Also write each figure as PNG into this directory.")] = None,
) -> None:
    """Indicators, trailing windows, stages and findings of recorded updates (Arrow, Parquet, JSONL, dumps)."""
    if html is not None or png is not None:
        from triage_monitor.cli.report_figures import drawable

        drawable()
    from rich.console import Console

    from triage_monitor.cli.analysis import analyse
    from triage_monitor.storage.recordings import iter_updates
    from triage_monitor.summary.spec import SummarySpec

    spec = SummarySpec(segment=segment, tau_ana=tau_ana, phi=phi, near_zero=near_zero)
    with Console(stderr=True).status("reading") as status:
        result = analyse(
            iter_updates(paths, format=format),
            spec=spec,
            window=window,
            seen=lambda count: status.update(f"reading: {count} updates"),
            keep_worst=html is not None,
        )
    for note in result.notes:
        print(f"triage-monitor: note: {note}", file=sys.stderr)
    if series is not None:
        from triage_monitor.storage.series_file import write_series

        write_series(result.document, series)
    _write_report(result, html, png, window, rows)
    if calibrated:
        if result.left_out:
            said = (
                f"left out {result.left_out} of the first {window} updates: their columns are no basis (see findings)"
            )
            print(f"triage-monitor: warning: {said}", file=sys.stderr)
        _write_calibration(result.calibration, tau_ana)
    elif as_json:
        _write(result.document)
    else:
        from triage_monitor.cli.analysis_table import PLAIN_WIDTH, render

        console = Console()
        if not console.is_terminal:
            console = Console(width=PLAIN_WIDTH)
        console.print(render(result.document, rows=rows, window=window))
    if check and _problem(result.document):
        raise typer.Exit(1)


def _write_report(result: Analysis, html: Path | None, png: Path | None, window: int, rows: int) -> None:
    from triage_monitor.cli.report_page import write_page, write_pngs

    if html is not None:
        write_page(result, html, window=window, rows=rows)
        print(f"triage-monitor: wrote {html}", file=sys.stderr)
    if png is not None:
        for path in write_pngs(result, png, window=window):
            print(f"triage-monitor: wrote {path}", file=sys.stderr)


def _write(document: dict[str, Any]) -> None:
    """One JSON object, an update at a time: `json.dump` is slow and one string of a long run is large."""
    for place, (name, value) in enumerate(document.items()):
        sys.stdout.write(f"{', ' if place else '{'}{json.dumps(name)}: ")
        if isinstance(value, list):
            items = (json.dumps(item, allow_nan=False) for item in value)
            sys.stdout.writelines(f"{', ' if number else '['}{item}" for number, item in enumerate(items))
            sys.stdout.write("]" if value else "[]")
        else:
            sys.stdout.write(json.dumps(value, allow_nan=False))
    sys.stdout.write("}\n")


def _write_calibration(calibration: dict[str, float], tau_ana: float) -> None:
    """As TOML. tau_tail is the gate's, a parameter of the objective and not of the summary."""
    if "tau_ana" in calibration:
        found = f"{calibration['tau_ana']:.4g}"
        print(f"# phi goes with tau_ana {tau_ana:g}; for the one below: --tau-ana {found} --calibrate")
    lines = [f"{name} = {value:.4g}" for name, value in calibration.items() if name != "tau_tail"]
    print("\n".join(["[summary]  # another spec: start a new attempt with it", *lines]))
    if "tau_tail" in calibration:
        print(f"# for the gate: triage-monitor params RUN --set gate.tau_tail={calibration['tau_tail']:.4g}")


def _problem(document: dict[str, Any]) -> bool:
    last = document["windows"][-1]["stage"] if document["windows"] else None
    faults = any(item["kind"] == "fault" for item in document["findings"])
    return faults or last in ("drift", "pre_terminal", "terminal", "not_observable")
