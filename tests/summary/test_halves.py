"""The join of halves: any split, order and width gives the update as it would have been sent whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triage_monitor.summary.build import summarize
from triage_monitor.summary.rows import decode_stream, encode_half, encode_stream, sound_table
from triage_monitor.summary.rows_halves import (
    checked_half,
    half_from_bytes,
    half_of_arrays,
    half_to_bytes,
    joined,
)
from triage_monitor.summary.rows_values import rows_from_arrays
from triage_monitor.summary.step import StepSummary, merge_all

MAX = 1 << 20


def synthetic(seed: int, count: int, kind: str) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        length = int(rng.integers(0, 80))
        sampler = (-rng.gamma(1.0, 0.6, length)).astype(kind)
        learner = (sampler + rng.normal(0, 0.3, length)).astype(kind)
        mask = rng.random(length) < 0.8
        missing = mask & (rng.random(length) < 0.05)
        made.append({
            "response_ids": f"id-{number}", "sampler_logprobs": sampler, "learner_logprobs": learner, "mask": mask,
            "advantages": float(rng.normal()), "rewards": float(rng.integers(0, 2)), "groups": number // 3,
            "missing": missing,
        })  # fmt: skip
    return made


def arrays(rows: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: [row[name] for row in rows] for name in names}


SAMPLER = ("response_ids", "sampler_logprobs", "missing")
LEARNER = ("response_ids", "learner_logprobs", "advantages", "mask", "rewards", "groups")
WHOLE = tuple(dict.fromkeys(SAMPLER + LEARNER))


def sent(side: str, rows: list[dict[str, Any]], names: tuple[str, ...]) -> pa.Table:
    """Encoded by the client, read, checked and stored as the sidecar does."""
    body = encode_half(side, arrays(rows, names), {"temperature": "0.7"})
    return half_from_bytes(half_to_bytes(checked_half(side, sound_table(body, max_tokens=MAX), max_tokens=MAX)))


def split(data: st.DataObject, rows: list[dict[str, Any]], side: str) -> list[list[dict[str, Any]]]:
    shards = data.draw(st.integers(1, 4), label=f"{side} shards")
    places = data.draw(st.lists(st.integers(0, shards - 1), min_size=len(rows), max_size=len(rows)), label=side)
    order = data.draw(st.permutations(range(len(rows))), label=f"{side} order")
    return [[rows[number] for number in order if places[number] == shard] for shard in range(shards)]


def same(found: StepSummary, whole: StepSummary, *, exactly: bool = False) -> None:
    assert found.counters.tolist() == whole.counters.tolist()
    for name, histogram in whole.histograms.items():
        assert found.histograms[name].tolist() == histogram.tolist()
    assert found.minima.tolist() == whole.minima.tolist() and found.maxima.tolist() == whole.maxima.tolist()
    if exactly:
        assert found.totals.tolist() == whole.totals.tolist()
    else:
        np.testing.assert_allclose(found.totals, whole.totals, rtol=1e-9, atol=1e-9)


@given(data=st.data(), seed=st.integers(0, 10**6), count=st.integers(1, 9), kind=st.sampled_from(["f4", "f8"]))
@settings(max_examples=60, deadline=None)
def test_any_split_of_either_side_joins_to_the_whole(data: st.DataObject, seed: int, count: int, kind: str) -> None:
    rows = synthetic(seed, count, kind)
    without_groups = tuple(name for name in LEARNER if name != "groups")  # a group in two shards is no unit any more
    samplers = {n: sent("sampler", part, SAMPLER) for n, part in enumerate(split(data, rows, "sampler"))}
    learners = {n: sent("learner", part, without_groups) for n, part in enumerate(split(data, rows, "learner"))}
    found = joined(learners, samplers)
    assert found.matched == count and not found.unmatched
    named = arrays(rows, tuple(name for name in WHOLE if name not in ("response_ids", "groups")))
    same(merge_all([part.summarize() for part in found.rows.values()]), summarize(**named))


@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_one_learner_half_in_order_gives_equal_sums_too(kind: str) -> None:
    rows = synthetic(3, 12, kind)
    found = joined({0: sent("learner", rows, LEARNER)}, {0: sent("sampler", rows[::-1], SAMPLER)})
    whole = decode_stream(encode_stream(rows_from_arrays(**arrays(rows, WHOLE))), max_tokens=MAX)
    same(found.rows[0].summarize(), whole.summarize(), exactly=True)
    assert found.rows[0].settings == {"temperature": "0.7"}


def fates(sampled: list[str], learned: list[tuple[str, int]]) -> dict[str, Any]:
    """Halves whose responses have one token each, the learner's as many as are said."""
    sampler = [
        {"response_ids": name, "sampler_logprobs": np.zeros(1), "missing": np.zeros(1, bool)} for name in sampled
    ]
    learner = [{"response_ids": name, "learner_logprobs": np.zeros(size), "advantages": 1.0} for name, size in learned]
    found = joined(
        {0: half_of_arrays("learner", arrays(learner, ("response_ids", "learner_logprobs", "advantages")), {})},
        {0: half_of_arrays("sampler", arrays(sampler, SAMPLER), {})},
    )
    return {"matched": found.matched, **{f"{side} {reason}": n for (side, reason), n in found.unmatched.items()}}


def test_every_row_has_one_fate() -> None:
    assert fates(["a", "b", "b", "c", "d"], [("a", 1), ("b", 1), ("c", 2), ("e", 1), ("e", 1)]) == {
        "matched": 1,
        "sampler duplicate_id": 2,
        "sampler length": 1,
        "sampler no_partner": 1,
        "learner duplicate_id": 3,
        "learner length": 1,
    }
    assert fates([], [("a", 1)]) == {"matched": 0, "learner no_partner": 1}
    assert fates(["a"], []) == {"matched": 0, "sampler no_partner": 1}


def test_a_side_that_is_not_there_joins_nothing() -> None:
    rows = synthetic(4, 5, "f4")
    found = joined({}, {0: sent("sampler", rows, SAMPLER)})
    assert (found.matched, dict(found.rows), found.unmatched) == (0, {}, {("sampler", "no_partner"): 5})
    found = joined({0: sent("learner", rows, LEARNER)}, {})
    assert found.matched == 0 and found.rows[0].responses == 0 and found.unmatched == {("learner", "no_partner"): 5}


def test_a_sampler_that_made_nothing_takes_no_versions_from_the_others() -> None:
    """Its flat columns are empty, which reads as one a response, where the others' are one a token."""
    rows = synthetic(5, 4, "f4")
    rows = [row for row in rows if len(row["sampler_logprobs"]) > 1]
    lengths = [len(row["sampler_logprobs"]) for row in rows]
    versions = np.arange(sum(lengths))

    def half(part: list[dict[str, Any]], told: Any) -> pa.Table:
        sizes = [len(row["sampler_logprobs"]) for row in part]
        flat = np.concatenate([np.zeros(0, np.float32), *[row["sampler_logprobs"] for row in part]])
        named = {"response_ids": [row["response_ids"] for row in part], "sampler_logprobs": flat}
        offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))).astype(np.int64)
        return checked_half(
            "sampler",
            half_of_arrays("sampler", {**named, "offsets": offsets, "policy_versions": told}, {}),
            max_tokens=MAX,
        )

    samplers = {0: half([], np.zeros(0, np.int64)), 1: half(rows, versions)}
    found = joined({0: sent("learner", rows, LEARNER)}, samplers)
    assert found.matched == len(rows) and found.rows[0].versions_per_token
    assert found.rows[0].policy_versions is not None
    assert found.rows[0].policy_versions.tolist() == versions.tolist()
