"""Looking at one run from a terminal: `watch` (live), `show` (one update), `diff` (two runs).

triage-monitor watch qwen-nvfp4
triage-monitor show qwen-nvfp4 --step 131
triage-monitor show recordings/run-a --step 131
triage-monitor diff run-a run-b

A name that is a file, a directory or a pattern is a recording; any other is a run of the server at --url. Names come
from trainers: they are shown without control characters and never read as markup.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triage_monitor.cli.operator import DEFAULT_URL, Server, call
from triage_monitor.errors import InputError, TriageError

if TYPE_CHECKING:
    from rich.console import Console

    from triage_monitor.cli.forensics_news import News
    from triage_monitor.cli.forensics_sides import Side

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Window = Annotated[int, typer.Option(min=1, help="Updates in the trailing window, for recordings.")]
OUT = ("drift", "pre_terminal", "terminal", "not_observable")


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: triage-monitor watch my-run --url http://127.0.0.1:8750")(watch)
    app.command(epilog="Example: triage-monitor show my-run --step 131")(show)
    app.command(epilog="Example: triage-monitor diff run-a run-b")(diff)


def watch(
    run: Annotated[str, typer.Argument(help="The run's name.")],
    url: Server = DEFAULT_URL,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between looks while no events come.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="One look, then exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a look, a line each.")] = False,
    check: Annotated[bool, typer.Option("--check", help="With --once: exit with 1 beyond healthy.")] = False,
) -> None:
    """Follow a run live until Ctrl-C; --once for scripts."""
    from rich.live import Live

    from triage_monitor.cli.forensics_news import News
    from triage_monitor.cli.forensics_view import run_view
    from triage_monitor.cli.operator import run_path

    def look() -> dict[str, Any]:
        detail: dict[str, Any] = call("GET", url, run_path(run), holds="window").json()
        return detail

    if "/" in run:
        raise InputError("recording", f"'{run}' is a path, and watch follows a run of the server; analyze reads files")
    detail = look()
    if once:
        print(json.dumps(detail)) if as_json else wide().print(run_view(detail))
        raise typer.Exit(int(check and detail["stage"] in OUT))
    news = News(url, run, every)
    try:
        if as_json:
            _lines(look, detail, news)
        with Live(run_view(detail), console=wide(), auto_refresh=False) as live:
            while True:
                news.wait()
                try:
                    live.update(run_view(look()), refresh=True)
                except InputError:
                    raise
                except TriageError as error:
                    live.update(run_view(detail, str(error)), refresh=True)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _lines(look: Any, detail: dict[str, Any], news: News) -> None:
    """A line for each look that found another update, stage or parameter set."""
    seen = None
    while True:
        now = (detail["stage"], detail["params_version"], detail["attempt"], (detail["last_update"] or {}).get("step"))
        if now != seen:
            print(json.dumps(detail), flush=True)
            seen = now
        news.wait()
        try:
            detail = look()
        except InputError:
            raise
        except TriageError as error:
            typer.echo(f"triage-monitor: {error}", err=True)


def show(
    what: Annotated[str, typer.Argument(metavar="RUN_OR_PATH", help="A run of the server, or a recording.")],
    step: Annotated[int, typer.Option(min=0, help="Which update.", show_default=False)],
    url: Server = DEFAULT_URL,
    window: Window = 25,
    as_json: AsJson = False,
) -> None:
    """One update: its indicators, and its worst responses and segments with ids and positions."""
    from triage_monitor.cli.forensics_show import recorded_update, served_update
    from triage_monitor.cli.forensics_view import update_view

    found = recorded_update(what, step, window) if is_recording(what) else served_update(url, what, step)
    print(json.dumps(found, allow_nan=False)) if as_json else wide().print(update_view(found))


def diff(
    first: Annotated[str, typer.Argument(metavar="RUN_A", help="A run of the server, or a recording.")],
    second: Annotated[str, typer.Argument(metavar="RUN_B", help="The other one.")],
    url: Server = DEFAULT_URL,
    window: Window = 25,
    as_json: AsJson = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 when an indicator parts.")] = False,
) -> None:
    """Two runs: settings that differ, the first update at which each indicator parts, stages side by side."""
    from triage_monitor.cli.forensics_diff import compared
    from triage_monitor.cli.forensics_sides import recorded_side, served_side
    from triage_monitor.cli.forensics_view import diff_view

    def side(name: str) -> Side:
        return recorded_side(name, window) if is_recording(name) else served_side(url, name)

    found = compared(side(first), side(second))
    print(json.dumps(found, allow_nan=False)) if as_json else wide().print(diff_view(found))
    if check and any(item["step"] is not None for item in found["partings"]):
        raise typer.Exit(1)


def wide() -> Console:
    """The terminal; as wide as the tables where there is none."""
    from rich.console import Console

    from triage_monitor.cli.analysis_table import PLAIN_WIDTH

    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def is_recording(name: str) -> bool:
    return "/" in name or any(sign in name for sign in "*?[") or Path(name).exists()
