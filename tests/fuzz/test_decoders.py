"""The shard's reader by itself, without a server around it: far more damage per second than HTTP lets through.

Whatever the bytes, it returns a shard or raises InputError with a reason and a sentence. What it returns is judged, so
that nothing that is taken can make the closing of its update fail. `TRIAGE_FUZZ_DECODES` is the long form's count.
"""

from __future__ import annotations

import os
import random
import resource
from collections import Counter

import pytest
from fuzz.arrow_bodies import arrow_body, damaged
from fuzz.summary_bodies import summary_body

from triage_monitor.config import Settings
from triage_monitor.errors import InputError
from triage_monitor.service.closing import judge_update
from triage_monitor.service.intake import Address, read_shard
from triage_monitor.service.live import LiveRun, OpenUpdate
from triage_monitor.storage.memory import MemoryStore
from triage_monitor.storage.rowcodec import encode_row
from triage_monitor.summary.rows import STREAM_MIME, SUMMARY_MIME
from triage_monitor.summary.spec import SummarySpec

SPEC = SummarySpec()
MAX_TOKENS = 200_000
POOL, FRESH, JUDGED = 400, 0.03, 0.1  # shares: bodies newly made, taken ones that are judged
GROWTH = 512 << 20


def _decode(inputs: int, seed: int) -> None:
    pools: dict[str, list[bytes]] = {STREAM_MIME: [], SUMMARY_MIME: []}
    outcomes: Counter[str] = Counter()
    settings = Settings.from_dict({"judge": {"policy": {"mode": "adaptive"}}})
    held = None
    for number in range(inputs):
        rng = random.Random(seed * 1_000_003 + number)
        media = rng.choice((STREAM_MIME, SUMMARY_MIME))
        pool = pools[media]
        if len(pool) < 50 or rng.random() < FRESH:
            body = (arrow_body if media == STREAM_MIME else summary_body)(rng)
            pool.append(body)
            del pool[:-POOL]
        else:
            body = damaged(rng.choice(pool), rng)
        outcomes[_outcome(body, media, settings, rng)] += 1
        if number == inputs // 4:
            held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{inputs} bodies: {dict(outcomes.most_common())}")
    assert held is not None
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) < GROWTH
    assert outcomes["taken"] > inputs // 100
    assert len(outcomes) > 12


def _outcome(body: bytes, media: str, settings: Settings, rng: random.Random) -> str:
    try:
        reading = read_shard(Address("run", 1, 0, 1, 0), media, memoryview(body), spec=SPEC, max_tokens=MAX_TOKENS)
    except InputError as error:
        assert error.reason and error.detail.strip()
        return error.reason
    if rng.random() < JUDGED:
        live = LiveRun("run", MemoryStore(), settings.judge_for("run"), SPEC)
        update = OpenUpdate(0, 1, 1, 0.0)
        update.pieces[0] = reading.arrival.piece
        for row in judge_update(live, update, 1.0).records:
            encode_row(row)
    return "taken"


def test_thousands_of_bodies_are_read_or_refused() -> None:
    _decode(2000, seed=3)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_a_hundred_thousand_bodies_are_read_or_refused() -> None:
    _decode(int(os.environ.get("TRIAGE_FUZZ_DECODES", "100000")), seed=4)
