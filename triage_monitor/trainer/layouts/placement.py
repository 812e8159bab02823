"""`Placement`: where the positions of every response lie in a framework's arrays, and the way there and back.

`index` points into the source read in C order, so that one gather takes any per-token array of the batch apart and one
scatter puts it together again; both keep a torch tensor's device, dtype and gradient. No value is changed on the way:
bfloat16 becomes float32 when it leaves for numpy, everything else keeps its type.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triage_monitor.errors import InputError
from triage_monitor.trainer.arrays import as_array
from triage_monitor.trainer.layouts.parts import Part, joined

Array = NDArray[Any]
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Placement:
    """R responses of T kept positions in all. `lengths` is set when the source is a list of per-sample arrays."""

    index: Indices  # [T], ascending inside a response
    offsets: Indices  # [R + 1]
    mask: NDArray[np.bool_]  # [T]
    shape: tuple[int, ...]  # of the source; (sum of lengths,) of a list
    lengths: tuple[int, ...] | None = None

    @property
    def responses(self) -> int:
        return self.offsets.size - 1

    def take(self, values: Any, name: str = "values") -> Any:
        """[T] of a per-token array in the source's shape: numpy from numpy, a tensor from a tensor (differentiable).

        Raises InputError naming `name` (and the sample, in a list) when the shape is another.
        """
        flat = self._flat(values, name)
        if hasattr(flat, "detach"):
            return flat.index_select(0, _torch().from_numpy(self.index).to(flat.device))
        return flat[self.index]

    def take_advantages(self, values: Any, name: str = "advantages") -> Any:
        """[R] from one a response ([R], [R, 1] or R numbers), else [T] from one a token. A shape that fits both is
        read as one a response."""
        by_response = self._per_response(values)
        return self.take(values, name) if by_response is None else by_response

    def put(self, flat: Any, fill: float) -> Any:
        """A [T] array back in the source's shape, `fill` everywhere else; a list of arrays where the source was one."""
        size = math.prod(self.shape)
        if np.shape(flat) != self.index.shape:
            raise InputError("shape", f"{np.shape(flat)} is not that of {self.index.size} positions", column="flat")
        if hasattr(flat, "detach"):
            torch = _torch()
            whole = flat.new_full((size,), fill).index_copy(0, torch.from_numpy(self.index).to(flat.device), flat)
        else:
            whole = np.full(size, fill, np.asarray(flat).dtype)
            whole[self.index] = flat
        if self.lengths is None:
            return whole.reshape(self.shape)
        borders = np.cumsum((0, *self.lengths)).tolist()
        return [whole[low:high] for low, high in pairwise(borders)]

    def part(
        self, *, advantages: Any, learner: Any = None, sampler: Any = None, gap: Any = None, **others: Any
    ) -> Part:
        """These responses as host arrays. `others` are per-token arrays where their size says so (`policy_versions`),
        else one value a response (`rewards`)."""
        arrays = {"learner_logprobs": learner, "sampler_logprobs": sampler, "gap": gap}
        tokens = {name: as_host(self.take(values, name)) for name, values in arrays.items() if values is not None}
        columns: dict[str, Any] = {}
        for name, values in others.items():
            if values is not None and self._per_response(values) is None:
                tokens[name] = as_host(self.take(values, name))
            elif values is not None:
                columns[name] = as_host(values).reshape(-1)
        by_response = self._per_response(advantages)
        if by_response is None:
            tokens["advantages"] = as_host(self.take(advantages, "advantages"))
        else:
            columns["advantages"] = as_host(by_response)
        return Part(self.offsets, tokens | {"mask": self.mask}, columns)

    def submission(self, *, advantages: Any, **arrays: Any) -> dict[str, Any]:
        """What `Monitor.submit` and `summarize` take, of this one batch; arguments as `part`."""
        return joined([self.part(advantages=advantages, **arrays)])

    def _flat(self, values: Any, name: str) -> Any:
        if self.lengths is not None:
            return self._joined(values, name)
        array = values if hasattr(values, "detach") else as_host(values, name)
        if _lean(array.shape) != _lean(self.shape):
            said = f"shape {tuple(array.shape)} is not the mask's {self.shape}"
            raise InputError("shape", said, column=name)
        return array.reshape(-1)

    def _joined(self, values: Any, name: str) -> Any:
        if not isinstance(values, Sequence) or len(values) != len(self.lengths or ()):
            count = len(values) if isinstance(values, Sequence) else "no list"
            raise InputError("length", f"has {count} samples where there are {len(self.lengths or ())}", column=name)
        items = [item if hasattr(item, "detach") else as_host(item, name) for item in values]
        mixed = {hasattr(item, "detach") for item in items}
        if len(mixed) > 1:
            raise InputError("type", "holds tensors and other arrays in one list", column=name)
        for row, (item, length) in enumerate(zip(items, self.lengths or (), strict=True)):
            if tuple(item.shape) != (length,):
                said = f"has shape {tuple(item.shape)} where its mask has {length} positions"
                raise InputError("length", said, column=name, row=row)
        if items and hasattr(items[0], "detach"):
            return _torch().cat(items)
        return np.concatenate(items) if items else np.empty(0, np.float32)

    def _per_response(self, values: Any) -> Any:
        if isinstance(values, Sequence):
            if len(values) != self.responses or any(_size(item) != 1 for item in values):
                return None
            items = [as_host(item).reshape(-1) for item in values]
            return np.concatenate(items) if items else np.empty(0, np.float32)
        array = values if hasattr(values, "detach") else as_host(values)
        return array.reshape(-1) if array.shape in ((self.responses,), (self.responses, 1)) else None


def as_host(values: Any, name: str | None = None) -> Array:
    """A numpy array of anything array-like; a tensor is detached and copied to the host, bfloat16 as float32. Raises
    InputError naming `name` where the values are no rectangle of numbers."""
    try:
        if hasattr(values, "detach") or isinstance(values, np.ndarray):
            return as_array(values)
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise InputError("type", f"is no array of numbers: {str(error)[:200]}", column=name) from None


def placed(
    mask: NDArray[np.bool_], bounds: Indices, shape: tuple[int, ...], lengths: tuple[int, ...] | None = None
) -> Placement:
    """The placement of flat `mask` whose response i lies within bounds[i] .. bounds[i + 1]."""
    responses = bounds.size - 1
    hits = np.flatnonzero(mask[: bounds[-1]])
    owner = np.searchsorted(bounds[1:], hits, side="right")
    first, last = np.full(responses, mask.size, np.int64), np.full(responses, -1, np.int64)
    np.minimum.at(first, owner, hits)
    np.maximum.at(last, owner, hits)
    return placed_ranges(mask, first, np.maximum(last - first + 1, 0), shape, lengths)


def placed_ranges(
    mask: NDArray[np.bool_],
    first: Indices,
    counts: Indices,
    shape: tuple[int, ...],
    lengths: tuple[int, ...] | None = None,
) -> Placement:
    """The placement of responses given as ranges of the flat source."""
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)))
    index = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], counts)
    return Placement(index, offsets, mask[index], shape, lengths)


def _lean(shape: Sequence[int]) -> tuple[int, ...]:
    """Without leading axes of length 1: [1, T] and [T] are the same packed row."""
    lean = tuple(shape)
    while len(lean) > 1 and lean[0] == 1:
        lean = lean[1:]
    return lean


def _size(item: Any) -> int:
    return int(item.numel()) if hasattr(item, "detach") else int(np.size(item))


def _torch() -> Any:
    return sys.modules["torch"]  # whoever hands over a tensor has loaded it
