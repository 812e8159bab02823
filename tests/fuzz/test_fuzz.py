"""Bad input of every kind on a really served sidecar, from outside: HTTP, the process's memory, and its data directory.

Pass mark for every input: no 5xx but the intended ones, a problem document that says what was wrong, strict JSON, no
answer slower than a second beyond what the machine's own slowness explains, `/healthz` answered throughout, memory
within what the configuration allows, and in the store exactly the shards that were answered 201.

The short form sends hundreds of inputs; `TRIAGE_FUZZ_INPUTS` (100,000) is the long one's count. Each input is made from
its number, which a failure names.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
from fuzz.arrow_bodies import arrow_body, damaged
from fuzz.driver import Fuzz, forget_peak, peak_memory, probing, stored_keys
from fuzz.half_bodies import half_body
from fuzz.requests import odd_request
from fuzz.summary_bodies import summary_body
from service.bare_sink import bare_sink
from service.live_server import masses
from service.served_process import ServedProcess, served

from triage_monitor.summary.rows import STREAM_MIME, SUMMARY_MIME
from triage_monitor.summary.rows_halves import LEARNER, SAMPLER, SIDES, half_of_arrays, half_to_bytes

MAX_TOKENS = 200_000
INFLIGHT = 32 << 20
ENV = {
    "TRIAGE_INGEST__MAX_TOKENS": str(MAX_TOKENS),
    "TRIAGE_INGEST__MAX_BODY_BYTES": "4000000",
    "TRIAGE_INGEST__MAX_INFLIGHT_BYTES": str(INFLIGHT),
    "TRIAGE_INGEST__GRACE_SECONDS": "2",  # updates of which one side never comes are closed meanwhile
}
HOOKS = '[hooks.actions]\nTriageRunTerminal = "pause"\n'
RUNS = 3
# What decoding holds beside the bodies: 40 bytes a position for two workers, and two summaries at their largest; and
# the windows of the runs that take what is taken, 25 summaries of 400 kB each; two more take halves.
ROOM = INFLIGHT + 2 * 40 * MAX_TOKENS + 2 * (64 << 20) + (RUNS + 3) * 26 * 450_000
POOL, FRESH = 400, 0.2  # most inputs are damage done to an earlier one


def _send_one(fuzz: Fuzz, number: int, seed: int, pools: dict[str, list[bytes]]) -> None:
    rng = random.Random(seed * 1_000_003 + number)
    kind = ("arrow", "summary", "request", "half")[number % 4]
    label = f"input {number} of seed {seed}, {kind}"
    if kind == "request":
        request = odd_request(rng)
        fuzz.send(f"{label} {request.method} {request.path[:100]}", *_parts(request))
        return
    side = rng.choice(SIDES)
    pool = pools.setdefault(kind, [])
    if kind == "half" or len(pool) < 20 or rng.random() < FRESH:
        body = half_body(side, rng) if kind == "half" else (arrow_body if kind == "arrow" else summary_body)(rng)
        pool.append(body)
        del pool[:-POOL]
    else:  # making a body takes longer than sending it
        body = damaged(rng.choice(pool), rng)
    if kind == "half":  # four inputs a step, so that sides meet, again and conflicting ones come too
        step = number // 16 + rng.choice((0, 0, 0, 1))
        fuzz.put_half(
            label, side, f"halves-{number // 4 % 2}", step, body, rng.choice((STREAM_MIME,) * 20 + (SUMMARY_MIME,))
        )
        return
    media = {"arrow": STREAM_MIME, "summary": SUMMARY_MIME}[kind]
    fuzz.put(label, f"fuzz-{number % RUNS}", number, body, rng.choice((media, media, media, STREAM_MIME)))


def _parts(request: object) -> tuple[str, str, bytes | None, dict[str, str]]:
    return tuple(getattr(request, name) for name in ("method", "path", "body", "headers"))  # type: ignore[return-value]


def _fuzz(data_dir: Path, inputs: int, seed: int) -> None:
    (data_dir / "hooks.toml").write_text(HOOKS)
    home = data_dir / "data"
    with bare_sink() as idle, served(home, ENV, "--config", str(data_dir / "hooks.toml")) as server:
        fuzz = Fuzz(server)
        for step in range(3):
            assert fuzz.put("sound", "fuzz", step, masses(2, 1), STREAM_MIME) == 201
        _warm_halves(fuzz)
        before = forget_peak(server)
        fuzz.found.slowest = 0.0
        pools: dict[str, list[bytes]] = {}
        with probing(server.address) as alive, probing(idle, "/") as machine:
            for number in range(inputs):
                _send_one(fuzz, number, seed, pools)
                assert len(fuzz.found.wrong) < 20, "\n".join(fuzz.found.wrong)
        _judge(fuzz, server, before, max(alive), max(machine))
        _still_sound(fuzz, server)
        fuzz.close()
        assert server.end() == 0
    assert "Traceback" not in server.written[1], server.written[1][:3000]
    assert stored_keys(home) == fuzz.accepted
    halves = fuzz.accepted_halves
    assert stored_keys(home, "halves", "run", "attempt", "step", "side", "shard") == halves
    assert stored_keys(home, "half_contents", "run", "attempt", "step", "side", "shard") <= halves
    may_be = fuzz.accepted | {(run, attempt, step, shard) for run, attempt, step, _, shard in halves}
    for table in ("symptoms", "worst"):
        assert stored_keys(home, table) <= may_be
    joined = stored_keys(home, "updates", "json_extract(report, '$.join.matched')")
    assert max(found for (found,) in joined if found is not None) > 0


def _warm_halves(fuzz: Fuzz) -> None:
    """A machine's first start still compiles what log-probs need."""
    for step, kind in enumerate((np.float32, np.float64)):
        arrays = {"response_ids": ["a"], "offsets": np.array([0, 2])}
        values = np.array([-0.5, -0.25], kind)
        halves = {
            SAMPLER: {"sampler_logprobs": values},
            LEARNER: {"learner_logprobs": values, "advantages": np.ones(1)},
        }
        for side, own in halves.items():
            body = half_to_bytes(half_of_arrays(side, {**arrays, **own}, {}))
            assert fuzz.put_half("sound", side, "halves", step, body, STREAM_MIME) == 201


def _judge(fuzz: Fuzz, server: ServedProcess, before: int, alive: float, machine: float) -> None:
    found, held = fuzz.found, peak_memory(server) - before
    print(f"{found.sent} inputs: {dict(sorted(found.statuses.items()))}; {len(found.reasons)} reasons")
    print(f"slowest {found.slowest:.2f} s ({found.slowest_input}), healthz {alive:.2f} s, idle server {machine:.2f} s")
    print(f"memory {before / 1e6:.0f} MB and at most {held / 1e6:.0f} MB more")
    assert found.wrong == []
    assert found.slowest < 1 + 10 * machine
    assert alive < 1 + 10 * machine
    assert held < ROOM


def _still_sound(fuzz: Fuzz, server: ServedProcess) -> None:
    """It still does its work, and everything it has to say is readable."""
    refused = {key: value for key, value in _samples(server).items() if key.startswith("triage_ingest_rejected_total")}
    assert sum(refused.values()) > 0 and len(refused) > 3
    for run in server.http.get("/v1/runs").json()["runs"]:
        for part in ("", "/updates", "/worst", "/transitions", "/params/history", "/actions", "/audit"):
            assert fuzz.send("reading", "GET", f"/v1/runs/{run['run']}{part}") == 200
    assert fuzz.found.wrong == []
    assert fuzz.put("afterwards", "afterwards", 1, masses(3, 2), STREAM_MIME) == 201
    assert server.http.get("/v1/runs/afterwards").json()["last_update"]["indicators"]["rho_asym"] == 1.5
    assert server.http.get("/readyz").json()["status"] == "ready"


def _samples(server: ServedProcess) -> dict[str, float]:
    lines = server.http.get("/metrics").text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_hundreds_of_bad_inputs_are_refused_whole_and_by_name(tmp_path: Path) -> None:
    _fuzz(tmp_path, 600, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_a_hundred_thousand_bad_inputs(tmp_path: Path) -> None:
    _fuzz(
        tmp_path, int(os.environ.get("TRIAGE_FUZZ_INPUTS", "100000")), seed=int(os.environ.get("TRIAGE_FUZZ_SEED", "2"))
    )
