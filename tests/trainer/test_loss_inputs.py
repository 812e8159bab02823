"""What may stand where: rubbish under the mask, values that are missing, narrow types, wrong shapes."""

from __future__ import annotations

import math

import pytest
import torch
from trainer.objective_batches import ACTIVE, lay_out, make_responses

from triage_monitor.errors import ConfigError, InputError
from triage_monitor.parameters import TriageParams
from triage_monitor.trainer.loss import TriageLoss


@pytest.mark.parametrize("rubbish", [math.nan, math.inf, -math.inf, torch.finfo(torch.float64).min])
@pytest.mark.parametrize("layout", ["right", "left", "packed"])
def test_rubbish_under_the_mask_changes_no_bit(rubbish: float, layout: str) -> None:
    responses = make_responses(1, holes=0.3)
    clean, dirty = lay_out(responses, layout), lay_out(responses, layout, padding=rubbish)
    for row, response in zip(dirty.place, responses, strict=True):
        for where, token in zip(row, response, strict=True):
            if not token.mask:
                for values in (dirty.learner.data, dirty.sampler, dirty.base):
                    values[where] = rubbish
    results = []
    for batch in (clean, dirty):
        base = batch.base.clone().requires_grad_()
        loss, stats = TriageLoss(ACTIVE)(
            base, batch.learner, batch.sampler, batch.advantages, batch.mask, step=0, cu_seqlens=batch.cu_seqlens
        )
        loss.backward()
        results.append((loss, base.grad, batch.learner.grad, *stats.values()))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
    assert torch.isfinite(results[1][1]).all() and torch.isfinite(results[1][2]).all()
    assert not results[1][1].reshape(-1)[~dirty.mask.reshape(-1)].any()


@pytest.mark.parametrize("rubbish", [math.nan, math.inf, torch.finfo(torch.float32).min])
def test_per_token_advantages_may_be_rubbish_under_the_mask(rubbish: float) -> None:
    responses = make_responses(1, holes=0.3, per_token=True)
    batch = lay_out(responses, per_token=True, dtype=torch.float32)
    dirty = torch.where(batch.mask, batch.advantages, rubbish)
    loss = TriageLoss(ACTIVE)
    a, stats_a = loss(*batch.arguments(), step=0)
    b, stats_b = loss(batch.token_loss(), batch.learner, batch.sampler, dirty, batch.mask, step=0)
    assert torch.equal(a, b)
    assert all(torch.equal(stats_a[name], stats_b[name]) for name in stats_a)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, torch.finfo(torch.float32).min])
def test_a_token_without_a_usable_gap_keeps_weight_one_and_is_counted(value: float) -> None:
    learner = torch.full((2, 40), -1.0, requires_grad=True)
    sampler = torch.full((2, 40), -0.5)
    sampler[:, 5] = value
    loss = TriageLoss(ACTIVE)
    mask, advantages = torch.ones(2, 40, dtype=torch.bool), torch.tensor([-1.0, 1.0])
    weights = loss.token_weights(learner, sampler, advantages, mask)
    assert weights[0, 5] == weights[0].max() > 1  # ungated: w = 1
    total, stats = loss(learner * 0 + 1, learner, sampler, advantages, mask, step=0)
    total.backward()
    assert int(stats["nonfinite_tokens"]) == 2
    assert torch.isfinite(total) and torch.isfinite(learner.grad).all()
    assert learner.grad[1, 5] == 0 and learner.grad[1, 4] < 0  # outside the repair's mean


def test_two_sentinels_in_one_segment_do_not_overflow_float32() -> None:
    learner = torch.full((1, 64), -1.0, requires_grad=True)
    poisoned = learner + torch.tensor([torch.finfo(torch.float32).min] * 2 + [0.0] * 62)
    loss, stats = TriageLoss(ACTIVE)(learner, poisoned, torch.zeros(1, 64), torch.ones(1), torch.ones(1, 64), step=0)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(learner.grad).all()
    assert int(stats["nonfinite_tokens"]) == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_unusable_advantage_is_in_no_region(value: float) -> None:
    learner = torch.full((3, 32), -1.0, requires_grad=True)
    sampler = torch.full((3, 32), -0.2)
    advantages = torch.tensor([value, -1.0, 1.0])
    loss = TriageLoss(ACTIVE)
    mask = torch.ones(3, 32)
    mask[1, 31] = 0
    total, stats = loss(torch.ones(3, 32), learner, sampler, advantages, mask, step=0)
    total.backward()
    assert torch.equal(loss.token_weights(learner, sampler, advantages, mask)[0], torch.ones(32))
    assert not learner.grad[0].any() and learner.grad[2].all()
    assert int(stats["unusable_advantage_tokens"]) == 32
    assert float(stats["mass_total"]) == 63


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
def test_nothing_valid_is_a_zero_loss_with_zero_gradient(aggregation) -> None:
    batch = lay_out(make_responses(2))
    token_loss, learner, sampler, advantages, mask = batch.arguments()
    loss, stats = TriageLoss(ACTIVE, aggregation)(
        token_loss, learner, sampler, advantages, torch.zeros_like(mask), step=0
    )
    loss.backward()
    assert loss.item() == 0 and not batch.learner.grad.any()
    assert int(stats["tokens"]) == int(stats["responses"]) == int(stats["segments"]) == 0


def test_an_empty_response_does_not_dilute_the_sequence_mean() -> None:
    batch = lay_out(make_responses(2))
    token_loss, learner, sampler, advantages, mask = batch.arguments()
    mask = mask.clone()
    mask[3] = False
    loss, _ = TriageLoss(TriageParams())(token_loss, learner, sampler, advantages, mask, step=0)
    rows = [row for row in range(len(mask)) if row != 3]
    expected = torch.stack([token_loss[row][mask[row]].mean() for row in rows]).mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32, torch.bfloat16])
def test_mask_may_be_of_any_type(dtype: torch.dtype) -> None:
    batch = lay_out(make_responses(2))
    expected, _ = TriageLoss(ACTIVE)(*batch.arguments(), step=0)
    loss, _ = TriageLoss(ACTIVE)(*batch.arguments()[:4], batch.mask.to(dtype), step=0)
    assert torch.equal(loss, expected)


def test_advantages_may_be_a_column_or_spread_over_tokens() -> None:
    batch = lay_out(make_responses(2))
    token_loss, learner, sampler, advantages, mask = batch.arguments()
    expected, _ = TriageLoss(ACTIVE)(*batch.arguments(), step=0)
    for form in (advantages[:, None], advantages[:, None].expand(mask.shape)):
        loss, _ = TriageLoss(ACTIVE)(token_loss, learner, sampler, form, mask, step=0)
        assert torch.equal(loss, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_inputs_are_summed_in_float32(dtype: torch.dtype) -> None:
    narrow = lay_out(make_responses(9, count=12, longest=400), dtype=dtype)
    wide = lay_out(make_responses(9, count=12, longest=400), dtype=torch.float64)
    for field in ("sampler", "advantages", "base"):
        setattr(wide, field, getattr(narrow, field).double())
    wide.learner = narrow.learner.detach().double().requires_grad_()
    losses = []
    for batch in (narrow, wide):
        loss, _ = TriageLoss(ACTIVE)(batch.base, *batch.arguments()[1:], step=0)
        loss.backward()
        losses.append(loss)
    assert losses[0].dtype == torch.float32
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-5)
    torch.testing.assert_close(narrow.learner.grad.double(), wide.learner.grad, rtol=2e-2, atol=1e-6)


def test_wider_logprobs_leave_the_base_loss_bit_equal() -> None:
    batch = lay_out(make_responses(9))
    base = batch.base.float()
    loss, _ = TriageLoss(TriageParams())(base, *batch.arguments()[1:], step=0)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, ((base * batch.mask).sum(-1) / batch.mask.sum(-1)).mean())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", ["right", "packed"])
def test_autocast_changes_no_bit(dtype: torch.dtype, layout: str) -> None:
    results = []
    for enabled in (False, True):
        batch = lay_out(make_responses(3), layout, dtype=dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss, stats = TriageLoss(ACTIVE)(*batch.arguments(), step=0, cu_seqlens=batch.cu_seqlens)
        loss.backward()
        results.append((loss, batch.learner.grad, *stats.values()))
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


@pytest.mark.parametrize("name", ["token_loss", "learner_logprobs", "sampler_logprobs", "advantages"])
def test_a_wrong_shape_names_the_argument(name: str) -> None:
    batch = lay_out(make_responses(2))
    arguments = dict(
        zip(
            ("token_loss", "learner_logprobs", "sampler_logprobs", "advantages", "mask"), batch.arguments(), strict=True
        )
    )
    arguments[name] = arguments[name][..., :-1]
    with pytest.raises(InputError, match=f"'{name}'"):
        TriageLoss(ACTIVE)(**arguments, step=0)


def test_one_global_count_without_the_other_is_refused() -> None:
    batch = lay_out(make_responses(2))
    with pytest.raises(InputError, match="repair_segments"):
        TriageLoss(ACTIVE)(*batch.arguments(), step=0, normalizer=8)
    with pytest.raises(InputError, match="normalizer"):
        TriageLoss(ACTIVE)(*batch.arguments(), step=0, repair_segments=8)
    with pytest.raises(InputError, match="normalizer"):
        TriageLoss(ACTIVE, "constant", 8.0)(*batch.arguments(), step=0, repair_segments=8, normalizer=8)


def test_wrong_construction_is_loud() -> None:
    with pytest.raises(ConfigError, match="divisor"):
        TriageLoss(ACTIVE, "constant")
    with pytest.raises(ConfigError, match="divisor"):
        TriageLoss(ACTIVE, "token_mean", 3.0)
    with pytest.raises(ConfigError, match="divisor"):
        TriageLoss(ACTIVE, "constant", 0.0)
    with pytest.raises(ConfigError, match="aggregation"):
        TriageLoss(ACTIVE, "mean")  # type: ignore[arg-type]  # the point of the test


def test_parameters_out_of_bounds_leave_the_old_ones_in_force() -> None:
    loss = TriageLoss(ACTIVE)
    wrong = TriageParams.from_dict(ACTIVE.to_dict())
    object.__setattr__(wrong.gate, "w_min", 3.0)
    with pytest.raises(InputError, match=r"gate\.w_min"):
        loss.params = wrong
    assert loss.params is ACTIVE
