"""One training process of the demo: real GRPO on the testbed, reporting to the sidecar as any trainer would.

    python -m triage_monitor.cli.demo_worker '{"run": "guarded", "arm": "nvfp4", ...}'

Prints one JSON object a line: progress of the warm-up, then each update's numbers, then what the client counted.
A guarded run takes its parameters from the monitor at every update boundary; the others only report.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLUSH_SECONDS = 30.0
REGIME = "demo"


@dataclass(frozen=True, slots=True)
class Job:
    run: str
    arm: str
    url: str
    directory: str
    updates: int
    rl_seed: int
    warmup_seed: int
    guarded: bool
    learning_rate: float | None = None
    warmup_updates: int | None = None


def say(event: str, **numbers: Any) -> None:
    print(json.dumps({"event": event, **numbers}), flush=True)


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    from triage_monitor.testbed.config import TrainConfig
    from triage_monitor.testbed.record import RunRecorder
    from triage_monitor.testbed.train import Trainer, train
    from triage_monitor.testbed.update import UpdateResult
    from triage_monitor.testbed.warmup import WarmupRecipe
    from triage_monitor.trainer.client import Monitor

    config = TrainConfig(
        arm=job.arm,
        regime=REGIME,
        updates=job.updates,
        rl_seed=job.rl_seed,
        warmup_seed=job.warmup_seed,
        learning_rate=job.learning_rate,
        warmup=None if job.warmup_updates is None else WarmupRecipe(updates=job.warmup_updates),
    )
    settings = {"temperature": 1.0, "learner": "old", "precision": "nvfp4"}
    with (
        RunRecorder(Path(job.directory), config, run=job.run) as recorder,
        Monitor(job.url, run=job.run, settings=settings, exit_flush_seconds=FLUSH_SECONDS) as monitor,
    ):

        def on_update(result: UpdateResult) -> None:
            monitor.submit(step=result.step, **result.arrays())
            recorder(result)
            say(
                "update",
                step=result.step,
                reward=result.reward_mean,
                entropy=result.entropy,
                wall_seconds=result.wall_seconds,
                params_version=result.params_version,
                gate_removed=result.stats.get("gate_mass_removed"),
            )

        trainer = Trainer(config, on_warmup=lambda done, total, loss: say("warmup", done=done, total=total, loss=loss))
        train(config, on_update=on_update, params_for=monitor.apply if job.guarded else None, trainer=trainer)
        flushed = monitor.close(FLUSH_SECONDS)
        say("end", flushed=flushed, client=monitor.stats)


if __name__ == "__main__":
    main()
