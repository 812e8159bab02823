"""TRL's own GRPOTrainer on a CPU: the loss is gated and repaired as TriageLoss says, and a sidecar moves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="trl is not installed (extra [trl])")

from triage_monitor import Monitor
from triage_monitor.cli import demo_trl
from triage_monitor.errors import ConfigError
from triage_monitor.parameters import TriageParams
from triage_monitor.testbed import trl_run
from triage_monitor.trainer import TriageLoss
from triage_monitor.trainer.adapters.trl import TriageMixin

ON = TriageParams().with_changes(
    {
        "gate.enabled": True,
        "gate.segment": 8,
        "gate.w_min": 0.2,
        "repair.enabled": True,
        "repair.lambda_rep": 2.0,
    }
)
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, datasets and accelerate


def trainer_and_batch(tmp_path: Path, params: TriageParams) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A trainer, one micro-batch of its own rollout, and the log-probs of the loss's forward pass."""
    monitor = Monitor("http://127.0.0.1:9", run="unheard", safe_default=params)
    trainer = trl_run._trainer(trl_run.TrlPlan(1, tmp_path), monitor, lambda step: None)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 2
    batch = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
    trainer.tap.open(0)
    seen: dict[str, Any] = {}
    inner = trainer._weigh
    trainer._weigh = lambda late, learner: (seen.update(learner=learner), inner(late, learner))
    return trainer, batch, seen


def test_the_loss_is_trls_own_with_alpha_on_each_token_and_the_repair_added(tmp_path: Path) -> None:
    trainer, batch, seen = trainer_and_batch(tmp_path, ON)
    loss = trainer._compute_loss(trainer.model, batch)
    learner, mask = seen["learner"].detach(), batch["completion_mask"]
    surrogate = -batch["advantages"][:, None].expand(mask.shape)  # on-policy: the ratio is 1
    divisor = float(batch["num_items_in_batch"] * 2 / trainer.args.steps_per_generation)
    oracle = TriageLoss(ON, aggregation="constant", divisor=divisor)
    sampler = batch["sampling_per_token_logps"]
    policy = oracle(surrogate, learner, sampler, batch["advantages"], mask, step=0)[1]["policy_loss"]
    repair = oracle(surrogate, learner, sampler, batch["advantages"], mask, step=0)[1]["repair_loss"] / 2
    assert repair > 0
    assert (oracle.token_weights(learner, sampler, batch["advantages"], mask) != 1).any()
    torch.testing.assert_close(loss.detach(), policy + repair, rtol=1e-5, atol=1e-7)
    plain = super(TriageMixin, trainer)._compute_loss(trainer.model, batch)
    assert not torch.equal(plain, loss)
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in trainer.model.parameters() if p.grad is not None)


def test_with_everything_off_the_loss_is_bit_for_bit_trls(tmp_path: Path) -> None:
    trainer, batch, _ = trainer_and_batch(tmp_path, TriageParams())
    assert torch.equal(
        trainer._compute_loss(trainer.model, batch), super(TriageMixin, trainer)._compute_loss(trainer.model, batch)
    )


def test_a_pause_skips_the_update(tmp_path: Path) -> None:
    trainer, batch, _ = trainer_and_batch(tmp_path, TriageParams(control="pause"))
    trainer._compute_loss(trainer.model, batch).backward()
    assert all(not p.grad.any() for p in trainer.model.parameters() if p.grad is not None)


def test_losses_without_a_term_a_token_are_refused_at_the_start(tmp_path: Path) -> None:
    class Sequence(TriageMixin, type("Base", (), {"__init__": lambda self: None})):  # type: ignore[misc]
        loss_type, importance_sampling_level = "luspo", "sequence"

    with pytest.raises(ConfigError, match="one loss term a token"):
        Sequence(tap=object())


def test_a_run_streams_to_a_sidecar_whose_parameters_move_its_loss(tmp_path: Path) -> None:
    report = demo_trl.run_trl(tmp_path, updates=6, seed=0, port=0)
    log, at = report["trl"], report["changed_at"]
    versions = [int(entry["triage/params_version"]) for entry in log]
    assert versions == [0] * at + [versions[-1]] * (6 - at) and versions[-1] >= 1
    assert all(entry.get("triage/gated_token_fraction") == 0 for entry in log[:at])
    assert all(entry["triage/gated_token_fraction"] > 0 for entry in log[at:])
    assert log[-1]["triage/repair_fire_fraction"] > 0
    detail = report["detail"]
    assert detail["params_applied"]["version"] == versions[-1]
    assert detail["last_update"]["step"] == 5
    assert report["before"]["abs_delta_mean"] > 0.01
    assert report["after"]["reward_mean"] == pytest.approx(
        sum(entry["reward"] for entry in log[at:]) / (6 - at), abs=1e-6
    )
