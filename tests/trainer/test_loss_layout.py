"""One batch, many layouts: padding side, packing, micro-batches and shards give the same numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from trainer.objective_batches import ACTIVE, Tensors, lay_out, make_responses
from trainer.reference_objective import Token, evaluate

from triage_monitor.trainer.loss import TriageLoss
from triage_monitor.trainer.repair import count_repair_segments

WORKER = Path(__file__).with_name("two_rank_objective.py")


def run(loss: TriageLoss, batch: Tensors, **counts: object) -> tuple[float, list[list[float]]]:
    value, _ = loss(*batch.arguments(), step=0, cu_seqlens=batch.cu_seqlens, **counts)  # type: ignore[arg-type]  # test shorthand
    value.backward()
    return value.item(), batch.rows(batch.learner.grad)


def assert_same(got: tuple[float, list[list[float]]], want: tuple[float, list[list[float]]]) -> None:
    assert got[0] == pytest.approx(want[0], rel=1e-12)
    for a, b in zip(got[1], want[1], strict=True):
        assert a == pytest.approx(b, rel=1e-11, abs=1e-16)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
@pytest.mark.parametrize("per_token", [False, True])
def test_left_padded_and_packed_equal_right_padded(aggregation, per_token: bool) -> None:
    responses = make_responses(11, count=12, longest=130, per_token=per_token)
    loss = TriageLoss(ACTIVE, aggregation)
    right, left, packed = (
        run(loss, lay_out(responses, layout, per_token=per_token)) for layout in ("right", "left", "packed")
    )
    assert_same(left, right)
    assert_same(packed, right)


def test_packed_may_carry_a_batch_dimension_and_a_padded_tail() -> None:
    batch = lay_out(make_responses(11), "packed")
    expected, _ = TriageLoss(ACTIVE)(*batch.arguments(), step=0, cu_seqlens=batch.cu_seqlens)
    tail = torch.full((5,), torch.nan, dtype=torch.float64)
    token_loss, learner, sampler, advantages, mask = batch.arguments()
    longer = [torch.cat((values, tail))[None] for values in (token_loss, learner, sampler)]
    mask = torch.cat((mask, torch.ones(5, dtype=torch.bool)))[None]
    loss, stats = TriageLoss(ACTIVE)(*longer, advantages, mask, step=0, cu_seqlens=batch.cu_seqlens)
    assert torch.equal(loss, expected)
    assert int(stats["tokens"]) == int(batch.mask.sum())


def global_counts(responses: list[list[Token]], aggregation: str, parts: list[Tensors]) -> dict[str, object]:
    count = sum(
        count_repair_segments(
            part.sampler, part.advantages, part.mask, segment=ACTIVE.gate.segment, cu_seqlens=part.cu_seqlens
        )
        for part in parts
    )
    assert int(count) == evaluate(responses, ACTIVE.to_dict(), 0).n_rep
    tokens = sum(token.mask for response in responses for token in response)
    normalizer = {"sequence_mean": len(responses), "token_mean": tokens, "constant": None}[aggregation]
    return {"repair_segments": count, "normalizer": normalizer}


@pytest.mark.parametrize(
    ("aggregation", "divisor"), [("sequence_mean", None), ("token_mean", None), ("constant", 99.0)]
)
@pytest.mark.parametrize("layout", ["right", "packed"])
@pytest.mark.parametrize("cuts", [[4, 8], [1, 2, 3, 11]])
def test_micro_batches_add_up_to_the_whole(aggregation, divisor, layout: str, cuts: list[int]) -> None:
    responses = make_responses(12, count=12, longest=130, nonfinite=0.01)
    loss = TriageLoss(ACTIVE, aggregation, divisor)
    whole = run(loss, lay_out(responses, layout))
    pieces = [responses[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
    parts = [lay_out(piece, layout) for piece in pieces]
    counts = global_counts(responses, aggregation, parts)
    results = [run(loss, part, **counts) for part in parts]
    assert_same((sum(value for value, _ in results), [row for _, rows in results for row in rows]), whole)


def test_counts_may_be_tensors_or_numbers() -> None:
    batch = lay_out(make_responses(12))
    values = [
        TriageLoss(ACTIVE)(*batch.arguments(), step=step, normalizer=normalizer, repair_segments=segments)[0]
        for step, normalizer, segments in ((3, 20, 40), (torch.tensor(3), torch.tensor(20), torch.tensor([40])))
    ]
    assert torch.equal(*values)


def test_counts_divided_by_the_world_size_serve_averaged_gradients() -> None:
    batch = lay_out(make_responses(12))
    loss, normalizer, segments = TriageLoss(ACTIVE), 7, 13
    summed = run(loss, batch, normalizer=normalizer, repair_segments=segments)
    averaged = run(loss, lay_out(make_responses(12)), normalizer=normalizer / 2, repair_segments=segments / 2)
    assert_same((averaged[0] / 2, [[value / 2 for value in row] for row in averaged[1]]), summed)


def test_a_global_count_of_zero_repair_segments_is_no_repair() -> None:
    losers = [response for index, response in enumerate(make_responses(12)) if index % 2 == 0]
    batch = lay_out(losers)
    value, stats = TriageLoss(ACTIVE)(*batch.arguments(), step=0, normalizer=4, repair_segments=0)
    assert torch.isfinite(value) and float(stats["repair_loss"]) == 0


def test_two_ranks_add_up_to_the_whole_batch(tmp_path: Path) -> None:
    """Two real processes over gloo, ragged shards, the group counting for itself."""
    ranks = [
        subprocess.Popen([sys.executable, str(WORKER), str(rank), str(tmp_path)], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=200)
        assert rank.returncode == 0, errors
    shards = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    responses = make_responses(13, count=9, longest=130)
    assert evaluate(responses[:3], ACTIVE.to_dict(), 0).n_rep != evaluate(responses[3:], ACTIVE.to_dict(), 0).n_rep
    for name in ("sequence_mean", "token_mean"):
        whole = run(TriageLoss(ACTIVE, name), lay_out(responses))  # type: ignore[arg-type]  # both are aggregations
        merged = sum(shard[name][0] for shard in shards), [row for shard in shards for row in shard[name][1]]
        assert_same(merged, whole)
