"""A shard's bytes -> its row and its summary; blocking and free of the event loop (a worker thread runs it).

The digest is SHA-256 of the body under its media type, computed beside the decoding: the same bytes again are a
duplicate and are answered without being decoded. Of group ids the distinct ones are kept, so that the closing can see
a group that two shards share.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from triage_monitor.errors import InputError
from triage_monitor.service.live import Piece
from triage_monitor.service.sidecar import Arrival
from triage_monitor.storage.records import ShardRow
from triage_monitor.summary.codec import decode, encode
from triage_monitor.summary.rows import STREAM_MIME, SUMMARY_MIME, UpdateRows, decode_stream
from triage_monitor.summary.spec import SummarySpec

MEDIA_TYPES = (STREAM_MIME, SUMMARY_MIME)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a shard belongs; `attempt` None means the run's current one."""

    run: str
    step: int
    shard: int
    shards: int
    attempt: int | None = None

    @property
    def key(self) -> tuple[str, int, int, int]:
        return self.run, self.attempt or 0, self.step, self.shard


@dataclass(frozen=True, slots=True)
class Reading:
    """An understood body; `rows` only when it was an Arrow stream."""

    arrival: Arrival
    rows: UpdateRows | None = None


def body_digest(media: str, body: memoryview) -> str:
    state = sha256(media.encode())
    state.update(body)
    return state.hexdigest()


def read_shard(address: Address, media: str, body: memoryview, *, spec: SummarySpec, max_tokens: int) -> Reading:
    """The shard without its digest and time. Raises InputError naming column and row."""
    rows = None
    groups: bytes | None = None
    settings: dict[str, str] = {}
    if media == SUMMARY_MIME:
        summary = decode(bytes(body))
        if summary.spec.fingerprint != spec.fingerprint:
            detail = f"the summary was made under {summary.spec.to_json()}, this monitor judges under {spec.to_json()}"
            raise InputError("spec_mismatch", detail)
    else:
        rows = decode_stream(body, max_tokens=max_tokens)
        summary = rows.summarize(spec)
        settings = dict(rows.settings)
        groups = b"" if rows.groups is None else np.unique(rows.groups).astype("<i8").tobytes()
    row = ShardRow(
        address.run,
        address.attempt or 0,
        address.step,
        address.shard,
        address.shards,
        "",
        0.0,
        len(body),
        encode(summary),
        groups,
        dict(settings),
    )
    return Reading(Arrival(row, Piece(summary, groups)), rows)
