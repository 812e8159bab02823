"""The machine that `torch_file` gives a pickle to: few opcodes, few names, no real function behind any of them.

Pickle's C reader takes any opcode and trusts sizes in the bytes, so the reader in Python is used, with its table of
opcodes cut down to what `torch.save` (protocol 2) writes for plain values. A name becomes a `Name`, which only the
REDUCE opcode may use, and only for what stands in `_NAMES`. Nothing is imported, no attribute of anything is looked up.

Values that are referred to again and again can stand for more than any machine holds: sixty lists, each of the one
before twice, take 2^60 steps to print, compare or hash. So keys are texts and numbers only, whole numbers have at most
255 bytes, and `checked_extent` bounds what a value amounts to when every reference is followed.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from triage_monitor.summary.rows_values import Array

_OPCODES = (
    *("PROTO", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1"),
    *("BINFLOAT", "BINUNICODE", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "APPEND", "APPENDS", "SETITEM", "SETITEMS"),
    *("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "GLOBAL"),
    *("BINPERSID", "REDUCE", "BUILD"),
)
_STORAGES = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "BFloat16Storage": "<u2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}
_DTYPES = tuple(
    f"torch {name}"
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
)
MAX_DIMENSIONS = 8
MAX_DEPTH = 64
SHARED_VALUES = 1 << 20  # what a pickle may amount to, letters counted; more where it is long itself
EXPANDED_VALUES = 1 << 20  # one value spread over a response takes no storage


class Forbidden(Exception):
    """A name that is not on the list; str() is the name."""


@dataclass(frozen=True, slots=True)
class Storage:
    key: str
    dtype: np.dtype[Any]
    values: int
    is_bfloat16: bool = False


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor whose bytes were not read: `shape` and `strides` (in values) over a storage, from `offset` on."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def of(self, storage: Array) -> Array:
        """A copy of its values; ValueError where it reaches beyond its storage."""
        if len(storage) != self.storage.values:
            raise ValueError(
                f"storage '{self.storage.key[:40]}' holds {len(storage)} values, not {self.storage.values}"
            )
        reach = self.offset + sum((size - 1) * step for size, step in zip(self.shape, self.strides, strict=True))
        count = int(np.prod(self.shape, dtype=object)) if self.shape else 1
        if count == 0:
            return self._widened(np.empty(self.shape, storage.dtype))
        if reach >= len(storage) or count > max(len(storage), EXPANDED_VALUES):
            raise ValueError(f"a tensor reaches to value {reach} of {len(storage)}")
        steps = tuple(step * storage.itemsize for step in self.strides)
        view = np.lib.stride_tricks.as_strided(storage[self.offset :], self.shape, steps, writeable=False)
        return self._widened(view.copy())

    def _widened(self, values: Array) -> Array:
        return (values.astype(np.uint32) << 16).view(np.float32) if self.storage.is_bfloat16 else values


@dataclass(slots=True)
class StoredArray:
    """A pickled numpy array, or the dtype of one, while and after its state is read."""

    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()
    data: bytes = b""
    is_fortran: bool = False

    def array(self) -> Array:
        if self.dtype is None:
            raise ValueError("a numpy array without content")
        return np.frombuffer(self.data, self.dtype).reshape(self.shape, order="F" if self.is_fortran else "C").copy()

    def set_state(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        self.shape, self.dtype, self.data = _sizes(shape), _plain(dtype), bytes(data)
        self.is_fortran = bool(is_fortran)


@dataclass(slots=True)
class StoredDtype:
    name: str
    order: str = "|"

    def set_state(self, state: Any) -> None:
        self.order = str(state[1])
        if self.order not in ("<", "|", "="):
            raise ValueError(f"byte order {self.order!r}")


@dataclass(frozen=True, slots=True)
class Name:
    """A global of the list; `make` builds what it stands for, None where it is only handed around."""

    name: str
    make: Callable[..., Any] | None


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> TensorView:
    if not isinstance(storage, Storage):
        raise ValueError("a tensor without a storage")
    sizes, steps = _sizes(shape), _sizes(strides)
    if len(sizes) != len(steps) or len(sizes) > MAX_DIMENSIONS or not isinstance(offset, int) or offset < 0:
        raise ValueError("a tensor's shape and strides do not fit")
    return TensorView(storage, offset, sizes, steps)


def _sizes(values: Any) -> tuple[int, ...]:
    if not isinstance(values, tuple) or not all(type(item) is int and 0 <= item < 2**62 for item in values):
        raise ValueError("sizes must be whole numbers of at least 0")
    return values


def _plain(dtype: Any) -> np.dtype[Any]:
    if not isinstance(dtype, StoredDtype) or dtype.name[:1] not in "fiub?" or len(dtype.name) > 3:
        raise ValueError("a numpy array of another kind than numbers")
    return np.dtype(dtype.name)


def _scalar(dtype: Any, data: Any) -> Any:
    return np.frombuffer(bytes(data), _plain(dtype))[0].item()


def _dtype(name: Any) -> StoredDtype:
    if not isinstance(name, str):
        raise ValueError("a numpy dtype without a name")
    return StoredDtype(name)


def _encoded(text: Any, encoding: Any) -> bytes:
    if encoding != "latin1" or not isinstance(text, str):
        raise ValueError("bytes must be spelled in latin1")
    return text.encode("latin1")


def _parameter(data: Any, *_: Any) -> Any:
    return data


_NUMPY = ("numpy._core.multiarray", "numpy.core.multiarray")
_NAMES: dict[str, Callable[..., Any] | None] = {
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_parameter": _parameter,
    "collections OrderedDict": lambda: OrderedDict(),
    "_codecs encode": _encoded,
    "numpy dtype": lambda name, *_: _dtype(name),
    "numpy ndarray": None,
    "torch Size": lambda sizes: sizes,
    **dict.fromkeys(("__builtin__ xrange", "builtins range"), range),
    **dict.fromkeys(("__builtin__ bytes", "builtins bytes"), lambda: b""),  # of an empty numpy array
    **{f"{module} _reconstruct": lambda *_: StoredArray() for module in _NUMPY},
    **{f"{module} scalar": _scalar for module in _NUMPY},
    **dict.fromkeys([f"torch {name}" for name in _STORAGES]),
    **dict.fromkeys(_DTYPES),
}


class _Opcodes(dict[int, Any]):
    def __missing__(self, code: int) -> Any:
        raise ValueError(f"pickle opcode 0x{code:02x} is none that torch.save writes for values")


class Restricted(pickle._Unpickler):
    """See the module. `load` raises Forbidden, or whatever nonsense bytes lead to."""

    stack: list[Any]
    dispatch: ClassVar[dict[int, Any]] = _Opcodes(
        (code, pickle._Unpickler.dispatch[code]) for code in (getattr(pickle, name)[0] for name in _OPCODES)
    )

    def find_class(self, module: str, name: str) -> Name:
        full = f"{module} {name}"
        if full not in _NAMES:
            raise Forbidden(f"{module}.{name}"[:200])
        return Name(full, _NAMES[full])

    def persistent_load(self, identity: Any) -> Storage:
        kind, storage, key, _, values = identity
        if kind != "storage" or not isinstance(storage, Name) or not isinstance(key, str) or type(values) is not int:
            raise ValueError("a storage that is none")
        name = storage.name.removeprefix("torch ")
        return Storage(key, np.dtype(_STORAGES[name]), values, name == "BFloat16Storage")

    def reduce_named(self) -> None:
        arguments = self.stack.pop()
        made = self.stack[-1]
        if not isinstance(made, Name) or made.make is None or not isinstance(arguments, tuple):
            raise ValueError("a call of what is no name")
        self.stack[-1] = made.make(*arguments)

    def build_state(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if not isinstance(target, StoredArray | StoredDtype):
            raise ValueError(f"state for a {type(target).__name__}")
        target.set_state(state)

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._put({key: value} if _is_key(key) else None)

    def set_items(self) -> None:
        items = self.pop_mark()  # type: ignore[attr-defined]  # typeshed leaves the Python reader's inside out
        keys = items[::2]
        self._put(dict(zip(keys, items[1::2], strict=True)) if all(map(_is_key, keys)) else None)

    def _put(self, items: dict[Any, Any] | None) -> None:
        target = self.stack[-1]
        if items is None or not isinstance(target, dict):
            raise ValueError("a dict with keys that are neither texts nor numbers")
        target.update(items)

    dispatch[pickle.REDUCE[0]] = reduce_named
    dispatch[pickle.BUILD[0]] = build_state
    dispatch[pickle.SETITEM[0]] = set_item
    dispatch[pickle.SETITEMS[0]] = set_items


def _is_key(key: Any) -> bool:
    return key is None or isinstance(key, str | int | float)


def checked_extent(value: Any, limit: int) -> Any:
    """`value` itself. ValueError where it holds itself, lies too deep, or amounts to more than `limit` values."""
    sizes: dict[int, int] = {}

    def size(item: Any, depth: int) -> int:
        known = sizes.get(id(item))
        if known is not None:
            return known
        sizes[id(item)] = limit  # what it counts while it is being counted: a loop
        inside = item.values() if isinstance(item, dict) else item
        total = len(item)
        for part in inside:
            if isinstance(part, list | tuple | dict):
                total += size(part, depth + 1)
            elif isinstance(part, str | bytes):
                total += len(part)
        if total > limit or depth > MAX_DEPTH:
            raise ValueError(f"its values refer to one another so that they amount to more than {limit}")
        sizes[id(item)] = total
        return total

    if isinstance(value, list | tuple | dict):
        size(value, 0)
    return value
