"""The laws every mergeable value obeys: identity, commutativity, associativity, homomorphism, codec, no aliasing.

A type joins by adding one `Mergeable` to MERGEABLES; nothing below knows what it holds. `exact` names the part that
must be bit-equal whatever the order (counts, extremes, histograms), `sums` the part that may differ by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import DEFAULT, report
from strategies import SPECS, UpdateInput, realistic_update, same_spec_updates, sharded, small_updates

from triage_monitor import indicators
from triage_monitor.errors import InputError, SpecMismatch
from triage_monitor.summary import codec
from triage_monitor.summary.build import summarize
from triage_monitor.summary.spec import SummarySpec
from triage_monitor.summary.step import StepSummary, merge_all

LAW = settings(max_examples=40, deadline=None, derandomize=True)
SUM_TOLERANCE = 1e-12
ENCODED_LIMIT_BYTES = 64 * 1024


@dataclass(frozen=True)
class Mergeable:
    name: str
    make: Callable[[UpdateInput], Any]
    empty: Callable[[SummarySpec], Any]
    merge: Callable[[Any, Any], Any]
    exact: Callable[[Any], Mapping[str, Any]]
    sums: Callable[[Any], Mapping[str, tuple[float, float]]]  # name -> (value, what was added up in absolute terms)
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    nbytes: Callable[[Any], int]
    arrays: Callable[[Any], list[Any]]


SIGNED_SUMS = {"gap": "gap_abs", "response_mean_gap": "response_mean_gap_abs"}
# Sums of exp(x) - 1 may cancel against one another, by at most 1 a token.
OFFSET_SUMS = ("chi2", "mult_excess")


def step_sums(summary: StepSummary) -> dict[str, tuple[float, float]]:
    totals, tokens = summary.sums, float(summary.counts["valid_tokens"])
    scales = {name: totals[source] for name, source in SIGNED_SUMS.items()} | dict.fromkeys(OFFSET_SUMS, tokens)
    return {name: (value, max(abs(value), scales.get(name, 0.0))) for name, value in totals.items()}


STEP = Mergeable(
    name="StepSummary",
    make=UpdateInput.summary,
    empty=StepSummary.empty,
    merge=StepSummary.merge,
    exact=lambda s: s.counts | {"minima": s.minima, "maxima": s.maxima} | dict(s.histograms),
    sums=step_sums,
    encode=codec.encode,
    decode=codec.decode,
    nbytes=lambda s: int(s.nbytes),
    arrays=lambda s: [s.counters, s.totals, s.minima, s.maxima, *s.histograms.values()],
)
MERGEABLES = [STEP]
every_mergeable = pytest.mark.parametrize("kind", MERGEABLES, ids=lambda kind: kind.name)


def assert_same_up_to_rounding(kind: Mergeable, one: Any, other: Any) -> None:
    assert_exact_part_equal(kind, one, other)
    left, right = kind.sums(one), kind.sums(other)
    far = {
        name: (left[name][0], right[name][0])
        for name in left
        if abs(left[name][0] - right[name][0]) > SUM_TOLERANCE * max(left[name][1], right[name][1])
    }
    assert not far


def assert_exact_part_equal(kind: Mergeable, one: Any, other: Any) -> None:
    left, right = kind.exact(one), kind.exact(other)
    assert left.keys() == right.keys()
    assert not [name for name in left if not np.array_equal(left[name], right[name])]


@every_mergeable
@given(update=small_updates())
@LAW
def test_merging_with_empty_changes_nothing(kind: Mergeable, update: UpdateInput) -> None:
    value, empty = kind.make(update), kind.empty(update.summary_spec())
    assert kind.merge(value, empty) == value
    assert kind.merge(empty, value) == value


@every_mergeable
@pytest.mark.parametrize("spec", SPECS)
def test_empty_with_empty_is_empty(kind: Mergeable, spec: Any) -> None:
    empty = kind.empty(UpdateInput((), spec).summary_spec())
    assert kind.merge(empty, empty) == empty
    assert kind.make(UpdateInput((), spec)) == empty


@every_mergeable
@given(pair=same_spec_updates(2))
@LAW
def test_merge_commutes(kind: Mergeable, pair: list[UpdateInput]) -> None:
    a, b = map(kind.make, pair)
    assert kind.merge(a, b) == kind.merge(b, a)


@every_mergeable
@given(three=same_spec_updates(3))
@LAW
def test_merge_associates(kind: Mergeable, three: list[UpdateInput]) -> None:
    a, b, c = map(kind.make, three)
    assert_same_up_to_rounding(kind, kind.merge(kind.merge(a, b), c), kind.merge(a, kind.merge(b, c)))


@every_mergeable
@given(split=sharded())
@LAW
def test_whole_batch_equals_the_merge_of_any_split_of_it(
    kind: Mergeable, split: tuple[UpdateInput, list[UpdateInput]]
) -> None:
    whole, parts = split
    merged = kind.empty(whole.summary_spec())
    for part in parts:
        merged = kind.merge(merged, kind.make(part))
    assert_same_up_to_rounding(kind, merged, kind.make(whole))


@every_mergeable
@given(pair=same_spec_updates(2))
@LAW
def test_codec_returns_an_equal_value_that_merges_the_same(kind: Mergeable, pair: list[UpdateInput]) -> None:
    a, b = map(kind.make, pair)
    travelled = kind.decode(kind.encode(a))
    assert travelled == a
    assert_same_up_to_rounding(kind, travelled, a)
    assert kind.merge(travelled, b) == kind.merge(a, b)
    assert kind.encode(travelled) == kind.encode(a)


@every_mergeable
def test_merge_mutates_neither_argument(kind: Mergeable) -> None:
    a, b = (kind.make(realistic_update(seed, 5)) for seed in (1, 2))
    before = kind.encode(a), kind.encode(b)
    merged = kind.merge(a, b)
    kind.merge(merged, b)
    assert (kind.encode(a), kind.encode(b)) == before


@every_mergeable
def test_arrays_of_a_value_cannot_be_written(kind: Mergeable) -> None:
    made = kind.make(realistic_update(3, 5))
    for value in (made, kind.merge(made, made), kind.decode(kind.encode(made)), kind.empty(SummarySpec())):
        for array in kind.arrays(value):
            with pytest.raises(ValueError, match="read-only"):
                array.flat[0] = 7


@every_mergeable
def test_size_follows_what_was_seen_and_ends_at_what_the_spec_has_cells_for(kind: Mergeable) -> None:
    empty = kind.nbytes(kind.empty(SummarySpec()))
    one, ten, many = (kind.make(realistic_update(seed, n)) for seed, n in ((1, 1), (2, 10), (3, 200)))
    cells = 3 * 6147 + 6147 + 2 * 3 * 65 * 65 + 3 * 2 * 65  # a place of four bytes and a count of eight each
    assert empty < kind.nbytes(one) < kind.nbytes(ten) < kind.nbytes(many) < empty + 12 * cells
    again = kind.merge(many, kind.merge(many, many))
    assert kind.nbytes(again) == kind.nbytes(many)


@every_mergeable
@pytest.mark.parametrize(
    "changed", [{"segment": 32}, {"tau_ana": 0.06}, {"phi": 0.25}, {"near_zero": 0.04}, {"deep_tail": -2.0}]
)
def test_values_of_different_specs_do_not_merge(kind: Mergeable, changed: dict[str, Any]) -> None:
    with pytest.raises(SpecMismatch):
        kind.merge(kind.empty(SummarySpec()), kind.empty(SummarySpec(**changed)))


@every_mergeable
def test_every_truncation_of_the_bytes_is_refused(kind: Mergeable) -> None:
    body = kind.encode(kind.make(realistic_update(4, 5)))
    for length in {*range(0, len(body), 7), *range(max(len(body) - 64, 0), len(body))}:
        with pytest.raises(InputError):
            kind.decode(body[:length])


@every_mergeable
@given(data=st.data())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_flipped_bytes_are_refused_or_change_nothing(kind: Mergeable, data: st.DataObject) -> None:
    made = _value_to_damage(kind)
    body = bytearray(kind.encode(made))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] ^= data.draw(st.integers(1, 255))
    try:
        decoded = kind.decode(bytes(body))
    except InputError:
        return
    assert decoded == made


@every_mergeable
@pytest.mark.parametrize("body", [b"", b"\0" * 1000, b"ARROW1\0\0", b"{}", b"\xff\xff\xff\xff" + b"\0" * 60])
def test_foreign_bytes_are_refused(kind: Mergeable, body: bytes) -> None:
    with pytest.raises(InputError):
        kind.decode(body)


def _value_to_damage(kind: Mergeable) -> Any:
    return kind.make(realistic_update(4, 5))


def test_mutating_inputs_afterwards_changes_no_summary() -> None:
    arguments = realistic_update(5, 8, holes=True).arguments()
    summary = summarize(**arguments)
    before = codec.encode(summary)
    for value in arguments.values():
        if isinstance(value, np.ndarray):
            value.fill(1)
    assert codec.encode(summary) == before


def test_inputs_are_left_as_they_were() -> None:
    arguments = realistic_update(5, 8, holes=True, both=True).arguments()
    copies = {name: value.copy() for name, value in arguments.items() if isinstance(value, np.ndarray)}
    summarize(**arguments)
    assert all(np.array_equal(arguments[name], copies[name], equal_nan=True) for name in copies)
    assert all(arguments[name].flags.writeable for name in copies)


def test_dictionaries_handed_out_are_copies() -> None:
    summary = realistic_update(6, 8).summary()
    before = codec.encode(summary)
    for handed_out in (summary.counts, summary.sums):
        handed_out.clear()
    with pytest.raises((TypeError, AttributeError)):
        summary.histograms["gap"] = np.zeros(1, dtype=np.int64)  # type: ignore[index]
    assert codec.encode(summary) == before


def test_a_group_split_over_shards_makes_the_response_the_unit() -> None:
    """Whoever knows the groups of all shards says so; every other count is as if nothing had been split."""
    rows = realistic_update(7, 10, grouped=True).responses
    halves = [UpdateInput(rows[:6]).summary(), UpdateInput(rows[6:]).summary()]
    merged, whole = merge_all(halves).with_split_groups(), UpdateInput(rows).summary()
    assert merged.counts["group_split"] == 1
    for name in whole.counts:
        assert name in ("groups", "group_split") or merged.counts[name] == whole.counts[name]
    by_response = report([replace(row, group=None) for row in rows])["indicators"]["log_rho_se"]
    by_group = report(rows)["indicators"]["log_rho_se"]
    assert by_response != pytest.approx(by_group, rel=0.01)
    assert indicators(merged)["log_rho_se"] == pytest.approx(by_response, rel=1e-9)
    assert indicators(whole)["log_rho_se"] == pytest.approx(by_group, rel=1e-9)
    assert indicators(merge_all([merged, whole]))["log_rho_se"] is not None


def test_ten_million_tokens_encode_within_64_kib() -> None:
    rng = np.random.default_rng(8)
    lengths = np.clip(rng.lognormal(8.2, 0.7, 2048), 16, 20_000).astype("int64")
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = int(offsets[-1])
    assert tokens > 8_000_000
    gap = rng.standard_normal(tokens, dtype="float32") * np.float32(0.02)
    bursts = np.repeat(rng.random(tokens // 16 + 1) < 0.02, 16)[:tokens]
    gap[bursts] *= np.exp(rng.standard_normal(int(bursts.sum()), dtype="float32") + 3)
    advantages = rng.standard_normal(2048)
    summary = summarize(gap=gap, advantages=advantages, offsets=offsets)
    assert summary.counts["valid_tokens"] == tokens
    body = codec.encode(summary)
    assert len(body) <= ENCODED_LIMIT_BYTES
    assert codec.decode(body) == summary


def test_default_spec_of_the_tests_is_the_packages() -> None:
    assert UpdateInput((), DEFAULT).summary_spec() == SummarySpec()
