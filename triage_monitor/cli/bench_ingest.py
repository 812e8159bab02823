"""`triage-monitor bench ingest`: a served sidecar under load, every figure beside a bare sink's of the same run.

    burst    `--shards` an update of `--runs` runs at once, first to the sink, then to the sidecar
    hour     `--hour` updates of one shard each, spread over the runs: does its memory stay flat?
    large    one update of `--tokens` tokens, durable and in its window when it is answered
    slow     the burst's first shards again, beside peers that do not send and peers that do not read
    full     bodies declared until the sidecar says 503 and Retry-After, and what it held by then
    end      SIGTERM under load: everything that was begun is answered, exit code 0

Sidecar and sink are processes of their own on loopback, this one sends; on few cores all three share them. Values are
synthetic. Absolute times say more about the machine than about us.
"""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from triage_monitor.cli import bench_load as load

SIDECAR, SINK = "triage_monitor", "triage_monitor.cli.bench_sink"
BODIES = 64
METRICS_TURNS = 5
LARGE_TURNS = 7
FILLED_AFTER = 30  # updates; a window holds 25


@dataclass(frozen=True, slots=True)
class Size:
    runs: int
    shards: int
    updates: int
    hour: int
    tokens: int
    senders: int


@dataclass(frozen=True, slots=True)
class Bench:
    """The two processes and what is sent to them."""

    size: Size
    sidecar: str
    process: subprocess.Popen[str]
    sink: str
    bodies: list[bytes]

    def shots(self, first_step: int, updates: int, shards: int, runs: int) -> list[load.Shot]:
        """The shards of the runs' updates, as a fleet sends them: every run at once."""
        return [
            load.Shot(
                f"/v1/runs/bench-{run}/updates/{step}/shards/{shard}?shards={shards}",
                self.bodies[(run + step + shard) % len(self.bodies)],
            )
            for step in range(first_step, first_step + updates)
            for shard in range(shards)
            for run in range(runs)
        ]


def register(app: typer.Typer) -> None:
    @app.command(epilog="Example: triage-monitor bench ingest --runs 50 --shards 256 --json")
    def ingest(
        runs: Annotated[int, typer.Option(min=1, max=400, help="Runs that send at once.")] = 50,
        shards: Annotated[int, typer.Option(min=1, max=4096, help="Shards of an update.")] = 256,
        updates: Annotated[int, typer.Option(min=1, help="Updates of each run in the burst.")] = 1,
        hour: Annotated[int, typer.Option(min=4, help="Updates replayed fast to see whether memory grows.")] = 1500,
        tokens: Annotated[int, typer.Option(min=1000, help="Tokens of the large update.")] = 10_485_760,
        senders: Annotated[int, typer.Option(min=1, max=256, help="Connections that send at once.")] = 16,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
    ) -> None:
        """Sustained ingest, latency, memory, backpressure and the end, against a bare sink in the same run."""
        report = measured(Size(runs, shards, updates, hour, tokens, senders))
        if as_json:
            print(json.dumps(report, indent=2))
        else:
            _print_table(report)


def measured(size: Size) -> dict[str, Any]:
    """Every phase in turn; each is a mapping of figures."""
    report: dict[str, Any] = {"synthetic": True, "senders": size.senders}
    phases: dict[str, Callable[[Bench], dict[str, Any]]] = {
        "burst": _burst, "hour": _hour, "large": _large, "slow": _slow, "full": _full, "end": _end,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as home:
        serve = ("serve", "--port", "0", "--data-dir", str(Path(home) / "data"))
        with load.server(SINK) as (sink, _), load.server(SIDECAR, *serve) as (sidecar, process):
            bench = Bench(size, sidecar, process, sink, _bodies())
            load.send_all(sidecar, bench.shots(0, 1, 1, 1), 1)
            for name, phase in phases.items():
                typer.echo(f"\rbench ingest: {name:10}", nl=False, err=True)
                report[name] = phase(bench)
    typer.echo("\r" + " " * 40 + "\r", nl=False, err=True)
    return report


def _bodies() -> list[bytes]:
    import numpy as np

    from triage_monitor.summary.rows import encode_arrays

    rng = np.random.default_rng(0)
    return [
        encode_arrays(gap=[np.float32(rng.normal(0, 0.05, 128)) for _ in range(4)], advantages=rng.normal(size=4))
        for _ in range(BODIES)
    ]


def _burst(bench: Bench) -> dict[str, Any]:
    size = bench.size
    shots = bench.shots(1, size.updates, size.shards, size.runs)
    sink = load.send_all(bench.sink, shots, size.senders)
    with load.asking(bench.sidecar, "/healthz") as alive, load.asking(bench.sidecar, "/metrics", 1.0) as busy:
        ours = load.send_all(bench.sidecar, shots, size.senders)
    idle = load.get_seconds(bench.sidecar, "/metrics", METRICS_TURNS)
    wrong = {status: count for status, count in ours.statuses.items() if status != 201}
    return {
        "runs": size.runs,
        "shards": len(shots),
        "not_taken": wrong,
        "updates_per_second": size.updates * size.runs / ours.seconds,
        "shards_per_second": len(shots) / ours.seconds,
        "megabytes_per_second": ours.body_bytes / ours.seconds / 1e6,
        "sink_shards_per_second": len(shots) / sink.seconds,
        "times_sink": ours.seconds / sink.seconds,
        **_latencies(ours, sink),
        "healthz_slowest_ms": 1e3 * max(alive, default=float("nan")),
        "metrics_ms": 1e3 * median(idle),
        "metrics_under_load_ms": 1e3 * median(busy) if busy else None,
    }


def _latencies(ours: load.Outcome, sink: load.Outcome) -> dict[str, float]:
    figures = {}
    for name, q in (("p50", 0.5), ("p99", 0.99)):
        figures[f"{name}_ms"] = 1e3 * ours.quantile(q)
        figures[f"{name}_times_sink"] = ours.quantile(q) / sink.quantile(q)
    return figures


def _hour(bench: Bench) -> dict[str, Any]:
    """Memory from when every run's window is full on: what is measured then is growth, not filling."""
    size, step = bench.size, 1 + bench.size.updates
    load.send_all(bench.sidecar, bench.shots(step, FILLED_AFTER, 1, size.runs), size.senders)
    step += FILLED_AFTER
    each = max(1, size.hour // (10 * size.runs))
    held = [load.resident_bytes(bench.process)]
    sent, seconds = 0, 0.0
    for part in range(10):
        shots = bench.shots(step + part * each, each, 1, size.runs)
        done = load.send_all(bench.sidecar, shots, size.senders)
        sent, seconds = sent + len(shots), seconds + done.seconds
        held.append(load.resident_bytes(bench.process))
    known = [value for value in held if value is not None]
    per_thousand = (known[-1] - known[0]) / 1e6 / sent * 1000 if known else None
    return {
        "updates": sent,
        "updates_per_second": sent / seconds,
        "memory_mb": known[-1] / 1e6 if known else None,
        "memory_slope_mb_per_1000_updates": per_thousand,
    }


def _large(bench: Bench) -> dict[str, Any]:
    import numpy as np

    from triage_monitor.summary.rows import encode_arrays

    rng, tokens = np.random.default_rng(1), bench.size.tokens
    responses = max(1, tokens // 20_480)
    offsets = np.linspace(0, tokens, responses + 1).astype(np.int64)
    gap = rng.normal(0, 0.05, tokens).astype(np.float32)
    bare, ours = [], []
    for step in range(LARGE_TURNS):
        body = encode_arrays(gap=gap, advantages=rng.normal(size=responses), offsets=offsets)
        shot = load.Shot(f"/v1/runs/large/updates/{step}/shards/0", body)
        bare.append(load.send_all(bench.sink, [shot], 1).seconds)
        ours.append(load.send_all(bench.sidecar, [shot], 1).seconds)
    pairs = [mine / theirs for mine, theirs in zip(ours, bare, strict=True)]
    return {"tokens": tokens, "megabytes": len(body) / 1e6, "ms": 1e3 * median(ours), "times_sink": median(pairs)}


def _slow(bench: Bench) -> dict[str, Any]:
    step = 10_000
    some = min(bench.size.shards, 64)
    alone = load.send_all(bench.sidecar, bench.shots(step, 1, some, 4), bench.size.senders)
    with load.slow_peers(bench.sidecar, 32, 32, 1 << 20), load.asking(bench.sidecar, "/healthz") as alive:
        beside = load.send_all(bench.sidecar, bench.shots(step + 1, 1, some, 4), bench.size.senders)
    return {
        "peers": 64,
        "p50_times_alone": beside.quantile(0.5) / alone.quantile(0.5),
        "p99_times_alone": beside.quantile(0.99) / alone.quantile(0.99),
        "not_taken": {status: count for status, count in beside.statuses.items() if status != 201},
        "healthz_slowest_ms": 1e3 * max(alive, default=float("nan")),
    }


def _full(bench: Bench) -> dict[str, Any]:
    """More is declared than may be held; what is refused for it is taken once the others have gone."""
    before = load.resident_bytes(bench.process)
    shot = bench.shots(20_000, 1, 1, 1)[0]
    with load.slow_peers(bench.sidecar, 8, 0, 100 << 20):
        status, wait = load.refusal(bench.sidecar, load.Shot(shot.path, bytes(100 << 20)))
        held = load.resident_bytes(bench.process)
    after, _ = load.refusal(bench.sidecar, shot)
    grown = None if before is None or held is None else (held - before) / 1e6
    return {"status": status, "retry_after": wait, "memory_grown_mb": grown, "status_afterwards": after}


def _end(bench: Bench) -> dict[str, Any]:
    shots = bench.shots(30_000, 4, 16, min(bench.size.runs, 16))
    statuses: dict[int, int] = {}
    broken: list[str] = []

    def send() -> None:
        link = load.connect(bench.sidecar)
        for shot in shots:
            try:
                link.request("PUT", shot.path, shot.body, load.MIME)
            except OSError:
                return  # it no longer listens: nothing was begun
            try:
                answer = link.getresponse()
                answer.read()
            except OSError as error:
                broken.append(type(error).__name__)
                return
            statuses[answer.status] = statuses.get(answer.status, 0) + 1

    sender = load.in_background(send)
    while not statuses and sender.is_alive():
        sender.join(0.01)
    bench.process.send_signal(signal.SIGTERM)
    sender.join()
    code = bench.process.wait(load.GONE_SECONDS)
    return {"exit_code": code, "answered": sum(statuses.values()), "statuses": statuses, "unanswered": len(broken)}


def _lines(report: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for phase, figures in report.items():
        if isinstance(figures, dict):
            for name, value in figures.items():
                text = f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)
                yield phase, name.replace("_", " "), text


def _print_table(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"synthetic load from {report['senders']} connections, on loopback", title_justify="left")
    table.add_column("phase")
    table.add_column("what")
    table.add_column("value", justify="right")
    for line in _lines(report):
        table.add_row(*line)
    Console().print(table)
