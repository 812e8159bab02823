"""Native NVFP4 where it cannot run: what would be selected, how it would be configured, and how it is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from triage_monitor.errors import ConfigError
from triage_monitor.parameters import TriageParams
from triage_monitor.trainer.native import (
    Found,
    NativeExecution,
    NativeSettings,
    Selection,
    found_here,
    linear_layers,
    native_execution,
    require_native,
    selected,
)
from triage_monitor.trainer.nvfp4_options import Nvfp4Recipe


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.norm = nn.LayerNorm(32)
        self.up = nn.Linear(32, 64, bias=False)


class Model(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 32)
        self.layers = nn.ModuleList(Block() for _ in range(blocks))
        self.odd = nn.Linear(32, 10)
        self.lm_head = nn.Linear(32, 160)


def test_head_stays_and_layers_that_do_not_fit_are_named() -> None:
    chosen = selected(linear_layers(Model(3)), NativeSettings())
    assert chosen.native == tuple(f"layers.{i}.{part}" for i in range(3) for part in ("qkv", "up"))
    assert set(chosen.kept) == {"odd", "lm_head"}
    assert "multiples of 16" in chosen.kept["odd"] and "lm_head" in chosen.kept["lm_head"]


def test_first_and_last_blocks_and_named_layers_stay_in_bfloat16() -> None:
    settings = NativeSettings(first_layers=1, last_layers=2, keep=("*.up",))
    chosen = selected(linear_layers(Model(5)), settings)
    assert chosen.native == ("layers.1.qkv", "layers.2.qkv")
    assert "first 1" in chosen.kept["layers.0.qkv"] and "last 2 of 5" in chosen.kept["layers.4.qkv"]
    assert "'*.up'" in chosen.kept["layers.1.up"]


def test_experts_count_by_their_block_not_by_their_own_number() -> None:
    layers = {f"model.layers.{i}.mlp.experts.{j}.up_proj": (64, 64) for i in range(3) for j in range(8)}
    layers["model.layers.1.mlp.gate"] = (64, 16)
    chosen = selected(layers, NativeSettings(last_layers=1))
    assert len(chosen.native) == 16 and "model.layers.1.mlp.gate" in chosen.kept
    assert all(".2.mlp" not in name for name in chosen.native)


def test_nothing_left_and_wrong_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="every one is an exception"):
        selected(linear_layers(Model(2)), NativeSettings(first_layers=2))
    with pytest.raises(ConfigError, match="last_layers"):
        NativeSettings(last_layers=-1)
    everything = selected({"lm_head": (16, 16)}, NativeSettings(keep_usual=False))
    assert everything.native == ("lm_head",)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Found(None, None, None), ("10.0 or more", "no CUDA device")),
        (Found("NVIDIA H200", (9, 0), "2.20.2"), ("10.0 or more", "NVIDIA H200 of 9.0", "bf16")),
        (Found("NVIDIA B200", (10, 0), None), ("transformer-engine 2.9", "not installed")),
        (Found("NVIDIA B200", (10, 0), "2.8.0"), ("2.9 or newer", "found 2.8.0")),
        (Found("NVIDIA B200", (10, 0), "2.20.2", "it does not load (no cudnn)"), ("no cudnn",)),
    ],
)
def test_refusal_is_one_sentence_naming_what_is_needed_and_what_was_found(found: Found, words: tuple[str, ...]) -> None:
    refusal = found.refusal()
    assert refusal is not None and "\n" not in refusal
    assert all(word in refusal for word in words)


@pytest.mark.parametrize("capability", [(10, 0), (10, 3), (12, 0)])
def test_machine_that_has_everything_is_not_refused(capability: tuple[int, int]) -> None:
    assert Found("NVIDIA B300", capability, "2.10.0").refusal() is None


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() >= (10, 0), reason="NVFP4 may run here"
)
def test_this_machine_refuses_before_any_layer_is_replaced() -> None:
    model = Model(2)
    with pytest.raises(ConfigError, match=r"compute capability 10\.0"):
        require_native()
    with pytest.raises(ConfigError, match=r"compute capability 10\.0"):
        native_execution(model)
    assert all(type(model.get_submodule(name)) is nn.Linear for name in linear_layers(model))
    assert found_here().capability is None or found_here().capability < (10, 0)


def test_recipe_takes_the_engines_own_names_and_leaves_defaults_to_it() -> None:
    plain = {"disable_rht": False, "disable_stochastic_rounding": False, "disable_2d_quantization": False}
    assert NativeSettings().recipe_options() == plain
    told = NativeSettings(
        recipe=Nvfp4Recipe(row_scaled_activation=True, disable_2d_quantization=True), disable_rht=True
    ).recipe_options()
    assert told == {
        **plain,
        "disable_rht": True,
        "disable_2d_quantization": True,
        "row_scaled_activation": True,
    }


def test_bfloat16_is_the_fallback_and_needs_nothing_of_the_engine() -> None:
    """A set that asks for bf16 opens no quantised region, whatever the engine."""
    execution = NativeExecution(Selection(("a",), {}), engine=None, recipes={"nvfp4": object(), "fp8": object()})
    with execution.under(TriageParams().with_changes({"precision": "bf16"})):
        pass
    with pytest.raises(AttributeError):
        execution.under(TriageParams())  # nvfp4 does ask the engine
