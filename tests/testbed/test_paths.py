"""The two execution paths: they agree where they should and differ where their quantisers do."""

import pytest
import torch

from triage_monitor.errors import ConfigError
from triage_monitor.testbed.learner import learner_logits, response_logprobs
from triage_monitor.testbed.model import Shape, initial_weights
from triage_monitor.testbed.precision import BFLOAT16, FLOAT32, NVFP4_LEARNER, NVFP4_SAMPLER, Precision
from triage_monitor.testbed.sampler import Sampler
from triage_monitor.testbed.tasks import make_task
from triage_monitor.trainer.nvfp4 import QuantOptions

TASK = make_task("awalk", 32)
SHAPE = Shape(TASK.vocabulary, TASK.prompt_tokens + TASK.response_tokens)
WEIGHTS = initial_weights(SHAPE, seed=1)


def rollout_of(sampler, seed=0, task=TASK, shape=SHAPE, weights=WEIGHTS):
    generator = torch.Generator().manual_seed(seed)
    engine = Sampler(shape, prompts=4, repeats=4)
    return engine.sample(weights, sampler, task.prompts(4, generator), task.response_tokens, task.end_token, generator)


def gap_of(sampler, learner):
    rollout = rollout_of(sampler)
    learned, _ = response_logprobs(WEIGHTS, SHAPE, learner, rollout.prompts, rollout.responses)
    return learned - rollout.logprobs


def test_unquantised_paths_agree():
    gap = gap_of(FLOAT32, FLOAT32)
    assert gap.abs().max() < 1e-5
    assert gap.abs().max() > 0  # two implementations, not one array passed twice


def test_bfloat16_paths_agree_to_bfloat16():
    gap = gap_of(BFLOAT16, BFLOAT16)
    assert gap.abs().max() < 0.05
    assert gap.abs().mean() < 2e-3
    assert gap_of(BFLOAT16, FLOAT32).abs().mean() > 10 * gap.abs().mean()


def test_matched_quantisers_leave_almost_no_gap():
    """A last-bit difference can still flip one 4-bit rounding, so single tokens may differ."""
    gap = gap_of(NVFP4_SAMPLER, NVFP4_SAMPLER).abs()
    assert gap.quantile(0.5) < 1e-5
    assert gap.mean() < 2e-3


def test_quantised_sampler_shows_a_gap():
    assert gap_of(NVFP4_SAMPLER, NVFP4_LEARNER).abs().mean() > 0.05
    assert gap_of(NVFP4_SAMPLER, FLOAT32).abs().mean() > 0.05
    assert (gap_of(NVFP4_SAMPLER, NVFP4_LEARNER) == 0).float().mean() < 0.5


def test_sampler_of_one_prompt_does_not_depend_on_its_neighbours():
    """Row-scaled activations: what a token is rounded to depends on that token alone."""
    generator = torch.Generator().manual_seed(5)
    prompts = TASK.prompts(4, generator)
    engine = Sampler(SHAPE, prompts=4, repeats=1)
    first = engine.sample(WEIGHTS, NVFP4_SAMPLER, prompts, 1, None, torch.Generator().manual_seed(0))
    other = prompts.clone()
    other[1:] = other[1:].roll(1, 0)
    second = engine.sample(WEIGHTS, NVFP4_SAMPLER, other, 1, None, torch.Generator().manual_seed(0))
    assert torch.equal(first.logprobs[0], second.logprobs[0])


def test_learner_of_one_sequence_depends_on_its_batch_through_the_tensor_scale():
    tokens = torch.cat([TASK.prompts(8, torch.Generator().manual_seed(2)), torch.zeros(8, 20, dtype=torch.int64)], 1)
    alone = learner_logits(WEIGHTS, SHAPE, NVFP4_LEARNER, tokens[:1])
    among = learner_logits(WEIGHTS, SHAPE, NVFP4_LEARNER, tokens)[:1]
    assert (alone - among).abs().max() > 1e-3
    alone = learner_logits(WEIGHTS, SHAPE, NVFP4_SAMPLER, tokens[:1])
    among = learner_logits(WEIGHTS, SHAPE, NVFP4_SAMPLER, tokens)[:1]
    assert (alone - among).abs().mean() < 1e-3


def test_learner_gradient_reaches_every_weight():
    weights = {name: weight.clone().requires_grad_() for name, weight in WEIGHTS.items()}
    rollout = rollout_of(NVFP4_SAMPLER)
    response_logprobs(weights, SHAPE, NVFP4_LEARNER, rollout.prompts, rollout.responses)[0].sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in weights.values())


def test_tokens_are_drawn_from_the_reported_distribution():
    generator = torch.Generator().manual_seed(11)
    prompts = TASK.prompts(2, generator)
    repeats = 4096
    rollout = Sampler(SHAPE, prompts=2, repeats=repeats).sample(WEIGHTS, FLOAT32, prompts, 1, None, generator)
    logits = learner_logits(WEIGHTS, SHAPE, FLOAT32, prompts, first=TASK.prompt_tokens - 1)[:, 0]
    for row, expected in enumerate(logits.softmax(-1)):
        drawn = rollout.responses[row * repeats : (row + 1) * repeats, 0]
        share = torch.bincount(drawn, minlength=TASK.vocabulary) / repeats
        assert ((share - expected).abs() < 5 * (expected * (1 - expected) / repeats).sqrt() + 1e-9).all()


def test_nothing_counts_behind_the_end_token():
    task = make_task("runsum", 32)
    shape = Shape(task.vocabulary, task.prompt_tokens + task.response_tokens)
    rollout = rollout_of(NVFP4_SAMPLER, task=task, shape=shape, weights=initial_weights(shape, 2))
    lengths = rollout.mask.sum(1)
    assert lengths.min() < 32
    for response, mask, logprobs, length in zip(
        rollout.responses.tolist(), rollout.mask.tolist(), rollout.logprobs.tolist(), lengths.tolist(), strict=True
    ):
        assert mask == [True] * length + [False] * (32 - length)
        assert task.end_token not in response[: length - 1]
        assert response[length:] == [task.end_token] * (32 - length)
        assert all(value < 0 for value in logprobs[:length])
        assert logprobs[length:] == [0.0] * (32 - length)
        assert length == 32 or response[length - 1] == task.end_token


def test_rollout_is_a_function_of_weights_and_generator():
    first, second = rollout_of(NVFP4_SAMPLER, seed=4), rollout_of(NVFP4_SAMPLER, seed=4)
    assert torch.equal(first.responses, second.responses)
    assert torch.equal(first.logprobs, second.logprobs)
    assert not torch.equal(first.responses, rollout_of(NVFP4_SAMPLER, seed=5).responses)


def test_decode_loop_refuses_quantisers_it_does_not_have():
    with pytest.raises(ConfigError, match="four_over_six"):
        rollout_of(Precision("other", QuantOptions(four_over_six=True), QuantOptions()))
    with pytest.raises(ConfigError, match="even number"):
        Sampler(SHAPE, prompts=3, repeats=2)
