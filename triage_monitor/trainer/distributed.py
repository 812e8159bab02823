"""One parameter set on every rank, switched at the same update: rank `src` decides, the others receive.

The set travels as JSON in a uint8 tensor of fixed size (no pickle; every rank parses and validates the same bytes, the
sender too), so one broadcast of 2 KiB an update is the whole cost. Each helper is a collective: all ranks of the group
call it, once an update. With an NCCL group the tensor lives on the GPU and reading it waits for the device.

Without an initialised process group the helpers answer for one process. torch is imported on first use.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from triage_monitor.parameters import TriageParams

if TYPE_CHECKING:
    from triage_monitor.trainer.client import Monitor

_BUFFER_BYTES = 2048
_LENGTH_BYTES = 4
_REASON_CHARACTERS = 200


def apply_on_all_ranks(
    monitor: Monitor | None, step: int, *, group: Any = None, src: int = 0, device: Any = None
) -> TriageParams:
    """`monitor.apply(step)` of global rank `src`, on every rank of `group`.

    Only `src` needs a monitor with parameters; the others may pass None or their own, which is not asked. When `src`
    passes None every rank gets the inactive default set. The reason is cut to 200 characters, on all ranks alike.
    `device` defaults to the current CUDA device for NCCL and to the CPU otherwise.
    """
    if not _is_source(src):
        return _parse(_broadcast(b"", group, src, device))
    params = TriageParams() if monitor is None else monitor.apply(step)
    params = replace(params, reason=params.reason[:_REASON_CHARACTERS])
    text = json.dumps(params.to_dict(), ensure_ascii=False).encode(errors="replace")
    return _parse(_broadcast(text, group, src, device))


def shared_launch_id(*, group: Any = None, src: int = 0, device: Any = None) -> str:
    """A fresh launch id made by rank `src` for all ranks: `Monitor(..., launch_id=shared_launch_id())`."""
    return _broadcast(uuid.uuid4().hex.encode() if _is_source(src) else b"", group, src, device).decode()


def _parse(text: bytes) -> TriageParams:
    return TriageParams.from_dict(json.loads(text))


def _is_distributed() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def _is_source(src: int) -> bool:
    import torch.distributed as dist

    return not _is_distributed() or dist.get_rank() == src


def _broadcast(text: bytes, group: Any, src: int, device: Any) -> bytes:
    import torch
    import torch.distributed as dist

    if not _is_distributed():
        return text
    if device is None:
        device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else "cpu"
    framed = len(text).to_bytes(_LENGTH_BYTES, "big") + text
    buffer = torch.frombuffer(bytearray(framed.ljust(_BUFFER_BYTES, b"\0")), dtype=torch.uint8).to(device)
    dist.broadcast(buffer, src=src, group=group)
    received = buffer.cpu().numpy().tobytes()
    length = int.from_bytes(received[:_LENGTH_BYTES], "big")
    return received[_LENGTH_BYTES : _LENGTH_BYTES + length]
