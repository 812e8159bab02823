"""prime-rl, NeMo RL, open-instruct, ms-swift, slime and PipelineRL on their recorded signatures.

Full sequences with a dummy first position, packed rows, lists a sample: each gives the plain padded loss of TriageLoss.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from trainer.adapters.test_wrapped_losses import GATE, ON, Batch, a_tap, expected, surrogate

from triage_monitor.errors import ConfigError
from triage_monitor.parameters import TriageParams
from triage_monitor.trainer import TriageLoss
from triage_monitor.trainer.adapters import ms_swift, nemo_rl, open_instruct, pipelinerl, prime_rl, slime

GATED = TriageParams().with_changes(GATE)


def behind_a_prompt(values: Tensor, fill: float = 0.0) -> Tensor:
    """[B, 3 + T]: a prompt in front, whose first position is the dummy."""
    return torch.cat([torch.full((len(values), 3), fill, dtype=values.dtype), values], dim=1)


@dataclass
class LossInputs:
    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    advantages: Tensor
    loss_mask: Tensor


@dataclass
class LossOutputs:
    loss: Tensor
    metrics: dict[str, Tensor]


def test_prime_rls_sequences_add_to_the_token_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, tap = Batch(), a_tap(GATED)
    monkeypatch.setattr(prime_rl, "_tap", tap)

    def base(inputs: LossInputs) -> LossOutputs:
        token = surrogate(inputs.trainer_logprobs, inputs.trainer_logprobs.detach() + 0.01, inputs.advantages)
        return LossOutputs((token * inputs.loss_mask).sum(), {})

    columns = [behind_a_prompt(v) for v in (batch.learner, batch.sampler, batch.advantages, batch.mask)]
    total = sum(prime_rl.weighed(base, LossInputs(*row)).loss for row in zip(*columns, strict=True))
    torch.testing.assert_close(total / batch.mask.sum(), expected(batch, GATED))
    assert [part.offsets.tolist() for part in tap._parts] == [[0, 20], [0, 12], [0, 1], [0, 16]]


class ClippedPGLossFn:
    sequence_level_importance_ratios = force_on_policy_ratio = False

    def __call__(self, next_token_logprobs: Tensor, data: Any, global_valid_seqs: Any, global_valid_toks: Any) -> Any:
        mask = data["token_mask"][:, 1:] * data["sample_mask"].unsqueeze(-1)
        token = surrogate(next_token_logprobs, data["prev_logprobs"][:, 1:], data["advantages"][:, 1:])
        return (token * mask).sum() / global_valid_toks, {}


class TriageLossFn(nemo_rl.TriageLossMixin, ClippedPGLossFn):
    pass


def test_nemo_rls_loss_is_gated_and_a_zeroed_learner_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, tap = Batch(), a_tap(zero_learner_is_missing=True)
    monkeypatch.setattr(nemo_rl, "_tap", tap)
    old = batch.old.clone()
    data = {
        "prev_logprobs": behind_a_prompt(old),
        "generation_logprobs": behind_a_prompt(batch.sampler),
        "advantages": behind_a_prompt(batch.advantages),
        "token_mask": behind_a_prompt(batch.mask),
        "sample_mask": torch.ones(4),
    }
    learner = behind_a_prompt(batch.learner)[:, 1:]
    loss, metrics = TriageLossFn()(learner, data, torch.tensor(4), batch.mask.sum())
    torch.testing.assert_close(loss, expected(batch))
    assert metrics == {}
    batch.sampler[0, 4] = -2.0
    data["prev_logprobs"][0, 3 + 4] = 0.0
    data["generation_logprobs"] = behind_a_prompt(batch.sampler)
    TriageLossFn()(learner, data, torch.tensor(4), batch.mask.sum())
    assert tap._parts[1].tokens["missing"].nonzero()[0].tolist() == [4]


@dataclass
class RhoCorrection:
    weights: Tensor


def compute_rho_correction(
    old_logprob: Tensor, vllm_logprobs: Tensor, response_mask: Tensor, advantages: Tensor, config: Any
) -> RhoCorrection:
    return RhoCorrection(torch.full_like(old_logprob, 2.0))


def test_open_instructs_packed_rows_are_weighed_by_stretch() -> None:
    batch, tap = Batch(), a_tap(ON)
    home = SimpleNamespace(compute_rho_correction=compute_rho_correction)
    open_instruct.activate(home, tap)
    open_instruct.activate(home, tap)

    def row(values: Tensor, prompt: float) -> Tensor:
        front = torch.full((3,), prompt, dtype=values.dtype)
        return torch.cat([torch.cat([front, v[:n]]) for v, n in zip(values, batch.lengths, strict=True)])[None]

    old, sampler = row(batch.old, 0.0), row(batch.sampler, float("nan"))
    mask, advantages = row(batch.mask, 0.0), row(batch.advantages, 0.0)
    config = SimpleNamespace(use_vllm_logprobs=False)
    found = home.compute_rho_correction(old, sampler, mask, advantages, config).weights
    weights = TriageLoss(ON).token_weights(batch.old, batch.sampler, batch.advantages, batch.mask)
    assert (weights != 1).any()
    torch.testing.assert_close(found, 2 * row(torch.where(batch.mask, weights, 1.0), 1.0))
    assert tap._parts[0].offsets.tolist() == [0, 20, 32, 33, 49]
    assert tap.conditions["repair_left_out"] == 1
    with pytest.raises(ConfigError, match="one array"):
        home.compute_rho_correction(old, sampler, mask, advantages, SimpleNamespace(use_vllm_logprobs=True))


def swift_trainer(batch: Batch) -> Any:
    class GRPOTrainer:
        model = SimpleNamespace(training=True)

        def _get_per_token_logps_and_entropies(self, model: Any, model_inputs: Any, grpo_batch: Any) -> Any:
            return batch.learner, None

        def _compute_loss_and_metrics(self, model: Any, model_inputs: Any, grpo_batch: Any) -> Any:
            logps, _ = self._get_per_token_logps_and_entropies(model, model_inputs, grpo_batch)
            token = surrogate(logps, grpo_batch.old_per_token_logps, grpo_batch.advantages)
            return (token * grpo_batch.completion_mask).sum() / grpo_batch.completion_mask.sum(), {"mode": "train"}

    return GRPOTrainer


def test_ms_swifts_loss_is_gated_and_repaired() -> None:
    batch = Batch()
    home = SimpleNamespace(GRPOTrainer=swift_trainer(batch))
    ms_swift.activate(home, a_tap())
    ms_swift.activate(home, a_tap())
    given = SimpleNamespace(
        completion_mask=batch.mask,
        advantages=batch.advantages,
        old_per_token_logps=batch.old,
        rollout_per_token_logps=batch.sampler,
    )
    loss, told = home.GRPOTrainer()._compute_loss_and_metrics(None, None, given)
    torch.testing.assert_close(loss, expected(batch))
    assert told == {"mode": "train"}
    assert given.advantages is batch.advantages
    given.rollout_per_token_logps = None
    with pytest.raises(ConfigError, match="log_rollout_offpolicy_metrics=true"):
        home.GRPOTrainer()._compute_loss_and_metrics(None, None, given)


def test_slimes_lists_give_the_mean_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, tap = Batch(), a_tap()
    monkeypatch.setattr(slime, "_tap", tap)
    lengths = batch.lengths.tolist()

    def each(values: Tensor) -> list[Tensor]:
        return [row[:n] for row, n in zip(values, lengths, strict=True)]

    def sum_of_sample_mean(flat: Tensor) -> Tensor:
        return torch.stack([part.mean() for part in flat.split(lengths)]).sum()

    def policy_loss_function(args: Any, given: Any, logits: Any, reduce: Any) -> Any:
        advantages = torch.cat(given["advantages"])
        found = home.get_log_probs_and_entropy(logits)["log_probs"]
        token = surrogate(torch.cat(found), torch.cat(given["log_probs"]), advantages)
        assert args.custom_pg_loss_reducer_function_path == "triage_monitor.trainer.adapters.slime.reducer"
        return slime.reducer(None, lengths, None, False)(token), {"kept": 1}

    home = SimpleNamespace(
        policy_loss_function=policy_loss_function,
        get_log_probs_and_entropy=lambda logits: {"log_probs": each(batch.learner)},
    )
    plain = home.get_log_probs_and_entropy
    args = SimpleNamespace(
        use_tis=False,
        get_mismatch_metrics=False,
        advantage_estimator="grpo",
        use_rollout_logprobs=False,
        calculate_per_token_loss=False,
    )
    given = {
        "rollout_log_probs": each(batch.sampler),
        "log_probs": each(batch.old),
        "advantages": each(batch.advantages),
        "loss_masks": each(batch.mask),
    }
    loss, metrics = slime.weighed(home, "slime", args, given, None, sum_of_sample_mean)
    sums = TriageLoss(ON, "constant", divisor=1.0)(
        batch.surrogate(batch.advantages) / batch.lengths[:, None],
        *(batch.learner, batch.sampler, batch.advantages, batch.mask),
        step=0,
    )[1]
    torch.testing.assert_close(loss.detach(), sums["policy_loss"] + 4 * sums["repair_loss"])
    assert metrics == {"kept": 1} and home.get_log_probs_and_entropy is plain
    args.use_tis = True
    with pytest.raises(ConfigError, match="use_tis"):
        slime.weighed(home, "slime", args, given, None, sum_of_sample_mean)


@pytest.mark.parametrize("is_packed", [False, True])
def test_pipelinerls_advantages_are_weighed_after_the_forward_pass(is_packed: bool) -> None:
    torch.manual_seed(1)
    rows, length, words = 3, 24, 5
    ids, logits = torch.randint(words, (rows, length)), torch.randn(rows, length, words, requires_grad=True)
    learner = torch.zeros(rows, length)
    learner[:, 1:] = (logits[:, :-1] / 0.7).log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2).detach()
    mask = torch.arange(length).expand(rows, -1) >= 4
    sampler = learner + 0.4 + 0.3 * torch.randn(rows, length)
    advantages = torch.tensor([1.0, -1.0, -0.5])[:, None].expand(rows, length).contiguous()
    shape = (1, rows * length) if is_packed else (rows, length)
    batch = SimpleNamespace(
        is_packed=is_packed,
        position_ids=torch.arange(length).repeat(rows)[None],
        input_ids=ids.reshape(shape),
        labels=torch.where(mask, ids, -100).reshape(shape),
        old_logprobs=sampler.reshape(shape),
        advantages=advantages.reshape(shape),
    )
    seen: dict[str, Any] = {}

    def rl_step(model: Any, batch: Any, step: int, most: int, config: Any, group: Any = None) -> Any:
        assert model.name == "policy"
        model(input_ids=batch.input_ids)
        seen["advantages"] = batch.advantages
        return torch.zeros(()), {"told": 1.0}

    class Policy:
        name = "policy"

        def __call__(self, **_: Any) -> Any:
            return SimpleNamespace(logits=logits.reshape(*shape, words))

    tap = a_tap()
    config = SimpleNamespace(use_advantages=True, policy_loss="ppo", temperature=0.7, batch_size=rows)
    loss, told = pipelinerl.triaged(rl_step, tap)(Policy(), batch, 0, 1, config)
    weights = TriageLoss(ON).token_weights(learner, sampler, advantages, mask)
    assert (weights[mask] != 1).any()
    kept = mask if not is_packed else mask.reshape(1, -1)
    torch.testing.assert_close(seen["advantages"][kept], (advantages * weights).reshape(shape)[kept])
    assert told == {"told": 1.0} and loss > 0
    assert tap._parts[0].offsets.tolist() == [0, 20, 40, 60]
    assert batch.advantages.reshape(rows, length).equal(advantages)
