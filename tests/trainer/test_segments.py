from __future__ import annotations

import itertools

import pytest
import torch
from trainer.objective_batches import lay_out, make_responses
from trainer.reference_objective import segments_of, statistics_of

from triage_monitor.errors import InputError
from triage_monitor.trainer.segments import segment_map, segment_statistics


def filled_slots(
    mask: torch.Tensor, gap: torch.Tensor, segment: int, tau: float, cu_seqlens: torch.Tensor | None = None
):
    layout = segment_map(mask, segment, cu_seqlens)
    statistics = segment_statistics(layout, torch.where(layout.mask, gap.reshape(-1), 0.0), layout.mask, tau)
    return [
        (int(layout.slot_response[slot]), int(n), float(statistics.mean[slot]), float(statistics.tail_fraction[slot]))
        for slot, n in enumerate(statistics.count)
        if n > 0
    ]


# Packed responses of 100, 50 and 80 tokens; eight deep tokens lie astride the first boundary.
PACKED_GAP = torch.tensor([0.01] * 96 + [-2.5] * 8 + [0.01] * 126, dtype=torch.float64)
PACKED_OFFSETS = torch.tensor([0, 100, 150, 230])
PACKED_SEGMENTS = [
    (0, 64, 0.01, 0.0),
    (0, 36, -0.268888888889, 0.111111111111),
    (1, 50, -0.1908, 0.08),
    (2, 64, 0.01, 0.0),
    (2, 16, 0.01, 0.0),
]


def assert_segments(found: list[tuple[int, int, float, float]], expected: list[tuple[int, int, float, float]]) -> None:
    assert [segment[:2] for segment in found] == [segment[:2] for segment in expected]
    for got, want in zip(found, expected, strict=True):
        assert got[2:] == pytest.approx(want[2:], abs=1e-10)


def test_packed_responses_never_share_a_segment() -> None:
    mask = torch.ones(230, dtype=torch.bool)
    assert_segments(filled_slots(mask, PACKED_GAP, 64, -1.0, PACKED_OFFSETS), PACKED_SEGMENTS)


@pytest.mark.parametrize("left", [False, True])
def test_padded_rows_give_the_packed_segments(left: bool) -> None:
    mask = torch.zeros(3, 131, dtype=torch.bool)
    gap = torch.full((3, 131), torch.nan, dtype=torch.float64)
    for row, (start, end) in enumerate(itertools.pairwise(PACKED_OFFSETS.tolist())):
        where = slice(131 - (end - start), 131) if left else slice(0, end - start)
        gap[row, where], mask[row, where] = PACKED_GAP[start:end], True
    assert_segments(filled_slots(mask, gap, 64, -1.0), PACKED_SEGMENTS)


def test_holes_keep_their_positions() -> None:
    mask = torch.ones(1, 20, dtype=torch.bool)
    mask[0, :3] = False  # prompt: positions start at column 3
    mask[0, 6:10] = False  # a tool answer inside
    gap = torch.arange(20, dtype=torch.float64).reshape(1, 20)
    # columns 3..10 are the first eight positions, 11..18 the next, 19 the last
    expected = [(0, 4, (3 + 4 + 5 + 10) / 4, 0.0), (0, 8, 14.5, 0.0), (0, 1, 19.0, 0.0)]
    assert_segments(filled_slots(mask, gap, 8, -1.0), expected)


def test_empty_and_masked_responses_and_tokens_past_the_end_have_no_segment() -> None:
    mask = torch.ones(30, dtype=torch.bool)
    mask[10:15] = False
    offsets = torch.tensor([0, 10, 10, 15, 25, 25], dtype=torch.int32)
    found = filled_slots(mask, torch.ones(30, dtype=torch.float64), 8, -1.0, offsets)
    assert_segments(found, [(0, 8, 1.0, 0.0), (0, 2, 1.0, 0.0), (3, 8, 1.0, 0.0), (3, 2, 1.0, 0.0)])


@pytest.mark.parametrize("layout", ["right", "left", "packed"])
@pytest.mark.parametrize("width", [8, 13, 64])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ragged_batches_match_the_loop(layout: str, width: int, seed: int) -> None:
    responses = make_responses(seed, count=11, longest=150, holes=0.25)
    batch = lay_out(responses, layout)
    expected = [
        (row, *statistics)
        for row, response in enumerate(responses)
        for segment in segments_of(response, width)
        if (statistics := statistics_of(response, segment, -0.25))[0]
    ]
    gap = (batch.learner - batch.sampler).detach()
    assert_segments(filled_slots(batch.mask, gap, width, -0.25, batch.cu_seqlens), expected)


@pytest.mark.parametrize("layout", ["right", "packed"])
def test_response_sums_match_the_loop(layout: str) -> None:
    responses = make_responses(5)
    batch = lay_out(responses, layout)
    lengths = segment_map(batch.mask, 16, batch.cu_seqlens).response_sum(batch.mask.reshape(-1).double())
    assert lengths.tolist() == [sum(token.mask for token in response) for response in responses]


def test_a_gap_exactly_at_the_threshold_is_not_tail() -> None:
    mask = torch.ones(1, 8, dtype=torch.bool)
    gap = torch.tensor([[-0.25] * 5 + [-0.2500001] * 3], dtype=torch.float64)
    ((_, _, _, tail),) = filled_slots(mask, gap, 8, -0.25)
    assert tail == 3 / 8


def test_wrong_shapes_name_the_argument() -> None:
    flat = torch.ones(12, dtype=torch.bool)
    with pytest.raises(InputError, match="'mask'"):
        segment_map(flat, 8)
    with pytest.raises(InputError, match="'mask'"):
        segment_map(flat.reshape(3, 4), 8, torch.tensor([0, 4, 12]))
    with pytest.raises(InputError, match="'cu_seqlens'"):
        segment_map(flat, 8, torch.tensor([0]))
    with pytest.raises(InputError, match="'segment'"):
        segment_map(flat, 7, torch.tensor([0, 12]))
