"""One Arrow column -> numpy, checked: the list columns of an update flattened, the plain ones one value a response.

Works chunk by chunk, so neither a sliced nor a chunked table is copied more than once and 32-bit list offsets never
overflow. A null list is an error; nulls inside a list come back as a separate flag array, their values as NaN (or 0
for whole numbers and booleans). Which meaning a null has is the caller's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triage_monitor.errors import InputError
from triage_monitor.summary.rows_values import Array, group_codes


@dataclass(frozen=True, slots=True)
class TokenColumn:
    """A list column: `lengths` int64 [R], `values` [T], `nulls` bool [T] or None when there is none."""

    name: str
    lengths: Array
    values: Array
    nulls: Array | None


def is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


def token_column(name: str, column: pa.ChunkedArray, *, kinds: str) -> TokenColumn:
    """`kinds` lets through numpy kinds of the values: 'f' floats, 'i' whole numbers, 'b' booleans."""
    if not is_list(column.type):
        raise InputError("wrong_type", f"must be a list per response, not {column.type}", column=name)
    _check_kind(name, column.type.value_type, kinds)
    _no_null(name, column, "is null; a response without tokens has an empty list")
    parts = [_flatten(chunk) for chunk in column.chunks]
    nulls = None
    if any(values.null_count for _, values in parts):
        nulls = _joined([_null_flags(values) for _, values in parts], np.bool_)
    dtype = _numpy_type(column.type.value_type)
    return TokenColumn(
        name,
        _joined([lengths for lengths, _ in parts], np.int64),
        _joined([_values(values, dtype) for _, values in parts], dtype),
        nulls,
    )


def _flatten(chunk: Any) -> tuple[Array, Any]:
    lengths = pc.list_value_length(chunk).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return lengths, chunk.flatten()


def _check_kind(name: str, kind: pa.DataType, kinds: str) -> None:
    allowed = (
        pa.types.is_null(kind)
        or ("f" in kinds and pa.types.is_floating(kind))
        or ("i" in kinds and pa.types.is_integer(kind))
        or ("b" in kinds and pa.types.is_boolean(kind))
    )
    if not allowed:
        words = {"f": "floats", "i": "whole numbers", "b": "booleans"}
        expected = " or ".join(words[letter] for letter in kinds)
        raise InputError("wrong_type", f"holds {kind}; it must hold {expected}", column=name)


def _numpy_type(kind: pa.DataType) -> Any:
    return np.float32 if pa.types.is_null(kind) else kind.to_pandas_dtype()


def _values(values: Any, dtype: Any) -> Array:
    if pa.types.is_null(values.type):
        return np.full(len(values), np.nan, dtype)
    if values.null_count and not pa.types.is_floating(values.type):
        values = values.fill_null(False if pa.types.is_boolean(values.type) else 0)
    array: Array = values.to_numpy(zero_copy_only=False)
    return array if array.flags.aligned else array.copy()


def _null_flags(values: Any) -> Array:
    if not values.null_count:
        return np.zeros(len(values), np.bool_)
    flags: Array = values.is_null().to_numpy(zero_copy_only=False)
    return flags


def _joined(parts: list[Array], dtype: Any) -> Array:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def number_column(name: str, column: pa.ChunkedArray) -> Array:
    """float64 [R]; null is NaN: a number nobody knows."""
    column = _plain(column)
    _check_kind(name, column.type, "fi")
    numbers: Array = column.cast(pa.float64(), safe=False).to_numpy()
    return numbers


def whole_column(name: str, column: pa.ChunkedArray) -> Array:
    """int64 [R]; floats only when whole (pandas makes those); null is an error."""
    column = _plain(column)
    _check_kind(name, column.type, "if")
    _no_null(name, column, "is null")
    array: Array = column.to_numpy()
    if array.dtype.kind == "f":
        wrong = np.flatnonzero(~(np.abs(array) < 2**53) | (array != np.trunc(array)))
        if len(wrong):
            raise InputError("not_whole", f"is {array[wrong[0]]}, no whole number", column=name, row=int(wrong[0]))
    if array.dtype == np.uint64 and len(array) and int(array.max()) >= 2**63:
        return array.view(np.int64)
    return array.astype(np.int64, copy=False)


def group_column(name: str, column: pa.ChunkedArray) -> Array:
    """int64 [R]: whole numbers as they are, names as codes that are the same everywhere."""
    column = _plain(column)
    if not _is_text(column.type):
        return whole_column(name, column)
    _no_null(name, column, "is null")
    encoded = column.combine_chunks().dictionary_encode()
    codes: Array = group_codes(encoded.dictionary.to_pylist())[encoded.indices.to_numpy()]
    return codes


def text_column(name: str, column: pa.ChunkedArray) -> Array:
    """Objects [R]: text or None; whole numbers become text."""
    column = _plain(column)
    if not (_is_text(column.type) or pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
        raise InputError("wrong_type", f"must be text, not {column.type}", column=name)
    array: Array = column.cast(pa.large_string()).to_numpy()
    return array


def flag_column(name: str, column: pa.ChunkedArray) -> Array:
    """bool [R] from booleans or 0 and 1; null is an error."""
    if not pa.types.is_boolean(column.type):
        numbers = whole_column(name, column)
        wrong = np.flatnonzero((numbers != 0) & (numbers != 1))
        if len(wrong):
            row = int(wrong[0])
            raise InputError("flag_value", f"is {numbers[row]}; only 0 and 1 are flags", column=name, row=row)
        return numbers.astype(np.bool_)
    _no_null(name, column, "is null")
    flags: Array = column.to_numpy()
    return flags


def _no_null(name: str, column: pa.ChunkedArray, detail: str) -> None:
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise InputError("null", detail, column=name, row=row)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A dictionary-encoded column (polars' Categorical) as the values it stands for."""
    if not pa.types.is_dictionary(column.type):
        return column
    kind = pa.large_string() if _is_text(column.type.value_type) else column.type.value_type
    return pa.chunked_array([chunk.dictionary.cast(kind).take(chunk.indices) for chunk in column.chunks], type=kind)


def without_text_views(table: pa.Table) -> pa.Table:
    """Arrow cannot filter or reorder text views (polars writes them); as plain text it can."""
    for number, field in enumerate(table.schema):
        if pa.types.is_string_view(field.type):
            table = table.set_column(number, field.name, table[field.name].cast(pa.large_string()))
    return table


def check_list_ends(table: pa.Table) -> None:
    """Offsets begin at 0 and end at the last value: writers cut slices to size, so anything else is damage."""
    for name in table.column_names:
        if pa.types.is_list(table[name].type) or pa.types.is_large_list(table[name].type):
            for chunk in table[name].chunks:
                first, last = chunk.offsets[0].as_py(), chunk.offsets[-1].as_py()
                if first != 0 or last != len(chunk.values):
                    detail = f"has offsets from {first} to {last} for {len(chunk.values)} values"
                    raise InputError("offsets", detail, column=name)


def check_view_sizes(table: pa.Table, max_tokens: int) -> None:
    """Views may lie over one another: what a list column holds once it is flattened is bounded before that."""
    for name in table.column_names:
        if pa.types.is_list_view(table[name].type) or pa.types.is_large_list_view(table[name].type):
            tokens = pc.sum(pc.list_value_length(table[name]).cast(pa.int64())).as_py() or 0
            if tokens > max_tokens:
                detail = f"holds {tokens} positions; at most {max_tokens} are taken in one body"
                raise InputError("too_large", detail, column=name)
