"""What a body is known by does not depend on the pieces it came in; damage of a large one is found too."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from service.live_server import STREAM, serving

from triage_monitor.service.digest import PIECE_BYTES, RunningDigest
from triage_monitor.summary.checksum import content_start
from triage_monitor.summary.rows import STREAM_MIME, encode_arrays


@pytest.fixture(scope="module")
def workers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def large() -> bytes:
    rng = np.random.default_rng(3)
    offsets = np.linspace(0, 1_500_000, 301).astype(np.int64)
    gap = rng.normal(0, 0.05, 1_500_000).astype(np.float32)
    return encode_arrays(gap=gap, advantages=rng.normal(size=300), offsets=offsets)


@pytest.mark.parametrize("pieces", ["bytes", "drawn", "one"])
def test_digest_of_a_body_is_the_same_whatever_pieces_it_came_in(
    workers: ThreadPoolExecutor, large: bytes, pieces: str
) -> None:
    rng, body = random.Random(5), memoryview(large)
    cuts = {
        "bytes": [*range(200), *range(PIECE_BYTES - 2, PIECE_BYTES + 3)],
        "drawn": sorted(rng.randrange(len(body)) for _ in range(40)),
        "one": [],
    }[pieces]
    digest = RunningDigest(workers, STREAM_MIME)
    for cut in cuts:
        digest.seen(body[:cut])
    assert digest.text(body).result() == sha256(STREAM_MIME.encode() + large).hexdigest()
    start = content_start(body)
    assert digest.content_crc(body).result() == (None if pieces == "one" else crc32(large[start:]))


def test_body_of_another_kind_has_no_content_to_sum(workers: ThreadPoolExecutor) -> None:
    body = memoryview(bytes(3 * PIECE_BYTES))
    digest = RunningDigest(workers, "x")
    digest.seen(body[: 2 * PIECE_BYTES])
    assert digest.text(body).result() == sha256(b"x" + bytes(body)).hexdigest()
    assert digest.content_crc(body).result() is None


def test_large_shard_is_judged_as_in_two_and_refused_when_a_byte_of_it_changed(tmp_path: Path, large: bytes) -> None:
    middle, tail = bytearray(large), bytearray(large)
    middle[len(large) // 2] ^= 1
    tail[-100] ^= 1
    with serving() as live:
        for damaged in (middle, tail):
            answer = live.http.put("/v1/runs/run/updates/1/shards/0", content=bytes(damaged), headers=STREAM)
            assert (answer.status_code, answer.json()["reason"]) == (400, "checksum")
        assert live.http.get("/v1/runs").json()["runs"] == []
        assert live.http.put("/v1/runs/run/updates/1/shards/0", content=large, headers=STREAM).status_code == 201
        again = live.http.put("/v1/runs/run/updates/1/shards/0", content=large, headers=STREAM)
        assert (again.status_code, again.json()["status"]) == (200, "duplicate")
        counts = live.http.get("/v1/runs/run/updates", params={"from": 1}).json()["updates"][0]["counts"]
    assert (counts["valid_tokens"], counts["responses"]) == (1_500_000, 300)
