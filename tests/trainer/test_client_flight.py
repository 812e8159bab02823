"""`Monitor(flight_url=...)`: raw updates go by Flight, nothing a Flight server does reaches the trainer."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from service.flight_calls import with_flight
from trainer.client_help import FAST, an_update, balance, run_script

from triage_monitor import Monitor
from triage_monitor.errors import ConfigError

FORKED = """
import os, sys
import numpy as np
from triage_monitor import Monitor
monitor = Monitor(sys.argv[1], run="forked", flight_url=sys.argv[2], attempt=0)
arrays = {"gap": np.zeros(4, np.float32), "advantages": np.ones(1), "offsets": np.array([0, 4])}
monitor.submit(step=0, **arrays)
while not monitor.stats["acknowledged"]:
    os.sched_yield()
child = os.fork()
if child == 0:
    monitor.submit(step=1, **arrays)
    print("child", monitor.close(20), flush=True)
    sys.exit(0)
_, code = os.waitpid(child, 0)
monitor.submit(step=2, **arrays)
print("parent", monitor.close(20), code)
"""


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with with_flight(tmp_path_factory.mktemp("flight")) as (server, url):
        yield server.address, url


def test_updates_by_flight_give_the_indicators_of_those_by_http(sidecar: tuple[str, str]) -> None:
    import httpx

    address, url = sidecar
    for run, flight_url in (("by-flight", url), ("by-http", None)):
        with Monitor(address, run=run, flight_url=flight_url) as monitor:
            assert all(monitor.submit(step=step, **an_update(step, 6000)) for step in range(4))
            assert monitor.close(30)
            assert (monitor.stats["acknowledged"], monitor.stats["retries"]) == (4, 0)
    told = [httpx.get(f"{address}/v1/runs/{run}").json()["last_update"] for run in ("by-flight", "by-http")]
    assert [one["step"] for one in told] == [3, 3]
    assert told[0]["counts"] == told[1]["counts"]


def test_forked_child_sends_by_http_and_both_end(sidecar: tuple[str, str]) -> None:
    assert run_script(FORKED, *sidecar).splitlines() == ["child True", "parent True 0"]


def test_broken_flight_servers_leave_the_losses_alone_and_every_update_counted(sidecar: tuple[str, str]) -> None:
    address, _ = sidecar
    alone = _losses(None)
    with socket.create_server(("127.0.0.1", 0)) as mute, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        for port in (mute.getsockname()[1], closed.getsockname()[1]):
            times = FAST | {"call_timeout": 0.3}
            with Monitor(address, run="broken", flight_url=f"grpc://127.0.0.1:{port}", **times) as monitor:
                assert _losses(monitor) == alone
                assert not monitor.close(1.0)
                assert (monitor.stats["acknowledged"], balance(monitor)) == (0, 0)
                assert monitor.stats["dropped"] == {"closed": 3}


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "grpc://host", "grpc://host:0", "grpc://me:pw@host:1", 7])
def test_wrong_address_is_refused_when_the_monitor_is_built(url: object) -> None:
    with pytest.raises(ConfigError, match="flight_url") as error:
        Monitor("http://127.0.0.1:1", run="r", flight_url=url)  # type: ignore[arg-type]  # the test's point
    assert "pw" not in str(error.value)


def _losses(monitor: Monitor | None) -> list[float]:
    """Three updates of a loss; the same numbers whether somebody is told of them or not."""
    import torch

    generator = torch.Generator().manual_seed(0)
    logits = torch.zeros(2, 8, requires_grad=True)
    found = []
    for step in range(3):
        sampler = -1.0 + 0.1 * torch.randn(2, 8, generator=generator)
        learner = -1.0 + logits
        advantages, mask = torch.tensor([1.0, -1.0]), torch.ones(2, 8, dtype=torch.bool)
        loss = ((learner - sampler).exp() * advantages[:, None]).mean()
        if monitor is not None:
            told = {"learner_logprobs": learner.detach(), "sampler_logprobs": sampler, "mask": mask}
            assert monitor.submit(step=step, advantages=advantages.numpy(), **told)
        loss.backward()
        with torch.no_grad():
            logits -= logits.grad
        logits.grad = None
        found.append(float(loss.detach()))
    return found
