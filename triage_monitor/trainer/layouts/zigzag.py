"""Context parallelism cuts every sample into 2 C chunks; rank r of C holds chunks r and 2 C - 1 - r, in that order.

A segment of 64 positions crosses such cuts, so slices are joined before anything is counted. Chunks are
ceil(length / 2 C) long; positions behind the sample's end are padding. Two forms are in use: slices of the whole sample
(`join_slices`, also [B, S / C] rows) and, for log-probs of a response, the part of a rank's chunks whose *predictions*
fall into the response: token t is predicted at t - 1 (`join_response_slices`). Slices come as a list, one a rank, from
the framework's own gather; the joined array keeps a tensor's gradient. Contiguous slices need only a concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from triage_monitor.errors import InputError
from triage_monitor.trainer.layouts.placement import Indices, as_host
from triage_monitor.trainer.layouts.rows import checked_bounds


def held_positions(length: int, ranks: int, rank: int) -> Indices:
    """The positions that `rank` holds, padding included (those at `length` or beyond)."""
    if length < 0 or not 0 <= rank < ranks:
        raise InputError("context_parallel", f"rank {rank} of {ranks} holds nothing of {length} positions")
    chunk = -(-length // (2 * ranks))
    mirrored = 2 * ranks - 1 - rank
    return np.concatenate([np.arange(which * chunk, (which + 1) * chunk, dtype=np.int64) for which in (rank, mirrored)])


def held_response_positions(total_length: int, response_length: int, ranks: int, rank: int) -> Indices:
    """Of a sample with a prompt: which response positions (0 = its first token) are predicted on `rank`."""
    prompt = total_length - response_length
    if prompt < 1 or response_length < 0:
        said = f"a response of {response_length} in {total_length} tokens leaves no prompt to predict it from"
        raise InputError("context_parallel", said, column="response_length")
    if ranks == 1:
        return np.arange(response_length)
    held = held_positions(total_length, ranks, rank)
    return held[(held >= prompt - 1) & (held < total_length - 1)] - (prompt - 1)


def join_slices(slices: Sequence[Any], length: int, name: str = "slices") -> Any:
    """[..., length] from one array a rank, each [..., 2 chunks], or without its padding at the end."""
    ranks = len(slices)
    held = [held_positions(length, ranks, rank) for rank in range(ranks)]
    return _joined(slices, held, length, name)


def join_packed_slices(slices: Sequence[Any], cu_seqlens: Any, name: str = "slices") -> Any:
    """[T] from packed slices: every sample is cut on its own. cu_seqlens [R + 1] are those of the whole row."""
    bounds = checked_bounds(cu_seqlens)
    ranks = len(slices)
    held = []
    for rank in range(ranks):
        parts = [np.empty(0, np.int64)]
        for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            own = held_positions(high - low, ranks, rank)
            parts.append(np.where(own < high - low, own + low, bounds[-1]))
        held.append(np.concatenate(parts))
    return _joined(slices, held, int(bounds[-1]), name)


def join_response_slices(slices: Sequence[Any], total_length: int, response_length: int, name: str = "slices") -> Any:
    """[response_length] from one 1-D array a rank; a rank without a part of the response gives an empty one."""
    ranks = len(slices)
    held = [held_response_positions(total_length, response_length, ranks, rank) for rank in range(ranks)]
    return _joined(slices, held, response_length, name)


def _joined(slices: Sequence[Any], held: Sequence[Indices], length: int, name: str) -> Any:
    parts: list[Any] = []
    positions: list[Indices] = []
    if not len(slices):
        raise InputError("context_parallel", "holds no slice of any rank", column=name)
    for rank, (part, own) in enumerate(zip(slices, held, strict=True)):
        real = own < length
        array = part if hasattr(part, "detach") else as_host(part, name)
        if not array.ndim or hasattr(part, "detach") != hasattr(slices[0], "detach"):
            kind = "a single number" if not array.ndim else "of another kind than the first rank's"
            raise InputError("context_parallel", f"is {kind}", column=name, row=rank)
        if parts and array.shape[:-1] != parts[0].shape[:-1]:
            said = f"has rows {tuple(array.shape[:-1])} where the first rank's has {tuple(parts[0].shape[:-1])}"
            raise InputError("context_parallel", said, column=name, row=rank)
        if array.shape[-1] not in (own.size, int(real.sum())):
            said = f"has {array.shape[-1]} positions where {own.size} are held ({int(real.sum())} without padding)"
            raise InputError("context_parallel", said, column=name, row=rank)
        if array.shape[-1] == own.size:
            array = array[..., np.flatnonzero(real)] if not hasattr(array, "detach") else _picked(array, real)
        parts.append(array)
        positions.append(own[real])
    order = np.argsort(np.concatenate(positions), kind="stable") if positions else np.empty(0, np.int64)
    if parts and hasattr(parts[0], "detach"):
        import torch

        whole = torch.cat(parts, dim=-1)
        return whole.index_select(-1, torch.from_numpy(order).to(whole.device))
    return np.concatenate(parts, axis=-1)[..., order]


def _picked(tensor: Any, real: Any) -> Any:
    import torch

    return tensor.index_select(-1, torch.from_numpy(np.flatnonzero(real)).to(tensor.device))
