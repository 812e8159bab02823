"""The parameter set as one small tensor: changing a value changes no graph, guard or shape.

Inside the loss every parameter is a 0-dim tensor, never a Python number, so a compiled loss neither specialises on
the old value nor recompiles for the new one, and a switch is the replacement of one reference.
Left out: leases and versions' agreement between ranks (client.py, distributed.py).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from triage_monitor.parameters import TriageParams


class Knobs(NamedTuple):
    """0-dim tensors on the batch's device. Integers int64; the rest in the gap's dtype."""

    gate_on: Tensor
    w_min: Tensor
    mean_hi: Tensor
    mean_lo: Tensor
    tail_hi: Tensor
    tail_lo: Tensor
    tau_tail: Tensor
    repair_on: Tensor
    lambda_rep: Tensor
    tau_rep: Tensor
    beta: Tensor
    tis_on: Tensor
    cap: Tensor
    segment: Tensor
    k_rep: Tensor
    version: Tensor


INTEGERS = 3


def pack(params: TriageParams, device: torch.device | str | None = None) -> Tensor:
    """float64 vector in the order of Knobs."""
    gate, repair, tis = params.gate, params.repair, params.tis
    values = (
        *(gate.enabled, gate.w_min, gate.mean_hi, gate.mean_lo, gate.tail_hi, gate.tail_lo, gate.tau_tail),
        *(repair.enabled, repair.lambda_rep, repair.tau_rep, repair.beta),
        *(tis.enabled, tis.cap),
        *(gate.segment, repair.k_rep, params.version),
    )
    vector = torch.tensor([float(value) for value in values], dtype=torch.float64)
    return vector if device is None else vector.to(device)


def unpack(vector: Tensor, device: torch.device, dtype: torch.dtype) -> Knobs:
    # A copy of 128 bytes from host memory does not wait for the device.
    wide = vector.to(device, non_blocking=True)
    return Knobs(*wide[:-INTEGERS].to(dtype).unbind(), *wide[-INTEGERS:].to(torch.int64).unbind())


def scalar(value: int | float | Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A Python number or 0-dim tensor as a 0-dim tensor, without a host copy."""
    if isinstance(value, Tensor):
        return value.detach().to(device=device, dtype=dtype, non_blocking=True).reshape(())
    return torch.full((), value, device=device, dtype=dtype)
