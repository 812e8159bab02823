"""An update's arrays on the training device, cut into segments without asking the device anything.

Three forms come in: padded [B, T] with a mask, packed [T] with offsets, lists of one tensor a response. All become flat
tokens [N] and a fixed number S of segment slots in order of response, then position; which slots are used, the device
knows. A response's positions run from its first to its last token with mask 1, as `unpad` and the kernel have it.

Lengths are checked here where they are known here (InputError). What only the device knows (offsets there, a mask that
is neither 0 nor 1) is counted in `faults` and refused once the counts have arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triage_monitor.errors import InputError

VALUES = ("gap", "learner_logprobs", "sampler_logprobs")
FAULTS = ("offsets", "mask", "missing")


@dataclass(frozen=True, slots=True, eq=False)
class Borders:
    """Where responses lie: `start`, `end` int64 [R] in the flat tokens, `slot_start` [R], `slot_response` [S];
    `longest` is the largest number of slots of one response; `offsets` on the host where they are known there."""

    start: Tensor
    end: Tensor
    slot_start: Tensor
    slot_response: Tensor
    longest: int
    offsets: NDArray[np.int64] | None
    padded: tuple[int, int] | None = None

    @property
    def responses(self) -> int:
        return self.start.shape[0]

    @property
    def slots(self) -> int:
        return self.slot_response.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class EdgeTokens:
    """`gap` [N] float32 or float64, the log-probs [N] if given; `unmasked`, `present` bool [N]; `advantage` float64 and
    `version` int64, each [R] or, where said so, [N]; `first`, `last` [R], the positions that count; `faults` [3]."""

    borders: Borders
    gap: Tensor
    learner: Tensor | None
    sampler: Tensor | None
    unmasked: Tensor
    present: Tensor
    advantage: Tensor
    advantage_per_token: bool
    version: Tensor | None
    version_per_token: bool
    first: Tensor
    last: Tensor
    faults: Tensor


def is_device_form(value: Any) -> bool:
    """A torch tensor, or a list that begins with one."""
    return hasattr(value[0] if isinstance(value, list | tuple) and len(value) else value, "detach")


def lead_of(arrays: Mapping[str, Any]) -> Any:
    return arrays.get("gap") if arrays.get("gap") is not None else arrays.get("learner_logprobs")


def lay_out(arrays: Mapping[str, Any], segment: int) -> EdgeTokens:
    """Raises InputError for what does not fit together."""
    named = {
        name: arrays[name] for name in ("gap", "learner_logprobs", "sampler_logprobs") if arrays.get(name) is not None
    }
    if set(named) not in ({"gap"}, {"learner_logprobs", "sampler_logprobs"}):
        raise InputError("gap_or_logprobs", "give `gap`, or `learner_logprobs` and `sampler_logprobs`; one of the two")
    lead = lead_of(arrays)
    device = (lead[0] if isinstance(lead, list | tuple) else lead).device
    borders, fault = _borders(lead, arrays, device, segment)
    count = _count(lead)
    flat = {name: _values(name, value, borders, count, device) for name, value in named.items()}
    learner, sampler = flat.get("learner_logprobs"), flat.get("sampler_logprobs")
    if learner is not None and sampler is not None:
        gap = learner.double() - sampler.double()
    else:
        gap = flat["gap"]
    mask, odd_mask = _flags("mask", arrays.get("mask"), borders, count, device)
    missing, odd_missing = _flags("missing", arrays.get("missing"), borders, count, device)
    unmasked = mask if mask is not None else torch.ones(count, dtype=torch.bool, device=device)
    present = unmasked if missing is None else unmasked & ~missing
    first, last = _trimmed(unmasked, borders) if mask is not None else (borders.start, borders.end)
    advantage, per_token = _per_response_or_token("advantages", arrays["advantages"], borders, count, device)
    version, by_token = None, False
    if arrays.get("policy_versions") is not None:
        version, by_token = _per_response_or_token("policy_versions", arrays["policy_versions"], borders, count, device)
        if version.is_floating_point() or version.dtype == torch.bool:
            raise InputError("wrong_type", f"must be integers, not {version.dtype}", column="policy_versions")
        version = version.to(torch.int64)
    return EdgeTokens(
        borders=borders,
        gap=gap,
        learner=learner,
        sampler=sampler,
        unmasked=unmasked,
        present=present,
        advantage=advantage.double(),
        advantage_per_token=per_token,
        version=version,
        version_per_token=by_token,
        first=first,
        last=last,
        faults=torch.stack([fault, odd_mask, odd_missing]),
    )


def at(values: Tensor, place: Tensor) -> Tensor:
    """values[place]; by an operator that cannot be taken for one with a mask, which would wait for the device."""
    return values.index_select(0, place.reshape(-1)).reshape(*place.shape, *values.shape[1:])


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Through pinned memory: a copy out of pageable memory would wait for the device."""
    return _moved(_tensor(array), device)


def _tensor(value: Any) -> Tensor:
    """A tensor as it is, anything else through numpy; torch takes no read-only memory."""
    if hasattr(value, "detach"):
        return value.detach()  # type: ignore[no-any-return]  # recognised as a tensor
    array = np.ascontiguousarray(value)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _is_known_here(offsets: Any) -> bool:
    return not hasattr(offsets, "detach") or offsets.device.type == "cpu"


def _count(lead: Any) -> int:
    return sum(int(item.numel()) for item in lead) if isinstance(lead, list | tuple) else int(lead.numel())


def _borders(lead: Any, arrays: Mapping[str, Any], device: torch.device, segment: int) -> tuple[Borders, Tensor]:
    offsets, none = arrays.get("offsets"), torch.zeros((), dtype=torch.int64, device=device)
    if isinstance(lead, list | tuple):
        if offsets is not None:
            raise InputError("offsets", "does not go with a list of one tensor a response", column="offsets")
        lengths = np.array([item.numel() for item in lead], np.int64)
        return _known(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), device, segment), none
    if lead.dim() == 2:
        if arrays.get("mask") is None:
            raise InputError("padded_without_mask", "a padded [B, T] array needs a [B, T] mask", column="mask")
        if offsets is not None:
            raise InputError("padded_with_offsets", "does not go with padded [B, T] arrays", column="offsets")
        return _padded(lead.shape, device, segment), none
    if offsets is None or lead.dim() != 1:
        raise InputError("offsets", "a flat array needs `offsets`; else give [B, T] or one tensor a response")
    if not _is_known_here(offsets):
        return _unknown(_moved(offsets.detach().to(torch.int64), device), lead.numel(), segment)
    known = np.asarray(offsets.numpy() if hasattr(offsets, "detach") else offsets)
    if known.ndim != 1 or known.dtype.kind not in "iu" or not len(known):
        raise InputError("offsets", "must be a flat list of integers, one more than responses", column="offsets")
    known = known.astype(np.int64)
    if known[0] != 0 or (np.diff(known) < 0).any() or known[-1] != lead.numel():
        detail = f"must start at 0, never decrease and end at the {lead.numel()} tokens"
        raise InputError("offsets", detail, column="offsets")
    return _known(known, device, segment), none


def _known(offsets: NDArray[np.int64], device: torch.device, segment: int) -> Borders:
    slots = np.maximum(1, -(-np.diff(offsets) // segment))
    owner = np.repeat(np.arange(len(slots)), slots)
    bounds = to_device(offsets, device)
    slot_start = to_device(np.cumsum(slots) - slots, device)
    return Borders(bounds[:-1], bounds[1:], slot_start, to_device(owner, device), int(slots.max(initial=1)), offsets)


def _padded(shape: torch.Size, device: torch.device, segment: int) -> Borders:
    rows, length = shape
    slots = max(1, -(-length // segment))
    row = torch.arange(rows, device=device)
    owner = row.unsqueeze(1).expand(rows, slots).reshape(-1)
    return Borders(row * length, (row + 1) * length, row * slots, owner, slots, None, (rows, length))


def _unknown(offsets: Tensor, count: int, segment: int) -> tuple[Borders, Tensor]:
    if offsets.dim() != 1 or offsets.shape[0] < 1:
        raise InputError("offsets", "must be a flat list of integers, one more than responses", column="offsets")
    responses = offsets.shape[0] - 1
    wrong = (offsets[:1] != 0).sum() + (offsets[1:] < offsets[:-1]).sum() + (offsets[-1:] != count).sum()
    bounds = offsets.clamp(0, count)
    slots = count // segment + responses
    slot_start = bounds[:-1] // segment + torch.arange(responses, device=offsets.device)
    slot = torch.arange(slots, device=offsets.device)
    owner = (torch.searchsorted(slot_start, slot, right=True) - 1).clamp(min=0)
    return Borders(bounds[:-1], bounds[1:], slot_start, owner, max(slots, 1), None), wrong


def _values(name: str, value: Any, borders: Borders, count: int, device: torch.device) -> Tensor:
    flat = flat_of(name, value, borders, count, device)
    if flat.dtype in (torch.float16, torch.bfloat16):
        return flat.float()
    return flat if flat.dtype in (torch.float32, torch.float64) else flat.double()


def flat_of(name: str, value: Any, borders: Borders, count: int, device: torch.device) -> Tensor:
    """[N] on the device, from any of the forms. Raises InputError for another number of entries."""
    if isinstance(value, list | tuple):
        parts = [_tensor(item) for item in value]
        lengths = np.array([part.numel() for part in parts], np.int64)
        if borders.offsets is not None and not np.array_equal(lengths, np.diff(borders.offsets)):
            raise InputError("length", "its lengths differ from the other per-token columns'", column=name)
        tensor = torch.cat([part.reshape(-1) for part in parts]) if parts else torch.zeros(0)
    else:
        tensor = _tensor(value)
    if borders.padded is not None and tensor.shape != torch.Size(borders.padded):
        raise InputError("shape", f"shape {tuple(tensor.shape)} is not {borders.padded}", column=name)
    if borders.padded is None and (tensor.dim() != 1 or tensor.numel() != count):
        raise InputError("length", f"has shape {tuple(tensor.shape)} where there are {count} tokens", column=name)
    return _moved(tensor, device).reshape(-1)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    if tensor.device == device:
        return tensor
    if tensor.device.type == "cpu" and device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _flags(name: str, value: Any, borders: Borders, count: int, device: torch.device) -> tuple[Tensor | None, Tensor]:
    if value is None:
        return None, torch.zeros((), dtype=torch.int64, device=device)
    flat = flat_of(name, value, borders, count, device)
    return flat != 0, ((flat != 0) & (flat != 1)).sum()


def _per_response_or_token(
    name: str, value: Any, borders: Borders, count: int, device: torch.device
) -> tuple[Tensor, bool]:
    """(values, whether one a token); [R] wins where both fit, as on the host."""
    nested = isinstance(value, list | tuple) and len(value) > 0 and getattr(value[0], "ndim", 0) > 0
    if not nested:
        tensor = _tensor(value)
        if tensor.shape in ((borders.responses,), (borders.responses, 1)):
            return _moved(tensor.reshape(-1), device), False
        value = tensor
    return flat_of(name, value, borders, count, device), True


def _trimmed(unmasked: Tensor, borders: Borders) -> tuple[Tensor, Tensor]:
    """First and behind-the-last position with mask 1 of each response; equal when it has none."""
    running = unmasked.to(torch.int64).cumsum(0)
    counted = torch.cat((running.new_zeros(1), running))
    before, through = at(counted, borders.start), at(counted, borders.end)
    first = torch.searchsorted(running, before + 1)
    last = torch.searchsorted(running, through) + 1
    return first, torch.where(through > before, last, first)
