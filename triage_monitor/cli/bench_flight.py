"""`triage-monitor bench flight`: the same updates by HTTP and by Arrow Flight to one sidecar, taking turns.

For each size: `--turns` pairs of an update by each way, the first of them changing from pair to pair; each is durable
and in its window when it is answered. The sidecar is a process of its own on loopback; both clients are those of a
`Monitor`, one connection each. Values are synthetic. Absolute times say more about the machine than about us, hence the
ratio of each pair and its median.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

SIZES = (1_000, 100_000, 2_000_000)
RESPONSE_TOKENS = 1_000
SLOW_ANSWER = 600.0


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the pairs of one size; `times` is Flight's time over HTTP's within a pair, with its quartiles."""

    tokens: int
    megabytes: float
    http_ms: float
    flight_ms: float
    http_megabytes_per_second: float
    flight_megabytes_per_second: float
    times: float
    times_low: float
    times_high: float


def register(group: typer.Typer) -> None:
    @group.command("flight", epilog="Example: triage-monitor bench flight --tokens 2000000 --turns 15 --json")
    def flight(
        tokens: Annotated[
            list[int] | None, typer.Option(min=1, help=f"Tokens of an update; {', '.join(map(str, SIZES))} by default.")
        ] = None,
        turns: Annotated[int, typer.Option(min=2, help="Pairs of each size.")] = 15,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
    ) -> None:
        """The same raw updates by HTTP and by Arrow Flight in one run: throughput, latency, and the ratio of pairs.

        Found so far, on two busy cores over loopback: no gain below a megabyte, about a fifth less time at 8 MB.
        """
        rows = measured(tuple(tokens or SIZES), turns)
        if as_json:
            print(json.dumps({"synthetic": True, "turns": turns, "rows": [asdict(row) for row in rows]}, indent=2))
        else:
            _print_table(rows, turns)


def measured(sizes: tuple[int, ...], turns: int) -> list[Row]:
    from triage_monitor.cli.bench_load import server
    from triage_monitor.trainer.flight import FlightLink
    from triage_monitor.trainer.transport import Link, Timeouts

    limits = Timeouts(10.0, SLOW_ANSWER, SLOW_ANSWER)
    with tempfile.TemporaryDirectory(prefix="triage-bench-") as home:
        more = ("serve", "--port", "0", "--flight-port", "0", "--data-dir", str(Path(home) / "data"))
        with server("triage_monitor", *more) as (address, process):
            assert process.stdout is not None
            by_http = Link(address, None, limits)
            by_flight = FlightLink(process.stdout.readline().split()[-1], None, limits, os.environ)
            try:
                return [_row(by_http, by_flight, size, turns) for size in sizes]
            finally:
                by_flight.close()
                by_http.close()


def _row(by_http: Any, by_flight: Any, tokens: int, turns: int) -> Row:
    import numpy as np

    body, seconds = _body(tokens), {"http": list[float](), "flight": list[float]()}
    ways: dict[str, Callable[[int], Any]] = {
        "http": lambda step: by_http.call(
            "PUT",
            f"/v1/runs/http-{tokens}/updates/{step}/shards/0",
            query={"shards": 1, "attempt": 0},
            content=body,
            headers={"Content-Type": "application/vnd.apache.arrow.stream"},
        ),
        "flight": lambda step: by_flight.put(
            {"run": f"flight-{tokens}", "step": step, "shard": 0, "shards": 1, "attempt": 0, "bytes": len(body)}, body
        ),
    }
    for step in range(turns + 1):  # the first warms up
        typer.echo(f"\rbench flight: {tokens} tokens, pair {step}/{turns} ", nl=False, err=True)
        for name in sorted(ways, reverse=step % 2 == 0):
            took = _timed(ways[name], step)
            if step:
                seconds[name].append(took)
    typer.echo("\r" + " " * 60 + "\r", nl=False, err=True)
    low, middle, high = np.quantile(np.divide(seconds["flight"], seconds["http"]), (0.25, 0.5, 0.75))
    http, flight, size = median(seconds["http"]), median(seconds["flight"]), len(body) / 1e6
    return Row(
        tokens, size, 1e3 * http, 1e3 * flight, size / http, size / flight, float(middle), float(low), float(high)
    )


def _timed(send: Callable[[int], Any], step: int) -> float:
    from triage_monitor.errors import ConfigError

    started = time.perf_counter()
    answer = send(step)
    took = time.perf_counter() - started
    if answer.status != 201:
        raise ConfigError(f"an update was not taken: {answer.detail}")
    return took


def _body(tokens: int) -> bytes:
    import numpy as np

    from triage_monitor.summary.rows import encode_arrays

    rng, responses = np.random.default_rng(0), max(1, tokens // RESPONSE_TOKENS)
    gap = rng.normal(0, 0.05, tokens).astype(np.float32)
    offsets = np.linspace(0, tokens, responses + 1).astype(np.int64)
    return encode_arrays(gap=gap, advantages=rng.normal(size=responses), offsets=offsets)


def _print_table(rows: list[Row], turns: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"synthetic updates on loopback, {turns} pairs of each size, medians", title_justify="left")
    for column in ("tokens", "MB", "HTTP ms", "Flight ms", "HTTP MB/s", "Flight MB/s", "Flight / HTTP (quartiles)"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            f"{row.tokens:,}",
            f"{row.megabytes:.3g}",
            f"{row.http_ms:.3g}",
            f"{row.flight_ms:.3g}",
            f"{row.http_megabytes_per_second:.3g}",
            f"{row.flight_megabytes_per_second:.3g}",
            f"{row.times:.2f}x ({row.times_low:.2f} to {row.times_high:.2f})",
        )
    Console(width=110).print(table)
