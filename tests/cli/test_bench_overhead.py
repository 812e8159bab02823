"""`bench overhead` measures shares of a real learner update, with a real sidecar behind the taps."""

from __future__ import annotations

import json

import pytest
import torch

from triage_monitor.testbed import overhead
from triage_monitor.testbed.model import Shape
from triage_monitor.testbed.overhead import Frozen, Workload, as_document, measure
from triage_monitor.testbed.precision import FLOAT32

TINY = Workload("tiny", Shape(12, 24), FLOAT32, 4, 8, 16, segment=8)


def test_command_prints_shares_of_the_update_beside_it(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "WORKLOADS", {"tiny": TINY})
    done = cli("bench", "overhead", "--repetitions", "2", "--json")
    assert done.code == 0, done.err
    (row,) = json.loads(done.out)["workloads"]
    assert row["tokens"] == 64 and row["plain_seconds"] > 0
    costs = {cost["name"]: cost for cost in row["costs"]}
    assert list(costs) == [
        "objective",
        "tap, raw",
        "tap, summary",
        "tap, reduced on the device",
        "objective and tap, raw",
    ]
    assert all(cost["seconds"] > 0 for cost in costs.values())
    assert costs["objective"]["behind_share"] is None and costs["tap, summary"]["behind_share"] > 0


@pytest.mark.parametrize(("wrong", "said"), [(("--workload", "huge"), "no workload"), (("--device", "cuda"), "device")])
def test_what_is_not_there_is_said_in_one_line(cli, wrong: tuple[str, str], said: str) -> None:
    done = cli("bench", "overhead", *wrong)
    assert done.code == 2 and said in done.err and "Traceback" not in done.err


def test_every_update_of_a_frozen_batch_starts_from_the_same_bits() -> None:
    frozen = Frozen(TINY, "cpu")
    logprobs = []
    for guarded in (False, True, False):
        frozen.update(guarded=guarded)
        logprobs.append(frozen.old.clone())
    assert all(torch.equal(one, logprobs[0]) for one in logprobs)
    plain, guarded_loss = (frozen.loss_of(frozen.old, guarded=guarded) for guarded in (False, True))
    assert plain.item() != guarded_loss.item()


def test_differences_are_paired_and_a_known_cost_is_found() -> None:
    """A tap that works forty times through the loss costs more than the loss does."""
    frozen = Frozen(TINY, "cpu")

    def busy(step: int, arrays: object) -> None:
        for _ in range(40):
            frozen.loss_alone(guarded=True)

    measured = measure(frozen, {"busy": (busy, lambda: None)}, 5, lambda text: None)
    costs = {cost["name"]: cost for cost in as_document([measured])["workloads"][0]["costs"]}
    assert costs["busy"]["seconds"] > 10 * costs["objective"]["seconds"] > 0
    low, middle, high = costs["objective and busy"]["paired_share_quartiles"]
    assert low <= middle <= high and middle > costs["objective"]["paired_share_quartiles"][0]
    assert costs["objective and busy"]["seconds"] > costs["busy"]["seconds"]
