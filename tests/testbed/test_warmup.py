"""Warm-up: fixed, cached, and good enough to start from."""

import pytest
import torch

from triage_monitor.testbed import warmup
from triage_monitor.testbed.model import Shape, initial_weights
from triage_monitor.testbed.precision import NVFP4_SAMPLER
from triage_monitor.testbed.sampler import Sampler
from triage_monitor.testbed.tasks import make_task
from triage_monitor.testbed.warmup import WarmupRecipe, cached_warm_up

TINY = WarmupRecipe(updates=3, batch=4)


def made(tmp_path, seed=0, recipe=TINY, tokens=8):
    task = make_task("awalk", tokens)
    shape = Shape(task.vocabulary, task.prompt_tokens + task.response_tokens)
    calls = []
    weights = cached_warm_up(task, shape, recipe, seed, tmp_path, lambda *progress: calls.append(progress))
    return weights, calls


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_warm_up_is_made_once_and_then_read(tmp_path):
    first, made_now = made(tmp_path)
    second, read_now = made(tmp_path)
    assert [progress[:2] for progress in made_now] == [(1, 3), (2, 3), (3, 3)]
    assert read_now == []
    assert equal(first, second)
    assert len(list(tmp_path.iterdir())) == 1


def test_same_seed_gives_the_same_weights_anywhere(tmp_path):
    assert equal(made(tmp_path / "a")[0], made(tmp_path / "b")[0])
    assert not equal(made(tmp_path / "a")[0], made(tmp_path / "a", seed=1)[0])


@pytest.mark.parametrize("change", [{"seed": 1}, {"recipe": WarmupRecipe(updates=3, batch=6)}, {"tokens": 10}])
def test_another_recipe_is_another_entry(tmp_path, change):
    made(tmp_path)
    assert made(tmp_path, **change)[1] != []
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"\x80" * 99])
def test_damaged_entry_is_made_again(tmp_path, damage):
    first, _ = made(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    second, calls = made(tmp_path)
    assert len(calls) == 3
    assert equal(first, second)


def test_short_warm_up_already_plays_under_nvfp4(start):
    """An untrained model scores about 0: of 19 tokens two in a row must be right before anything counts."""
    task = make_task("awalk", 16)
    shape = Shape(task.vocabulary, task.prompt_tokens + task.response_tokens)
    generator = torch.Generator().manual_seed(0)
    prompts = task.prompts(16, generator)

    def reward(weights):
        rollout = Sampler(shape, 16, 4).sample(weights, NVFP4_SAMPLER, prompts, 16, None, generator)
        return task.rewards(rollout.prompts, rollout.responses, rollout.mask).mean().item()

    assert reward(initial_weights(shape, 0)) < 0.02
    assert reward(start) > 0.2


def test_cache_directory_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIAGE_CACHE_DIR", str(tmp_path / "there"))
    assert warmup.cache_directory() == tmp_path / "there"
    monkeypatch.delenv("TRIAGE_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert warmup.cache_directory() == tmp_path / ".cache" / "triage_monitor"
