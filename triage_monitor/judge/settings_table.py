"""Reads a table of settings (TOML, JSON) into a frozen dataclass, strictly.

Each part of `judge` declares its settings next to the code they govern; this is the one reader they share. An unknown
key, a wrong type or a value its class refuses raises `ConfigError` naming the dotted key. Missing keys keep their
defaults. Handles bool, int, float, str, StrEnum, nested dataclasses, tuples of these and `Mapping` (kept as given).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from triage_monitor.errors import ConfigError
from triage_monitor.parameters import is_finite_number

T = TypeVar("T")


def read_table(kind: type[T], data: object, where: str) -> T:
    """`data` as a `kind`; `where` is the dotted name that errors start with."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}: expected a table, got {type(data).__name__}")
    hints = get_type_hints(kind)
    known = {item.name: hints[item.name] for item in fields(kind)}  # type: ignore[arg-type]  # callers pass dataclasses
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name not in known:
            raise ConfigError(f"{where}.{name}: there is no such setting; known are {', '.join(sorted(known))}")
        values[name] = _read(known[name], value, f"{where}.{name}")
    try:
        return kind(**values)
    except TypeError:
        missing = [item.name for item in fields(kind) if item.name not in values]  # type: ignore[arg-type]
        raise ConfigError(f"{where}: {', '.join(missing)} must be given") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _read(kind: Any, value: object, where: str) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        return read_table(kind, value, where)
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where}: expected a list, got {type(value).__name__}")
        return tuple(_read(get_args(kind)[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if get_origin(kind) is not None and issubclass(get_origin(kind), Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where}: expected a table, got {type(value).__name__}")
        return dict(value)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        choices = [item.value for item in kind]
        if value not in choices:
            raise ConfigError(f"{where}: {value!r} is not one of {choices}")
        return kind(value)
    return _scalar(kind, value, where)


def _scalar(kind: Any, value: object, where: str) -> Any:
    if kind is float and is_finite_number(value):
        return float(value)
    if kind is not float and type(value) is kind:
        return value
    raise ConfigError(f"{where}: {repr(value)[:100]} is not a finite {kind.__name__}")
