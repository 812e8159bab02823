"""What `submit` costs a trainer whose sidecar hangs: time beside plain copies of its arrays, and bounded memory."""

from __future__ import annotations

import json
import socket

import pytest
from trainer.client_help import start_script

QUEUE_BYTES, ONE_UPDATE = 32 << 20, 2 << 20
SCRIPT = """
import json, sys, time
from pathlib import Path
import numpy as np
from triage_monitor import Monitor

rng, tokens, responses, turns = np.random.default_rng(0), 160_000, 64, 400
arrays = {
    "learner_logprobs": -rng.random(tokens).astype(np.float32),
    "sampler_logprobs": -rng.random(tokens).astype(np.float32),
    "mask": rng.random(tokens) < 0.9,
}
small = {"advantages": rng.normal(size=responses), "offsets": np.linspace(0, tokens, responses + 1).astype(np.int64)}

def held():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024

monitor = Monitor(sys.argv[1], run="cost", max_queue_bytes=int(sys.argv[2]), connect_timeout=60.0, timeout=60.0)
copies, submits, memory = [], [], []
for step in range(turns):
    started = time.perf_counter()
    kept = [array.copy() for array in arrays.values()]
    copies.append(time.perf_counter() - started)
    del kept
    started = time.perf_counter()
    monitor.submit(step=step, **arrays, **small)
    submits.append(time.perf_counter() - started)
    memory.append(held())
    time.sleep(0.002)
stats = monitor.stats
tell = lambda values: [float(np.quantile(values[turns // 4 :], q)) for q in (0.5, 0.99)]
print(json.dumps({
    "copies": tell(copies), "submits": tell(submits), "grown": max(memory) - memory[0],
    "late": memory[-1] - memory[turns // 2], "dropped": stats["dropped"], "queue_bytes": stats["queue_bytes"],
}))
"""


@pytest.mark.perf
def test_submit_to_a_hung_sidecar_costs_a_few_copies_and_holds_no_more_than_its_queue() -> None:
    with socket.socket() as hung:
        hung.bind(("127.0.0.1", 0))
        hung.listen(16)  # takes connections and never answers
        process = start_script(SCRIPT, f"http://127.0.0.1:{hung.getsockname()[1]}", str(QUEUE_BYTES))
        out, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    told = json.loads(out.splitlines()[-1])
    (copy_mid, copy_late), (mid, late) = told["copies"], told["submits"]
    ratios = f"{mid / copy_mid:.1f} and {late / copy_late:.1f} copies"
    print(f"submit p50 {mid * 1e3:.2f} ms, p99 {late * 1e3:.2f} ms: {ratios}")
    print(f"memory grew by {told['grown'] / 1e6:.0f} MB, in the second half by {told['late'] / 1e6:.0f} MB")
    assert mid < 6 * copy_mid
    assert late < 20 * copy_late
    assert sum(told["dropped"].values()) > 200
    assert told["queue_bytes"] <= QUEUE_BYTES + ONE_UPDATE  # the one being sent comes on top
    assert told["grown"] < 2 * QUEUE_BYTES + (32 << 20)
    assert told["late"] < QUEUE_BYTES // 4
