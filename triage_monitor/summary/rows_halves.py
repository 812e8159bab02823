"""Halves of an update, when samplers and learners report on their own: checked each for itself, joined by response_id.

    sampler half   response_id, sampler_logprobs; optional policy_version, engine
    learner half   response_id, learner_logprobs, advantage; optional mask, reward, policy_version, engine, group,
                   padding, turn_starts, grad_norm

Every half is held to all rules of a whole update but the partner's: it is read as one whose other side is equal. A join
takes a response when its id is once on either side and both lists have one length; every other row is counted under
one reason, and no row is paired by position, completed or cut:

    no_partner     the other side has no such id (yet)
    length         the lists of the two sides differ in length
    duplicate_id   the id stands twice on a side; which of the rows is meant is not guessed

The learner's rows keep their order and shards, so that a joined update is the one that would have been sent whole.
What only samplers know (`engine`, `policy_version`) is theirs where they give it for every row, else the learner's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triage_monitor.errors import InputError
from triage_monitor.summary.objective import to_text
from triage_monitor.summary.rows_arrow import (
    OBJECTIVE_KEY,
    check_columns,
    list_column,
    rows_from_table,
    table_from_rows,
)
from triage_monitor.summary.rows_values import SETTING_NAMES, Array, UpdateRows, rows_from_arrays

SAMPLER, LEARNER = SIDES = ("sampler", "learner")
REASONS = ("no_partner", "length", "duplicate_id")
PADDING_KEY = b"padding_rows"
_VALUES = {SAMPLER: "sampler_logprobs", LEARNER: "learner_logprobs"}
_OF_SAMPLER = ("policy_version", "engine")
_STRANGE = {
    SAMPLER: ("gap", "learner_logprobs", "advantage", "mask", "group", "reward", "padding", "turn_starts", "grad_norm"),
    LEARNER: ("gap", "sampler_logprobs"),
}


_SHARED = frozenset({"response_ids", "offsets", "missing", "policy_versions", "engines"})
_ARRAYS = {
    SAMPLER: _SHARED | {"sampler_logprobs"},
    LEARNER: _SHARED
    | {"learner_logprobs", "advantages", "mask", "rewards", "grad_norm", "groups", "turn_starts", "padding_rows"}
    | {"objective"},
}


@dataclass(frozen=True, slots=True)
class Joined:
    """`rows` by the learner's shard; `matched` responses, and `unmatched` rows by (side, reason)."""

    rows: Mapping[int, UpdateRows] = field(default_factory=dict)
    matched: int = 0
    unmatched: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def counts(self) -> dict[str, Any]:
        sides = {side: {reason: self.unmatched.get((side, reason), 0) for reason in REASONS} for side in SIDES}
        return {"matched": self.matched, "unmatched": sides}


def checked_half(side: str, table: pa.Table, *, max_tokens: int) -> pa.Table:
    """The half in the one form that `joined` takes. Raises InputError naming column and row."""
    values = _VALUES[side]
    for name in _STRANGE[side]:
        if name in table.column_names:
            raise InputError("wrong_side", f"does not belong into the {side}'s half", column=name)
    if values not in table.column_names:
        raise InputError("missing_column", f"is not there; a {side}'s half holds it", column=values)
    if "response_id" not in table.column_names:
        raise InputError("missing_column", "is not there; halves are joined by it", column="response_id")
    whole = table.append_column(_VALUES[LEARNER if side == SAMPLER else SAMPLER], table[values])
    if side == SAMPLER:
        whole = whole.append_column("advantage", pa.array(np.zeros(len(table))))
    check_columns(whole.column_names)
    rows = rows_from_table(whole)
    if rows.tokens > max_tokens:
        raise InputError("too_large", f"holds {rows.tokens} positions; at most {max_tokens} are taken in one body")
    _check_names(rows)
    return _sampler_table(rows) if side == SAMPLER else _learner_table(rows)


def half_of_arrays(side: str, arrays: Mapping[str, Any], settings: Mapping[str, str]) -> pa.Table:
    """A half from the arrays of `summarize` that its side has, `response_ids` among them."""
    own = dict(arrays)
    if side == SAMPLER:
        own.pop("mask", None)  # it cut the padding off; which tokens count is the learner's to say
    strange = sorted(own.keys() - _ARRAYS[side])
    if strange:
        raise InputError("wrong_side", f"does not belong into the {side}'s half", column=strange[0])
    for name in (_VALUES[side], "response_ids"):
        if own.get(name) is None:
            raise InputError("missing_column", f"is not there; a {side}'s half holds it", column=name)
    other = {_VALUES[LEARNER if side == SAMPLER else SAMPLER]: own[_VALUES[side]]}
    if side == SAMPLER:
        other["advantages"] = np.zeros(len(own["response_ids"]))
    rows = rows_from_arrays(**own, **other, settings=settings)
    _check_names(rows)
    table = _sampler_table(rows) if side == SAMPLER else _learner_table(rows)
    metadata = {name: value for name, value in (table.schema.metadata or {}).items() if name != PADDING_KEY}
    return table.replace_schema_metadata(metadata)


def _check_names(rows: UpdateRows) -> None:
    names = [None] * rows.responses if rows.response_ids is None else rows.response_ids.tolist()
    if not all(names):
        row = next(place for place, name in enumerate(names) if not name)
        told = None if rows.padding_rows else row  # rows left out before it are not counted in it
        raise InputError("null", "is null or empty; every response of a half needs one", column="response_id", row=told)


def _sampler_table(rows: UpdateRows) -> pa.Table:
    """A position without a value stays without one, whatever the learner's mask says of it."""
    full = table_from_rows(rows)
    nulls = rows.missing if rows.mask is None else ~rows.mask
    columns = {"response_id": full["response_id"], "sampler_logprobs": list_column(rows, rows.sampler_logprobs, nulls)}
    columns |= {name: full[name] for name in _OF_SAMPLER if name in full.column_names}
    return pa.table(columns).replace_schema_metadata(full.schema.metadata)


def _learner_table(rows: UpdateRows) -> pa.Table:
    full = table_from_rows(rows)
    own = list_column(rows, rows.learner_logprobs, rows.missing)
    full = full.drop_columns(["sampler_logprobs"])
    full = full.set_column(full.column_names.index("learner_logprobs"), "learner_logprobs", own)
    metadata = {**(full.schema.metadata or {}), PADDING_KEY: str(rows.padding_rows).encode()}
    if rows.objective:
        metadata[OBJECTIVE_KEY.encode()] = to_text(rows.objective).encode()
    return full.replace_schema_metadata(metadata)


def half_to_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def half_from_bytes(content: bytes) -> pa.Table:
    with pa.ipc.open_stream(content) as reader:
        return reader.read_all()


def joined(learners: Mapping[int, pa.Table], samplers: Mapping[int, pa.Table]) -> Joined:
    """Halves by shard, as `checked_half` made them, in any state of completeness."""
    parts = [samplers[shard] for shard in sorted(samplers)]
    sampled = _Sampled.of(parts)
    twice = {
        name
        for names in (sampled.names, [name for table in learners.values() for name in _names(table)])
        for name, count in Counter(names).items()
        if count > 1
    }
    rows: dict[int, UpdateRows] = {}
    fate: dict[str, str] = {}  # of the sampler's rows
    unmatched: Counter[tuple[str, str]] = Counter()
    matched = 0
    for shard in sorted(learners):
        table = learners[shard]
        names, lengths = _names(table), _lengths(table, "learner_logprobs")
        kept: list[int] = []
        for row, name in enumerate(names):
            reason = sampled.reason(name, int(lengths[row]), twice)
            if reason is None:
                kept.append(row)
                fate[name] = "matched"
            else:
                unmatched[LEARNER, reason] += 1
                fate.setdefault(name, reason)
        matched += len(kept)
        rows[shard] = _together(table, kept, sampled, [sampled.place[names[row]] for row in kept])
    for name in sampled.names:
        reason = "duplicate_id" if name in twice else fate.get(name, "no_partner")
        unmatched[SAMPLER, reason] += reason != "matched"
    return Joined(rows, matched, {key: count for key, count in unmatched.items() if count})


@dataclass(frozen=True, slots=True)
class _Sampled:
    """All sampler halves end to end."""

    table: pa.Table | None
    names: list[str]
    place: dict[str, int]
    lengths: Array

    @classmethod
    def of(cls, parts: Sequence[pa.Table]) -> _Sampled:
        if not parts:
            return cls(None, [], {}, np.zeros(0, np.int64))
        told: dict[bytes, bytes] = {}
        for part in parts:
            told |= part.schema.metadata or {}
        parts = [part for part in parts if len(part)] or parts[:1]  # what has no rows has no say in types
        shared = [name for name in _OF_SAMPLER if len({_type_of(part, name) for part in parts} - {None}) == 1]
        shared = [name for name in shared if all(name in part.column_names for part in parts)]
        columns = ["response_id", "sampler_logprobs", *shared]
        wide = (
            pa.list_(pa.float64()) if len({part.schema.field("sampler_logprobs").type for part in parts}) > 1 else None
        )
        cast = [_widened(part.select(columns), wide) for part in parts]
        table = pa.concat_tables([part.replace_schema_metadata(None) for part in cast]).combine_chunks()
        names = _names(table)
        place = {name: row for row, name in enumerate(names)}
        return cls(table.replace_schema_metadata(told), names, place, _lengths(table, "sampler_logprobs"))

    def reason(self, name: str, length: int, twice: set[str]) -> str | None:
        if name in twice:
            return "duplicate_id"
        row = self.place.get(name)
        if row is None:
            return "no_partner"
        return None if self.lengths[row] == length else "length"


def _together(table: pa.Table, kept: list[int], sampled: _Sampled, partners: list[int]) -> UpdateRows:
    padding = int((table.schema.metadata or {}).get(PADDING_KEY, b"0"))
    whole = table if len(kept) == len(table) else table.take(pa.array(kept, pa.int64()))
    told = {name.encode() for name in SETTING_NAMES}
    if sampled.table is None:
        whole = whole.append_column("sampler_logprobs", whole["learner_logprobs"])  # of no row
        metadata: dict[bytes, bytes] = {}
    else:
        own = sampled.table.take(pa.array(partners, pa.int64()))
        metadata = {name: value for name, value in (own.schema.metadata or {}).items() if name in told}
        for name in own.column_names:
            if name in whole.column_names and name != "response_id":
                whole = whole.drop_columns([name])
            if name != "response_id":
                whole = whole.append_column(name, own[name])
    merged = {**metadata, **(table.schema.metadata or {})}
    merged.pop(PADDING_KEY, None)
    return replace(rows_from_table(whole.replace_schema_metadata(merged)), padding_rows=padding)


def _widened(part: pa.Table, wide: pa.DataType | None) -> pa.Table:
    if wide is None:
        return part
    place = part.column_names.index("sampler_logprobs")
    return part.set_column(place, "sampler_logprobs", part["sampler_logprobs"].cast(wide))


def _type_of(table: pa.Table, name: str) -> pa.DataType | None:
    return table.schema.field(name).type if name in table.column_names else None


def _names(table: pa.Table) -> list[str]:
    names: list[str] = table["response_id"].to_pylist()
    return names


def _lengths(table: pa.Table, name: str) -> Array:
    lengths: Array = pc.list_value_length(table[name]).to_numpy().astype(np.int64, copy=False)
    return lengths
