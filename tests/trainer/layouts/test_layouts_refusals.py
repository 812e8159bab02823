"""What does not fit is refused by field, row and reason; replicas and the torch path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from triage_monitor.errors import ConfigError, InputError
from triage_monitor.parameters import TriageParams
from triage_monitor.summary.rows import rows_from_arrays
from triage_monitor.trainer import TriageLoss, layouts
from triage_monitor.trainer.layouts import Rank

T, F = True, False


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: layouts.padded(np.ones(3)), r"column 'mask': expected \[B, T\]"),
        (lambda: layouts.padded([[1.0, np.nan]]), "row 0, column 'mask': holds NaN"),
        (lambda: layouts.packed([1, 1, 1], [0, 4]), "column 'cu_seqlens': run from 0 to 4 over 3 tokens"),
        (lambda: layouts.packed([1, 1, 1], [0, 2, 1]), "row 1, column 'cu_seqlens': decrease"),
        (lambda: layouts.packed([1, 1, 1], [1, 2]), "'cu_seqlens': run from 1"),
        (lambda: layouts.by_id([[1, 2, 1]]), "row 0, column 'response_ids': sample 1 comes again"),
        (lambda: layouts.by_id([[1, 2]], [[1, 0]]), "row 0, column 'sequence_ids': a trained token belongs to no"),
        (lambda: layouts.by_position([1, 1], [0, 0], responses=1), "row 1, column 'mask': a mask-1 token behind"),
        (lambda: layouts.by_position([1, 1], [0, 1], responses=2), "column 'position_ids': 1 samples where 2"),
        (lambda: layouts.per_sample([[1], [[1]]]), "row 1, column 'mask': must be one-dimensional"),
        (lambda: layouts.padded([[1, 1]]).take(np.zeros((1, 3)), "learner"), r"column 'learner': shape \(1, 3\)"),
        (lambda: layouts.per_sample([[1], [1, 1]]).take([[0.0], [0.0]], "gap"), "row 1, column 'gap': has shape"),
        (lambda: layouts.per_sample([[1]]).take([], "gap"), "column 'gap': has 0 samples where there are 1"),
        (lambda: layouts.join_response_slices([np.zeros(3)], 3, 3), "leaves no prompt"),
        (lambda: layouts.padded([[1, 1], [1]]), "column 'mask': is no array of numbers"),
        (lambda: layouts.padded([[1, 1]]).take([[0.0], [0.0, 1.0]], "gap"), "column 'gap': is no array of numbers"),
        (lambda: layouts.padded([[1, 1]]).put(np.zeros(3), fill=1.0), "column 'flat'"),
        (
            lambda: layouts.per_sample([[1], [1]]).take([torch.zeros(1), [0.0]], "gap"),
            "column 'gap': holds tensors and",
        ),
        (lambda: layouts.by_position([1, 1], [0.0, np.nan]), "column 'position_ids': holds float64"),
        (lambda: layouts.by_id([[1, 2]], [[1, 1]]), "row 0, column 'sequence_ids': a trained token has another"),
        (lambda: layouts.join_slices([], 4), "column 'slices': holds no slice"),
        (lambda: layouts.join_slices([np.zeros(2), 1.0], 4), "row 1, column 'slices': is a single number"),
        (lambda: layouts.join_packed_slices([np.zeros(2)] * 2, [0, 5, 3]), "row 1, column 'cu_seqlens': decrease"),
        (lambda: layouts.shifted([[1.0, 2.0]], 0.5), "column 'by': by must be a whole number, not 0.5"),
        (lambda: layouts.shifted(torch.zeros(1, 2), float("nan")), "column 'by': by must be a whole number, not nan"),
        (lambda: layouts.shifted([[1, 2]], True), "column 'by': by must be a whole number, not True"),
        (lambda: layouts.shifted([[1, 2]], 1, fill=np.nan), "column 'fill': nan cannot stand in an array of int64"),
        (lambda: layouts.shifted(torch.zeros(1, 2, dtype=torch.int8), 1, fill=300), "'fill': 300 cannot .*int8"),
        (lambda: layouts.shifted([[True, False]], 1, fill=2), "'fill': 2 cannot stand in an array of bool"),
        (
            lambda: layouts.join_slices([np.zeros((2, 4)), np.zeros((3, 4))], 8, "learner"),
            r"row 1, column 'learner': has rows \(3,\) where the first rank's has \(2,\)",
        ),
        (lambda: layouts.join_slices([torch.zeros(2, 4), torch.zeros(4)], 8), r"row 1, column 'slices': has rows \(\)"),
        (lambda: layouts.shifted(["a", "b"], 1), "column 'values': holds <U1, not numbers"),
        (lambda: layouts.shifted(torch.zeros(2, dtype=torch.complex64), 1), "column 'values': holds torch.complex64"),
        (lambda: layouts.shifted([[1.0]], 1, fill="0"), "'fill': '0' cannot stand in an array of float64"),
    ],
)
def test_what_does_not_fit_is_refused_by_field_and_row(call: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


def test_holes_stay_positions_and_outer_positions_fall_away() -> None:
    placement = layouts.padded([[F, T, F, F, T, F], [F, F, F, F, F, F]])
    assert placement.index.tolist() == [1, 2, 3, 4]
    assert placement.offsets.tolist() == [0, 4, 4]
    assert placement.mask.tolist() == [T, F, F, T]


def test_padding_of_position_zero_is_no_sample_but_a_masked_one_token_sample_before_it_is() -> None:
    placement = layouts.by_position([0, 1, 0, 0, 1, 0, 0], [0, 1, 0, 0, 1, 0, 0])
    assert placement.offsets.tolist() == [0, 1, 1, 2]
    exact = layouts.by_position([0, 1, 0, 0], [0, 1, 0, 0], responses=2)
    assert exact.offsets.tolist() == [0, 1, 1]


def test_ids_alone_give_each_sample_from_its_first_to_its_last_token() -> None:
    placement = layouts.by_id([[0, 3, 0, 3, 7, 0]])
    assert placement.index.tolist() == [1, 3, 4] or placement.index.tolist() == [1, 2, 3, 4]
    assert placement.offsets.tolist() == [0, 3, 4]
    assert placement.mask.tolist() == [T, F, T, T]


def test_nothing_at_all_is_a_batch_of_nothing() -> None:
    for placement in (layouts.padded(np.ones((0, 4))), layouts.packed([], [0]), layouts.per_sample([])):
        assert placement.offsets.tolist() == [0]
        empty: Any = [] if placement.lengths is not None else np.zeros(placement.shape)
        sent = placement.submission(gap=empty, advantages=np.zeros(0))
        assert sent["gap"].size == 0 and sent["advantages"].size == 0


def test_other_columns_go_by_their_size() -> None:
    placement = layouts.padded([[0, 1, 1], [1, 0, 0]])
    sent = placement.submission(
        gap=np.zeros((2, 3)),
        advantages=torch.tensor([[1.0], [-1.0]]),
        policy_versions=np.arange(6).reshape(2, 3),
        rewards=[0.5, 0.0],
        response_ids=["a", "b"],
    )
    assert sent["policy_versions"].tolist() == [1, 2, 3]
    assert sent["advantages"].tolist() == [1.0, -1.0]
    assert (sent["rewards"].tolist(), sent["response_ids"].tolist()) == ([0.5, 0.0], ["a", "b"])


def test_micro_batches_join_whatever_form_their_advantages_have() -> None:
    one = layouts.padded([[1, 1], [0, 1]]).part(gap=np.array([[1.0, 2.0], [0.0, 3.0]]), advantages=[5.0, 6.0])
    other = layouts.padded([[1, 0, 1]]).part(gap=np.array([[4.0, 9.0, 5.0]]), advantages=np.array([[7.0, 8.0, 9.0]]))
    sent = layouts.joined([one, other])
    assert sent["offsets"].tolist() == [0, 2, 3, 6]
    assert sent["gap"].tolist() == [1.0, 2.0, 3.0, 4.0, 9.0, 5.0]
    assert sent["advantages"].tolist() == [5.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    assert one.only(np.array([False, True])).tokens["gap"].tolist() == [3.0]


def test_versions_of_as_many_tokens_as_responses_stay_one_a_token() -> None:
    placement = layouts.padded([[1, 1], [1, 0], [0, 0]])
    sent = placement.submission(
        gap=np.zeros((3, 2)), advantages=[1.0, 1.0, 1.0], policy_versions=np.array([[5, 4], [3, 0], [9, 9]])
    )
    rows = rows_from_arrays(**sent)
    assert rows.versions_per_token and not rows.advantages_per_token
    assert rows.policy_versions is not None and rows.policy_versions.tolist() == [5, 4, 3]
    assert rows.offsets.tolist() == [0, 2, 3, 3]


def test_a_column_of_some_micro_batches_only_is_refused() -> None:
    placement = layouts.padded([[1]])
    with_rewards = placement.part(gap=[[0.0]], advantages=[1.0], rewards=[1.0])
    with pytest.raises(InputError, match="row 1, column 'rewards': is in some micro-batches only"):
        layouts.joined([with_rewards, placement.part(gap=[[0.0]], advantages=[1.0])])


def test_a_packed_loss_over_the_placement_is_the_padded_loss() -> None:
    torch.manual_seed(3)
    params = TriageParams().with_changes({"gate.enabled": True, "gate.segment": 8, "gate.w_min": 0.2})
    mask = torch.rand(4, 30) < 0.8
    learner, sampler = -torch.rand(4, 30), -torch.rand(4, 30)
    advantages = torch.tensor([1.0, -1.0, -2.0, 0.0])
    objective = TriageLoss(params)
    expected = objective.token_weights(learner, sampler, advantages, mask)
    assert (expected[mask] != 1).any()
    placement = layouts.padded(mask)
    flat = objective.token_weights(
        *(placement.take(values) for values in (learner, sampler)),
        advantages,
        torch.from_numpy(placement.mask),
        cu_seqlens=torch.from_numpy(placement.offsets),
    )
    torch.testing.assert_close(placement.put(flat, 1.0)[mask], expected[mask])


def test_one_of_the_replicas_emits_as_its_data_rank() -> None:
    places = [
        Rank(data=d, data_size=2, tensor=t, tensor_size=2, pipeline=p, pipeline_size=3, context=c, context_size=2)
        for d in range(2)
        for t in range(2)
        for p in range(3)
        for c in range(2)
    ]
    assert [(place.shard, place.shards) for place in places if place.emits] == [(0, 2), (1, 2)]
    with pytest.raises(ConfigError, match=r"tensor rank 2 does not lie in 0 \.\. 1"):
        Rank(tensor=2, tensor_size=2)


@pytest.mark.parametrize("by", [2, 3, 10**30, -2, -(10**30)])
def test_a_shift_past_the_sample_leaves_the_fill_alone(by: int) -> None:
    assert np.isnan(layouts.shifted(np.array([[1.0, 2.0]]), by, fill=np.nan)).all()
    assert layouts.shifted(torch.tensor([[1, 2]]), by, fill=7).tolist() == [[7, 7]]
