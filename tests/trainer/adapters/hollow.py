"""Empty stand-ins for packages that a framework imports and the code under test does not use.

`hollow("vllm", ..)` makes these names importable: every attribute is an empty class that decorates, subclasses and
annotates. `seal()`, called after the imports, makes every further call of one raise: what then runs is the framework's
own code and real packages, or the test fails. Nothing here imitates a behaviour.
"""

from __future__ import annotations

import sys
from abc import ABCMeta
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_sealed = False


class _Empty(ABCMeta):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith(("__", "_abc")):
            raise AttributeError(name)
        return _empty(f"{cls.__name__}.{name}")

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "is_hollow" not in cls.__dict__:
            return super().__call__(*args, **kwargs)
        if _sealed:
            raise RuntimeError(f"{cls.__name__} is empty, and was called")
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else _empty(f"{cls.__name__}()")

    def __getitem__(cls, item: Any) -> Any:
        return cls


def _empty(name: str) -> Any:
    return _Empty(name, (), {"is_hollow": True})


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _empty(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if any(fullname == name or fullname.startswith(f"{name}.") for name in self.names):
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__version__ = "99.0"


def hollow(*names: str) -> None:
    """Packages that are there stay real; a dotted name, a part of a package, is emptied."""
    parts = tuple(name for name in names if "." in name)
    sys.meta_path.insert(0, _Finder(parts))
    sys.meta_path.append(_Finder(tuple(set(names) - set(parts))))


def seal() -> None:
    global _sealed
    _sealed = True
