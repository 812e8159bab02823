"""Arms by name: which paths and which objective."""

import pytest
import torch

from triage_monitor.errors import ConfigError
from triage_monitor.testbed.arms import NAMED, arm
from triage_monitor.testbed.config import TrainConfig
from triage_monitor.testbed.regimes import REGIMES
from triage_monitor.trainer import TriageParams

PARTS = {
    "bf16": (False, False, False),
    "nvfp4": (False, False, False),
    "nvfp4+tis": (False, False, True),
    "nvfp4+triage": (True, True, False),
    "nvfp4+gate+tis": (True, False, True),
    "nvfp4-matched": (False, False, False),
}


@pytest.mark.parametrize("name", NAMED)
def test_named_arm_enables_its_parts(name):
    params = arm(name).loss(32).params
    assert (params.gate.enabled, params.repair.enabled, params.tis.enabled) == PARTS[name]
    assert params.gate.segment == 32


def test_only_the_plain_nvfp4_arms_have_two_quantisers():
    differ = {name: arm(name).sampler != arm(name).learner for name in NAMED}
    assert differ == {name: name not in ("bf16", "nvfp4-matched") for name in NAMED}
    assert arm("bf16").learner.activation is None


def test_arm_without_an_objective_weighs_every_token_alike():
    loss = arm("nvfp4").loss(8)
    gap = torch.linspace(-3, 1, 32).view(2, 16)
    weights = loss.token_weights(gap - 1, torch.full((2, 16), -1.0), torch.tensor([-1.0, 1.0]), torch.ones(2, 16))
    assert torch.equal(weights, torch.ones(2, 16))


def test_parameters_may_ask_both_paths_for_bfloat16():
    asked = TriageParams().with_changes({"precision": "bf16"})
    assert [path.name for path in arm("nvfp4").paths(asked)] == ["bfloat16", "bfloat16"]
    assert [path.name for path in arm("nvfp4").paths(TriageParams())] == ["nvfp4-sampler", "nvfp4-learner"]


@pytest.mark.parametrize("name", ["fp4", "nvfp4+hope", "nvfp4+", "+tis", ""])
def test_unknown_arm_is_refused(name):
    with pytest.raises(ConfigError, match="no arm"):
        arm(name)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"arm": "int4"}, "int4"),
        ({"regime": "X"}, "M1"),
        ({"prompts": 3}, "even"),
        ({"updates": 0}, "above 0"),
        ({"regime": "M4", "prompts": 2, "group_size": 3}, "minibatches"),
    ],
)
def test_impossible_configuration_is_refused_when_it_is_built(changes, word):
    with pytest.raises(ConfigError, match=word):
        TrainConfig(**changes)


def test_ramp_reaches_the_full_rate_and_stays():
    ramp = REGIMES["D"]
    assert ramp.learning_rate_at(0) == pytest.approx(1e-5)
    assert ramp.learning_rate_at(199) == pytest.approx(2e-3)
    assert ramp.learning_rate_at(399) == ramp.learning_rate_at(5000) == pytest.approx(4e-3)
    assert REGIMES["M1"].learning_rate_at(0) == 2.4e-4


@pytest.mark.parametrize(
    ("name", "sampler", "learner"),
    [
        ("nvfp4", "fp8-sampler", "fp8-learner"),
        ("nvfp4-kv4", "fp8-sampler", "fp8-learner"),
        ("nvfp4-matched", "fp8-sampler", "fp8-sampler"),
        ("mxfp4", "mxfp8", "mxfp8"),
        ("nvfp4/bf16", "fp8-sampler", "bfloat16"),
        ("nvfp4/nvfp4-qat", "fp8-sampler", "fp8-qat"),
        ("nvfp4/mxfp4-qat", "fp8-sampler", "mxfp8-qat"),
        ("fp8-block", "fp8-block", "fp8-block"),
        ("float32", "float32", "float32"),
    ],
)
def test_a_set_that_asks_for_fp8_lifts_the_four_bit_paths_alone(name: str, sampler: str, learner: str) -> None:
    asked = TriageParams().with_changes({"precision": "fp8"})
    assert [path.name for path in arm(name).paths(asked)] == [sampler, learner]


def test_fp8_paths_are_nearer_to_each_other_than_nvfp4_ones() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(16, 64), torch.randn(32, 64) / 8

    def apart(asked: TriageParams) -> float:
        sampler, learner = arm("nvfp4").paths(asked)
        return float((sampler.linear(x, weight) - learner.linear(x, weight)).abs().mean())

    assert apart(TriageParams().with_changes({"precision": "fp8"})) < 0.5 * apart(TriageParams())
