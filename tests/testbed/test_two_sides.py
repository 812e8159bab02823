"""The testbed's sampler and learner as two processes, each reporting its own half to a real sidecar."""

from __future__ import annotations

import multiprocessing
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from service.served_process import served

from triage_monitor import Monitor
from triage_monitor.testbed.config import TrainConfig
from triage_monitor.testbed.model import Shape
from triage_monitor.testbed.sampler import Rollout, Sampler
from triage_monitor.testbed.train import Trainer

UPDATES = 3
CONFIG = {"updates": UPDATES, "response_tokens": 16, "prompts": 4, "group_size": 4, "learning_rate": 2e-3}
REPORTED = ("indicators", "quantiles", "counts", "masses")


def sampler_process(connection: Connection, address: str, shape: dict[str, Any]) -> None:
    """Samples what it is asked to with the weights it is given, and reports as it generates."""
    torch.set_num_threads(1)
    sampler = Sampler(Shape(**shape), CONFIG["prompts"], CONFIG["group_size"])
    monitor = Monitor(address, run="two", side="sampler", launch_id="two-processes")
    step = 0
    while (asked := connection.recv()) is not None:
        *arguments, state = asked
        generator = torch.Generator()
        generator.set_state(state)
        rollout = sampler.sample(*arguments, generator)
        monitor.submit(
            step=step,
            response_ids=[f"{step}-{row}" for row in range(len(rollout.mask))],
            sampler_logprobs=rollout.logprobs,
            mask=rollout.mask,
            policy_versions=torch.full((len(rollout.mask),), step),
        )
        step += 1
        connection.send((rollout.prompts, rollout.responses, rollout.logprobs, rollout.mask, generator.get_state()))
    connection.send(monitor.close(30))


class Remote:
    """The sampler as the trainer calls it; the work is done in the other process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def sample(self, *arguments: Any) -> Rollout:
        *plain, generator = arguments
        self._connection.send((*plain, generator.get_state()))
        *tensors, state = self._connection.recv()
        generator.set_state(state)
        return Rollout(*tensors)


def test_sampler_and_learner_report_on_their_own_what_one_trainer_reports_whole(tmp_path: Path, start: Any) -> None:
    config = TrainConfig(**CONFIG)
    with served(tmp_path) as server:
        whole = Trainer(config, start)
        with Monitor(server.address, run="one") as monitor:
            for step in range(UPDATES):
                result = whole.update()
                monitor.submit(step=step, **result.arrays(), response_ids=result.rows.response_ids.tolist())
            assert monitor.close(60)

        trainer = Trainer(config, start)
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=sampler_process, args=(theirs, server.address, asdict(trainer.shape)))
        process.start()
        trainer.sampler = Remote(ours)  # type: ignore[assignment]
        with Monitor(server.address, run="two", side="learner", launch_id="two-processes") as monitor:
            for step in range(UPDATES):
                result = trainer.update()
                told = {name: value for name, value in result.arrays().items() if name != "sampler_logprobs"}
                del told["policy_versions"]  # the sampler knows them
                monitor.submit(step=step, **told, response_ids=result.rows.response_ids.tolist())
            assert monitor.close(60)
        ours.send(None)
        assert ours.recv() is True
        process.join(60)
        assert process.exitcode == 0

        found, expected = (server.http.get(f"/v1/runs/{run}/updates").json()["updates"] for run in ("two", "one"))
        assert len(found) == len(expected) == UPDATES
        for mine, other in zip(found, expected, strict=True):
            assert {name: mine[name] for name in REPORTED} == {name: other[name] for name in REPORTED}
        detail = server.http.get("/v1/runs/two").json()
        assert detail["integrity"]["joined_rows"] == UPDATES * 16
        assert sum(sum(reasons.values()) for reasons in detail["integrity"]["unmatched_rows"].values()) == 0
        assert detail["attempt"] == 1
