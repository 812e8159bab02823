"""`Monitor` in the two kinds of worker: each sends its own half, the sidecar joins them; nothing raises or waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from service.live_server import LiveServer, serving
from trainer.client_help import FAST, balance, eventually

from triage_monitor import Monitor
from triage_monitor.errors import ConfigError


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving() as live:
        yield live


def sided(server: LiveServer, run: str, side: Any, **more: Any) -> Monitor:
    return Monitor(server.address, run=run, side=side, **{"launch_id": "one-launch", **FAST, **more})


def an_update(seed: int, count: int = 5) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 30, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    sampler = (-rng.gamma(1.0, 0.5, offsets[-1])).astype(np.float32)
    return {
        "response_ids": [f"r{number}" for number in range(count)],
        "offsets": offsets,
        "sampler_logprobs": sampler,
        "learner_logprobs": (sampler + rng.normal(0, 0.1, len(sampler))).astype(np.float32),
        "advantages": rng.normal(0, 1, count),
        "mask": rng.random(len(sampler)) < 0.9,
        "rewards": rng.integers(0, 2, count).astype(float),
    }


OF_SAMPLER = ("response_ids", "offsets", "sampler_logprobs")
OF_LEARNER = ("response_ids", "offsets", "learner_logprobs", "advantages", "mask", "rewards")


def part(update: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: update[name] for name in names}


def reported(server: LiveServer, run: str, step: int) -> dict[str, Any]:
    (update,) = server.http.get(f"/v1/runs/{run}/updates", params={"from": step, "to": step}).json()["updates"]
    return {name: update[name] for name in ("indicators", "counts", "quantiles")}


def test_both_halves_of_a_monitor_make_the_whole_update(server: LiveServer) -> None:
    update = an_update(1)
    with Monitor(server.address, run="whole", **FAST) as whole:
        whole.submit(step=4, **update)
    with sided(server, "halves", "sampler") as sampler, sided(server, "halves", "learner") as learner:
        assert sampler.submit(step=4, **part(update, OF_SAMPLER))
        assert learner.submit(step=4, **part(update, OF_LEARNER), objective={})
        assert sampler.close() and learner.close()
        assert sampler.attempt == learner.attempt == 1
    assert reported(server, "halves", 4) == reported(server, "whole", 4)
    assert server.run("halves")["integrity"]["joined_rows"] == 5


def test_padded_tensors_and_lists_are_halves_too(server: LiveServer) -> None:
    update = an_update(2)
    lengths = np.diff(update["offsets"])
    mask = torch.arange(int(lengths.max()))[None, :] < torch.from_numpy(lengths)[:, None]

    def padded(name: str) -> torch.Tensor:
        laid = torch.zeros(mask.shape)
        laid[mask] = torch.from_numpy(update[name])
        return laid

    plain = {name: value for name, value in update.items() if name != "mask"}
    with Monitor(server.address, run="plain", **FAST) as whole:
        whole.submit(step=1, **plain)
    with sided(server, "padded", "sampler") as sampler, sided(server, "padded", "learner") as learner:
        sampler.submit(
            step=1, response_ids=update["response_ids"], sampler_logprobs=padded("sampler_logprobs"), mask=mask
        )
        learner.submit(
            step=1, response_ids=update["response_ids"], advantages=update["advantages"], rewards=update["rewards"],
            learner_logprobs=padded("learner_logprobs"), mask=mask,
        )  # fmt: skip
        assert sampler.close() and learner.close()
    found, expected = reported(server, "padded", 1), reported(server, "plain", 1)
    assert found == expected


@pytest.mark.parametrize(
    ("side", "arrays", "words"),
    [
        ("sampler", {"sampler_logprobs": [[-1.0]]}, "response_ids"),
        ("sampler", {"sampler_logprobs": [[-1.0]], "response_ids": ["a"], "advantages": [1.0]}, "advantages"),
        ("sampler", {"gap": [[-1.0]], "response_ids": ["a"]}, "gap"),
        ("learner", {"learner_logprobs": [[-1.0]], "response_ids": ["a"]}, "advantages"),
        ("learner", {"learner_logprobs": [[-1.0]], "response_ids": ["a", "b"], "advantages": [1.0]}, "response_ids"),
        ("learner", {"learner_logprobs": [[-1.0]], "response_ids": [None], "advantages": [1.0]}, "response_id"),
    ],
)
def test_nonsense_is_counted_and_named_and_never_raised(
    server: LiveServer, side: str, arrays: dict[str, Any], words: str
) -> None:
    with sided(server, "nonsense", side) as monitor:
        monitor.submit(step=1, **arrays)
        assert eventually(lambda: monitor.stats["dropped"].get("invalid", 0) == 1)
        assert words in monitor.stats["last_error"]
        assert balance(monitor) == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"side": "both"}, "side"),
        ({"side": "sampler"}, "launch_id"),
        ({"side": "learner", "launch_id": "a", "mode": "summary"}, "raw"),
    ],
)
def test_wrong_configuration_raises_where_the_monitor_is_built(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Monitor("http://127.0.0.1:9", run="run", **settings)
