"""The tap: updates closed by the process's optimizer, conditions counted, loud at first and quiet later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from triage_monitor import Monitor
from triage_monitor.errors import ConfigError, InputError
from triage_monitor.parameters import TriageParams
from triage_monitor.trainer import layouts
from triage_monitor.trainer.adapters.environment import tap_from_environment
from triage_monitor.trainer.adapters.tap import Tap

MASK = torch.ones(2, 3, dtype=torch.bool)


def a_tap(**options: Any) -> Tap:
    return Tap(Monitor("http://127.0.0.1:9", run="unheard"), **options)


def added(tap: Tap, learner: Any = None, sampler: Any = None, **more: Any) -> None:
    learner = torch.full((2, 3), -1.0) if learner is None else learner
    sampler = torch.full((2, 3), -1.5) if sampler is None else sampler
    tap.add(layouts.padded(MASK), learner=learner, sampler=sampler, advantages=torch.ones(2), **more)


def test_an_update_ends_when_the_optimizer_steps_and_an_idle_step_is_none() -> None:
    tap = a_tap()
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    tap.follow_optimizer()
    try:
        optimizer.step()
        assert tap.step is None
        for _ in range(2):
            added(tap)
            added(tap)
            optimizer.step()
            optimizer.step()  # another group of the same update: nothing was added for it
    finally:
        tap.release(0.0)
    assert tap.step == 2
    assert tap.monitor is not None and tap.monitor.stats["accepted"] == 2
    added(tap)
    optimizer.step()
    assert tap.step == 2


def test_one_array_on_both_sides_is_a_counted_condition() -> None:
    tap = a_tap()
    added(tap, learner=torch.full((2, 3), -1.5))
    assert tap.conditions["learner_is_sampler"] == 1


def test_a_learner_of_exactly_zero_was_filled_in() -> None:
    tap = a_tap(zero_learner_is_missing=True)
    added(tap, learner=torch.tensor([[0.0, -1.0, -1.0], [-1.0, 0.0, -1.0]]), sampler=torch.full((2, 3), -0.5))
    assert tap._parts[0].tokens["missing"].tolist() == [True, False, False, False, True, False]
    assert tap.conditions["zeroed_learner_tokens"] == 2


def test_what_does_not_fit_raises_until_an_update_was_sent_and_is_counted_after() -> None:
    tap = a_tap()
    wrong = torch.zeros(2, 4)
    with pytest.raises(InputError, match="column 'learner_logprobs'"):
        added(tap, learner=wrong)
    added(tap)
    assert tap.close(step=0)
    added(tap, learner=wrong)
    assert tap.conditions["refused_micro_batches"] == 1


def test_rows_that_fill_up_a_batch_are_left_out_and_counted() -> None:
    tap = a_tap()
    added(tap, padding=np.array([False, True]))
    assert tap._parts[0].responses == 1
    assert tap._padding_rows == 1


def test_a_watching_tap_changes_nothing() -> None:
    tap = a_tap(act=False)
    weighed = tap.weigh(torch.zeros(2, 3), -torch.ones(2, 3), torch.tensor([1.0, -1.0]), MASK)
    assert weighed.advantages.tolist() == [[1.0] * 3, [-1.0] * 3]
    assert weighed.repair_loss == 0


def test_a_stop_gives_weights_of_zero_and_says_so() -> None:
    tap = Tap(Monitor("http://127.0.0.1:9", run="unheard", safe_default=TriageParams(control="stop")))
    weighed = tap.weigh(torch.zeros(2, 3), -torch.ones(2, 3), torch.tensor([1.0, -1.0]), MASK)
    assert not weighed.advantages.any()
    assert tap.is_stopped


def test_packed_advantages_one_a_response_spread_over_their_tokens() -> None:
    tap, flat = a_tap(), torch.zeros(5)
    offsets = torch.tensor([0, 2, 5])
    weighed = tap.weigh(flat, flat - 1, torch.tensor([3.0, -1.0]), torch.ones(5, dtype=torch.bool), cu_seqlens=offsets)
    assert weighed.advantages.tolist() == [3.0, 3.0, -1.0, -1.0, -1.0]


def test_without_an_address_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIAGE_URL", raising=False)
    with pytest.raises(ConfigError, match="the verl adapter needs the sidecar's address in TRIAGE_URL"):
        tap_from_environment("verl")
    monkeypatch.setenv("TRIAGE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("TRIAGE_TEMPERATURE", "warm")
    with pytest.raises(ConfigError, match="TRIAGE_TEMPERATURE must be a number, not 'warm'"):
        tap_from_environment("verl")


def test_the_environment_names_server_run_and_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"URL": "http://127.0.0.1:9", "RUN": "mine", "TEMPERATURE": "0.7", "TOP_K": "20", "PRECISION": "nvfp4"}
    for name, value in (told | {"ACT": "0"}).items():
        monkeypatch.setenv(f"TRIAGE_{name}", value)
    tap = tap_from_environment("verl", settings={"learner": "old"})
    try:
        assert not tap.act
        assert "run='mine', shards=1, shard=0" in repr(tap.monitor)
    finally:
        tap.release(0.0)
    silent = tap_from_environment("slime", rank=layouts.Rank(tensor=1, tensor_size=2), follow=False)
    assert not silent.emits
    assert silent.monitor is not None  # the first process decides the parameters, whatever it holds
    added(silent)
    assert not silent.close()
    silent.release(0.0)
