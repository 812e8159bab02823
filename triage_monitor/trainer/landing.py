"""Tensors on their way to the host: copied behind the device's own work, waited for in the client's thread.

On CUDA each goes into pinned memory without blocking, and one event a device says when all have arrived; the sender
asks the event, it never blocks in the driver, so a monitor can be closed while a device hangs. Tensors in CPU memory
are copied at once. What the trainer writes into its tensors afterwards comes later on the same stream and is not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import sleep
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triage_monitor.trainer.arrays import Held, hold

_ASK_AGAIN = 0.002  # seconds between questions to an event


class Landing:
    """Owns the host copies of some tensors of one update."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._host = {name: _sent(tensor.detach()) for name, tensor in tensors.items()}
        self._events = []
        for device in {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own
            event.record(torch.cuda.current_stream(device))
            self._events.append(event)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._host.values())

    def has_arrived(self) -> bool:
        return all(event.query() for event in self._events)  # type: ignore[no-untyped-call]  # torch's own

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Waits until all have arrived."""
        while not self.has_arrived():
            sleep(_ASK_AGAIN)
        return {name: tensor.numpy() for name, tensor in self._host.items()}


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """One tensor of a landing, or one entry of it; with `lengths`, the tensors of a list laid end to end."""

    landing: Landing
    name: str
    nbytes: int
    lengths: tuple[int, ...] | None = None
    entry: int | None = None

    def restore(self) -> Any:
        array = self.landing.arrays()[self.name]
        if self.entry is not None:
            return float(array[self.entry])
        return array if self.lengths is None else np.split(array, np.cumsum(self.lengths)[:-1])


def hold_all(arrays: Mapping[str, Any]) -> dict[str, Held]:
    """The arrays of `submit`, those in a device's memory on their way; nothing waits for the device."""
    away: dict[str, Tensor] = {}
    lengths: dict[str, tuple[int, ...]] = {}
    held: dict[str, Held] = {}
    for name, value in arrays.items():
        first = value[0] if isinstance(value, list | tuple) and value else value
        if not is_away(first):
            held[name] = hold(value)
        elif first is value:
            away[name] = value
        else:
            away[name] = torch.cat([item.detach().reshape(-1) for item in value])
            if first.dim():
                lengths[name] = tuple([item.numel() for item in value])
    landing = Landing(away)
    for name, tensor in away.items():
        held[name] = HeldTensor(landing, name, tensor.nbytes, lengths.get(name))
    return held


def hold_calls(calls: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Held], ...]:
    """The objective's sums of several calls, 0-dim tensors of one device, in one copy a call."""
    held: list[dict[str, Held]] = []
    for call in calls:
        away = {name: value.detach().double() for name, value in call.items() if hasattr(value, "detach")}
        landing = Landing({"sums": torch.stack(list(away.values()))} if away else {})
        sums: dict[str, Held] = {name: HeldTensor(landing, "sums", 8, entry=place) for place, name in enumerate(away)}
        held.append(sums | {name: hold(value) for name, value in call.items() if name not in away})
    return tuple(held)


def is_away(value: Any) -> bool:
    """A tensor that does not lie in CPU memory."""
    return isinstance(value, Tensor) and value.device.type != "cpu"


def _sent(tensor: Tensor) -> Tensor:
    if tensor.dtype == torch.bfloat16:  # numpy has no such type, float32 holds every value of it
        tensor = tensor.float()
    if tensor.device.type == "cpu":
        return tensor.clone(memory_format=torch.contiguous_format)
    if tensor.device.type != "cuda":
        return tensor.cpu()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
