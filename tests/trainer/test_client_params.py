"""Parameter sets over real sockets: they arrive by themselves, switch at an update boundary, are acknowledged."""

from __future__ import annotations

from typing import Any

import pytest
from trainer.client_help import FAST, an_update, eventually
from trainer.fault_server import FaultServer

from triage_monitor import Monitor
from triage_monitor.parameters import TriageParams


def parameter_set(version: int, **changes: Any) -> dict[str, Any]:
    changes = {"gate.enabled": True, **changes}
    return {**TriageParams().with_changes(changes).to_dict(), "version": version}


def test_published_set_arrives_takes_effect_at_apply_and_is_acknowledged_with_its_step() -> None:
    with FaultServer() as server, Monitor(server.url, run="r", **FAST) as monitor:
        assert monitor.apply(0).version == 0
        server.publish(parameter_set(1, **{"gate.w_min": 0.3}))
        assert eventually(lambda: monitor.params.version == 1)
        assert monitor.stats["params_applied_version"] == 0, "not before the next update begins"
        assert monitor.apply(7).gate.w_min == 0.3
        assert server.wait(lambda: server.acknowledged == [{"version": 1, "step": 7}])


def test_versions_published_during_a_run_are_applied_in_order_and_acknowledged() -> None:
    applied = []
    with FaultServer() as server, Monitor(server.url, run="r", **FAST) as monitor:
        for version in range(1, 6):
            server.publish(parameter_set(version))
            assert eventually(lambda version=version: monitor.params.version == version)
            applied.append(monitor.apply(10 * version).version)
        server.publish(parameter_set(2))
        assert monitor.apply(60).version == 5
        assert server.wait(lambda: len(server.acknowledged) == 5)
    assert applied == [1, 2, 3, 4, 5]
    assert server.acknowledged == [{"version": v, "step": 10 * v} for v in range(1, 6)]


def test_acknowledgement_outlives_an_outage() -> None:
    with FaultServer() as server, Monitor(server.url, run="r", **FAST) as monitor:
        server.publish(parameter_set(1))
        assert eventually(lambda: monitor.params.version == 1)
        server.stop()
        monitor.apply(3)
        assert eventually(lambda: monitor.stats["retries"] >= 2)
        server.start()
        assert server.wait(lambda: server.acknowledged == [{"version": 1, "step": 3}])


def test_acknowledgement_that_the_server_cannot_take_holds_up_no_update() -> None:
    with FaultServer() as server, Monitor(server.url, run="r", **FAST) as monitor:
        server.refuse_acks = True
        server.publish(parameter_set(1))
        assert eventually(lambda: monitor.params.version == 1)
        monitor.apply(0)
        for step in range(5):
            monitor.submit(step=step, **an_update(step))
        assert server.wait(lambda: server.steps == list(range(5)))
        server.refuse_acks = False
        assert server.wait(lambda: server.acknowledged == [{"version": 1, "step": 0}])


def test_set_outside_the_trainers_range_is_refused_reported_and_never_in_force() -> None:
    limits = {"gate.w_min": (0.4, 1.0)}
    with FaultServer() as server, Monitor(server.url, run="r", limits=limits, **FAST) as monitor:
        server.publish(parameter_set(1, **{"gate.w_min": 0.5}))
        assert eventually(lambda: monitor.params.version == 1)
        monitor.apply(0)
        server.publish(parameter_set(2, **{"gate.w_min": 0.1}))
        assert server.wait(lambda: any("refused" in item for item in server.acknowledged))
        refusal = server.acknowledged[-1]
        assert refusal["version"] == 2 and "gate.w_min" in refusal["refused"]
        assert monitor.apply(1).version == 1
        assert monitor.stats["params_refused"] == 1


def test_monitor_that_dies_leaves_the_safe_default_after_the_lease_and_returns_with_its_set() -> None:
    safe = TriageParams(reason="safe")
    with FaultServer() as server, Monitor(server.url, run="r", safe_default=safe, **FAST) as monitor:
        server.publish(parameter_set(1, lease_updates=5))
        assert eventually(lambda: monitor.params.version == 1)
        monitor.apply(0)
        server.stop()
        assert eventually(lambda: monitor.stats["last_error"] is not None)
        versions = [monitor.apply(step).version for step in range(1, 30)]
        assert versions == sorted(versions, reverse=True) and versions[:5] == [1] * 5 and versions[-1] == 0
        assert monitor.apply(30) is safe and monitor.stats["lease_expired"]
        server.start()
        assert eventually(lambda: monitor.apply(31).version == 1)
        assert monitor.stats["lease_expiries"] == 1 and not monitor.stats["lease_expired"]


@pytest.mark.parametrize("proxy", ["proxy", "empty"])
def test_answers_of_somebody_else_keep_no_lease_alive(proxy: str) -> None:
    with FaultServer() as server:
        server.publish(parameter_set(1, lease_updates=5))
        with Monitor(server.url, run="r", **FAST) as monitor:
            assert eventually(lambda: monitor.params.version == 1)
            assert monitor.apply(10).version == 1
            asked = server.calls["GET params"]
            server.behave(proxy)
            assert server.wait(lambda: server.calls["GET params"] > asked + 2)
            for step in (14, 20):
                monitor.apply(step)
                before = server.calls["GET params"]
                assert server.wait(lambda seen=before: server.calls["GET params"] > seen + 2)
            assert monitor.apply(30).version == 0 and monitor.stats["lease_expired"]
            server.behave("ok")
            assert eventually(lambda: monitor.apply(31).version == 1)


def test_updates_alone_keep_the_lease_alive() -> None:
    """A rank that only sends hears the monitor in every answer, without asking for parameters."""
    with FaultServer() as server, Monitor(server.url, run="r", **FAST) as monitor:
        server.publish(parameter_set(1, lease_updates=2))
        assert eventually(lambda: monitor.params.version == 1)
        for step in range(12):
            assert monitor.apply(step).version == 1
            monitor.submit(step=step, **an_update(step))
            assert eventually(lambda step=step: monitor.stats["acknowledged"] == step + 1)


@pytest.mark.parametrize("document", [{"version": "one"}, {"version": 1, "surprise": 2}, {"version": None}])
def test_nonsense_instead_of_a_set_changes_nothing_and_is_told(document: dict[str, Any]) -> None:
    with FaultServer() as server, Monitor(server.url, run="r", **FAST) as monitor:
        server.publish(document)
        assert eventually(lambda: monitor.stats["params_refused"] == 1 or monitor.stats["last_error"] is not None)
        assert monitor.apply(0).version == 0
        server.publish(parameter_set(2))
        assert eventually(lambda: monitor.params.version == 2), "the next sound set is taken"


def test_apply_takes_nonsense_without_raising() -> None:
    with FaultServer() as server, Monitor(server.url, run="r", **FAST) as monitor:
        for step in (None, -1, "x", 1.5):
            assert monitor.apply(step).version == 0  # type: ignore[arg-type]  # the point of the test


def test_run_unknown_to_the_server_gets_its_parameters_with_its_first_update() -> None:
    """The poll has backed off by then; the answer to an update, which speaks of a version, wakes it."""
    with FaultServer() as server, Monitor(server.url, run="r", **FAST) as monitor:
        assert server.wait(lambda: server.calls["GET params"] >= 6)
        with server.changed:
            server.params = parameter_set(1)
        monitor.submit(step=0, **an_update(0))
        assert eventually(lambda: monitor.params.version == 1, 1.5)


def test_rank_that_only_sends_does_not_poll() -> None:
    with FaultServer() as server, Monitor(server.url, run="r", shards=2, shard=1, launch_id="l", **FAST) as monitor:
        monitor.submit(step=0, **an_update(0))
        assert server.wait(lambda: server.steps == [0])
        assert server.calls["GET params"] == 0
        server.publish(parameter_set(1))
        assert eventually(lambda: monitor.params.version == 1), "asking for parameters starts the poll"
