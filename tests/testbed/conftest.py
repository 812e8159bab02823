"""One small warm-up for the whole session: 16-token walks, good enough that groups of answers differ in reward."""

import pytest
import torch

from triage_monitor.testbed.model import Shape
from triage_monitor.testbed.tasks import make_task
from triage_monitor.testbed.warmup import WarmupRecipe, warm_up


@pytest.fixture(scope="session")
def start():
    torch.set_num_threads(1)
    task = make_task("awalk", 16)
    shape = Shape(task.vocabulary, task.prompt_tokens + task.response_tokens)
    return warm_up(task, shape, WarmupRecipe(updates=90, batch=64, learning_rate=1e-2), seed=0)
