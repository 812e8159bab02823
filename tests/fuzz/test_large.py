"""2^24 + 1 tokens in one body, where a float32 stops counting: taken and counted to the token, or refused by name.

float16 gaps, compressed to a few kilobytes; in one response, and as two of which the second is the one token more.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from service.live_server import STREAM, serving

from triage_monitor.config import Settings
from triage_monitor.errors import InputError
from triage_monitor.service.intake import Address, read_shard
from triage_monitor.summary.rows import STREAM_MIME
from triage_monitor.summary.spec import SummarySpec
from triage_monitor.summary.step import StepSummary

TOKENS = 2**24 + 1


def _body(lengths: list[int], advantages: list[float]) -> bytes:
    """Every gap 0.5, the last one -0.25."""
    gap = np.full(TOKENS, 0.5, np.float16)
    gap[-1] = -0.25
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    batch = pa.record_batch({"gap": pa.ListArray.from_arrays(offsets, pa.array(gap)), "advantage": advantages})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


BODIES = {"one response": ([TOKENS], [1.0]), "two responses": ([2**24, 1], [1.0, -1.0])}


def _summary(body: bytes, max_tokens: int) -> StepSummary:
    reading = read_shard(
        Address("run", 1, 0, 1, 0), STREAM_MIME, memoryview(body), spec=SummarySpec(), max_tokens=max_tokens
    )
    return reading.arrival.piece.summary


@pytest.mark.parametrize("form", BODIES)
def test_one_token_more_than_a_float32_counts_is_counted(form: str) -> None:
    body = _body(*BODIES[form])
    assert len(body) < 100_000
    with pytest.raises(InputError, match="16777217 positions; one body may hold 16777216") as refused:
        _summary(body, TOKENS - 1)
    assert refused.value.reason == "too_large"
    summary = _summary(body, TOKENS)
    counts = summary.counts
    assert (counts["tokens"], counts["valid_tokens"], counts["gap_positive"], counts["gap_negative"]) == (
        TOKENS, TOKENS, 2**24, 1,
    )  # fmt: skip
    assert summary.sums["gap"] == 2**24 * 0.5 - 0.25
    assert summary.sums["gap_sq"] == 2**24 * 0.25 + 0.0625


def test_small_body_of_so_many_tokens_is_served() -> None:
    with serving(Settings.from_dict({"server": {"port": 0}, "ingest": {"max_inflight_bytes": 1 << 28}})) as server:
        assert server.put("run", 1, _body(*BODIES["two responses"])).json()["update"] == "complete"
        found = server.run("run")["last_update"]["indicators"]
        assert found["rho_asym"] == 2.0**-24
        assert found["delta_mean"] == (2**24 * 0.5 - 0.25) / TOKENS
    small = Settings.from_dict(
        {"server": {"port": 0}, "ingest": {"max_inflight_bytes": 1 << 24, "max_body_bytes": 1 << 23}}
    )
    with serving(small) as server:
        refused = server.http.put(
            "/v1/runs/run/updates/1/shards/0", content=_body(*BODIES["one response"]), headers=STREAM
        )
        assert (refused.status_code, refused.json()["reason"]) == (413, "too_large")
        assert "expands to" in refused.json()["detail"]
        assert server.http.get("/v1/runs/run").status_code == 404
