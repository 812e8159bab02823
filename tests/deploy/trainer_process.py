"""A trainer in a process of its own, on the real `Monitor`: python trainer_process.py URL RUN. Synthetic gaps.

Balanced updates first; then negative-advantage tokens amplify until a gate comes with new parameters; then balanced
ones again. Ends when its input closes. Prints `applied VERSION STEP` whenever another version is in force.
"""

from __future__ import annotations

import sys
import threading
import time

import numpy as np

from triage_monitor import Monitor

RESPONSES, TOKENS, CALM_STEPS, STEP_SECONDS = 16, 256, 24, 0.2
BAD_STEP = 20  # whose first tokens have no finite gap


def gaps(rng: np.random.Generator, advantages: np.ndarray, *, leaning: bool) -> np.ndarray:
    negative = np.where(advantages < 0, 0.9 if leaning else 0.5, 0.5)
    sign = np.where(rng.random((RESPONSES, TOKENS)) < negative[:, None], -1.0, 1.0)
    return sign * np.abs(rng.normal(0, 0.1, (RESPONSES, TOKENS)))


def main(url: str, run: str) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    rng = np.random.default_rng(7)
    advantages = np.where(np.arange(RESPONSES) % 2, 1.0, -1.0)
    offsets = np.arange(0, RESPONSES * TOKENS + 1, TOKENS)
    step, version = 0, -1
    with Monitor(url, run=run, poll_seconds=1.0) as monitor:
        while not ended.is_set():
            params = monitor.apply(step)
            if params.version != version:
                version = params.version
                print(f"applied {version} {step}", flush=True)
            leaning = step >= CALM_STEPS and not params.gate.enabled
            sampler = -rng.exponential(1.0, (RESPONSES, TOKENS)) - 0.5
            learner = sampler + gaps(rng, advantages, leaning=leaning)
            if step == BAD_STEP:
                learner[0, :3] = np.nan
            monitor.submit(
                step=step,
                learner_logprobs=learner.ravel().astype(np.float32),
                sampler_logprobs=sampler.ravel().astype(np.float32),
                advantages=advantages,
                offsets=offsets,
                rewards=rng.random(RESPONSES),
                grad_norm=1.0 + rng.random(),
                policy_versions=np.full(RESPONSES, 10 + step) - np.arange(RESPONSES) % 3,
            )
            step += 1
            time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
