"""Arrow table <-> UpdateRows: the one schema of recorded updates and of wire bodies (one row per response).

    advantage: float | list<float>      gap: list<float>, or learner_logprobs + sampler_logprobs: list<float>
    optional  mask: list<bool>, group: int | text, policy_version: int | list<int>, reward: float, engine, response_id:
              text, padding: bool (the row is left out and counted), turn_starts: list<int> (positions at which a turn
              of the policy begins), step and attempt: int (recordings only)

A null inside a list: with no `mask` column the position is masked; with one, a masked-in position without a gap is
missing and one without an advantage has an unusable advantage (NaN), as has a response whose advantage is null. A
null list is an error. A group or version column that is all null counts as absent. Columns of other names are left
alone and listed in `ignored_columns`, except a plural or singular of ours, which is taken for a slip and refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from triage_monitor.errors import InputError
from triage_monitor.summary.objective import from_text
from triage_monitor.summary.rows_columns import (
    TokenColumn,
    flag_column,
    group_column,
    is_list,
    number_column,
    text_column,
    token_column,
    whole_column,
    without_text_views,
)
from triage_monitor.summary.rows_values import (
    SETTING_NAMES,
    Array,
    UpdateRows,
    as_flags,
    check_lengths,
    checked_settings,
    turn_flags,
)

VALUE_COLUMNS = ("gap", "learner_logprobs", "sampler_logprobs")
COLUMNS = (
    *VALUE_COLUMNS,
    *("advantage", "mask", "group", "policy_version", "reward", "engine", "response_id", "padding", "turn_starts"),
    "grad_norm",
    *("step", "attempt"),
)
OBJECTIVE_KEY = "objective"


def rows_from_table(table: pa.Table | pa.RecordBatch) -> UpdateRows:
    """Checks everything the module docstring says; raises InputError naming column and row (counted from 0)."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    kept, padding_rows = np.ones(0, np.bool_), 0
    try:
        ignored = check_columns(table.column_names)
        kept, padding_rows = _without_padding(table)
        if padding_rows == 0:
            return _read(table, ignored, 0)
        return _read(without_text_views(table).filter(pa.array(kept)), ignored, padding_rows)
    except InputError as error:
        if error.row is None or padding_rows == 0:
            raise
        raise error.at(row=int(np.flatnonzero(kept)[error.row])) from None
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InputError("unsupported", f"the table cannot be read: {str(error).splitlines()[0][:200]}") from error


def check_names(names: Sequence[str]) -> None:
    """Raises InputError for a column of ours that is there twice, and for what looks like a slip of one."""
    for name in names:
        if name in COLUMNS and names.count(name) > 1:
            raise InputError("duplicate_column", "appears more than once", column=name)
        twin = name[:-1] if name.endswith("s") else f"{name}s"
        if name not in COLUMNS and twin in COLUMNS and twin not in names:
            raise InputError("unknown_column", f"is no column of ours; '{twin}' is", column=name)


def check_columns(names: Sequence[str]) -> tuple[str, ...]:
    """The columns that will be left alone; raises InputError when what is needed is not there, or there twice."""
    check_names(names)
    given = {name for name in VALUE_COLUMNS if name in names}
    if len(given) == 3:
        raise InputError("gap_or_logprobs", "stands beside both log-probs; keep one of the two forms", column="gap")
    if "gap" not in given and len(given) < 2:
        lacking = "gap" if not given else next(iter({"learner_logprobs", "sampler_logprobs"} - given))
        raise InputError("missing_column", "is not there; needed: gap, or both log-probs", column=lacking)
    if "advantage" not in names:
        raise InputError("missing_column", "is not there", column="advantage")
    unused = given - {"gap"} if "gap" in given else set()
    return tuple(name for name in names if name not in COLUMNS or name in unused)


def _without_padding(table: pa.Table) -> tuple[Array, int]:
    if "padding" not in table.column_names:
        return np.ones(0, np.bool_), 0
    kept = ~flag_column("padding", table["padding"])
    return kept, int(len(kept) - kept.sum())


def _read(table: pa.Table, ignored: tuple[str, ...], padding_rows: int) -> UpdateRows:
    names = ["gap"] if "gap" in table.column_names else ["learner_logprobs", "sampler_logprobs"]
    values = [token_column(name, table[name], kinds="fi") for name in names]
    lead = values[0]
    for column in values[1:]:
        _same_lengths(column, lead)
    mask = _mask(table, lead)
    advantage, advantage_nulls = _advantage(table, lead)
    version, version_nulls = _version(table, lead)
    floats = {column.name: _float_values(column) for column in values}
    empty = _any_null([column.nulls for column in values])
    if mask is None:
        absent = _any_null([empty, advantage_nulls, version_nulls])
        mask, missing = (None if absent is None else ~absent), None
    else:
        missing = None if empty is None else mask & empty
        _check_versions(version_nulls, mask, lead)
    return UpdateRows(
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lead.lengths, dtype=np.int64)]),
        advantages=advantage,
        advantages_per_token=is_list(table["advantage"].type),
        mask=mask,
        missing=missing if missing is not None and missing.any() else None,
        groups=None if _absent(table, "group") else group_column("group", table["group"]),
        policy_versions=version,
        versions_per_token=version is not None and is_list(table["policy_version"].type),
        rewards=None if _absent(table, "reward") else number_column("reward", table["reward"]),
        grad_norms=None if _absent(table, "grad_norm") else number_column("grad_norm", table["grad_norm"]),
        response_ids=None if _absent(table, "response_id") else text_column("response_id", table["response_id"]),
        engines=None if _absent(table, "engine") else text_column("engine", table["engine"]),
        turn_starts=_turns(table, lead),
        padding_rows=padding_rows,
        settings=_settings(table.schema),
        objective=_objective(table.schema),
        ignored_columns=ignored,
        gap=floats.get("gap"),
        learner_logprobs=floats.get("learner_logprobs"),
        sampler_logprobs=floats.get("sampler_logprobs"),
    )


def _same_lengths(column: TokenColumn, lead: TokenColumn) -> None:
    check_lengths(column.name, column.lengths, f"'{lead.name}'", lead.lengths)


def _float_values(column: TokenColumn) -> Array:
    """float16 widens to float32, float32 and float64 stay; whole numbers can only come from hand-written tables."""
    if column.values.dtype.kind == "f":
        return column.values.astype(np.float32) if column.values.dtype == np.float16 else column.values
    numbers = column.values.astype(np.float64)
    if column.nulls is not None:
        numbers[column.nulls] = np.nan
    return numbers


def _mask(table: pa.Table, lead: TokenColumn) -> Array | None:
    if "mask" not in table.column_names:
        return None
    column = token_column("mask", table["mask"], kinds="bif")
    _same_lengths(column, lead)
    if column.nulls is not None:
        raise InputError("null", "holds a null", column="mask", row=_row_of(int(np.argmax(column.nulls)), lead))
    return as_flags("mask", column.values, lead.lengths)


def _advantage(table: pa.Table, lead: TokenColumn) -> tuple[Array, Array | None]:
    if not is_list(table["advantage"].type):
        return number_column("advantage", table["advantage"]), None
    column = token_column("advantage", table["advantage"], kinds="fi")
    _same_lengths(column, lead)
    return _float_values(column), column.nulls


def _version(table: pa.Table, lead: TokenColumn) -> tuple[Array | None, Array | None]:
    if _absent(table, "policy_version"):
        return None, None
    if not is_list(table["policy_version"].type):
        return whole_column("policy_version", table["policy_version"]), None
    column = token_column("policy_version", table["policy_version"], kinds="i")
    _same_lengths(column, lead)
    return column.values.astype(np.int64, copy=False), column.nulls


def _turns(table: pa.Table, lead: TokenColumn) -> Array | None:
    if _absent(table, "turn_starts"):
        return None
    column = token_column("turn_starts", table["turn_starts"], kinds="i")
    if column.nulls is not None:
        raise InputError(
            "null", "holds a null", column="turn_starts", row=_row_of(int(np.argmax(column.nulls)), column)
        )
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lead.lengths, dtype=np.int64)])
    return turn_flags(column.values.astype(np.int64, copy=False), column.lengths, bounds)


def _check_versions(nulls: Array | None, mask: Array, lead: TokenColumn) -> None:
    if nulls is not None and (nulls & mask).any():
        row = _row_of(int(np.argmax(nulls & mask)), lead)
        raise InputError("null", "holds a null at a token whose mask is 1", column="policy_version", row=row)


def _any_null(flags: list[Array | None]) -> Array | None:
    joined: Array | None = None
    for flag in flags:
        if flag is not None:
            joined = flag if joined is None else joined | flag
    return joined


def _absent(table: pa.Table, name: str) -> bool:
    return name not in table.column_names or (
        len(table) > 0 and table[name].null_count == len(table) and not is_list(table[name].type)
    )


def _row_of(position: int, lead: TokenColumn) -> int:
    return int(np.searchsorted(np.cumsum(lead.lengths), position, side="right"))


def _settings(schema: pa.Schema) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in (schema.metadata or {}).items():
        name = key.decode("utf-8", "replace")
        if name in SETTING_NAMES:
            found[name] = value.decode("utf-8", "replace")
    return checked_settings(found)


def _objective(schema: pa.Schema) -> dict[str, float]:
    told = (schema.metadata or {}).get(OBJECTIVE_KEY.encode())
    return {} if told is None else from_text(told.decode("utf-8", "replace"))


def table_from_rows(rows: UpdateRows, *, gap_type: str | None = None) -> pa.Table:
    """One row per response, padding rows gone; a missing position becomes a null under mask 1."""
    columns: dict[str, Any] = {}
    if rows.gap is not None:
        columns["gap"] = list_column(
            rows, rows.gap if gap_type is None else _narrowed(rows.gap, gap_type), rows.missing
        )
    else:
        columns["learner_logprobs"] = list_column(rows, rows.learner_logprobs, None)
        columns["sampler_logprobs"] = list_column(rows, rows.sampler_logprobs, rows.missing)
    columns["advantage"] = _either(rows, rows.advantages, rows.advantages_per_token)
    if rows.mask is not None or rows.missing is not None:
        mask = np.ones(rows.tokens, np.bool_) if rows.mask is None else rows.mask
        columns["mask"] = list_column(rows, mask, None)
    if rows.turn_starts is not None:
        columns["turn_starts"] = _turn_lists(rows, rows.turn_starts)
    if rows.policy_versions is not None:
        columns["policy_version"] = _either(rows, rows.policy_versions, rows.versions_per_token)
    plain = {"group": rows.groups, "reward": rows.rewards, "grad_norm": rows.grad_norms}
    plain |= {"response_id": rows.response_ids, "engine": rows.engines}
    for name, values in plain.items():
        if values is not None:
            columns[name] = pa.array(values, type=pa.string() if values.dtype == object else None)
    return pa.table(columns).replace_schema_metadata(dict(rows.settings) or None)


def _either(rows: UpdateRows, values: Array, per_token: bool) -> Any:
    return list_column(rows, values, None) if per_token else pa.array(values)


def list_column(rows: UpdateRows, values: Any, nulls: Array | None) -> Any:
    small = rows.tokens < 2**31
    offsets = pa.array(rows.offsets.astype(np.int32 if small else np.int64))
    flat = pa.array(values, mask=nulls)
    return (pa.ListArray if small else pa.LargeListArray).from_arrays(offsets, flat)


def _turn_lists(rows: UpdateRows, flags: Array) -> Any:
    place = np.flatnonzero(flags)
    of = np.searchsorted(rows.offsets, place, side="right") - 1
    ends = np.cumsum(np.bincount(of, minlength=rows.responses))
    offsets = pa.array(np.concatenate([np.zeros(1, np.int64), ends]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array((place - rows.offsets[of]).astype(np.int32)))


def _narrowed(gap: Array, gap_type: str) -> Array:
    """float32 or float16. A finite gap must stay finite and a non-zero one keeps its sign: regions depend on it."""
    if gap_type not in ("float32", "float16"):
        raise InputError("gap_type", f"is '{gap_type}'; float32 or float16", column="gap")
    if gap.dtype == gap_type:
        return gap
    with np.errstate(over="ignore", under="ignore"):
        narrow = gap.astype(gap_type)
    smallest = np.finfo(gap_type).smallest_subnormal
    lost = (narrow == 0) & (gap != 0)
    if lost.any():
        narrow[lost] = np.copysign(smallest, gap[lost])
    if (np.isinf(narrow) & np.isfinite(gap)).any():
        raise InputError("gap_range", f"has finite values that {gap_type} cannot hold; send a wider type", column="gap")
    return narrow
