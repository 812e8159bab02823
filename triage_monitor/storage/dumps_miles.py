"""miles' training dump of one rollout: a file for every rank, to be joined before it means anything.

Layout as of radixark/miles 31f1ca9 (miles/utils/train_dump_utils.py; the reader of its own dashboard,
miles/dashboard/dump_reader.py, joins the same way): `{rollout_id, rank, rollout_data, cp_rank, cp_size, qkv_format}`
with one list entry a sample in each column of `rollout_data`. Ranks repeat or split one another:

    data parallel      other samples                    -> all of them, by `sample_indices`
    tensor parallel    the same values again            -> one of them
    pipeline parallel  no log_probs off the last stage  -> whoever has them
    context parallel   two chunks of each response (zig-zag), masks whole -> joined by `cp_rank`

A rollout's chunks are cut over prompt and response together; the response part of chunk c of sample i is known from
the two lengths alone, so a join either fits in every length or is refused. Dumps without cp_rank (slime before its
format 2, older miles) are taken when no field is a slice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from triage_monitor.errors import InputError
from triage_monitor.storage.dumps_rows import DumpRow, finite_or_none
from triage_monitor.storage.dumps_slime import (
    UNOBSERVED,
    check_length,
    mask_of,
    rollout_id,
    vector,
    version_of,
)
from triage_monitor.storage.torch_file import TorchFile
from triage_monitor.storage.torch_pickle import StoredArray, TensorView
from triage_monitor.summary.rows_values import Array

Key = tuple[int, int]  # sample index, and which of the samples with this index in its file


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank's file."""

    file: TorchFile
    columns: dict[str, Any]
    cp_rank: int | None
    cp_size: int
    qkv_format: str

    def entry(self, name: str, row: int) -> Any:
        column = self.columns.get(name)
        if column is None:
            return None
        if isinstance(column, TensorView | StoredArray):
            column = self.file.array(column).tolist()
        if not isinstance(column, list | tuple) or row >= len(column):
            detail = "is no list with an entry for every sample"
            raise InputError("wrong_type", detail, column=name, path=str(self.file.path))
        return column[row]

    @property
    def samples(self) -> int:
        lengths = self.columns.get("response_lengths")
        if not isinstance(lengths, list | tuple | TensorView | StoredArray):
            raise InputError("missing_column", "is no list", column="response_lengths", path=str(self.file.path))
        return int(self.file.array(lengths).size) if isinstance(lengths, StoredArray) else len(lengths)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a sample stands: a rank, and its row there."""

    rank: _Rank
    row: int


def miles_rows(paths: Sequence[Path]) -> Iterator[DumpRow]:
    """The files of one rollout, all ranks. Raises InputError naming file, sample and field."""
    with ExitStack() as stack:
        ranks, step = [], None
        for path in paths:
            file = stack.enter_context(TorchFile(path))
            number = rollout_id(file.value, path)
            if step not in (None, number):
                raise InputError("rollout_id", f"is {number} where other ranks say {step}", path=str(path))
            step = number
            ranks.append(_rank(file, path))
        samples = _samples(ranks)
        rewards = _rewards(ranks, len(samples))
        for number, (key, places) in enumerate(sorted(samples.items())):
            try:
                reward = _own_reward(places[0]) if rewards is None else rewards[number]
                yield _row(step or 0, key, places, finite_or_none(reward))
            except InputError as error:
                raise error if error.path else error.at(path=str(places[0].rank.file.path), row=places[0].row) from None


def _rank(file: TorchFile, path: Path) -> _Rank:
    columns = file.value.get("rollout_data")
    if not isinstance(columns, dict):
        raise InputError("wrong_type", "is no dict of columns", column="rollout_data", path=str(path))
    cp_rank, cp_size = file.value.get("cp_rank"), file.value.get("cp_size", 1)
    is_sound = isinstance(cp_size, int) and 1 <= cp_size <= 1024 and (cp_rank is None or isinstance(cp_rank, int))
    if not is_sound or not 0 <= (cp_rank or 0) < cp_size:
        raise InputError("cp_rank", f"is {cp_rank!r:.20} of {cp_size!r:.20}", column="cp_rank", path=str(path))
    return _Rank(file, columns, cp_rank, cp_size, str(file.value.get("qkv_format", "thd")))


def _samples(ranks: Sequence[_Rank]) -> dict[Key, list[_Place]]:
    samples: dict[Key, list[_Place]] = {}
    for rank in ranks:
        seen: Counter[int] = Counter()
        for row in range(rank.samples):
            index = rank.entry("sample_indices", row)
            if not isinstance(index, int):
                if len(ranks) > 1:
                    detail = "does not number the samples, so the ranks' files cannot be told apart"
                    raise InputError("missing_column", detail, column="sample_indices", path=str(rank.file.path))
                index = row
            samples.setdefault((index, seen[index]), []).append(_Place(rank, row))
            seen[index] += 1
    return samples


def _rewards(ranks: Sequence[_Rank], samples: int) -> Sequence[Any] | None:
    """The raw rewards: of the whole rollout in the order of its samples, or none where not all samples are here."""
    for rank in ranks:
        rewards = rank.columns.get("raw_reward")
        if isinstance(rewards, list | tuple) and len(rewards) == samples:
            return rewards
    return None


def _own_reward(place: _Place) -> Any:
    """Of a rank that holds the rewards of its own samples; the normalised ones where a dump has no raw ones."""
    raw = place.rank.columns.get("raw_reward")
    if raw is None:
        return place.rank.entry("rewards", place.row)
    return raw[place.row] if isinstance(raw, list | tuple) and len(raw) == place.rank.samples else None


def _row(step: int, key: Key, places: list[_Place], reward: float | None) -> DumpRow:
    first = places[0]
    length = first.rank.entry("response_lengths", first.row)
    mask = mask_of(_only(first, "loss_masks"))
    if len(mask) != length:
        raise InputError("length", f"has {len(mask)} entries where the response has {length}", column="loss_masks")
    for other in places[1:]:
        if other.rank.entry("response_lengths", other.row) != length:
            detail = f"of sample {key[0]} differs between ranks: files of two rollouts?"
            raise InputError("length", detail, column="response_lengths", path=str(other.rank.file.path))
    values = {name: _joined(places, name, len(mask)) for name in UNOBSERVED}
    return DumpRow(
        step=step,
        response_id=str(key[0]),
        learner=values["log_probs"],
        sampler=values["rollout_log_probs"],
        advantage=values["advantages"],
        mask=mask,
        reward=reward,
        policy_version=version_of(first.rank.entry("weight_versions", first.row)),
    )


def _only(place: _Place, name: str) -> Array:
    value = place.rank.entry(name, place.row)
    if value is None:
        raise InputError("missing_column", UNOBSERVED.get(name, "is not there"), column=name)
    return vector(place.rank.file, value, name)


def _joined(places: list[_Place], name: str, length: int) -> Array:
    holders = [place for place in places if place.rank.entry(name, place.row) is not None]
    if not holders:
        raise InputError("missing_column", UNOBSERVED[name], column=name)
    size = holders[0].rank.cp_size
    if size == 1:
        array = _only(holders[0], name)
        check_length(name, array, length)
        return array
    chunks: dict[int, _Place] = {}
    for place in holders:
        chunks.setdefault(place.rank.cp_rank or 0, place)
    if len(chunks) != size:
        lacking = ", ".join(str(rank) for rank in range(size) if rank not in chunks)
        raise InputError("cp_slices", f"lacks the slices of context-parallel ranks {lacking}", column=name)
    return _assembled(chunks, name, length)


def _assembled(chunks: dict[int, _Place], name: str, length: int) -> Array:
    parts = {rank: _only(place, name) for rank, place in chunks.items()}
    joined = np.empty(length, np.result_type(*parts.values()))
    filled = 0
    for rank, part in parts.items():
        spans = response_spans(chunks[rank], length, rank)
        if sum(end - start for start, end in spans) != len(part):
            held = sum(end - start for start, end in spans)
            raise InputError("cp_slices", f"holds {len(part)} values at rank {rank}, not {held}", column=name)
        taken = 0
        for start, end in spans:
            joined[start:end] = part[taken : taken + end - start]
            taken += end - start
        filled += taken
    if filled != length:
        raise InputError("cp_slices", f"fills {filled} of {length} positions", column=name)
    return joined


def response_spans(place: _Place, length: int, rank: int) -> list[tuple[int, int]]:
    """The response positions that a context-parallel rank holds: its chunk from the front and the one from the back,
    of 2 cp_size over the whole sequence. Logit t is about token t + 1, hence the 1 before the response."""
    total, size = place.rank.entry("total_lengths", place.row), place.rank.cp_size
    padded = total if place.rank.qkv_format == "thd" else place.rank.entry("max_seq_lens", place.row)
    for name, value in (("total_lengths", total), ("max_seq_lens", padded)):
        if not isinstance(value, int) or value < length:
            raise InputError("missing_column", "must say how long the sequence was", column=name)
    chunk = -(-padded // (2 * size))
    before = total - length - 1
    spans = []
    for number in (rank, 2 * size - 1 - rank):
        start, end = max(number * chunk, before), min((number + 1) * chunk, total - 1)
        if start < end:
            spans.append((start - before, end - before))
    return spans
