"""The same small training run, once per argument: `none`, or the address of a monitor. Run by test_client_training.

    python training_loop.py STEPS none|URL|lost=URL|mirrored=URL ...

`lost=` waits halfway until the client has noticed that its server is gone; `mirrored=` mirrors into every tracker that
is installed, in the working directory, and closes within 60 seconds. Prints one JSON line a run: its address,
every loss as exact hexadecimal, the client's counters. Dropout and the global random states of numpy and Python take
part, so that a client that touches any of them shows.
"""

from __future__ import annotations

import json
import random
import sys
from importlib.util import find_spec
from time import monotonic, sleep
from typing import Any

import numpy as np
import torch

from triage_monitor import Monitor


def train(monitor: Monitor | None, steps: int, is_lost: bool = False) -> list[str]:
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(64, 8))
    losses = []
    for step in range(steps):
        inputs = torch.randn(32, 16) + float(np.random.normal()) + random.random()
        learner = torch.log_softmax(model(inputs), dim=-1)
        sampler = torch.log_softmax(model(inputs), dim=-1).detach()
        advantages = torch.randn(32)
        weights = torch.exp(learner.detach() - sampler).clamp(max=2.0)
        loss = -(weights * learner * advantages[:, None]).mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        losses.append(float(loss.detach()).hex())
        if is_lost and step == steps // 2:
            _wait_until_lost(monitor)
        if monitor is not None:
            _report(monitor, step, learner, sampler, advantages)
    return losses


def _report(monitor: Monitor, step: int, learner: Any, sampler: Any, advantages: Any) -> None:
    monitor.apply(step)
    monitor.submit(
        step=step,
        learner_logprobs=learner,
        sampler_logprobs=sampler,
        advantages=advantages,
        mask=torch.ones(32, 8, dtype=torch.bool),
    )


def _wait_until_lost(monitor: Monitor | None) -> None:
    end = monotonic() + 100.0
    while monitor is not None and monitor.stats["last_error"] is None:
        assert monotonic() < end, "the server was to be killed by now"
        sleep(0.01)


def main() -> None:
    torch.set_num_threads(1)
    for argument in sys.argv[2:]:
        is_mirrored = argument.startswith("mirrored=")
        url = argument.removeprefix("lost=").removeprefix("mirrored=")
        monitor = None
        if url != "none":
            kinds = [kind for kind in ("tensorboard", "mlflow", "wandb", "trackio") if is_mirrored and find_spec(kind)]
            room = 64 if is_mirrored else 8
            monitor = Monitor(url, run="bits", timeout=60.0, call_timeout=60.0, queue_updates=room, mirror=kinds)
        losses = train(monitor, int(sys.argv[1]), is_lost=argument.startswith("lost="))
        if is_mirrored and monitor is not None:
            monitor.close(60.0)
        stats = {} if monitor is None else monitor.stats
        print(json.dumps({"url": url, "losses": losses, "stats": stats}), flush=True)
        if monitor is not None:
            monitor.close(0.1)


main()
