"""The recorded hooks against installed sources, and against sources that lack them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from trainer.adapters.framework_help import HOME
from typer.testing import CliRunner

from triage_monitor.cli.main import build_app
from triage_monitor.trainer.adapters import frameworks
from triage_monitor.trainer.adapters.frameworks import FRAMEWORKS, Framework, Hook, differences, parameters_of


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Framework:
    home = tmp_path / "areal" / "trainer" / "ppo"
    home.mkdir(parents=True)
    (tmp_path / "areal" / "__init__.py").write_text("raise ImportError('must not be imported')\n", encoding="utf-8")
    source = "def grpo_loss_fn(logprobs, entropy, input_data, *, eps_clip):\n    pass\n"
    (home / "actor.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return FRAMEWORKS["areal"]


def test_a_framework_as_recorded_has_no_differences_and_is_not_imported(package: Framework) -> None:
    assert [difference for _, difference in differences(package)] == [""]
    assert "areal" not in sys.modules
    told = CliRunner().invoke(build_app(), ["doctor", "--framework", "areal"])
    assert told.exit_code == 0, told.output
    assert "grpo_loss_fn(logprobs, entropy, input_data)" in told.output
    assert "triage_monitor.trainer.adapters.areal.activate() on every rank" in told.output


def test_a_renamed_parameter_and_a_lost_function_are_problems(package: Framework, tmp_path: Path) -> None:
    file = tmp_path / "areal" / "trainer" / "ppo" / "actor.py"
    file.write_text("def grpo_loss_fn(logprobs, entropy, batch):\n    pass\n", encoding="utf-8")
    told = CliRunner().invoke(build_app(), ["doctor", "--framework", "areal"])
    assert told.exit_code == 1
    assert "grpo_loss_fn takes no input_data" in told.output
    file.write_text("", encoding="utf-8")
    assert [said for _, said in differences(package)] == ["areal.trainer.ppo.actor has no grpo_loss_fn"]


def test_a_framework_that_is_not_there_is_a_problem_and_an_unknown_one_a_wrong_option() -> None:
    told = CliRunner().invoke(build_app(), ["doctor", "--framework", "pipelinerl"])
    assert told.exit_code == 1
    assert "there is no package pipelinerl" in told.output
    assert "knows trl, verl" in str(CliRunner().invoke(build_app(), ["doctor", "--framework", "torchforge"]).exception)


def test_methods_keyword_only_and_last_definitions_are_found() -> None:
    source = "class A:\n  def f(self, a, /, b, *, c): ...\n\ndef g(x): ...\n\ndef g(y): ...\n"
    assert parameters_of(source, "A.f") == ("a", "b", "c")
    assert parameters_of(source, "g") == ("y",)
    assert parameters_of(source, "A") is None
    assert parameters_of(source, "A.h") is None


@pytest.mark.parametrize("name", list(FRAMEWORKS))
def test_the_recorded_hooks_are_those_of_the_sources_at_hand(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HOME)
    known = FRAMEWORKS[name]
    if frameworks.source_of(known.package) is None:
        pytest.skip(f"{known.package} is neither installed nor in {HOME}")
    assert [difference for _, difference in differences(known)] == [""] * len(known.hooks)


def test_every_framework_names_an_adapter_that_is_there() -> None:
    here = Path(frameworks.__file__).parent
    for name, known in FRAMEWORKS.items():
        assert (here / f"{known.adapter}.py").is_file(), name
        assert all(isinstance(hook, Hook) and hook.parameters for hook in known.hooks)
