"""Values that are about another token than the one they stand at, moved to it.

A forward pass predicts the next token, so an array straight from it (or rolled left by one to match) says at index t
what belongs to token t + 1: `shifted(values, 1)` moves it onto its token. Nothing wraps around: what leaves a sample is
dropped, what enters is `fill`, and in packed rows every sample is moved on its own.
"""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

import numpy as np

from triage_monitor.errors import InputError
from triage_monitor.trainer.layouts.placement import as_host
from triage_monitor.trainer.layouts.rows import checked_bounds


def shifted(values: Any, by: int, *, cu_seqlens: Any = None, fill: float = 0.0) -> Any:
    """`values` [..., T] with every sample moved `by` positions to the right (left when negative).

    Without cu_seqlens the last axis is one sample. Numpy from numpy, a tensor (with gradient) from a tensor. Raises
    InputError for a shift that is no whole number, or a fill that the array's type cannot hold.
    """
    by = _whole(by)
    array: Any = values if hasattr(values, "detach") else as_host(values, "values")
    width = array.shape[-1] if array.ndim else None
    if width is None:
        raise InputError("shape", "a single number cannot be shifted", column="values")
    bounds = np.array([0, width]) if cu_seqlens is None else checked_bounds(cu_seqlens, width)
    at = np.arange(width)
    sample = np.searchsorted(bounds[1:], at, side="right")
    source = at - max(-width, min(by, width))  # further than everything is everything
    low = np.append(bounds[:-1], bounds[-1])[sample]
    high = np.append(bounds[1:], width)[sample]
    inside = (source >= low) & (source < high)
    source = np.where(inside, source, 0)
    _check_fill(fill, array)
    if hasattr(array, "detach"):
        import torch

        index, keep = torch.from_numpy(source).to(array.device), torch.from_numpy(inside).to(array.device)
        return torch.where(keep, array.index_select(-1, index), torch.full((), fill).to(array))
    return np.where(inside, array[..., source], np.asarray(fill, array.dtype)) if width else array


def _whole(by: Any) -> int:
    try:
        number = operator.index(by)
    except TypeError:
        raise InputError("shift", f"by must be a whole number, not {by!r}", column="by") from None
    if isinstance(by, bool):
        raise InputError("shift", f"by must be a whole number, not {by!r}", column="by")
    return number


def _check_fill(fill: Any, array: Any) -> None:
    is_number = isinstance(fill, numbers.Real) and not isinstance(fill, bool)
    is_tensor = hasattr(array, "detach")
    is_float = array.is_floating_point() if is_tensor else array.dtype.kind == "f"
    if array.is_complex() if is_tensor else array.dtype.kind not in "fiub":
        raise InputError("type", f"holds {array.dtype}, not numbers", column="values")
    if is_number and not is_float:
        low, high = (0, 1) if "bool" in str(array.dtype) else _range(array, is_tensor)
        is_number = math.isfinite(fill) and fill == int(fill) and low <= fill <= high
    if not is_number:
        raise InputError("fill", f"{fill!r} cannot stand in an array of {array.dtype}", column="fill")


def _range(array: Any, is_tensor: bool) -> tuple[int, int]:
    if is_tensor:
        import torch

        return torch.iinfo(array.dtype).min, torch.iinfo(array.dtype).max
    whole = np.iinfo(array.dtype)
    return int(whole.min), int(whole.max)
