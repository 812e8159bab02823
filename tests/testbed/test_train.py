"""The training loop: determinism, branching, live parameters, and what an update reports."""

import numpy as np
import pytest
import torch

from triage_monitor.errors import ConfigError
from triage_monitor.testbed.config import TrainConfig
from triage_monitor.testbed.sampler import Sampler
from triage_monitor.testbed.train import Trainer, train
from triage_monitor.testbed.warmup import WarmupRecipe
from triage_monitor.trainer import TriageParams

GATED = TriageParams(version=7).with_changes(
    {"gate.enabled": True, "gate.w_min": 0.1, "gate.segment": 8, "gate.mean_hi": 0.0, "gate.mean_lo": -0.01}
)


def config(**changes):
    small = {"updates": 4, "response_tokens": 16, "prompts": 4, "group_size": 4, "learning_rate": 2e-3}
    return TrainConfig(**(small | changes))


@pytest.fixture
def trainer(start):
    return lambda **changes: Trainer(config(**changes), start)


def run(running, params_for=None):
    results = []
    train(running.config, trainer=running, on_update=results.append, params_for=params_for)
    return results


def same(first, second):
    return all(
        np.array_equal(first.arrays()[name], second.arrays()[name], equal_nan=True) for name in first.arrays()
    ) and (first.reward_mean, first.entropy, first.grad_norm) == (second.reward_mean, second.entropy, second.grad_norm)


def equal_weights(first, second):
    return all(torch.equal(first.weights[name], second.weights[name]) for name in first.weights)


def test_run_is_determined_by_its_configuration(trainer):
    first, second, other = trainer(), trainer(), trainer(rl_seed=1)
    assert all(map(same, run(first), run(second)))
    assert equal_weights(first, second)
    run(other)
    assert not equal_weights(first, other)


def test_training_moves_the_weights_and_counts_updates_from_zero(trainer, start):
    running = trainer()
    assert [result.step for result in run(running)] == [0, 1, 2, 3]
    assert not torch.equal(running.weights["0.qkv"], start["0.qkv"])


def test_arms_of_one_seed_start_from_the_same_rollout(trainer):
    first, second = run(trainer(arm="nvfp4"))[0], run(trainer(arm="nvfp4+triage"))[0]
    assert same_rows(first, second, "sampler_logprobs", "rewards", "advantages", "learner_logprobs")


def same_rows(first, second, *names):
    return all(np.array_equal(first.arrays()[name], second.arrays()[name]) for name in names)


@pytest.mark.parametrize("arm", ["nvfp4", "nvfp4+triage"])
@pytest.mark.parametrize("regime", ["M1", "M4"])
def test_restored_run_continues_bit_for_bit(trainer, tmp_path, arm, regime):
    whole = trainer(arm=arm, regime=regime)
    expected = run(whole)
    half = trainer(arm=arm, regime=regime)
    for _ in range(2):
        half.update()
    half.save(tmp_path / "half.pt")
    restored = Trainer.restore(tmp_path / "half.pt")
    continued = run(restored)
    assert [result.step for result in continued] == [2, 3]
    assert all(map(same, continued, expected[2:]))
    assert equal_weights(restored, whole)
    assert [path.name for path in tmp_path.iterdir()] == ["half.pt"]


def sampled(running, weights, generator_state):
    """The rollout of one update again, with the weights given."""
    generator = torch.Generator()
    generator.set_state(generator_state)
    prompts = running.task.prompts(4, generator)
    sampler = Sampler(running.shape, prompts=4, repeats=4)
    end, length = running.task.end_token, running.task.response_tokens
    rollout = sampler.sample(weights, running.arm.sampler, prompts, length, end, generator)
    return rollout.logprobs[rollout.mask].numpy()


def test_stale_sampler_has_the_weights_of_that_many_updates_ago(trainer):
    """At update k of a lag of 2 those after k - 2 updates, the first ones before there are as many."""
    running = trainer(stale_updates=2, updates=5)
    before = []
    for step in range(5):
        before.append({name: weight.detach().clone() for name, weight in running.weights.items()})
        state = running.generator.get_state()
        rows = running.update().rows
        assert np.array_equal(rows.sampler_logprobs, sampled(running, before[max(0, step - 2)], state))
        assert set(rows.policy_versions.tolist()) == {max(0, step - 2)}
        if step > 0:
            assert not np.array_equal(rows.sampler_logprobs, sampled(running, before[step], state))


@pytest.mark.parametrize("after", [1, 2, 4])
def test_restored_stale_run_continues_bit_for_bit(trainer, tmp_path, after):
    """Also before there are as many updates as the lag: then the sampler still has the very first weights."""
    whole = trainer(stale_updates=3, updates=6)
    expected = run(whole)
    part = trainer(stale_updates=3, updates=6)
    for _ in range(after):
        part.update()
    part.save(tmp_path / "part.pt")
    restored = Trainer.restore(tmp_path / "part.pt")
    assert all(map(same, run(restored), expected[after:]))
    assert equal_weights(restored, whole)


def test_branch_changes_the_arm_from_the_same_state(trainer, tmp_path):
    parent = trainer()
    parent.update()
    parent.save(tmp_path / "parent.pt")
    branch = Trainer.restore(tmp_path / "parent.pt", arm="nvfp4+tis", updates=6)
    assert equal_weights(branch, parent)
    ours, theirs = branch.update(), parent.update()
    assert branch.config.arm == "nvfp4+tis"
    assert same_rows(ours, theirs, "sampler_logprobs", "learner_logprobs", "rewards")
    assert not equal_weights(branch, parent)
    assert branch.regime.updates == 6


def test_foreign_file_is_no_checkpoint(tmp_path):
    torch.save({"weights": {}}, tmp_path / "other.pt")
    with pytest.raises(ConfigError, match="no testbed checkpoint"):
        Trainer.restore(tmp_path / "other.pt")


def test_parameters_switched_at_a_step_change_the_loss_from_there_on(trainer):
    plain, switched = trainer(), trainer()
    before = run(plain)
    after = run(switched, params_for=lambda step: GATED if step >= 2 else TriageParams(version=3))
    assert [result.params_version for result in after] == [3, 3, 7, 7]
    assert [result.stats["params_version"] for result in after] == [3, 3, 7, 7]
    assert all(map(same, before[:2], after[:2]))
    assert after[1].stats["gated_tokens"] == 0
    assert after[2].stats["gated_tokens"] > 0
    assert after[2].stats["wbar_mean"] < 1
    assert same_rows(before[2], after[2], "sampler_logprobs", "learner_logprobs")  # the switch acts through the loss
    assert before[2].grad_norm != after[2].grad_norm
    assert not same_rows(before[3], after[3], "sampler_logprobs")


def test_parameters_that_change_nothing_leave_the_run_bit_equal(trainer):
    first, second = trainer(), trainer()
    run(first)
    run(second, params_for=lambda step: TriageParams(version=step))
    assert equal_weights(first, second)


def test_bfloat16_fallback_closes_the_gap_of_that_update(trainer):
    results = run(
        trainer(), params_for=lambda step: TriageParams().with_changes({"precision": "bf16" if step == 2 else "nvfp4"})
    )
    gaps = [np.abs(result.rows.learner_logprobs - result.rows.sampler_logprobs).mean() for result in results]
    assert [result.sampler_precision for result in results][1:3] == ["nvfp4-sampler", "bfloat16"]
    assert gaps[2] < 0.1 * min(gaps[0], gaps[1], gaps[3])


def test_control_pauses_and_stops_at_update_boundaries(trainer):
    words = iter(["run", "pause", "pause", "run", "stop"])
    asked = []

    def params_for(step):
        asked.append(step)
        return TriageParams().with_changes({"control": next(words)})

    running = trainer()
    results = []
    train(running.config, trainer=running, on_update=results.append, params_for=params_for, pause_seconds=0.0)
    assert asked == [0, 1, 1, 1, 2]
    assert [result.step for result in results] == [0, 1]


@pytest.mark.parametrize(
    ("arm", "low", "high"), [("nvfp4", 0.02, 1.0), ("nvfp4-matched", 0.0, 5e-3), ("bf16", 0.0, 5e-3)]
)
def test_gap_is_there_exactly_when_the_quantisers_differ(trainer, arm, low, high):
    rows = trainer(arm=arm).update().rows
    mean = np.abs(rows.learner_logprobs - rows.sampler_logprobs).mean()
    assert low < mean < high


def test_update_reports_one_row_of_arrays_per_token(trainer):
    result = trainer(regime="M4").update()
    rows = result.rows
    assert rows.responses == 16
    assert rows.tokens == 16 * 16 == len(rows.learner_logprobs) == len(rows.sampler_logprobs)
    assert rows.groups.tolist() == [group for group in range(4) for _ in range(4)]
    assert set(rows.policy_versions.tolist()) == {0}
    assert np.isclose(result.reward_mean, rows.rewards.mean())
    assert rows.grad_norms.tolist() == [result.grad_norm] * 16
    assert 0 < result.rollout_seconds < result.wall_seconds
    assert 0 < result.entropy < np.log(19)


def test_several_minibatches_take_several_optimiser_steps(trainer):
    once, four = trainer(regime="M1"), trainer(regime="M4")
    once.update()
    four.update()
    counts = [running.optimizer.state_dict()["state"][0]["step"].item() for running in (once, four)]
    assert counts == [1, 4]


def test_groups_are_numbered_through_the_run(trainer):
    results = run(trainer(updates=2))
    assert set(results[1].rows.groups.tolist()) == {4, 5, 6, 7}


def test_infinite_gradient_is_skipped_and_counted(trainer, start):
    running = trainer()
    with torch.no_grad():
        running.weights["head"][0, 0] = float("nan")
    result = running.update()
    assert result.skipped_optimizer_steps == 1
    assert result.grad_norm is None
    assert np.isnan(result.rows.grad_norms).all()
    assert torch.equal(running.weights["0.qkv"], start["0.qkv"])


def test_unequal_lengths_are_cut_behind_their_last_token(tmp_path):
    recipe = WarmupRecipe(updates=2, batch=4)
    running = Trainer(config(regime="H", response_tokens=12, warmup=recipe), cache_directory=tmp_path)
    rows = running.update().rows
    lengths = np.diff(rows.offsets)
    assert 1 <= lengths.min() < lengths.max() <= 12
    assert rows.mask is None
    assert (rows.sampler_logprobs < 0).all()
