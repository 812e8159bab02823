"""The mirror itself, told to a function: what it writes, what it outlives, when it ends. Updates here are synthetic."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from service.live_server import LiveServer, serving
from service.served_process import served
from trainer.client_help import FAST, an_update, eventually
from trainer.fault_server import FaultServer

from triage_monitor import Monitor
from triage_monitor.config import Settings
from triage_monitor.errors import ConfigError
from triage_monitor.trainer import mirror as mirror_module


class Notebook:
    """A tracker of ours: (step, values), in order of writing."""

    def __init__(self) -> None:
        self.pages: list[tuple[int, dict[str, float]]] = []

    def __call__(self, step: int, values: dict[str, float]) -> None:
        self.pages.append((step, values))

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self.pages]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving() as live:
        yield live


def state(monitor: Monitor) -> Mapping[str, Any]:
    found: Mapping[str, Any] = monitor.stats["mirrors"]["function"]
    return found


def test_every_update_is_written_once_in_order_as_the_monitor_reports_it(server: LiveServer) -> None:
    book = Notebook()
    with Monitor(server.address, run="mirrored", mirror=book) as monitor:
        for step in range(0, 300, 10):
            assert monitor.submit(step=step, **an_update(step))
    assert book.steps == list(range(0, 300, 10))
    assert state(monitor) == {
        "written": 30,
        "newest_step": 290,
        "waiting": 0,
        "given_up": 0,
        "last_error": None,
    }
    reports = {}
    for scope in ("update", "window"):
        answer = server.http.get("/v1/runs/mirrored/updates", params={"scope": scope, "limit": 1000}).json()
        reports[scope] = {row["step"]: row for row in answer[f"{scope}s"]}
    for step, values in book.pages:
        for scope in ("update", "window"):
            known = {
                name.removeprefix(f"triage/{scope}/"): value
                for name, value in values.items()
                if name.startswith(f"triage/{scope}/") and not name.endswith("_all")
            }
            assert known == {
                name: value for name, value in reports[scope][step]["indicators"].items() if value is not None
            }
        assert values["triage/window/q0.5_all"] == reports["window"][step]["quantiles"]["all"]["0.5"]
        assert (values["triage/stage"], values["triage/params_version"]) == (0.0, 0.0)


def test_only_the_first_shard_mirrors_and_only_this_launch(server: LiveServer) -> None:
    first, second, other = Notebook(), Notebook(), Notebook()
    with Monitor(server.address, run="again", mirror=first) as monitor:
        for step in (0, 1, 2, 3):
            monitor.submit(step=step, **an_update(step))
    ranks = [
        Monitor(server.address, run="again", shards=2, shard=rank, launch_id="two", mirror=book)
        for rank, book in enumerate((second, other))
    ]
    for rank in ranks:
        rank.submit(step=2, **an_update(7))
    assert all(rank.close(20.0) for rank in ranks)
    assert (first.steps, second.steps, other.steps) == ([0, 1, 2, 3], [2], [])
    assert ranks[1].stats["mirrors"] == {}


def test_an_update_that_closes_after_later_ones_is_written_too() -> None:
    settings = Settings.from_dict({"server": {"port": 0}})
    with serving(settings) as live:
        book = Notebook()
        first = Monitor(live.address, run="late", shards=2, launch_id="x", mirror=book)
        second = Monitor(live.address, run="late", shards=2, shard=1, launch_id="x")
        for step in range(3):
            first.submit(step=step, **an_update(step))
        for step in (0, 2):
            second.submit(step=step, **an_update(step))
        assert eventually(lambda: book.steps == [0, 2])
        second.submit(step=1, **an_update(1))
        assert eventually(lambda: book.steps == [0, 2, 1])
        assert second.close(20.0) and first.close(20.0)


def test_steps_that_never_arrived_do_not_hold_up_those_behind_them(server: LiveServer) -> None:
    book = Notebook()
    monitor = Monitor(server.address, run="holes", mirror=book)
    (one,) = monitor._mirrors
    for step in range(40):
        one.expect(step, 0, "")
    monitor.submit(step=40, **an_update(40))
    assert eventually(lambda: book.steps == [40])
    assert monitor.close(20.0)
    assert state(monitor)["waiting"] == 40


def test_what_waits_is_bounded_and_what_is_given_up_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "MAX_AWAITED", 3)
    with FaultServer("503") as server:
        monitor = Monitor(server.url, run="r", mirror=Notebook(), **FAST)
        for step in range(10):
            monitor.submit(step=step, **an_update(step))
        assert (state(monitor)["waiting"], state(monitor)["given_up"]) == (3, 7)
        monitor.close(0.0)


def test_a_sidecar_that_is_killed_and_comes_back_leaves_no_update_out(tmp_path: Path) -> None:
    book = Notebook()
    with served(tmp_path) as server:
        monitor = Monitor(server.address, run="killed", mirror=book, **FAST)
        for step in range(3):
            monitor.submit(step=step, **an_update(step))
        assert eventually(lambda: book.steps == [0, 1, 2])
        port = server.address.rsplit(":", 1)[1]
        server.kill()
    for step in range(3, 8):
        monitor.submit(step=step, **an_update(step))
    assert eventually(lambda: state(monitor)["last_error"] is not None)
    with served(tmp_path, None, "--port", port):
        assert monitor.close(60.0)
    assert book.steps == list(range(8))


@pytest.mark.parametrize("behaviour", ["hang", "deaf", "slow", "garbage", "close", "flood", "403"])
def test_close_is_over_in_its_time_whatever_the_sidecar_does(behaviour: str) -> None:
    with FaultServer(behaviour) as server:
        monitor = Monitor(server.url, run="r", mirror=Notebook(), timeout=60.0, call_timeout=60.0)
        for step in range(3):
            monitor.submit(step=step, **an_update(step))
        started = monotonic()
        monitor.close(0.5)
        assert monotonic() - started < 20.0, "its calls may last 60 s"
        assert state(monitor)["written"] == 0


def test_a_tracker_that_hangs_holds_up_neither_training_nor_another_nor_the_end(server: LiveServer) -> None:
    entered, let_go, book = threading.Event(), threading.Event(), Notebook()

    def stuck(step: int, values: dict[str, float]) -> None:
        entered.set()
        let_go.wait(120)

    monitor = Monitor(server.address, run="stuck", mirror=[stuck, book])
    for step in range(5):
        assert monitor.submit(step=step, **an_update(step))
    assert entered.wait(60) and eventually(lambda: book.steps == [0, 1, 2, 3, 4])
    started = monotonic()
    monitor.close(1.0)
    assert monotonic() - started < 30.0
    let_go.set()


def test_an_update_that_a_tracker_refuses_is_given_up_and_the_next_are_written(server: LiveServer) -> None:
    book = Notebook()

    def choosy(step: int, values: dict[str, float]) -> None:
        if step == 1:
            raise OSError("synthetic: no room")
        book(step, values)

    with Monitor(server.address, run="choosy", mirror=choosy) as monitor:
        for step in range(4):
            monitor.submit(step=step, **an_update(step))
        assert eventually(lambda: state(monitor)["given_up"] == 1)
    assert book.steps == [0, 2, 3]
    assert "step 1: OSError: synthetic: no room" in state(monitor)["last_error"]


def test_a_tracker_that_asks_to_exit_is_refused_like_any_other(server: LiveServer) -> None:
    def leaving(step: int, values: dict[str, float]) -> None:
        raise SystemExit(3)

    with Monitor(server.address, run="leaving", mirror=leaving) as monitor:
        monitor.submit(step=0, **an_update(0))
        assert eventually(lambda: state(monitor)["given_up"] == 1)
    assert "SystemExit" in state(monitor)["last_error"]


def test_each_of_two_functions_has_its_own_counts_and_what_stays_out_at_the_end_is_said(server: LiveServer) -> None:
    entered, let_go, book = threading.Event(), threading.Event(), Notebook()

    def stuck(step: int, values: dict[str, float]) -> None:
        entered.set()
        let_go.wait(120)

    monitor = Monitor(server.address, run="two", mirror=[book, stuck])
    monitor.submit(step=0, **an_update(0))
    assert entered.wait(60) and eventually(lambda: book.steps == [0])
    monitor.close(1.0)
    mirrors = monitor.stats["mirrors"]
    let_go.set()
    assert (mirrors["function"]["written"], mirrors["function_2"]["written"]) == (1, 0)
    assert mirrors["function_2"]["last_error"] == "function: 1 updates were not written before the monitor closed"


@pytest.mark.parametrize(
    ("mirror", "said"),
    [
        ("comet", "must begin with one of tensorboard, mlflow, wandb, trackio"),
        ("", "must begin with one of"),
        (7, "got int"),
        (["tensorboard:x", None, object()], "got object"),
        (Notebook, "Notebook is a class or module"),
        (sys, "sys is a class or module"),
    ],
)
def test_a_mirror_that_is_none_is_said_when_the_monitor_is_built(mirror: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Monitor("http://127.0.0.1:1", run="r", mirror=mirror)


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow", "wandb", "trackio"])
def test_a_tracker_that_is_not_installed_names_its_extra(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorboard.summary", "tensorboardX", "mlflow", "wandb", "trackio"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"pip install 'triage-monitor\[{kind}\]'"):
        Monitor("http://127.0.0.1:1", run="r", mirror=kind)
