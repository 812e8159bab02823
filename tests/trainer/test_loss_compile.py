"""One graph, no recompilation when parameters change, and no question to the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from trainer.objective_batches import ACTIVE, lay_out, make_responses
from trainer.questions import RefusesQuestions

from triage_monitor.trainer.baselines import OBJECTIVES, objective
from triage_monitor.trainer.loss import TriageLoss

CHANGES = {
    "version": 3,
    "gate.w_min": 0.7,
    "gate.segment": 24,
    "gate.mean_lo": -0.5,
    "repair.k_rep": 4,
    "repair.lambda_rep": 1.0,
    "tis.enabled": True,
}

# The tracer asks a non-leaf tensor for .grad behind a filter that warnings-as-errors overrules.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class CountingBackend:
    def __init__(self, name: str = "eager") -> None:
        self.graphs = 0
        self.name = name

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return torch._dynamo.lookup_backend(self.name)(graph, inputs)


@pytest.mark.parametrize(("layout", "backend_name"), [("right", "aot_eager"), ("packed", "eager")])
def test_one_full_graph_survives_changes_of_parameters_steps_and_counts(layout: str, backend_name: str) -> None:
    loss, backend = TriageLoss(ACTIVE), CountingBackend(backend_name)
    compiled = torch.compile(loss, backend=backend, fullgraph=True)
    versions = [ACTIVE, ACTIVE.with_changes(CHANGES), ACTIVE.with_changes({"gate.enabled": False}), ACTIVE]
    for number, params in enumerate(versions):
        loss.params = params
        counts = {"normalizer": torch.tensor(10 + number), "repair_segments": torch.tensor(20 + number)}
        results = []
        for call in (compiled, loss):
            batch = lay_out(make_responses(1), layout)
            value, stats = call(*batch.arguments(), torch.tensor(3 + number), cu_seqlens=batch.cu_seqlens, **counts)
            value.backward()
            results.append((value, batch.learner.grad, *stats.values()))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-15, equal_nan=True)
        assert int(stats["params_version"]) == params.version
    assert backend.graphs == 1


def test_a_python_step_settles_after_its_first_values() -> None:
    loss, backend = TriageLoss(ACTIVE), CountingBackend()
    compiled = torch.compile(loss, backend=backend, fullgraph=True)
    batch = lay_out(make_responses(1))
    for step in range(6):
        loss.params = ACTIVE.with_changes({"repair.k_rep": 3, "version": step})
        value, stats = compiled(*batch.arguments(), step)
        assert (float(stats["repair_lambda"]) > 0) == (step >= 3)
        assert torch.equal(value, loss(*batch.arguments(), step)[0])
    assert backend.graphs <= 2


def test_counting_over_a_process_group_stays_one_graph() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        loss, batch, backend = TriageLoss(ACTIVE), lay_out(make_responses(1)), CountingBackend()
        compiled = torch.compile(loss, backend=backend, fullgraph=True)
        value, _ = compiled(*batch.arguments(), 0, process_group=dist.group.WORLD)
        assert torch.equal(value, loss(*batch.arguments(), 0)[0])
        assert backend.graphs == 1
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch about itself
def test_inductor_gives_the_eager_numbers() -> None:
    """Real code generation, float32, backward included, rubbish in the padding."""
    loss = TriageLoss(ACTIVE)
    results = []
    for call in (torch.compile(loss, fullgraph=True), loss):
        batch = lay_out(make_responses(1), dtype=torch.float32, padding=float("nan"))
        base = batch.base.requires_grad_()
        value, _ = call(base, *batch.arguments()[1:], 0)
        value.backward()
        results.append((value, base.grad, batch.learner.grad))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=1e-7)


def test_the_guard_itself_notices_a_question() -> None:
    values = torch.ones(3)
    for question in (lambda: bool(values[0]), lambda: values[values > 0], lambda: values.sum().item()):
        with RefusesQuestions(), pytest.raises(AssertionError):
            question()


@pytest.mark.parametrize("layout", ["right", "packed"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_forward_and_backward_ask_nothing(name: str, layout: str) -> None:
    batch = lay_out(make_responses(1), layout)
    loss = objective(name)
    with RefusesQuestions():
        value, _ = loss(*batch.arguments(), 5, cu_seqlens=batch.cu_seqlens, normalizer=7, repair_segments=9)
        value.backward()
        loss.params = ACTIVE
    assert batch.learner.grad is not None


@pytest.mark.parametrize("layout", ["right", "packed"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_runs_where_tensors_hold_no_data(name: str, layout: str) -> None:
    batch = lay_out(make_responses(1), layout)
    learner = batch.learner.detach().to("meta").requires_grad_()
    others = [values.to("meta") for values in (batch.sampler, batch.advantages, batch.mask)]
    cu_seqlens = None if batch.cu_seqlens is None else batch.cu_seqlens.to("meta")
    value, stats = objective(name)(-learner, learner, *others, 5, cu_seqlens=cu_seqlens)
    value.backward()
    assert value.shape == () and learner.grad.shape == learner.shape
    assert all(stat.shape == () and not stat.requires_grad for stat in stats.values())
