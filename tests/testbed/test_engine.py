"""The rounding of cached keys and values, seen through the decode step itself: what enters the cache, and what it does.

The weights are made so that row i of a batch has the i-th row of a given matrix for its keys and values, bit for bit.
"""

import ml_dtypes
import numpy as np
import pytest
import torch

from triage_monitor.testbed import engine
from triage_monitor.testbed.arms import arm
from triage_monitor.testbed.learner import response_logprobs
from triage_monitor.testbed.model import Shape, initial_weights
from triage_monitor.testbed.precision import FLOAT32, Precision
from triage_monitor.testbed.sampler import Sampler
from triage_monitor.testbed.tasks import make_task
from triage_monitor.trainer.nvfp4 import QuantOptions, fake_quantize

WIDTH, HEADS, POSITIONS = 64, 2, 2
KEYS_AND_VALUES = 2 * WIDTH
E4M3 = ml_dtypes.float8_e4m3fn


def unit_gain():
    """Undoes the norm of a vector with one entry of 8: its mean square is 1, the step's epsilon 1e-6."""
    scale = np.float32(1.0) / np.sqrt(np.float32(1.0) + engine.NORM_EPS)
    gain = np.float32(1.0) / scale
    nearby = [np.nextafter(gain, np.float32(side)) for side in (0, 2)] + [gain]
    return next(g for g in nearby if np.float32(8.0) * scale * g == 8.0)


def cached(wanted, cache):
    """Keys and values [64, 128] as they lie in the cache after one decode step that made `wanted` of its tokens."""
    qkv = np.zeros((1, WIDTH, 3 * WIDTH), np.float32)
    qkv[0, :, WIDTH:] = wanted / 8
    still = np.zeros((1, WIDTH, WIDTH), np.float32)
    gain = np.full(WIDTH, unit_gain(), np.float32)
    weights = engine.EngineWeights(
        embedding=np.eye(WIDTH, dtype=np.float32) * 8,
        position=np.zeros((POSITIONS, WIDTH), np.float32),
        norm=gain,
        head=still[0],
        norm_attention=gain[None],
        qkv=qkv,
        out=still,
        norm_mlp=gain[None],
        up=still,
        down=still.copy(),
    )
    size = (1, WIDTH, HEADS, WIDTH // HEADS, POSITIONS)
    held = engine.EngineCache(np.zeros(size, np.float32), np.zeros(size, np.float32))
    logits = np.empty((WIDTH, WIDTH), np.float32)
    engine.step(weights, held, np.arange(WIDTH), 0, engine.Rounding(engine.EXACT, cache), logits)
    return np.concatenate([part[0, ..., 0].reshape(WIDTH, WIDTH) for part in held], axis=1)


def same_bits(first, second):
    return np.array_equal(first.view(np.int32), second.astype(np.float32).view(np.int32))


def hard_values():
    """Every E4M3 value, every tie between two of them and its neighbours, subnormals, saturation; then random ones."""
    grid = np.arange(127, dtype=np.uint8).view(E4M3).astype(np.float32)
    ties = (grid[:-1] + grid[1:]) / 2
    beside = [np.nextafter(ties, np.float32(end)) for end in (0.0, 1e9)]
    beyond = np.array([448.0, 455.9, 464.0, 464.1, 480.0, 1e4, 1e30, 2.0**-10, 2.0**-9, 2.0**-11, 1e-7], np.float32)
    special = np.concatenate([grid, ties, *beside, beyond])
    special = np.concatenate([special, -special[special > 0]])
    rng = np.random.default_rng(0)
    size = WIDTH * KEYS_AND_VALUES - special.size
    random = np.exp(rng.uniform(np.log(2.0**-12), np.log(1000.0), size)) * rng.choice([-1.0, 1.0], size)
    return np.concatenate([special, random]).astype(np.float32).reshape(WIDTH, KEYS_AND_VALUES)


def bell():
    values = np.random.default_rng(1).standard_normal((WIDTH, KEYS_AND_VALUES)).astype(np.float32)
    return values * np.exp(np.linspace(-5, 5, WIDTH, dtype=np.float32))[:, None]  # tokens of very different size


def test_exact_cache_holds_what_was_made():
    assert same_bits(cached(hard_values(), engine.EXACT), hard_values())


def test_fp8_cache_is_e4m3_at_scale_1_saturating_at_448():
    values = hard_values()
    expected = np.clip(values, -448, 448).astype(E4M3)  # the type itself turns what is beyond into NaN
    rounded = cached(values, engine.FP8)
    assert same_bits(rounded, expected)
    assert np.abs(rounded).max() == 448.0
    assert len(np.unique(np.abs(rounded))) == 127  # all of its magnitudes occur


def test_fp8_cache_keeps_the_sign_of_what_rounds_to_zero():
    values = np.full((WIDTH, KEYS_AND_VALUES), -1e-6, np.float32)
    rounded = cached(values, engine.FP8)
    assert not rounded.any() and np.signbit(rounded).all()


def test_nvfp4_cache_has_one_scale_for_each_token():
    values = bell()
    expected = fake_quantize(torch.from_numpy(values), QuantOptions(row_scaled_activation=True)).numpy()
    rounded = cached(values, engine.NVFP4_PER_ROW)
    assert same_bits(rounded, expected)
    whole = fake_quantize(torch.from_numpy(values), QuantOptions()).numpy()
    assert not np.array_equal(rounded, whole)


# ---- in a rollout

TASK = make_task("awalk", 32)
SHAPE = Shape(TASK.vocabulary, TASK.prompt_tokens + TASK.response_tokens)
WEIGHTS = initial_weights(SHAPE, seed=1)


def gap(cache):
    """Against an exact learner, of a sampler that rounds nothing but its cache."""
    generator = torch.Generator().manual_seed(0)
    prompts = TASK.prompts(4, generator)
    sampler = Precision("float32", cache=cache)
    rollout = Sampler(SHAPE, 4, 4).sample(WEIGHTS, sampler, prompts, TASK.response_tokens, TASK.end_token, generator)
    learned, _ = response_logprobs(WEIGHTS, SHAPE, FLOAT32, rollout.prompts, rollout.responses)
    return (learned - rollout.logprobs).abs()


def test_coarser_cache_makes_a_larger_gap():
    exact, fp8, nvfp4 = (gap(cache).mean() for cache in ("exact", "fp8", "nvfp4"))
    assert exact < 1e-5
    assert 20 * exact < fp8
    assert 2 * fp8 < nvfp4


@pytest.mark.parametrize(("name", "cache"), [("nvfp4-kv8", "fp8"), ("nvfp4-kv4", "nvfp4"), ("nvfp4", "exact")])
def test_arm_rounds_the_cache_of_its_sampler_and_nothing_else(name, cache):
    plain, chosen = arm("nvfp4"), arm(name)
    assert chosen.sampler.cache == cache
    assert (chosen.sampler.activation, chosen.sampler.weight) == (plain.sampler.activation, plain.sampler.weight)
    assert chosen.learner == plain.learner
