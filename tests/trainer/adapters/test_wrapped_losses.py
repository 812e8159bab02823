"""The wrapped losses of OpenRLHF, AReaL and SkyRL on their recorded signatures: what goes in, what comes out.

The stand-ins are the frameworks' surrogate in its plain form with the recorded parameters (frameworks.py); where the
real package imports on a CPU, its own test calls the adapter through it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from triage_monitor import Monitor
from triage_monitor.errors import ConfigError
from triage_monitor.parameters import TriageParams
from triage_monitor.trainer import TriageLoss
from triage_monitor.trainer.adapters import areal, openrlhf, skyrl
from triage_monitor.trainer.adapters.tap import Tap

GATE = {"gate.enabled": True, "gate.segment": 8, "gate.w_min": 0.2}
ON = TriageParams().with_changes(GATE | {"repair.enabled": True, "repair.lambda_rep": 2.0})


def a_tap(params: TriageParams = ON, **options: Any) -> Tap:
    return Tap(Monitor("http://127.0.0.1:9", run="unheard", safe_default=params), **options)


class Batch:
    """[B, T] on the right; `packed` gives the same tokens without padding."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.lengths = torch.tensor([20, 12, 1, 16])
        self.mask = torch.arange(20) < self.lengths[:, None]
        self.sampler = -torch.rand(4, 20)
        self.learner = (self.sampler - 0.4 + 0.5 * torch.randn(4, 20)).requires_grad_()
        self.old = self.learner.detach() + 0.01
        self.advantages = torch.tensor([1.0, -1.0, 0.5, -2.0])[:, None].expand(4, 20) * self.mask

    def packed(self, values: Tensor) -> Tensor:
        return values[self.mask]

    def surrogate(self, advantages: Tensor) -> Tensor:
        return surrogate(self.learner, self.old, advantages)


def surrogate(learner: Tensor, old: Tensor, advantages: Tensor) -> Tensor:
    ratio = (learner - old).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)


def expected(batch: Batch, params: TriageParams = ON) -> Tensor:
    return TriageLoss(params, "token_mean")(
        batch.surrogate(batch.advantages), batch.learner, batch.sampler, batch.advantages, batch.mask, step=0
    )[0]


class PolicyLoss(nn.Module):
    policy_loss_type = "ppo"

    def __init__(self, is_correction_level: str = "token") -> None:
        super().__init__()
        self.is_correction_level = is_correction_level

    def forward(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        action_mask: Any = None,
        rollout_log_probs: Any = None,
        dp_size: int = 1,
        batch_num_tokens: Any = None,
        global_batch_size: Any = None,
    ) -> Any:
        total = action_mask.sum() if batch_num_tokens is None else batch_num_tokens / dp_size
        return (surrogate(log_probs, old_log_probs, advantages) * action_mask).sum() / total, torch.zeros(())


def test_openrlhfs_loss_is_gated_and_repaired_and_its_other_results_pass() -> None:
    batch, tap = Batch(), a_tap()
    home = SimpleNamespace(PolicyLoss=PolicyLoss)
    openrlhf.activate(home)
    openrlhf.activate(home)
    loss = openrlhf.TriagePolicyLoss(PolicyLoss(), tap)
    value, other = loss(batch.learner, batch.old, batch.advantages, batch.mask, rollout_log_probs=batch.sampler)
    torch.testing.assert_close(value, expected(batch))
    assert other == 0
    part = tap._parts[0]
    assert part.offsets.tolist() == [0, 20, 32, 33, 49]
    torch.testing.assert_close(torch.from_numpy(part.tokens["learner_logprobs"]), batch.packed(batch.old))


def test_openrlhf_micro_batches_add_to_the_step() -> None:
    batch, tap = Batch(), a_tap(TriageParams().with_changes(GATE))
    loss = openrlhf.TriagePolicyLoss(PolicyLoss(), tap)
    info = {"dp_size": 1, "batch_num_tokens": int(batch.mask.sum())}
    parts = [
        loss(*(v[rows] for v in (batch.learner, batch.old, batch.advantages, batch.mask, batch.sampler)), **info)[0]
        for rows in (slice(0, 2), slice(2, 4))
    ]
    torch.testing.assert_close(sum(parts), expected(batch, TriageParams().with_changes(GATE)))


def test_openrlhf_without_requested_log_probs_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="is_correction_level token"):
        openrlhf.TriagePolicyLoss(PolicyLoss("off"), a_tap())


def grpo_loss_fn(logprobs: Tensor, entropy: Tensor, input_data: dict[str, Any], eps_clip: float, **_: Any) -> Tensor:
    token = surrogate(logprobs, input_data["prox_logp"], input_data["advantages"])
    return torch.where(input_data["loss_mask"], token, 0.0).sum() / input_data["loss_mask"].sum()


def test_areals_packed_loss_is_the_padded_one_gated_and_repaired() -> None:
    batch, tap = Batch(), a_tap()
    home = SimpleNamespace(grpo_loss_fn=grpo_loss_fn)
    areal.activate(home, tap)
    areal.activate(home, tap)
    data = {
        "logprobs": batch.packed(batch.sampler),
        "prox_logp": batch.packed(batch.old),
        "advantages": batch.packed(batch.advantages),
        "loss_mask": torch.ones(49, dtype=torch.bool),
        "cu_seqlens": torch.tensor([0, 20, 32, 33, 49], dtype=torch.int32),
        "versions": torch.arange(49),
    }
    kept = dict(data)
    loss = home.grpo_loss_fn(batch.packed(batch.learner), torch.zeros(49), data, eps_clip=0.2)
    torch.testing.assert_close(loss, expected(batch))
    assert data == kept
    part = tap._parts[0]
    assert part.tokens["policy_versions"][:3].tolist() == [1, 2, 3]
    assert part.offsets.tolist() == [0, 20, 32, 33, 49]


def test_areal_at_the_sequence_level_is_refused() -> None:
    with pytest.raises(ConfigError, match="importance_sampling_level=token"):
        areal.triaged(grpo_loss_fn, a_tap())(torch.zeros(1), torch.zeros(1), {}, importance_sampling_level="sequence")


def test_skyrls_left_padded_loss_is_gated_and_a_sentinel_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, tap = Batch(), a_tap(TriageParams().with_changes(GATE), sentinels=(skyrl.SENTINEL,))
    monkeypatch.setattr(skyrl, "_tap", tap)
    tokens = int(batch.mask.sum())
    left = {name: values.flip(1) for name, values in vars(batch).items() if name in ("mask", "old", "advantages")}
    learner, sampler = batch.learner.flip(1), batch.sampler.flip(1).clone()
    seen: dict[str, Any] = {}

    def inner(log_probs: Tensor, old: Tensor, advantages: Tensor, config: Any, mask: Tensor, rollout: Tensor) -> Any:
        seen["type"] = config.policy_loss_type
        return (surrogate(log_probs, old, advantages) * mask).sum(), {"clip_ratio": 0.0}

    config = SimpleNamespace(policy_loss_type="triage", loss_reduction="token_mean")
    arguments = (learner, left["old"], left["advantages"] / tokens, config, left["mask"])
    loss, metrics = skyrl.weighed_loss(inner, *arguments, sampler)
    flipped = TriageLoss(TriageParams().with_changes(GATE), "token_mean")(
        surrogate(learner, left["old"], left["advantages"]), learner, sampler, left["advantages"], left["mask"], step=0
    )[0]
    torch.testing.assert_close(loss, flipped)
    assert (seen["type"], config.policy_loss_type) == ("regular", "triage")
    assert set(metrics) == {"clip_ratio", "triage_params_version_max"}
    for count, form in enumerate((torch.float32, torch.bfloat16, torch.float16), start=1):
        sampler[0, -1] = torch.tensor(skyrl.SENTINEL, dtype=form)  # -9999, -9984, -10000
        assert torch.isfinite(skyrl.weighed_loss(inner, *arguments, sampler)[0])
        assert tap._parts[count].tokens["missing"].sum() == 1
        assert tap.conditions["sentinel_tokens"] == count
