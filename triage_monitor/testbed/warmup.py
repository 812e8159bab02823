"""Supervised warm-up: the weights every arm of one seed starts from, made here once and cached.

A fixed number of cross-entropy steps on fresh right answers, cosine learning rate, no stopping rule: the start does
not depend on when a curve happened to cross a line. The second half runs through the NVFP4 learner path, so that the
4-bit policy itself is good; without it the gap at the start is large and runs fail at once.
The cache key is the whole recipe, the task, the model's shape, the seed and torch's version. A damaged or foreign
cache file is made again; a new one appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from triage_monitor.testbed.learner import learner_logits
from triage_monitor.testbed.model import Shape, Weights, initial_weights
from triage_monitor.testbed.precision import FLOAT32, NVFP4_LEARNER
from triage_monitor.testbed.tasks import Task

FORMAT = 1
KEY = "recipe"
RAMP_UPDATES = 50
FINAL_RATE_RATIO = 0.1


@dataclass(frozen=True, slots=True)
class WarmupRecipe:
    updates: int = 800
    batch: int = 32
    learning_rate: float = 5e-3
    weight_decay: float = 0.01
    quantised_ratio: float = 0.5

    def learning_rate_at(self, update: int) -> float:
        """Ramps up over the first updates, then falls as a cosine to a tenth."""
        cosine = 0.5 * (1 + math.cos(math.pi * update / self.updates))
        ramp = min(1.0, (update + 1) / RAMP_UPDATES)
        return self.learning_rate * ramp * (FINAL_RATE_RATIO + (1 - FINAL_RATE_RATIO) * cosine)


RECIPES = {"awalk": WarmupRecipe(), "runsum": WarmupRecipe(batch=64, learning_rate=6e-3)}

Progress = Callable[[int, int, float], None]


def warm_up(task: Task, shape: Shape, recipe: WarmupRecipe, seed: int, on_progress: Progress | None = None) -> Weights:
    """Trains from scratch. `on_progress(update, updates, loss)` after each."""
    weights = {name: weight.requires_grad_() for name, weight in initial_weights(shape, seed).items()}
    optimizer = torch.optim.AdamW(weights.values(), betas=(0.9, 0.95), weight_decay=recipe.weight_decay)
    generator = torch.Generator().manual_seed(1_000 + seed)
    first = task.prompt_tokens - 1
    for update in range(recipe.updates):
        optimizer.param_groups[0]["lr"] = recipe.learning_rate_at(update)
        quantised = update >= (1 - recipe.quantised_ratio) * recipe.updates
        prompts = task.prompts(recipe.batch, generator)
        answers = task.answers(prompts, generator)
        tokens = torch.cat([prompts, answers[:, :-1]], 1)
        logits = learner_logits(weights, shape, NVFP4_LEARNER if quantised else FLOAT32, tokens, first)
        loss = functional.cross_entropy(logits.flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        if on_progress is not None:
            on_progress(update + 1, recipe.updates, loss.item())
    return {name: weight.detach() for name, weight in weights.items()}


def cached_warm_up(
    task: Task,
    shape: Shape,
    recipe: WarmupRecipe,
    seed: int,
    directory: Path | None = None,
    on_progress: Progress | None = None,
) -> Weights:
    """The warm-up's weights from `directory` (default `cache_directory()`), made and kept there when absent."""
    key = repr((FORMAT, task, shape, recipe, seed, torch.__version__))
    home = cache_directory() if directory is None else directory
    path = home / f"warmup-{task.name}-seed{seed}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    kept = _read(path, key)
    if kept is not None:
        return kept
    weights = warm_up(task, shape, recipe, seed, on_progress)
    _write(path, key, weights)
    return weights


def cache_directory() -> Path:
    given = os.environ.get("TRIAGE_CACHE_DIR")
    return Path(given) if given else Path.home() / ".cache" / "triage_monitor"


def _write(path: Path, key: str, weights: Weights) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".warmup-", delete=False) as beside:
        np.savez(beside, allow_pickle=False, **{KEY: np.array(key)}, **{k: w.numpy() for k, w in weights.items()})
    Path(beside.name).replace(path)


def _read(path: Path, key: str) -> Weights | None:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            arrays = {name: kept[name] for name in kept.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error):
        return None
    if str(arrays.pop(KEY, None)) != key:
        return None
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
