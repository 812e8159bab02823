"""`triage-monitor bench overhead`: the objective's and the tap's share of a learner update, beside the update itself.

A sidecar runs in a process of its own while it lasts, on a temporary data directory. Two updates are measured: the
testbed's own, whose model is so small that any loss is a large part of it, and that of a 4-layer transformer with 8
thousand tokens. Batches and weights are synthetic; times of one machine say little, hence shares of the same run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from triage_monitor import Monitor
    from triage_monitor.testbed.overhead import Frozen, Measured

TAPS: dict[str, dict[str, Any]] = {
    "tap, raw": {"mode": "raw"},
    "tap, summary": {"mode": "summary", "reduce_on": "host"},
    "tap, reduced on the device": {"mode": "summary", "reduce_on": "device"},
}


def register(group: typer.Typer) -> None:
    @group.command("overhead", epilog="Example: triage-monitor bench overhead --workload transformer --json")
    def overhead(
        workload: Annotated[list[str] | None, typer.Option(help="testbed or transformer; both by default.")] = None,
        repetitions: Annotated[int, typer.Option(min=2, help="Paired repetitions of the frozen batch.")] = 5,
        device: Annotated[str, typer.Option(help="Where the learner runs: cpu or cuda.")] = "cpu",
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
    ) -> None:
        """What gate, repair and the tap cost a learner update, as shares of the same update without them."""
        from triage_monitor.errors import ConfigError

        if find_spec("torch") is None:
            raise ConfigError("the learner needs torch, which is not installed: pip install 'triage-monitor[torch]'")
        from triage_monitor.testbed.overhead import WORKLOADS, as_document

        chosen = workload or list(WORKLOADS)
        if unknown := sorted(set(chosen) - set(WORKLOADS)):
            raise ConfigError(f"no workload '{unknown[0]}'; there are {', '.join(WORKLOADS)}")
        frozen = [_frozen(name, device) for name in chosen]
        with _sidecar() as url:
            measured = [_measured(one, url, repetitions) for one in frozen]
        typer.echo("\r" + " " * 70 + "\r", nl=False, err=True)
        if as_json:
            print(json.dumps(as_document(measured), indent=2))
        else:
            _print(measured)


def _frozen(name: str, device: str) -> Frozen:
    from triage_monitor.errors import ConfigError
    from triage_monitor.testbed.overhead import WORKLOADS, Frozen

    try:
        return Frozen(WORKLOADS[name], device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device '{device}': {str(error).splitlines()[0]}") from None


def _measured(frozen: Frozen, url: str, repetitions: int) -> Measured:
    import torch

    from triage_monitor import Monitor
    from triage_monitor.testbed.overhead import measure

    name = frozen.workload.name
    monitors = {tap: Monitor(url, run=f"{name}-{i}", **form) for i, (tap, form) in enumerate(TAPS.items())}
    try:
        taps = {tap: (_submit_to(monitor), _flushed(monitor)) for tap, monitor in monitors.items()}
        torch.set_num_threads(1)
        return measure(frozen, taps, repetitions, lambda text: typer.echo(f"\r{text[:69]:69}", nl=False, err=True))
    finally:
        for monitor in monitors.values():
            monitor.close(5.0)


def _submit_to(monitor: Monitor) -> Callable[[int, Mapping[str, Any]], object]:
    return lambda step, arrays: monitor.submit(step=step, **arrays)


def _flushed(monitor: Monitor) -> Callable[[], object]:
    """Waits until everything handed over was settled; sleeping, so that only the client's threads are at work."""
    import time

    def wait() -> None:
        end = time.monotonic() + 60.0
        while monitor.stats["queue_depth"] and time.monotonic() < end:
            time.sleep(0.002)

    return wait


@contextmanager
def _sidecar() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="triage-bench-") as directory:
        command = [sys.executable, "-m", "triage_monitor", "serve", "--port", "0", "--data-dir", str(Path(directory))]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield line.split()[-1]
        finally:
            process.terminate()
            process.communicate(timeout=60)


def _print(measured: list[Measured]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=100)
    for one in measured:
        title = f"{one.workload} on {one.device}: {one.tokens:,} synthetic tokens, {1e3 * one.plain:.0f} ms an update"
        table = Table(title=title, title_justify="left")
        table.add_column("share of the learner update")
        for column in ("alone", "paired difference", "behind, in other threads"):
            table.add_column(column, justify="right")
        for cost in one.costs:
            low, middle, high = ("", "", "") if cost.paired is None else (f"{x / one.plain:.2%}" for x in cost.paired)
            paired = f"{middle} ({low} to {high})" if middle else ""
            behind = "" if cost.behind is None else f"{cost.behind / one.plain:.2%}"
            table.add_row(cost.name, f"{cost.alone / one.plain:.2%}", paired, behind)
        console.print(table)
