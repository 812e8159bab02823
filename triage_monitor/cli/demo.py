"""`triage-monitor demo`: the whole loop on one small machine, nothing downloaded.

Starts the sidecar, then three real GRPO runs of the testbed from the same warm-up weights, seed and prompts, two at a
time: `unguarded` (NVFP4-emulated on both sides, the sidecar only watches), `guarded` (the same, its parameters moved
by the adaptive policy) and `matched` (learner and sampler share their quantisers: the same 4-bit noise but no gap; the
ceiling).
Ends with a table of what happened, whichever way it went, and where to look further.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from triage_monitor.errors import ConfigError

UPDATES = 220
FEWEST_UPDATES = 30
POLL_SECONDS = 1.0
START_SECONDS = 300.0
SEGMENT = 32
CONFIG = f"""\
# What the demo's sidecar ran with. Responses have 128 tokens, so segments of {SEGMENT} give four each; on this model a
# quarter of healthy tokens exceed 0.05, so the diagnostic threshold is 0.25.
[summary]
segment = {SEGMENT}
tau_ana = 0.25

[judge.policy]
mode = "observe"

[judge_by_run.guarded.policy]
mode = "adaptive"
base = {{ gate = {{ segment = {SEGMENT} }} }}
"""
ARMS = {
    "unguarded": ("nvfp4", "NVFP4, unguarded"),
    "guarded": ("nvfp4", "NVFP4, adaptive TRIAGE"),
    "matched": ("nvfp4-matched", "NVFP4, matched paths (ceiling)"),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What the three runs share."""

    home: Path
    updates: int = UPDATES
    seed: int = 0
    warmup_seed: int = 0
    learning_rate: float | None = None
    warmup_updates: int | None = None


@dataclass(slots=True)
class Worker:
    """A training process and what it said so far."""

    name: str
    process: subprocess.Popen[str]
    errors: Path
    lines: queue.Queue[dict[str, Any]] = field(default_factory=queue.Queue)

    def read(self, pipe: IO[str]) -> None:
        for line in pipe:
            with suppress(ValueError):
                self.lines.put(json.loads(line))

    def heard(self) -> Iterator[dict[str, Any]]:
        with suppress(queue.Empty):
            while True:
                yield self.lines.get_nowait()


def register(app: typer.Typer) -> None:
    @app.command(epilog="Example: triage-monitor demo --updates 300 --seed 0")
    def demo(
        updates: Annotated[int, typer.Option(min=12, help="Updates of each run; at most 60 with TRL.")] = UPDATES,
        seed: Annotated[int, typer.Option(min=0, help="Seed of prompts and sampling, shared by the runs.")] = 0,
        warmup_seed: Annotated[int, typer.Option(min=0, help="Seed of the warm-up weights.")] = 0,
        directory: Annotated[Path | None, typer.Option(help="Where everything is kept [runs/demo-<time>].")] = None,
        learning_rate: Annotated[
            float | None, typer.Option(help="Of every run [4e-4]; the lower, the later they fail.")
        ] = None,
        warmup_updates: Annotated[int | None, typer.Option(min=1, help="Shorter warm-up, for a quick look.")] = None,
        port: Annotated[int, typer.Option(min=0, max=65535, help="The sidecar's port, 0 for a free one.")] = 0,
        framework: Annotated[
            str | None, typer.Option(help="`trl`: a GRPOTrainer of TRL instead of our own testbed; one run.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the final report as JSON.")] = False,
    ) -> None:
        """Train a small model by real RL under emulated NVFP4, watched live and guarded over HTTP."""
        home = directory or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
        _need_torch()
        if framework is None and updates < FEWEST_UPDATES:
            raise ConfigError(f"--updates must be at least {FEWEST_UPDATES}, got {updates}")
        with _said_where(home):
            if framework is not None:
                _framework_demo(framework, home, updates, seed, port, as_json)
                return
            plan = Plan(home, updates, seed, warmup_seed, learning_rate, warmup_updates)
            report = run_demo(plan, port)
        if as_json:
            print(json.dumps(report, indent=2))
        else:
            from triage_monitor.cli.demo_report import show

            show(report)


@contextmanager
def _said_where(home: Path) -> Iterator[None]:
    """A demo that is interrupted says what became of it."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nstopped before its end; everything so far is in {home}", file=sys.stderr)
        raise


def _framework_demo(framework: str, home: Path, updates: int, seed: int, port: int, as_json: bool) -> None:
    from importlib.util import find_spec

    from triage_monitor.cli import demo_trl

    if framework != "trl":
        raise ConfigError(f"--framework knows trl, not {framework!r}")
    if find_spec("trl") is None:
        raise ConfigError("this demo trains with TRL, which is not installed: pip install 'triage-monitor[trl]'")
    report = demo_trl.run_trl(home, min(updates, demo_trl.UPDATES), seed, port)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        demo_trl.show(report)


def _need_torch() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise ConfigError("the demo trains with torch, which is not installed: pip install 'triage-monitor[torch]'")


def run_demo(plan: Plan, port: int) -> dict[str, Any]:
    """Runs everything; the report is also written to report.json in the plan's directory."""
    from triage_monitor.cli.demo_report import gather
    from triage_monitor.cli.demo_view import RunView

    home = plan.home
    home.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    views = {name: RunView(name, title, plan.updates) for name, (_, title) in ARMS.items()}
    with sidecar(home, port, CONFIG) as address:
        screen = _screen(address, started)
        with screen:
            # The second process waits for the warm-up that the first one makes and caches.
            for names in (("unguarded", "guarded"), ("matched",)):
                workers = []
                try:
                    for name in names:
                        workers.append(_worker(name, plan, address))
                        _until_training(workers[-1], views[name], lambda: screen.show(list(views.values())))
                    _follow(workers, views, address, screen)
                finally:
                    _end([worker.process for worker in workers])
        report = gather(views, address, home, {**asdict(plan), "home": str(home)})
    report["seconds"] = time.monotonic() - started
    (home / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _screen(address: str, started: float) -> Any:
    from triage_monitor.cli.demo_screen import Screen

    return Screen(address, started)


@contextmanager
def sidecar(home: Path, port: int, settings: str) -> Iterator[str]:
    """`triage-monitor serve` as a process of its own; its address. TriageError where it does not start, or is gone when
    something of it was needed."""
    from triage_monitor.errors import TriageError

    config = home / "triage-monitor.toml"
    config.write_text(settings, encoding="utf-8")
    command = [sys.executable, "-m", "triage_monitor", "serve", "--config", str(config), "--port", str(port)]
    with (home / "sidecar.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [*command, "--data-dir", str(home / "store")], stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        address = _address(process, home / "sidecar.log")
        try:
            yield address
        except TriageError as error:
            if process.poll() is None:
                raise
            said = f"the sidecar ended before the training did (exit code {process.returncode})"
            raise TriageError(f"{said}; what it wrote is in {home / 'sidecar.log'}") from error
    finally:
        _end([process])


def _address(process: subprocess.Popen[str], log: Path) -> str:
    from triage_monitor.errors import TriageError

    assert process.stdout is not None
    timer = threading.Timer(START_SECONDS, process.kill)
    timer.start()
    line = process.stdout.readline()
    timer.cancel()
    if "http" not in line:
        raise TriageError(f"the sidecar did not start: {log.read_text(encoding='utf-8').strip()[-500:]}")
    return line.strip().rpartition(" ")[2]


def _worker(name: str, plan: Plan, address: str) -> Worker:
    job = {
        "run": name,
        "arm": ARMS[name][0],
        "url": address,
        "directory": str(plan.home / name),
        "updates": plan.updates,
        "rl_seed": plan.seed,
        "warmup_seed": plan.warmup_seed,
        "guarded": name == "guarded",
        "learning_rate": plan.learning_rate,
        "warmup_updates": plan.warmup_updates,
    }
    errors = plan.home / f"{name}.log"
    with errors.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "triage_monitor.cli.demo_worker", json.dumps(job)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    worker = Worker(name, process, errors)
    assert process.stdout is not None
    threading.Thread(target=worker.read, args=(process.stdout,), daemon=True).start()
    return worker


def _until_training(worker: Worker, view: Any, show: Any) -> None:
    while worker.process.poll() is None and view.step < 0:
        for message in worker.heard():
            view.told(message)
        show()
        time.sleep(0.1)


def _follow(workers: list[Worker], views: dict[str, Any], address: str, screen: Any) -> None:
    from triage_monitor.cli.demo_report import refresh
    from triage_monitor.errors import TriageError

    asked = 0.0
    while any(worker.process.poll() is None for worker in workers):
        for worker in workers:
            for message in worker.heard():
                views[worker.name].told(message)
        if time.monotonic() - asked >= POLL_SECONDS:
            asked = time.monotonic()
            for worker in workers:
                refresh(views[worker.name], address)
        screen.show(list(views.values()))
        time.sleep(0.1)
    for worker in workers:
        if worker.process.returncode:
            raise TriageError(f"run {worker.name} failed: {worker.errors.read_text(encoding='utf-8').strip()[-500:]}")
        time.sleep(0.1)
        for message in worker.heard():
            views[worker.name].told(message)
        refresh(views[worker.name], address)
    screen.show(list(views.values()))


def _end(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
