"""Worst responses against a slow count over the same tokens; bounds, merging, and what is written comes back."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest

from triage_monitor.errors import InputError
from triage_monitor.summary.rows import UpdateRows, rows_from_arrays
from triage_monitor.summary.spec import SummarySpec
from triage_monitor.summary.worst import (
    KEPT,
    MAX_CELLS,
    MAX_NAME,
    WorstResponse,
    decode_worst,
    encode_worst,
    merge_worst,
)
from triage_monitor.summary.worst_rows import worst_of

SPEC = SummarySpec(segment=8)


def slow(rows: UpdateRows, row: int) -> tuple[float, list[int], list[int], list[float | None]]:
    """tail_gap, and by segment the valid tokens, the tail tokens and the lowest gap: token by token."""
    first, last = int(rows.offsets[row]), int(rows.offsets[row + 1])
    mask = [True] * (last - first) if rows.mask is None else [bool(m) for m in rows.mask[first:last]]
    while not mask[0]:
        mask, first = mask[1:], first + 1
    while not mask[-1]:
        mask, last = mask[:-1], last - 1
    total, n, c, low = 0.0, [0], [0], [math.inf]
    for at, token in enumerate(range(first, last)):
        if at and at % SPEC.segment == 0:
            n, c, low = [*n, 0], [*c, 0], [*low, math.inf]
        if rows.gap is not None:
            gap, tau = float(rows.gap[token]), float(np.float32(SPEC.tau_ana))
        else:
            assert rows.learner_logprobs is not None and rows.sampler_logprobs is not None
            gap, tau = float(rows.learner_logprobs[token]) - float(rows.sampler_logprobs[token]), SPEC.tau_ana
        if not mask[at] or not math.isfinite(gap) or (rows.missing is not None and rows.missing[token]):
            continue
        advantage = float(rows.advantages[token if rows.advantages_per_token else row])
        n[-1] += 1
        low[-1] = min(low[-1], gap)
        if abs(gap) >= tau and gap * advantage > 0:
            c[-1] += 1
            total += abs(gap)
    return total, n, c, [None if math.isinf(value) else value for value in low]


def rows_of(kind: str, seed: int = 0) -> UpdateRows:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 60, 40)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    gap = rng.normal(0, 0.2, offsets[-1]).astype(np.float32)
    gap[rng.random(gap.size) < 0.05] = np.nan
    gap[rng.random(gap.size) < 0.02] = -np.inf
    advantages = rng.normal(size=offsets[-1] if kind == "per token" else 40)
    mask = rng.random(gap.size) < 0.8
    mask[offsets[:-1]] = True
    sides = {"sampler_logprobs": -rng.random(gap.size).astype(np.float32)}
    if kind == "log-probs":
        given = {"learner_logprobs": (sides["sampler_logprobs"] + gap).astype(np.float32), **sides}
    else:
        given = {"gap": gap}
    masked = {"mask": mask} if kind == "mask" else {}
    return rows_from_arrays(advantages=advantages, offsets=offsets, **given, **masked)


@pytest.mark.parametrize("kind", ["gap", "log-probs", "mask", "per token"])
def test_kept_responses_are_those_of_a_slow_count_with_its_cells(kind: str) -> None:
    rows = rows_of(kind)
    expected = {row: slow(rows, row) for row in range(rows.responses)}
    found = worst_of(rows, SPEC, shard=3)
    weights = sorted((value[0] for value in expected.values()), reverse=True)
    assert [item.tail_gap for item in found] == pytest.approx(weights[:KEPT], abs=1e-5)
    for item in found:
        total, n, c, low = expected[item.row]
        assert item.tail_gap == pytest.approx(total, abs=1e-5)
        assert (list(item.tokens), list(item.tail), item.shard, item.per_cell) == (n, c, 3, 1)
        assert [value is None for value in item.lowest] == [value is None for value in low]
        assert [v for v in item.lowest if v is not None] == pytest.approx([v for v in low if v is not None], abs=1e-5)
        assert (item.valid_tokens, item.tail_tokens) == (sum(n), sum(c))
        assert item.eligible == sum(value >= 2 for value in n)
        assert item.heavy == sum(value >= 2 and tail / value >= 0.125 for value, tail in zip(n, c, strict=True))


def test_response_without_an_amplifying_tail_is_not_among_them() -> None:
    gap = [np.full(8, value, np.float32) for value in (-0.3, 0.3, -0.04, 0.0)]
    found = worst_of(rows_from_arrays(gap=gap, advantages=[-1.0, -1.0, -1.0, -1.0]), SPEC)
    assert [item.row for item in found] == [0]
    nothing = rows_from_arrays(gap=np.empty(0, np.float32), offsets=[0], advantages=np.empty(0))
    assert worst_of(nothing, SPEC) == ()


def test_size_does_not_grow_with_the_tokens() -> None:
    length = 8 * 1000 + 3
    rows = rows_from_arrays(gap=[np.full(length, -0.5, np.float32)] * 20, advantages=[-1.0] * 20)
    found = worst_of(rows, SPEC)
    assert len(found) == KEPT
    assert {len(item.tokens) for item in found} == {48}  # 1001 segments, 21 in a cell
    assert MAX_CELLS == 48
    assert sum(found[0].tokens) == sum(found[0].tail) == length
    assert len(encode_worst(found)) < 4096


def test_names_are_kept_and_cut_to_size() -> None:
    rows = rows_from_arrays(
        gap=[np.full(8, -0.5, np.float32)], advantages=[-1.0], response_ids=["x" * 500], engines=["rank-3"]
    )
    (found,) = worst_of(rows, SPEC)
    assert found.response_id == "x" * (MAX_NAME - 1) + "…"
    assert found.engine == "rank-3"


def test_merge_keeps_the_worst_of_all_shards_in_any_order() -> None:
    shards = [worst_of(rows_of("gap", seed), SPEC, shard=seed) for seed in range(4)]
    merged = merge_worst(shards)
    assert merged == merge_worst(shards[::-1])
    assert len(merged) == KEPT
    left_out = {item.tail_gap for shard in shards for item in shard if item not in merged}
    assert max(left_out) <= min(item.tail_gap for item in merged)


def test_what_was_written_comes_back_and_nothing_else_is_read() -> None:
    found = worst_of(rows_of("mask"), SPEC)
    encoded = encode_worst(found)
    assert decode_worst(encoded) == found
    assert all(isinstance(item, WorstResponse) for item in decode_worst(encoded))
    for other in (b"", encoded[:-9], b"noise", zlib.compress(b'{"format":2,"responses":[]}'), zlib.compress(b"[]")):
        with pytest.raises(InputError, match="not readable worst responses"):
            decode_worst(other)


def test_gaps_whose_sum_overflows_are_the_worst_and_can_be_written() -> None:
    gap = [np.array([1e308, 1e308, 1e308]), np.array([1e308, 1e308, -1e308, -1e308]), np.array([0.5])]
    with np.errstate(over="ignore", invalid="ignore"):
        found = worst_of(rows_from_arrays(gap=gap, advantages=np.ones(3)), SPEC)
    assert decode_worst(encode_worst(found)) == found
    assert [item.row for item in found] == [0, 1, 2]
    assert found[0].mean_gap == pytest.approx(1e308) and found[1].mean_gap == pytest.approx(0.0)
    assert found[0].tail_gap == 1.7976931348623157e308
