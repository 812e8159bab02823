"""What gate and repair did, told by the trainer's objective: from TriageLoss through the client to /metrics."""

import pytest
import torch
from service.live_server import serving

from triage_monitor import Monitor
from triage_monitor.trainer import TriageLoss, TriageParams

GATE = {"gate.enabled": True, "gate.quadrant": "a_neg", "gate.segment": 8, "gate.w_min": 0.5}


def calls() -> tuple[list[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    """Two micro-batches of two responses: one with a segment of deep negative gaps under A < 0, one without a gap."""
    learner = torch.full((2, 16), -3.0)
    sampler = learner.clone()
    sampler[0, :8] += 2.0  # gap -2 on the first segment of the first response
    advantages, mask = torch.tensor([-1.0, 3.0]), torch.ones(2, 16, dtype=torch.bool)
    objective = TriageLoss(TriageParams().with_changes(GATE), aggregation="sequence_mean")
    stats = []
    for _ in range(2):
        logprobs = learner.clone().requires_grad_()
        _, told = objective(-logprobs * advantages[:, None], logprobs, sampler, advantages, mask, step=0)
        stats.append(told)
    return stats, {"learner_logprobs": learner, "sampler_logprobs": sampler, "advantages": advantages, "mask": mask}


def test_mass_that_the_gate_took_away_is_exported_under_its_own_name() -> None:
    stats, arrays = calls()
    with serving() as live, Monitor(live.address, run="gated", launch_id="a") as monitor:
        assert monitor.submit(step=0, objective=stats, **arrays)
        assert monitor.close(30)
        detail, samples = live.run("gated"), live.metrics()
    # Weights 1/2 and 1 over a mean of 3/4: a third of the mass 8 moves to the response's other half; 64 in all.
    assert detail["objective"]["gate_mass_removed"] == pytest.approx(8 / 3 / 64, rel=1e-5)
    assert samples['triage_objective_gate_mass_removed{run="gated"}'] == pytest.approx(8 / 3 / 64, rel=1e-5)
    assert samples['triage_objective_gated_token_fraction{run="gated"}'] == 0.25
    assert detail["objective"]["effective_rho_asym"] is None  # no amplifying token under A > 0
    # The raw indicator knows nothing of it.
    assert samples['triage_mass_a_neg{run="gated",scope="update"}'] == pytest.approx(8 / 64)


def test_trainer_that_tells_nothing_has_no_such_series() -> None:
    _, arrays = calls()
    with serving() as live, Monitor(live.address, run="plain", launch_id="a") as monitor:
        monitor.submit(step=0, **arrays)
        assert monitor.close(30)
        assert live.run("plain")["objective"] == {}
        assert not [name for name in live.metrics() if name.startswith("triage_objective")]


@pytest.mark.parametrize("nonsense", [[], 3, "stats", [1]])
def test_nonsense_is_counted_as_invalid_and_never_raises(nonsense: object) -> None:
    _, arrays = calls()
    monitor = Monitor("http://127.0.0.1:9", run="r", launch_id="a")
    try:
        assert not monitor.submit(step=0, objective=nonsense, **arrays)  # type: ignore[arg-type]
        assert monitor.stats["dropped"] == {"invalid": 1}
        assert "objective" in monitor.stats["last_error"]
    finally:
        monitor.close(0)
