"""Synthetic runs for the page's tests: some responses of random gaps, the negative side's tail growing with the step.

Synthetic, and named so where it shows: what a real run looks like is in the README's pictures.
"""

from __future__ import annotations

import numpy as np
from service.live_server import LiveServer

from triage_monitor.summary.rows import encode_arrays

RUN = "synthetic-drift"
RESPONSES, TOKENS = 16, 256


def update(step: int, *, growth: float = 0.01, **more: object) -> bytes:
    rng = np.random.default_rng(step)
    offsets = np.arange(0, RESPONSES * TOKENS + 1, TOKENS)
    advantages = np.where(np.arange(RESPONSES) % 2 == 0, -1.0, 1.0) * (0.5 + rng.random(RESPONSES))
    gap = rng.normal(-0.002 * (1 + growth * step), 0.03, RESPONSES * TOKENS)
    tail = rng.random(gap.size) < 0.004 * (1 + growth * step)
    gap[tail] -= rng.exponential(0.4 * (1 + growth * step), int(tail.sum()))
    given = {
        "rewards": 0.7 + 0.1 * rng.random(RESPONSES),
        "grad_norm": np.full(RESPONSES, 1.0 + 0.01 * rng.random()),
        "response_ids": [f"{step}-{number}" for number in range(RESPONSES)],
    }
    return encode_arrays(gap=gap.astype(np.float32), advantages=advantages, offsets=offsets, **(given | more))


def feed(server: LiveServer, steps: range, run: str = RUN, *, growth: float = 0.01) -> None:
    for step in steps:
        answer = server.put(run, step, update(step, growth=growth))
        assert answer.status_code == 201, answer.text
