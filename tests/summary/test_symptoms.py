"""Symptoms: any split of an update between responses merges to the same value; the codec returns it or refuses."""

from __future__ import annotations

from itertools import pairwise

import fault_kinds
import numpy as np
import pytest
from fault_worlds import World, rollout

from triage_monitor.errors import InputError
from triage_monitor.summary.rows_values import rows_from_arrays
from triage_monitor.summary.symptoms import MAX_EXAMPLES, Symptoms, merge_symptoms
from triage_monitor.summary.symptoms_codec import decode_symptoms, encode_symptoms
from triage_monitor.summary.symptoms_rows import symptoms_of
from triage_monitor.summary.symptoms_sample import TOKEN_BUDGET, drawn_responses


def part(world: World, start: int, stop: int) -> Symptoms:
    """The responses of one shard; ids keep their names wherever they are."""
    rows = rows_from_arrays(
        learner_logprobs=world.learner[start:stop],
        sampler_logprobs=world.sampler[start:stop],
        advantages=np.array(world.advantage[start:stop]),
        response_ids=[f"r{row}" for row in range(start, stop)],
        engines=[f"e{row % 3}" for row in range(start, stop)],
        settings=world.settings,
    )
    return symptoms_of(rows)


@pytest.mark.parametrize("kind", ["healthy", "placeholders", "shifted", "degenerate", "broken", "coarse"])
def test_any_split_merges_to_the_whole_in_any_order(kind: str) -> None:
    world: World = getattr(fault_kinds, kind)(np.random.default_rng(3))
    cuts = [0, 1, 4, 5, world.responses // 2, world.responses]
    shards = [part(world, a, b) for a, b in pairwise(cuts)]
    whole = part(world, 0, world.responses)
    assert merge_symptoms(shards) == whole
    assert merge_symptoms(shards[::-1]) == whole
    assert shards[2].merge(shards[0]).merge(merge_symptoms(shards[3:]).merge(shards[1])) == whole


def test_names_kept_are_the_first_whatever_the_order() -> None:
    world = fault_kinds.plain(np.random.default_rng(1), responses=60)
    for row in range(60):
        world.learner[row] = world.learner[row] - 5.0
    shards = [part(world, row, row + 10) for row in range(0, 60, 10)]
    kept = merge_symptoms(shards).examples["broken"]
    assert kept == tuple(f"r{row}" for row in range(MAX_EXAMPLES))
    assert merge_symptoms(shards[::-1]).examples["broken"] == kept


def test_large_update_is_read_in_part_and_its_worst_responses_are_found() -> None:
    random = np.random.default_rng(0)
    lengths = random.integers(200, 900, 600)
    edges = np.concatenate([[0], np.cumsum(lengths)])
    gap = random.normal(0, 0.02, edges[-1]).astype(np.float32)
    gap[edges[400] : edges[401]] = -6.0
    rows = rows_from_arrays(gap=gap, offsets=edges, advantages=np.ones(600))
    drawn, suspects = drawn_responses(rows)
    assert lengths[drawn].sum() <= 2 * TOKEN_BUDGET < edges[-1]
    assert 400 in drawn or suspects.tolist() == [400]
    symptoms = symptoms_of(rows)
    assert symptoms.examples["broken"] == ("400",)
    assert symptoms.count("tokens") == lengths[drawn].sum()


def test_single_endless_response_is_read_to_the_budget() -> None:
    count = 3 * TOKEN_BUDGET
    rows = rows_from_arrays(gap=np.full(count, -0.01, np.float32), offsets=[0, count], advantages=np.ones(1))
    assert symptoms_of(rows).count("tokens") == TOKEN_BUDGET


@pytest.mark.parametrize("masked", [False, True])
def test_update_without_a_token_has_no_symptoms_but_may_be_asked_for(masked: bool) -> None:
    gap = [np.array([0.1, -0.1])] if masked else [np.zeros(0)]
    mask = [np.zeros(2, np.bool_)] if masked else None
    symptoms = symptoms_of(rows_from_arrays(gap=gap, advantages=np.ones(1), mask=mask))
    assert symptoms.count("tokens") == 0
    assert symptoms.merge(Symptoms.empty()) == symptoms


def test_decoding_returns_what_was_encoded() -> None:
    for kind in ("engine", "sentinels", "one_worders"):
        world: World = getattr(fault_kinds, kind)(np.random.default_rng(2))
        symptoms = symptoms_of(world.rows())
        encoded = encode_symptoms(symptoms)
        assert decode_symptoms(encoded) == symptoms
        assert len(encoded) < 32_000


def test_damaged_bytes_are_refused() -> None:
    encoded = encode_symptoms(symptoms_of(rollout(np.random.default_rng(0), responses=4).rows()))
    for place in range(0, len(encoded), 37):
        damaged = bytearray(encoded)
        damaged[place] ^= 0x40
        with pytest.raises(InputError):
            decode_symptoms(bytes(damaged))
    for length in (0, 5, 10, len(encoded) - 1):
        with pytest.raises(InputError):
            decode_symptoms(encoded[:length])


def test_turn_start_outside_its_response_is_refused_by_row() -> None:
    with pytest.raises(InputError, match="row 1, column 'turn_starts': names position 2 of 2"):
        rows_from_arrays(gap=[np.zeros(3), np.zeros(2)], advantages=np.ones(2), turn_starts=[[0, 2], [0, 2]])


def test_turn_starts_travel_through_the_wire() -> None:
    from triage_monitor.summary.rows import decode_stream, encode_stream

    given = rows_from_arrays(
        gap=[np.zeros(5), np.zeros(2), np.zeros(4)], advantages=np.ones(3), turn_starts=[[0, 3], [], [2]]
    )
    assert given.turn_starts is not None
    assert np.flatnonzero(given.turn_starts).tolist() == [0, 3, 9]
    back = decode_stream(encode_stream(given), max_tokens=100)
    assert back.turn_starts is not None
    assert np.array_equal(back.turn_starts, given.turn_starts)


def test_absurd_log_probs_do_not_overflow_what_is_counted() -> None:
    learner, sampler = np.array([1.0, 9.2e18, -0.5]), np.array([-16.0, -1e-7, -0.5])
    rows = rows_from_arrays(
        learner_logprobs=learner, sampler_logprobs=sampler, advantages=np.ones(1), offsets=np.array([0, 3])
    )
    symptoms = symptoms_of(rows)
    for lag, squares in ((-1, 16.0**2 + 0.5**2), (0, 1 + 16.0**2 + 0.5**2)):
        assert symptoms.count(f"shift_{lag}_ll") == squares * 4096**2
