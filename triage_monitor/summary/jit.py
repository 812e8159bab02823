"""One way to compile: nogil, cached on disk where the installation allows it, in memory where not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

# Sums may be reordered; NaN and infinity keep their meaning.
REORDER = frozenset({"reassoc", "contract", "nsz"})
# Only for loops over values already known to be finite.
FINITE = REORDER | {"nnan", "ninf"}


def locked(array: NDArray[Any]) -> NDArray[Any]:
    """Read-only and contiguous, as the views of a received body are: with every input so, a pass is compiled once a
    type, not twice."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def compiled(fastmath: frozenset[str] = frozenset()) -> Callable[[Kernel], Kernel]:
    def build(function: Kernel) -> Kernel:
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": set(fastmath) or False}
        try:
            return cast(Kernel, njit(cache=True, **options)(function))
        except RuntimeError:  # no writable place for the cache
            return cast(Kernel, njit(**options)(function))

    return build
