"""Native NVFP4 (W4A4) through Transformer Engine: which layers, under which recipe, and back to bfloat16 when asked.

    execution = native_execution(model, NativeSettings(last_layers=2))      # replaces the selected nn.Linear
    with execution.under(monitor.apply(step)):                              # the parameter set's `precision` decides
        logits = model(tokens)

`nvfp4` runs the selected layers under `NVFP4BlockScaling`, `fp8` under `MXFP8BlockScaling`, `bf16` leaves quantisation
off: the fallback, from one update to the next, weights untouched. Layers that are kept stay as they are.

Needs a GPU of compute capability 10.0 or more and transformer-engine 2.9 or newer; `require_native` refuses elsewhere
in one sentence that says what is needed and what was found. transformer-engine is imported only after that, for it
fails with errors of many kinds where it cannot run. Native execution itself was not run by this project's tests:
selection, refusal and configuration are; nvfp4.py emulates the numerics and was checked against golden vectors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn

from triage_monitor.errors import ConfigError
from triage_monitor.parameters import TriageParams
from triage_monitor.trainer.nvfp4_options import Nvfp4Recipe

CAPABILITY = (10, 0)
OLDEST_ENGINE = (2, 9)
MULTIPLE = 16  # of both sizes of a layer
NEEDED = "native NVFP4 needs a CUDA GPU of compute capability 10.0 or more (B200, B300, GB300)"
KEPT_NAMES = ("*lm_head*", "*embed*", "*router*", "*norm*", "*.gate", "gate")
_INDEX = re.compile(r"(?:^|\.)(\d+)\.")


@dataclass(frozen=True, slots=True)
class NativeSettings:
    """BF16 exceptions, and Transformer Engine's recipe options. `first_layers`, `last_layers`: blocks by the number in
    their modules' names; `keep`: patterns of names, beside KEPT_NAMES when `keep_usual`. Raises ConfigError."""

    first_layers: int = 0
    last_layers: int = 0
    keep: tuple[str, ...] = ()
    keep_usual: bool = True
    recipe: Nvfp4Recipe = field(default_factory=Nvfp4Recipe)
    disable_rht: bool = False

    def __post_init__(self) -> None:
        for name in ("first_layers", "last_layers"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise ConfigError(f"{name} must be a number of blocks of at least 0, not {value!r}")

    def recipe_options(self) -> dict[str, Any]:
        """Keyword arguments of `NVFP4BlockScaling`; those of its defaults are left to it, so that older ones do."""
        told = {
            "disable_rht": self.disable_rht,
            "disable_stochastic_rounding": self.recipe.disable_stochastic_rounding,
            "disable_2d_quantization": self.recipe.disable_2d_quantization,
        }
        default = Nvfp4Recipe()
        for name in ("row_scaled_activation", "nvfp4_4over6", "nvfp4_4over6_e4m3_use_256", "nvfp4_4over6_err_mode"):
            if getattr(self.recipe, name) != getattr(default, name):
                told[name] = getattr(self.recipe, name)
        return told


@dataclass(frozen=True, slots=True)
class Selection:
    """Names of linear layers to run natively, and why each other one is kept."""

    native: tuple[str, ...]
    kept: Mapping[str, str]


def selected(layers: Mapping[str, tuple[int, int]], settings: NativeSettings) -> Selection:
    """`layers`: a linear layer's name -> (in, out). Raises ConfigError when nothing is left to run natively."""
    indices = {name: _block(name) for name in layers}
    blocks = 1 + max((index for index in indices.values() if index is not None), default=-1)
    patterns = settings.keep + (KEPT_NAMES if settings.keep_usual else ())
    native, kept = [], {}
    for name, sizes in layers.items():
        why = _kept_by_name(name, patterns) or _kept_by_block(indices[name], blocks, settings)
        if why is None and any(size % MULTIPLE for size in sizes):
            why = f"its sizes {sizes[0]} and {sizes[1]} are no multiples of {MULTIPLE}"
        if why is None:
            native.append(name)
        else:
            kept[name] = why
    if not native:
        raise ConfigError(f"no layer of {len(layers)} is left to run in NVFP4: every one is an exception")
    return Selection(tuple(native), kept)


def linear_layers(model: nn.Module) -> dict[str, tuple[int, int]]:
    return {
        name: (module.in_features, module.out_features)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }


@dataclass(frozen=True, slots=True)
class Found:
    """What a machine offers: GPU and its capability, None without one; the engine's version or why it has none."""

    gpu: str | None
    capability: tuple[int, int] | None
    engine: str | None
    engine_error: str | None = None

    def refusal(self) -> str | None:
        """One sentence, None where native execution can go ahead."""
        if self.capability is None:
            return f"{NEEDED}; found no CUDA device"
        if self.capability < CAPABILITY:
            major, minor = self.capability
            return f"{NEEDED}; found {self.gpu} of {major}.{minor}: run emulated, or in bf16"
        need = f"native NVFP4 needs transformer-engine {OLDEST_ENGINE[0]}.{OLDEST_ENGINE[1]} or newer for PyTorch"
        if self.engine is None or self.engine_error is not None:
            why = self.engine_error or "it is not installed: pip install --no-build-isolation 'triage-monitor[te]'"
            return f"{need}; {why}"
        numbers = tuple(int(part) for part in re.findall(r"\d+", self.engine)[:2])
        return f"{need}; found {self.engine}" if numbers < OLDEST_ENGINE else None


def found_here() -> Found:
    """Asks torch, then the package's metadata, and imports the engine only where a GPU could run it."""
    if not torch.cuda.is_available():
        return Found(None, None, _engine_version())
    capability, name = torch.cuda.get_device_capability(), torch.cuda.get_device_name()
    found = Found(name, capability, _engine_version())
    if found.refusal() is not None:
        return found
    try:
        is_available, why = import_module("transformer_engine.pytorch").is_nvfp4_available(return_reason=True)
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        return Found(name, capability, found.engine, f"it does not load ({str(error).splitlines()[0]})")
    return found if is_available else Found(name, capability, found.engine, f"it says: {why}")


def require_native() -> None:
    """Raises ConfigError with one sentence unless NVFP4 can be executed here."""
    refusal = found_here().refusal()
    if refusal is not None:
        raise ConfigError(refusal)


class NativeExecution:
    """The selected layers of one model as Transformer Engine's; `under` is the actuator. See `native_execution`."""

    def __init__(self, selection: Selection, engine: Any, recipes: Mapping[str, Any]) -> None:
        self.selection = selection
        self._engine = engine
        self._recipes = recipes

    def under(self, params: TriageParams) -> AbstractContextManager[Any]:
        """For the forward passes of one update, all of them under one set."""
        recipe = self._recipes.get(params.precision)
        if recipe is None:
            return nullcontext()
        context: AbstractContextManager[Any]
        if hasattr(self._engine, "autocast"):
            context = self._engine.autocast(enabled=True, recipe=recipe)
        else:  # its older name
            context = self._engine.fp8_autocast(enabled=True, fp8_recipe=recipe)
        return context


def native_execution(model: nn.Module, settings: NativeSettings | None = None) -> NativeExecution:
    """Replaces the selected `nn.Linear` of `model` in place, weights and biases kept. Raises ConfigError where NVFP4
    cannot be executed, before anything is replaced."""
    chosen = settings or NativeSettings()
    selection = selected(linear_layers(model), chosen)
    require_native()
    engine = import_module("transformer_engine.pytorch")
    recipe = import_module("transformer_engine.common.recipe")
    for name in selection.native:
        _replace(model, name, engine)
    recipes = {
        "nvfp4": recipe.NVFP4BlockScaling(**chosen.recipe_options()),
        "fp8": recipe.MXFP8BlockScaling(),
    }
    return NativeExecution(selection, engine, recipes)


def _replace(model: nn.Module, name: str, engine: Any) -> None:
    old = model.get_submodule(name)
    assert isinstance(old, nn.Linear)
    new = engine.Linear(
        old.in_features,
        old.out_features,
        bias=old.bias is not None,
        params_dtype=old.weight.dtype,
        device=old.weight.device,
    )
    with torch.no_grad():
        new.weight.copy_(old.weight)
        if old.bias is not None:
            new.bias.copy_(old.bias)
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, new)


def _kept_by_name(name: str, patterns: Iterable[str]) -> str | None:
    return next((f"its name fits '{pattern}'" for pattern in patterns if fnmatchcase(name, pattern)), None)


def _kept_by_block(index: int | None, blocks: int, settings: NativeSettings) -> str | None:
    if index is None:
        return None
    if index < settings.first_layers:
        return f"block {index} is one of the first {settings.first_layers}"
    if index >= blocks - settings.last_layers:
        return f"block {index} is one of the last {settings.last_layers} of {blocks}"
    return None


def _block(name: str) -> int | None:
    """The first number among the parts of a name: `model.layers.12.mlp.experts.3.up` is of block 12."""
    match = _INDEX.search(f"{name}.")
    return None if match is None else int(match[1])


def _engine_version() -> str | None:
    try:
        return version("transformer-engine")
    except PackageNotFoundError:
        return None
