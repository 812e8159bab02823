"""Formats on either side: decoding and the teacher-forced pass round alike, and the pairs that people run differ."""

import pytest
import torch

from triage_monitor.errors import ConfigError
from triage_monitor.testbed.arms import FORMATS, arm
from triage_monitor.testbed.learner import response_logprobs
from triage_monitor.testbed.model import Shape, initial_weights
from triage_monitor.testbed.precision import BFLOAT16, FP8_SAMPLER, NVFP4_SAMPLER, Precision
from triage_monitor.testbed.sampler import Sampler
from triage_monitor.trainer.scaled import FP8_TENSOR, FP8_TILE

SHAPE = Shape(12, 24)


def typical_gap(sampler: Precision, learner: Precision) -> float:
    """Median abs gap over 16 responses of 16 tokens, untrained weights made larger so that rounding shows."""
    weights = {name: 3 * weight if weight.dim() == 2 else weight for name, weight in initial_weights(SHAPE, 3).items()}
    draws = torch.Generator().manual_seed(5)
    prompts = torch.randint(12, (4, 8), generator=draws)
    rollout = Sampler(SHAPE, 4, 4).sample(weights, sampler, prompts, 16, None, draws)
    with torch.no_grad():
        logprobs, _ = response_logprobs(weights, SHAPE, learner, rollout.prompts, rollout.responses)
    return float((logprobs - rollout.logprobs).abs().median())


@pytest.mark.parametrize("path", [FP8_SAMPLER, *(FORMATS[name][0] for name in ("fp8-block", "mxfp8", "mxfp4"))])
def test_decoding_rounds_as_the_whole_sequence_does(path: Precision) -> None:
    """All of these round within a row, so the two paths see the same numbers but for the order of float32 sums."""
    assert typical_gap(path, path) < 1e-5
    assert typical_gap(path, BFLOAT16) > 1e-3


def test_coarser_formats_are_farther_from_bfloat16() -> None:
    gaps = {name: typical_gap(arm(f"{name}/bf16").sampler, BFLOAT16) for name in ("bf16", "fp8", "mxfp8", "mxfp4")}
    assert gaps["bf16"] < gaps["fp8"] < gaps["mxfp4"] and gaps["mxfp8"] < gaps["mxfp4"]


def test_quantisation_aware_learner_is_nearer_than_the_plain_one() -> None:
    aware, plain = arm("nvfp4/nvfp4-qat"), arm("nvfp4/bf16")
    assert aware.sampler == plain.sampler == NVFP4_SAMPLER
    assert aware.learner.weight == NVFP4_SAMPLER.weight and aware.learner.activation is None
    assert typical_gap(aware.sampler, aware.learner) < typical_gap(plain.sampler, plain.learner)


def test_any_two_formats_pair_and_objectives_still_follow() -> None:
    chosen = arm("fp8/bf16+tis")
    assert (chosen.sampler, chosen.learner, chosen.objective) == (FP8_SAMPLER, BFLOAT16, "tis")
    for sampler in FORMATS:
        for learner in FORMATS:
            assert arm(f"{sampler}/{learner}").learner == FORMATS[learner][1]


@pytest.mark.parametrize(
    "name", ["fp8/", "/bf16", "fp8-qat/bf16", "fp8/bf16-qat", "fp8/float32-qat", "fp8/int8", "nvfp4-kv8/bf16"]
)
def test_pairs_that_do_not_exist_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="SAMPLER/LEARNER"):
        arm(name)


@pytest.mark.parametrize("options", [FP8_TENSOR, FP8_TILE])
def test_decode_loop_refuses_scales_over_rows(options) -> None:
    weights = initial_weights(SHAPE, 0)
    with pytest.raises(ConfigError, match="within rows"):
        Sampler(SHAPE, 2, 1).sample(
            weights, Precision("wide", options, None), torch.zeros(2, 4, dtype=torch.int64), 2, None, torch.Generator()
        )
