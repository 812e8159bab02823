"""A guard: operators whose answer the host waits for raise."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

SYNCS = ("_local_scalar_dense", "item", "nonzero", "masked_select", "is_nonzero", "equal", "_unique2", "bincount")


class RefusesQuestions(TorchDispatchMode):
    """Raises on every operator whose answer the host waits for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in SYNCS:
            raise AssertionError(f"host synchronisation: {func}")
        if name in ("index", "index_put", "index_put_"):
            for index in args[1]:
                if index is not None and index.dtype in (torch.bool, torch.uint8):
                    raise AssertionError(f"boolean indexing: {func}")
        return func(*args, **(kwargs or {}))
