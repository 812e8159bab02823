"""What `submit` does with a trainer's arrays: copy now, understand later.

`hold` copies one argument while the trainer waits; `restore` and `unpad` turn the copies back into what
`summarize` takes, in the sender's thread. The copy is a plain memory copy into `bytes` made without giving up
the interpreter lock. `ndarray.copy` gives it up, and with one busy Python thread in the process getting it back took
17 ms at the 99th percentile for 160,000 float32 tokens, against 0.2 ms this way.

Accepted: numpy arrays, anything with `__array__`, torch tensors (recognised by `detach`; torch is never imported
here), Python sequences of numbers, and lists holding one of these per response. Tensors in a device's memory are
landing.py's business. Flat arrays are the fast form; a list costs about
half a microsecond a response more.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any, Protocol

import numpy as np

from triage_monitor.errors import InputError
from triage_monitor.summary.objective import SUMS, added

_DTYPE, _NDIM = attrgetter("dtype"), attrgetter("ndim")
_OBJECT_BYTES = 32  # what a small Python number costs, pointer included


class Held(Protocol):
    """A copy of one argument of `submit`, or on its way to be one; `restore` runs in the sender's thread."""

    @property
    def nbytes(self) -> int: ...

    def restore(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class HeldArray:
    """A copied array; with `lengths`, the per-response arrays of a list laid end to end."""

    data: bytes
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    lengths: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def restore(self) -> Any:
        flat = np.frombuffer(self.data, self.dtype) if self.data else np.empty(0, self.dtype)
        if self.lengths is None:
            return flat.reshape(self.shape)
        return np.split(flat, np.cumsum(self.lengths)[:-1])


@dataclass(frozen=True, slots=True)
class HeldSequence:
    """A copied Python sequence of scalars, texts or further copies."""

    items: tuple[Any, ...]
    nbytes: int

    def restore(self) -> Any:
        return [item.restore() if isinstance(item, HeldArray | HeldSequence) else item for item in self.items]


@dataclass(frozen=True, slots=True)
class HeldScalar:
    value: Any
    nbytes: int = _OBJECT_BYTES

    def restore(self) -> Any:
        return self.value


@dataclass(frozen=True, slots=True)
class HeldSums:
    """The objective's sums of one or several calls, added when they are sent."""

    calls: tuple[Mapping[str, Held], ...]

    @property
    def nbytes(self) -> int:
        return sum(item.nbytes for call in self.calls for item in call.values())

    def restore(self) -> dict[str, float]:
        return added([{name: item.restore() for name, item in call.items()} for call in self.calls])


def hold(value: Any) -> Held:
    """A copy of one argument that no later write by the trainer reaches. Raises TypeError on what is no array."""
    if isinstance(value, list | tuple):
        return _hold_sequence(value)
    if isinstance(value, bool | int | float | str | np.generic):
        return HeldScalar(value)
    array = as_array(value)
    return HeldArray(array.tobytes(), array.dtype, array.shape)


def hold_objective(stats: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> HeldSums:
    """The sums in a `TriageLoss` call's stats, or in those of several. Raises TypeError for anything else."""
    calls = [stats] if isinstance(stats, Mapping) else list(stats) if isinstance(stats, list | tuple) else []
    if not calls or not all(isinstance(call, Mapping) for call in calls):
        raise TypeError("objective must be the stats of a TriageLoss call, or a list of them")
    told = [{name: call[name] for name in SUMS if name in call} for call in calls]
    if any(hasattr(value, "detach") and value.device.type != "cpu" for call in told for value in call.values()):
        held: tuple[Mapping[str, Held], ...] = import_module("triage_monitor.trainer.landing").hold_calls(told)
        return HeldSums(held)
    return HeldSums(tuple([{name: hold(value) for name, value in call.items()} for call in told]))


def _hold_sequence(value: Sequence[Any]) -> Held:
    first = value[0] if value else None
    if hasattr(first, "detach"):
        return _hold_tensors(value)
    if isinstance(first, np.ndarray):
        return _hold_ragged(value)
    if isinstance(first, list | tuple) or (hasattr(first, "__array__") and not isinstance(first, np.generic)):
        return _hold_each(value)
    return HeldSequence(tuple(value), _OBJECT_BYTES * len(value))


def _hold_ragged(value: Sequence[Any]) -> Held:
    dtype = value[0].dtype
    is_plain = set(map(type, value)) == {np.ndarray} and set(map(_DTYPE, value)) == {dtype}
    if not is_plain or set(map(_NDIM, value)) != {1} or dtype.hasobject:
        return _hold_each(value)
    try:
        data = b"".join(value)
    except (TypeError, ValueError, BufferError):  # a strided view offers no plain buffer
        data = b"".join([a.tobytes() for a in value])
    return HeldArray(data, dtype, (len(data) // dtype.itemsize,), tuple(map(len, value)))


def _hold_tensors(value: Sequence[Any]) -> Held:
    torch = sys.modules.get("torch")
    try:
        whole = None if torch is None else torch.cat(list(value))
    except (TypeError, RuntimeError):  # numbers, mixed devices, something else among them
        whole = None
    if whole is None or whole.ndim != 1:
        return _hold_each(value)
    array = as_array(whole)
    return HeldArray(array.tobytes(), array.dtype, array.shape, tuple([item.numel() for item in value]))


def _hold_each(value: Sequence[Any]) -> HeldSequence:
    items = tuple([hold(item) for item in value])
    return HeldSequence(items, sum(item.nbytes for item in items))


def as_array(value: Any) -> np.ndarray[Any, Any]:
    if hasattr(value, "detach"):
        value = value.detach()
        if value.device.type != "cpu":
            value = value.cpu()
        try:
            value = value.numpy()
        except TypeError:  # bfloat16: numpy has no such type, float32 holds every value of it
            value = value.float().numpy()
    elif not hasattr(value, "__array__"):
        raise TypeError(f"expected an array, got {type(value).__name__}")
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise TypeError("an array of Python objects cannot be copied safely; give numbers")
    return array


def response_form(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """`unpad`, in a form that cannot be misread: of as many tokens as responses a flat array would count as one a
    response, so what was padded, one a token, then becomes a list."""
    flat = unpad(arrays)
    if "offsets" in arrays or "offsets" not in flat or not 0 < flat["offsets"][-1] == len(flat["offsets"]) - 1:
        return flat
    for name in ("advantages", "policy_versions"):
        if name in arrays and np.ndim(arrays[name]) == 2:
            flat[name] = np.split(flat[name], flat["offsets"][1:-1])
    return flat


def unpad(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Padded `[B, T]` arrays to flat ones with offsets: each row from its first to its last position with mask 1."""
    padded = {name for name, item in arrays.items() if isinstance(item, np.ndarray) and item.ndim == 2}
    if not padded:
        return dict(arrays)
    if "mask" not in padded:
        raise InputError("padded_without_mask", "a padded [B, T] array needs a [B, T] mask", column="mask")
    if "offsets" in arrays:
        raise InputError("padded_with_offsets", "does not go with padded [B, T] arrays", column="offsets")
    shape = arrays["mask"].shape
    for name in sorted(padded):
        if arrays[name].shape != shape:
            raise InputError("shape", f"shape {arrays[name].shape} is not the mask's {shape}", column=name)
    valid = arrays["mask"].astype(bool)
    after_first = np.logical_or.accumulate(valid, axis=1)
    before_last = np.logical_or.accumulate(valid[:, ::-1], axis=1)[:, ::-1]
    keep = after_first & before_last
    flat = {name: item[keep] if name in padded else item for name, item in arrays.items()}
    flat["offsets"] = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep.sum(axis=1, dtype=np.int64))])
    return flat
