"""OpenRLHF, SkyRL, AReaL and ms-swift from PyPI: the framework's own trainer code calls the adapter on CPU tensors.

Its loss with us silent is bit for bit the one without us; with gate and repair on it is TriageLoss on the plain form,
in value and gradient; what is observed is what was put in; the framework's mismatch numbers are ours. One process for
the first three, which share most of twenty seconds of imports; ms-swift needs an older trl. Packages that their modules
import without using here stand empty where they are missing (hollow.py), and calling one fails.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from trainer.adapters.framework_help import TESTS, need, run_with
from trainer.adapters.test_wrapped_losses import Batch

from triage_monitor import indicators, summarize
from triage_monitor.trainer import layouts
from triage_monitor.trainer.adapters.names import NAMES

CALLERS = ("openrlhf", "skyrl", "areal")
DRIVER = """
import importlib, json
names = {names!r}
modules = {{name: importlib.import_module("trainer.adapters.called_by_" + name) for name in names}}
from trainer.adapters import hollow
hollow.seal()
print(json.dumps({{name: module.told() for name, module in modules.items()}}))
"""


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    for package in CALLERS:
        home = need(package)
    script = DRIVER.format(names=CALLERS)
    out: dict[str, Any] = json.loads(run_with(script, TESTS, home, home / "skyrl-gym").strip().splitlines()[-1])
    return out


@pytest.fixture(scope="module")
def swift_said() -> dict[str, Any]:
    home = need("swift")
    script = DRIVER.format(names=("ms_swift",))
    places = (TESTS, need("trl-below-1") / "trl-below-1", home)
    out: dict[str, Any] = json.loads(run_with(script, *places).strip().splitlines()[-1])["ms_swift"]
    return out


def check_calls(out: dict[str, Any]) -> None:
    assert out["off_is_plain"]
    assert out["on"] == pytest.approx(out["expected"], rel=2e-6)
    assert out["gradient_off_by"] < 1e-6
    assert out["gradient_moved"] > 0.01, "the gate must have done something"
    assert out["lengths"] == [20, 12, 1, 16]
    assert out["gap"] == pytest.approx(out["wanted_gap"], rel=1e-6)


def check_numbers(framework: str, numbers: dict[str, float], learner: str = "old") -> None:
    """learner: which of the batch's the framework compares with the sampler."""
    batch = Batch()
    observed = getattr(batch, learner).detach()
    ours = indicators(
        summarize(
            **layouts.padded(batch.mask).submission(
                learner=observed, sampler=batch.sampler, advantages=batch.advantages
            )
        )
    )
    rows = {row.theirs: row for row in NAMES if row.framework == framework and row.checked.startswith("run")}
    assert set(rows) == set(numbers)
    for name, value in numbers.items():
        assert value == pytest.approx(ours[rows[name].ours], rel=2e-6, abs=1e-7), rows[name]


@pytest.mark.parametrize("name", CALLERS)
def test_the_frameworks_own_code_calls_the_adapter(said: dict[str, Any], name: str) -> None:
    check_calls(said[name])


@pytest.mark.parametrize(("name", "title", "learner"), [("openrlhf", "OpenRLHF", "old"), ("areal", "AReaL", "old")])
def test_their_numbers_are_ours(said: dict[str, Any], name: str, title: str, learner: str) -> None:
    check_numbers(title, said[name]["numbers"], learner)


def test_skyrls_numbers_are_ours_on_the_current_log_probs(said: dict[str, Any]) -> None:
    """Its micro-batch metrics compare the sampler with the log-probs of the loss."""
    check_numbers("SkyRL", said["skyrl"]["numbers"], "learner")


def test_ms_swifts_own_loss_calls_the_adapter_and_its_numbers_are_ours(swift_said: dict[str, Any]) -> None:
    check_calls(swift_said)
    check_numbers("ms-swift", swift_said["numbers"])
