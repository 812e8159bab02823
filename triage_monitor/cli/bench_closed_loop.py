"""`triage-monitor bench closed-loop`: what became of the same starts under no action, fixed recipes and the policy.

Reads the runs that ship with the package and prints one table. `--make` trains what is missing of them first: hours of
one core, resumable, each run kept as a small file under `--runs`; recordings of the benchmark's corpus (`make corpus`)
are used where they hold a run in full. It then writes the runs to `--data`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from triage_monitor.evaluation.bootstrap import Estimate
    from triage_monitor.evaluation.closed_loop import ArmScore
    from triage_monitor.testbed.closed_loop_run import LoopRun


def register(group: typer.Typer) -> None:
    @group.command(
        "closed-loop",
        epilog="Example: triage-monitor bench closed-loop --png closed_loop.png\n\n"
        "To train them all again: bench closed-loop --make --runs .closed-loop --recordings .corpus --workers 2",
    )
    def closed_loop(
        make: Annotated[bool, typer.Option("--make", help="Train what is missing, then write the runs.")] = False,
        runs: Annotated[Path, typer.Option(help="Where trained runs are kept (--make).")] = Path(".closed-loop"),
        recordings: Annotated[Path | None, typer.Option(help="Recorded corpus to take runs from (--make).")] = None,
        workers: Annotated[int, typer.Option(min=1, help="Starts trained at a time (--make).")] = 1,
        groups: Annotated[list[str] | None, typer.Option("--group", help="Only these regimes (--make).")] = None,
        data: Annotated[Path | None, typer.Option(help="Parquet file of runs, instead of the one shipped.")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
        png: Annotated[Path | None, typer.Option(help="Draw rewards and differences into this file.")] = None,
    ) -> None:
        """Does acting help: final reward, survival and cost of each arm, against doing nothing from the same start."""
        from triage_monitor.evaluation.closed_loop import document, read_runs

        if make:
            _make(runs, recordings, workers, groups, data)
        found = read_runs(data)
        if png is not None:
            from triage_monitor.evaluation.closed_loop_figure import draw

            draw(found, png)
        if as_json:
            print(json.dumps(document(found), indent=2, allow_nan=False))
        else:
            _print(found)


def _make(
    directory: Path, recordings: Path | None, workers: int, groups: Sequence[str] | None, data: Path | None
) -> None:
    from importlib.resources import files
    from importlib.util import find_spec

    from triage_monitor.errors import ConfigError
    from triage_monitor.evaluation.closed_loop import SHIPPED, final, write_runs

    if find_spec("torch") is None:
        raise ConfigError("--make trains with torch, which is not installed: pip install 'triage-monitor[torch]'")
    from triage_monitor.testbed.closed_loop import make_missing
    from triage_monitor.testbed.closed_loop_plan import CELLS, is_made, made_run

    known = list(dict.fromkeys(cell.group for cell in CELLS))
    unknown = [name for name in groups or () if name not in known]
    if unknown:
        raise ConfigError(f"no regime '{unknown[0]}'; there are {', '.join(known)}")
    cells = [cell for cell in CELLS if not groups or cell.group in groups]
    wanted = sum(len(cell.arms) for cell in cells)
    for cell, made in make_missing(cells, directory, recordings, workers):
        there = sum(is_made(item, arm, directory) for item in cells for arm in item.arms)
        ends = ", ".join(f"{run.arm} {final(run):.3f}" for run in made)
        typer.echo(f"{there}/{wanted} runs; {cell.name}: {ends}", err=True)
    kept = [made_run(cell, arm, directory) for cell in CELLS for arm in cell.arms if is_made(cell, arm, directory)]
    write_runs(data or Path(str(files("triage_monitor.evaluation").joinpath(SHIPPED))), kept)


COLUMNS = ("regime", "arm", "starts", "final", "to none", "", "best", "survived", "gated", "bf16", "overhead")


def _print(runs: Sequence[LoopRun]) -> None:
    from rich.console import Console
    from rich.table import Table

    from triage_monitor.evaluation.closed_loop import LAST, scores

    title = f"Reward over the last {LAST} updates; differences to none from the same start; 95% intervals over starts"
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if number in (0, 1, 5) else "right", no_wrap=True)
    before = None
    for row in scores(runs):
        if before not in (None, row.group):
            table.add_section()
        table.add_row("" if row.group == before else row.group, *_cells(row))
        before = row.group
    console = Console()
    if not console.is_terminal:
        console = Console(width=165)
    console.print(table, highlight=False)
    for row in scores(runs):
        if row.arm == "adaptive":
            console.print(f"{row.group}: the adaptive policy is {_verdict(row)}", highlight=False)


def _cells(row: ArmScore) -> list[str]:
    return [
        row.arm,
        str(row.starts),
        _interval(row.final),
        "" if row.to_none is None else _interval(row.to_none, sign="+"),
        row.harm,
        _interval(row.best),
        f"{row.survivors}/{row.starts}",
        f"{row.gated:.0f}",
        f"{row.bf16:.0f}",
        "" if row.overhead is None else f"{100 * row.overhead:.1f}%",
    ]


def _interval(estimate: Estimate, sign: str = "") -> str:
    return f"{estimate.value:{sign}.3f} [{estimate.low:{sign}.3f}, {estimate.high:{sign}.3f}]"


def _verdict(row: ArmScore) -> str:
    words = {
        "worse": "WORSE than doing nothing beyond the interval",
        "better": "better than doing nothing",
        "not worse": "not worse than doing nothing beyond the interval",
        "too few starts": "not judged: too few starts",
        "the same runs": "doing nothing: no alarm, no change",
    }
    return words.get(row.harm, row.harm)
