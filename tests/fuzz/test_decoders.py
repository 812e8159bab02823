"""The shard's reader by itself, without a server around it: far more damage per second than HTTP lets through.

Whatever the bytes, it returns a shard or raises InputError with a reason and a sentence. What it returns is judged, so
that nothing that is taken can make the closing of its update fail. The halves of two sides likewise: whatever two of
them were taken can be joined and judged. `TRIAGE_FUZZ_DECODES` is the long form's count.
"""

from __future__ import annotations

import os
import random
import resource
from collections import Counter

import pytest
from fuzz.arrow_bodies import arrow_body, damaged, sound_body
from fuzz.half_bodies import half_body
from fuzz.summary_bodies import summary_body

from triage_monitor.config import Settings
from triage_monitor.errors import InputError
from triage_monitor.service.closing import judge_update
from triage_monitor.service.halves import HalfArrival, read_half
from triage_monitor.service.intake import Address, read_shard
from triage_monitor.service.live import LiveRun, OpenUpdate
from triage_monitor.service.open_update import Halves, Piece
from triage_monitor.storage.memory import MemoryStore
from triage_monitor.storage.rowcodec import encode_row
from triage_monitor.summary.rows import STREAM_MIME, SUMMARY_MIME
from triage_monitor.summary.rows_halves import LEARNER, SIDES
from triage_monitor.summary.spec import SummarySpec

SPEC = SummarySpec()
MAX_TOKENS = 200_000
POOL, FRESH = 400, 0.03  # a share: bodies newly made
UPDATES_A_RUN = 120
GROWTH = 512 << 20


def _decode(inputs: int, seed: int) -> None:
    pools: dict[str, list[bytes]] = {STREAM_MIME: [], SUMMARY_MIME: []}
    outcomes: Counter[str] = Counter()
    judge = _Judge()
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
        outcomes[_outcome(body, media, judge)] += 1
        if number == inputs // 4:
            held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{inputs} bodies: {dict(outcomes.most_common())}")
    assert held is not None
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) < GROWTH
    assert outcomes["taken"] > inputs // 100
    assert len(outcomes) > 12


class _Judge:
    """A run in which what is taken is judged, so that windows, baselines and scores are made of it; anew at times."""

    def __init__(self) -> None:
        self._settings = Settings.from_dict({"judge": {"policy": {"mode": "adaptive"}}})
        self._updates = 0

    def close(self, piece: Piece) -> None:
        if self._updates % UPDATES_A_RUN == 0:
            self._live = LiveRun("run", MemoryStore(), self._settings.judge_for("run"), SPEC)
        self._updates += 1
        update = OpenUpdate(0, self._updates, 1, 0.0)
        update.pieces[0] = piece
        closing = judge_update(self._live, update, 1.0)
        for row in closing.records:
            encode_row(row)
        self._live.newest = closing.row


def _outcome(body: bytes, media: str, judge: _Judge) -> str:
    try:
        reading = read_shard(Address("run", 1, 0, 1, 0), media, memoryview(body), spec=SPEC, max_tokens=MAX_TOKENS)
    except InputError as error:
        assert error.reason and error.detail.strip()
        return error.reason
    judge.close(reading.arrival.piece)
    return "taken"


def _judge_whole_runs(runs: int, seed: int) -> None:
    """Sound bodies with the oddest numbers, and forged summaries, for as long as a baseline takes to be learned."""
    judge, outcomes = _Judge(), Counter[str]()
    for number in range(runs * UPDATES_A_RUN * 2):
        rng = random.Random(seed * 1_000_003 + number)
        media = rng.choice((STREAM_MIME,) * 3 + (SUMMARY_MIME,))
        body = (sound_body if media == STREAM_MIME else summary_body)(rng)
        outcomes[_outcome(body, media, judge)] += 1
    print(f"{runs} runs: {dict(outcomes.most_common())}")
    assert outcomes["taken"] > runs * UPDATES_A_RUN


def test_whatever_was_taken_can_be_judged_for_a_whole_run() -> None:
    _judge_whole_runs(2, seed=100)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_hundreds_of_runs_of_odd_numbers_can_be_judged() -> None:
    _judge_whole_runs(300, seed=8)


def _decode_halves(inputs: int, seed: int) -> None:
    pools: dict[str, list[bytes]] = {side: [] for side in SIDES}
    taken: dict[str, list[HalfArrival]] = {side: [] for side in SIDES}
    outcomes: Counter[str] = Counter()
    settings = Settings.from_dict({"judge": {"policy": {"mode": "adaptive"}}})
    for number in range(inputs):
        rng = random.Random(seed * 1_000_003 + number)
        side = rng.choice(SIDES)
        pool = pools[side]
        if len(pool) < 50 or rng.random() < 0.7:
            body = half_body(side, rng)
            pool.append(body)
            del pool[:-POOL]
        else:
            body = damaged(rng.choice(pool), rng)
        try:
            shard = rng.randrange(2)
            arrival = read_half(
                Address("run", 1, shard, 2, 0), side, STREAM_MIME, memoryview(body), max_tokens=MAX_TOKENS
            )
        except InputError as error:
            assert error.reason and error.detail.strip()
            outcomes[error.reason] += 1
            continue
        outcomes["taken"] += 1
        taken[side].append(arrival)
        del taken[side][:-POOL]
        live = LiveRun("run", MemoryStore(), settings.judge_for("run"), SPEC)
        chosen = [arrival, *(rng.choice(taken[of]) for of in SIDES for _ in range(2) if taken[of])]
        matched = _joined(live, {(item.row.side, item.row.shard): item for item in chosen})
        outcomes["joined"] += matched > 0
    print(f"{inputs} halves: {dict(outcomes.most_common())}")
    assert outcomes["taken"] > inputs // 5 and outcomes["joined"] > inputs // 30
    assert len(outcomes) > 12


def _joined(live: LiveRun, halves: dict[tuple[str, int], HalfArrival]) -> int:
    """How many rows found their partner, of an update that is closed with these halves and none besides."""
    for item in halves.values():
        live.store.write(item.row, item.content).result()
    update = OpenUpdate(0, 1, 4, 0.0, halves=Halves.of(item.row for item in halves.values()))
    for row in judge_update(live, update, 1.0).records:
        encode_row(row)
    assert update.join is not None
    rows = sum(item.row.side == LEARNER for item in halves.values())
    assert len(update.pieces) == rows
    return int(update.join["matched"])


def test_thousands_of_halves_are_read_or_refused_and_any_taken_ones_can_be_joined() -> None:
    _decode_halves(1200, seed=5)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_a_hundred_thousand_halves() -> None:
    _decode_halves(int(os.environ.get("TRIAGE_FUZZ_DECODES", "100000")), seed=6)


def test_thousands_of_bodies_are_read_or_refused() -> None:
    _decode(2000, seed=3)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_a_hundred_thousand_bodies_are_read_or_refused() -> None:
    _decode(int(os.environ.get("TRIAGE_FUZZ_DECODES", "100000")), seed=4)
