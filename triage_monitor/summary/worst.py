"""The few worst responses of an update, segment by segment: where in which response the amplifying tail sits.

A response is worse the more its amplifying-tail tokens (A- or A+, abs(gap) >= tau_ana) add up to, in nats: size and
number in one. Of each shard at most KEPT are held, each with at most MAX_CELLS cells, a cell being `per_cell`
neighbouring segments; so the size does not depend on how many tokens there were. Merging takes the worst of all shards
in an order that nothing but the responses decides.

It stands beside the summary and enters no indicator: a shard that came as a summary has none. What is read off the
rows is `worst_rows`'s business.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from triage_monitor.errors import InputError

KEPT = 12
MAX_CELLS = 48
MAX_NAME = 120
FORMAT = 1
MAX_DECODED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class WorstResponse:
    """One response. `row` counts from 0 within its shard; `tail_gap` and the gaps are in nats, `lowest` is a cell's
    smallest gap and None where no token is valid; `eligible` and `heavy` count segments (estimands section 4)."""

    row: int
    shard: int
    response_id: str | None
    engine: str | None
    advantage: float | None
    tail_gap: float
    mean_gap: float
    valid_tokens: int
    tail_tokens: int
    segments: int
    eligible: int
    heavy: int
    per_cell: int
    tokens: tuple[int, ...]
    tail: tuple[int, ...]
    lowest: tuple[float | None, ...]

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WorstResponse:
        cells = {name: tuple(data[name]) for name in ("tokens", "tail", "lowest")}
        return cls(**{item.name: data[item.name] for item in fields(cls)} | cells)


_NAMES = tuple(item.name for item in fields(WorstResponse))


def merge_worst(several: Iterable[tuple[WorstResponse, ...]]) -> tuple[WorstResponse, ...]:
    """The worst of all, worst first; the order of the inputs makes no difference."""
    every = [response for one in several for response in one]
    return tuple(sorted(every, key=lambda item: (-item.tail_gap, item.shard, item.row))[:KEPT])


def encode_worst(responses: tuple[WorstResponse, ...]) -> bytes:
    document = {
        "format": FORMAT,
        "responses": [{name: getattr(response, name) for name in _NAMES} for response in responses],
    }
    return zlib.compress(json.dumps(document, allow_nan=False, separators=(",", ":")).encode(), 6)


def decode_worst(encoded: bytes) -> tuple[WorstResponse, ...]:
    """Raises InputError for what this version did not write."""
    try:
        stream = zlib.decompressobj()
        document = json.loads(stream.decompress(encoded, MAX_DECODED_BYTES))
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']}")
        return tuple(WorstResponse.from_dict(item) for item in document["responses"])
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise InputError("worst_damaged", f"not readable worst responses ({error})") from None
