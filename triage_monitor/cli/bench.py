"""`triage-monitor bench`: how fast the kernel is, each figure beside its baseline measured in the same run.

The other benchmarks are commands of the same group: `bench early-warning`, `bench closed-loop`.

Absolute times say more about the machine than about us, so every row is a ratio: to the vectorised numpy form of the
same statistics, and to reading the gaps once (`numpy.sum`). Contenders take turns, one thread each, and the best turn
counts. The gaps are synthetic: a narrow body with Student-t tails, ragged responses.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer

MORE = ("bench_warning", "bench_closed_loop", "bench_overhead", "bench_ingest", "bench_flight")


@dataclass(frozen=True, slots=True)
class BenchRow:
    what: str
    tokens: int
    seconds: float
    tokens_per_second: float
    times_numpy: float
    share_of_memory_read: float


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        invoke_without_command=True,
        epilog="Example: triage-monitor bench --tokens 10000000 --json",
    )
    app.add_typer(group, name="bench")
    for name in MORE:
        if find_spec(f"triage_monitor.cli.{name}") is not None:
            import_module(f"triage_monitor.cli.{name}").register(group)

    @group.callback()
    def bench(
        context: typer.Context,
        tokens: Annotated[int, typer.Option(min=100_000, help="Tokens in the synthetic update.")] = 10_000_000,
        responses: Annotated[int, typer.Option(min=8, help="Ragged responses they are cut into.")] = 2_048,
        turns: Annotated[int, typer.Option(min=1, help="Turns each contender takes; the best counts.")] = 5,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
    ) -> None:
        """By itself: throughput of the kernel with every statistic, against numpy and reading the memory once."""
        if context.invoked_subcommand is not None:
            return
        rows = kernel_rows(tokens, responses, turns)
        if as_json:
            print(json.dumps({"synthetic": True, "kernel": [asdict(row) for row in rows]}, indent=2))
        else:
            _print_table(rows)


def synthetic_update(tokens: int, responses: int, tail: float, seed: int = 0) -> tuple[Any, Any, Any]:
    """(gaps float32 [T], advantages [R], offsets [R + 1]); `tail` is the share of tokens from the heavy component."""
    import numpy as np

    rng = np.random.default_rng(seed)
    borders = np.sort(rng.choice(np.arange(1, tokens), responses - 1, replace=False))
    gap = (0.02 * rng.standard_normal(tokens)).astype(np.float32)
    heavy = rng.random(tokens) < tail
    gap[heavy] = np.clip(0.5 * rng.standard_t(3, int(heavy.sum())), -40, 40)
    return gap, rng.standard_normal(responses), np.concatenate([[0], borders, [tokens]]).astype(np.int64)


def kernel_rows(tokens: int, responses: int, turns: int) -> list[BenchRow]:
    import numpy as np

    from triage_monitor.cli.bench_numpy import statistics
    from triage_monitor.summary.build import summarize

    gap, advantages, offsets = synthetic_update(tokens, responses, tail=0.05)
    late, _, _ = synthetic_update(tokens, responses, tail=0.5)
    half = gap.astype(np.float16)
    by_token = np.repeat(advantages, np.diff(offsets))
    mask = np.random.default_rng(1).random(tokens) < 0.9
    contenders: dict[str, Callable[[], object]] = {
        "reading the gaps once (numpy.sum)": lambda: gap.sum(),
        "numpy, every statistic": lambda: statistics(gap, advantages, offsets),
        "kernel, healthy gaps": lambda: summarize(gap=gap, advantages=advantages, offsets=offsets),
        "kernel, terminal gaps (half in the tail)": lambda: summarize(gap=late, advantages=advantages, offsets=offsets),
        "kernel, float16 gaps": lambda: summarize(gap=half, advantages=advantages, offsets=offsets),
        "kernel, an advantage a token": lambda: summarize(gap=gap, advantages=by_token, offsets=offsets),
        "kernel, a mask with holes": lambda: summarize(gap=gap, advantages=advantages, offsets=offsets, mask=mask),
    }
    best = _best_times(contenders, turns)
    memory, numpy_form = (best[name] for name in list(contenders)[:2])
    return [
        BenchRow(name, tokens, seconds, tokens / seconds, numpy_form / seconds, memory / seconds)
        for name, seconds in best.items()
    ]


def _best_times(contenders: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """CPU seconds of this thread: a neighbour on the machine slows them least."""
    best = dict.fromkeys(contenders, float("inf"))
    for turn in range(turns + 1):  # the first compiles and warms up
        for name, contender in contenders.items():
            typer.echo(f"\rbench: turn {turn}/{turns} {name[:40]:40}", nl=False, err=True)
            started = time.thread_time()
            contender()
            if turn:
                best[name] = min(best[name], time.thread_time() - started)
    typer.echo("\r" + " " * 70 + "\r", nl=False, err=True)
    return best


def _print_table(rows: list[BenchRow]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{rows[0].tokens:,} synthetic float32 tokens, one thread", title_justify="left")
    table.add_column("what")
    for column in ("ms", "M tokens/s", "times numpy", "of memory read"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.what,
            f"{1e3 * row.seconds:.1f}",
            f"{row.tokens_per_second / 1e6:.0f}",
            f"{row.times_numpy:.1f}x",
            f"{100 * row.share_of_memory_read:.1f}%",
        )
    Console().print(table)
