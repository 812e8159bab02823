"""The promise to the trainer, on real sockets: never raises, never waits, bounded, counted, delivered when possible."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from trainer.client_help import FAST, an_update, balance, eventually
from trainer.fault_server import FaultServer

from triage_monitor import Monitor
from triage_monitor.summary.rows import decode_stream

FAULTS = ["hang", "deaf", "slow", "503", "500", "garbage", "close", "page", "proxy", "flood", "dead"]


def a_server(behaviour: str) -> FaultServer:
    server = FaultServer("ok" if behaviour == "dead" else behaviour)
    if behaviour == "dead":
        server.stop()
    return server


@pytest.mark.parametrize("behaviour", FAULTS)
def test_faulty_server_costs_the_trainer_a_copy_and_nothing_else(behaviour: str) -> None:
    """The budget of case C52: below 5 ms a step at the median, no step near any timeout; drops counted."""
    update = an_update(0, tokens=160_000, responses=64)
    with a_server(behaviour) as server:
        monitor = Monitor(server.url, run="r", queue_updates=8, timeout=60.0, call_timeout=60.0, connect_timeout=30.0)
        copying, submitting = [], []
        for step in range(100):
            start = perf_counter()
            kept = [array.copy() for array in update.values()]
            middle = perf_counter()
            assert monitor.submit(step=step, **update)
            monitor.apply(step)
            copying.append(middle - start)
            submitting.append(perf_counter() - middle)
            assert len(kept) == 3
            assert monitor.stats["queue_depth"] <= 9
        stats = monitor.stats
        assert stats["acknowledged"] == 0 and stats["dropped"]["queue_full"] >= 90
        assert balance(monitor) == 0
        assert np.median(submitting) < max(0.005, 5 * np.median(copying))
        assert max(submitting) < 1.0
        start = perf_counter()
        assert monitor.close(0.3) is False
        assert monitor.close(0.3) is False, "it stays so"
        assert perf_counter() - start < 5.0
        assert monitor.stats["dropped"]["closed"] >= 1


@pytest.mark.parametrize("behaviour", FAULTS)
def test_server_that_comes_back_gets_everything_that_fits_the_queue(behaviour: str) -> None:
    with a_server(behaviour) as server, Monitor(server.url, run="r", queue_updates=32, **FAST) as monitor:
        for step in range(20):
            assert monitor.submit(step=step, **an_update(step))
        if behaviour == "dead":
            server.start()
        server.behave("ok")
        assert server.wait(lambda: len(server.steps) == 20)
        assert eventually(lambda: monitor.stats["acknowledged"] == 20)
        assert monitor.stats["dropped"] == {} and balance(monitor) == 0


def test_body_that_arrives_holds_the_arrays_as_they_were_at_submit() -> None:
    with FaultServer("hang") as server, Monitor(server.url, run="r", **FAST) as monitor:
        updates = [an_update(seed) for seed in range(3)]
        for step, update in enumerate(updates):
            given = {name: array.copy() for name, array in update.items()}
            monitor.submit(step=step, **given, mask=np.ones(600, bool), rewards=[0.5] * 6)
            for array in given.values():
                array[:] = 0
        server.behave("ok")
        assert server.wait(lambda: len(server.steps) == 3)
        for step, update in enumerate(updates):
            rows = decode_stream(server.bodies["r", 1, step, 0], max_tokens=1000)
            for name, array in update.items():
                assert np.array_equal(getattr(rows, name), array), name
            assert rows.rewards is not None and rows.rewards.tolist() == [0.5] * 6


def test_server_restarting_every_few_updates_loses_nothing() -> None:
    with FaultServer() as server, Monitor(server.url, run="r", **FAST) as monitor:
        for step in range(40):
            assert monitor.submit(step=step, **an_update(step))
            if step % 4 == 3:
                assert server.wait(lambda step=step: len(server.steps) > step - 3)
                server.stop()
                server.start()
        assert monitor.close(30.0) is True
        assert sorted(server.steps) == list(range(40))
        assert monitor.stats["acknowledged"] == 40 and monitor.stats["dropped"] == {}


def test_update_stored_but_not_acknowledged_is_sent_again_and_counted_as_duplicate() -> None:
    with FaultServer("forget") as server, Monitor(server.url, run="r", attempt=1, **FAST) as monitor:
        monitor.submit(step=0, **an_update(0))
        assert server.wait(lambda: server.steps == [0])
        server.behave("ok")
        assert eventually(lambda: monitor.stats["acknowledged"] == 1)
        assert monitor.stats["duplicates"] == 1 and monitor.stats["retries"] >= 1


def test_newest_updates_survive_a_full_queue() -> None:
    with FaultServer("hang") as server, Monitor(server.url, run="r", queue_updates=5, attempt=1, **FAST) as monitor:
        monitor.submit(step=0, **an_update(0))
        assert server.wait(lambda: server.calls["PUT"] == 1)
        for step in range(1, 21):
            monitor.submit(step=step, **an_update(step))
        assert monitor.stats["dropped"] == {"queue_full": 15}
        server.behave("ok")
        assert eventually(lambda: monitor.stats["queue_depth"] == 0)
        assert {16, 17, 18, 19, 20} <= set(server.steps) and len(server.steps) <= 6


def test_queue_is_bounded_in_bytes_and_an_update_beyond_the_bound_is_refused() -> None:
    small, large = an_update(0, tokens=1000), an_update(0, tokens=100_000)
    with a_server("hang") as server, Monitor(server.url, run="r", max_queue_bytes=50_000, **FAST) as monitor:
        assert monitor.submit(step=0, **large) is False
        for step in range(1, 60):
            assert monitor.submit(step=step, **small)
            assert monitor.stats["queue_bytes"] <= 50_000 + 10_000
        assert monitor.stats["dropped"]["too_large"] == 1
        assert monitor.stats["dropped"]["queue_full"] > 0
        monitor.close(0.1)


@pytest.mark.parametrize(
    "nonsense",
    [
        {"gap": object()},
        {"gap": None},
        {"gap": [np.zeros(3), object()]},
        {"gap": np.zeros((2, 3, 4))},
        {"gap": np.array(["a", "b"])},
        {"offsets": np.array([0, 5, 3])},
        {"offsets": np.array([0, 10**12])},
        {"advantages": np.zeros(5)},
        {"advantages": None},
        {"mask": np.full(600, 7)},
        {"mask": np.ones(599)},
        {"learner_logprobs": np.zeros(600)},
        {"rewards": "many"},
        {"groups": [1.5] * 6},
        {"surprise": 1},
        {"step": -1},
        {"step": "seven"},
        {"step": None},
        {"step": 2.5},
    ],
)
def test_nonsense_is_counted_and_never_raised(nonsense: dict[str, Any]) -> None:
    with FaultServer() as server, Monitor(server.url, run="r", **FAST) as monitor:
        monitor.submit(**{"step": 3, **an_update(0), **nonsense})
        monitor.submit(step=4, **an_update(1))
        assert server.wait(lambda: server.steps == [4])
        assert eventually(lambda: monitor.stats["acknowledged"] == 1)
        assert monitor.stats["dropped"] == {"invalid": 1}
        assert monitor.stats["last_error"] and balance(monitor) == 0


class Unspeakable(ValueError):
    """Raises itself whenever it is printed."""

    def __repr__(self) -> str:
        raise self

    __str__ = __repr__


class Trap:
    """An array whose reading fails with an error that cannot be printed."""

    def __array__(self) -> Any:
        raise Unspeakable


class LateTrap(int):
    """A number that can be kept but not read."""

    def __float__(self) -> float:
        raise Unspeakable

    __int__ = __index__ = __float__  # type: ignore[assignment]  # none of them returns


def test_nonsense_that_cannot_even_be_printed_is_counted_and_never_raised() -> None:
    with FaultServer() as server, Monitor(server.url, run="r", **FAST) as monitor:
        assert monitor.submit(step=Unspeakable(), **an_update(0)) is False  # type: ignore[arg-type]  # the point
        assert monitor.submit(step=1, **{**an_update(0), "gap": Trap()}) is False
        assert "Unspeakable" in monitor.stats["last_error"]
        assert monitor.apply(Unspeakable()).version == 0  # type: ignore[arg-type]  # the point of the test
        assert monitor.stats["dropped"] == {"invalid": 2}


def test_value_whose_printing_fails_in_the_sender_is_counted_and_the_sender_goes_on() -> None:
    with FaultServer() as server, Monitor(server.url, run="r", **FAST) as monitor:
        assert monitor.submit(step=0, **an_update(0), rewards=[LateTrap(1)] * 6)
        monitor.submit(step=1, **an_update(1))
        assert server.wait(lambda: server.steps == [1])
        assert eventually(lambda: monitor.stats["acknowledged"] == 1)
        assert monitor.stats["dropped"] == {"invalid": 1}
        assert monitor.stats["last_error"].startswith("step 0: Unspeakable")


def test_refused_update_is_counted_by_the_servers_reason_and_not_repeated() -> None:
    with FaultServer() as server, Monitor(server.url, run="r", **FAST) as monitor:
        server.refuse = {1: 422, 2: 418}
        for step in range(4):
            monitor.submit(step=step, **an_update(step))
        assert monitor.close(10.0) is False, "two were lost"
        assert server.calls["PUT"] == 4
        assert monitor.stats["dropped"] == {"bad_gap": 1, "internal": 1}
        assert monitor.stats["acknowledged"] == 2


def test_close_after_every_update_was_refused_says_so() -> None:
    with FaultServer("404") as server, Monitor(server.url, run="r", attempt=1, **FAST) as monitor:
        for step in range(3):
            assert monitor.submit(step=step, **an_update(step))
        assert monitor.close(10.0) is False
        assert monitor.stats["dropped"] == {"http_404": 3} and monitor.stats["acknowledged"] == 0


def test_close_counts_a_duplicate_as_acknowledged() -> None:
    with FaultServer() as server, Monitor(server.url, run="r", attempt=1, **FAST) as monitor:
        for _ in range(2):
            assert monitor.submit(step=0, **an_update(0))
        assert monitor.close(10.0) is True
        assert monitor.stats["duplicates"] == 1


def test_update_that_always_breaks_the_server_does_not_hold_up_the_others() -> None:
    with FaultServer() as server, Monitor(server.url, run="r", **FAST) as monitor:
        server.refuse = {0: 500}
        for step in range(30):
            monitor.submit(step=step, **an_update(step))
        assert server.wait(lambda: len(server.steps) == 29, 60.0)
        assert monitor.close(0.5) is False
        assert sum(monitor.stats["dropped"].values()) == 1


def test_retry_after_is_waited_for() -> None:
    with FaultServer("503") as server, Monitor(server.url, run="r", shards=2, shard=1, attempt=1, **FAST) as monitor:
        server.retry_after = "2"
        start = perf_counter()
        monitor.submit(step=0, **an_update(0))
        assert server.wait(lambda: server.calls["PUT"] == 1)
        server.behave("ok")
        assert server.wait(lambda: server.steps == [0])
        assert perf_counter() - start >= 1.9


def test_drops_are_told_to_the_server_once_it_is_back() -> None:
    with a_server("dead") as server, Monitor(server.url, run="r", queue_updates=2, attempt=1, **FAST) as monitor:
        for step in range(10):
            monitor.submit(step=step, **an_update(step))
        server.start()
        assert eventually(lambda: monitor.stats["queue_depth"] == 0)
        told = [headers.get("triage-client-dropped") for headers in server.headers]
        dropped = monitor.stats["dropped"]["queue_full"]
        assert dropped >= 7 and f"queue_full={dropped}" in told


def test_closed_monitor_refuses_and_keeps_its_counters() -> None:
    with FaultServer() as server:
        monitor = Monitor(server.url, run="r", **FAST)
        monitor.submit(step=0, **an_update(0))
        assert monitor.close(10.0) is True
        assert monitor.close(10.0) is True
        assert monitor.submit(step=1, **an_update(1)) is False
        assert monitor.stats["dropped"] == {"closed": 1}
        assert monitor.stats["acknowledged"] == 1 and server.steps == [0]


@pytest.mark.parametrize("timeout", [None, "x", object(), float("inf"), 10**400])
def test_close_with_an_unusable_timeout_still_flushes(timeout: Any) -> None:
    with FaultServer() as server:
        monitor = Monitor(server.url, run="r", **FAST)
        monitor.submit(step=0, **an_update(0))
        assert monitor.close(timeout) is True
        assert server.steps == [0]


@pytest.mark.parametrize("timeout", [float("nan"), -1, float("-inf"), -(10**400)])
def test_close_without_time_left_returns_at_once(timeout: float) -> None:
    with FaultServer("hang") as server:
        monitor = Monitor(server.url, run="r", **FAST)
        monitor.submit(step=0, **an_update(0))
        start = perf_counter()
        assert monitor.close(timeout) is False
        assert perf_counter() - start < 2.0
        assert monitor.stats["dropped"] == {"closed": 1}


def test_attempt_is_asked_once_and_shared_by_ranks_of_one_launch() -> None:
    with FaultServer() as server:
        for launch, attempt in (("first", 1), ("second", 2)):
            ranks = [Monitor(server.url, run="r", shards=3, shard=i, launch_id=launch, **FAST) for i in range(3)]
            for rank in ranks:
                for step in range(3):
                    rank.submit(step=step, **an_update(step))
            assert all(rank.close(20.0) for rank in ranks)
            assert [rank.attempt for rank in ranks] == [attempt] * 3
        assert server.calls["POST attempts"] == 6
        assert sorted({key[1:] for key in server.bodies}) == [
            (a, s, i) for a in (1, 2) for s in range(3) for i in range(3)
        ]


def test_every_form_of_arrays_arrives_as_the_same_body() -> None:
    torch = pytest.importorskip("torch")
    update = an_update(5, tokens=60, responses=3)
    gap, advantages, offsets = update["gap"], update["advantages"], update["offsets"]
    rows = [gap[a:b] for a, b in pairwise(offsets)]
    padded, mask = np.zeros((3, 25), np.float32), np.zeros((3, 25), bool)
    padded[:, 5:], mask[:, 5:] = gap.reshape(3, 20), True
    whole = np.ones(60, bool)
    forms: list[dict[str, Any]] = [
        {"gap": gap, "advantages": advantages, "offsets": offsets, "mask": whole},
        {
            "gap": torch.tensor(gap),
            "advantages": torch.tensor(advantages),
            "offsets": torch.tensor(offsets),
            "mask": torch.ones(60),
        },
        {"gap": rows, "advantages": list(advantages), "mask": [whole[:20]] * 3},
        {"gap": [torch.tensor(row) for row in rows], "advantages": advantages.tolist(), "mask": [[1] * 20] * 3},
        {"gap": padded, "advantages": advantages, "mask": mask},
        {"gap": torch.tensor(padded), "advantages": torch.tensor(advantages), "mask": torch.tensor(mask).int()},
    ]
    with FaultServer() as server, Monitor(server.url, run="r", **FAST) as monitor:
        for step, form in enumerate(forms):
            assert monitor.submit(step=step, **form)
        assert monitor.close(20.0), monitor.stats
        bodies = [server.bodies["r", 1, step, 0] for step in range(len(forms))]
        assert bodies == [bodies[0]] * len(forms)


def test_trainers_random_state_is_untouched() -> None:
    import random

    np.random.seed(3)
    random.seed(3)
    expected = (np.random.random(), random.random())
    np.random.seed(3)
    random.seed(3)
    with a_server("503") as server, Monitor(server.url, run="r", **FAST) as monitor:
        monitor.submit(step=0, **an_update(0))
        assert eventually(lambda: monitor.stats["retries"] >= 2)
        assert (np.random.random(), random.random()) == expected
        monitor.close(0.1)


def test_slow_trickle_ends_at_the_calls_deadline() -> None:
    """A byte a second satisfies every timeout between bytes; only the deadline of the whole call ends it."""
    with FaultServer("slow") as server:
        settings = {**FAST, "timeout": 30.0, "call_timeout": 1.0}
        with Monitor(server.url, run="r", attempt=1, shards=2, shard=1, **settings) as monitor:
            monitor.submit(step=0, **an_update(0))
            assert eventually(lambda: monitor.stats["retries"] >= 2, 20.0)
            assert "time" in monitor.stats["last_error"]
            server.behave("ok")
            assert server.wait(lambda: server.steps == [0])
