"""Responses of several micro-batches put together into one submission of an update.

Advantages may be one a response in one micro-batch and one a token in another: then all become one a token. Flat
per-token advantages or versions of as many tokens as responses would be read as one a response, so that one case
travels as lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triage_monitor.errors import InputError

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Part:
    """R responses of T tokens on the host. `advantages` is in exactly one of the two mappings."""

    offsets: NDArray[np.int64]  # [R + 1]
    tokens: dict[str, Array]  # each [T]
    columns: dict[str, Array]  # each [R]

    @property
    def responses(self) -> int:
        return self.offsets.size - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def only(self, rows: NDArray[np.bool_]) -> Part:
        """The responses whose flag [R] is set."""
        if rows.shape != (self.responses,):
            raise InputError("length", f"has shape {rows.shape} for {self.responses} responses", column="padding")
        keep = np.repeat(rows, self.lengths)
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.lengths[rows])))
        tokens = {name: values[keep] for name, values in self.tokens.items()}
        return Part(offsets, tokens, {name: values[rows] for name, values in self.columns.items()})

    def by_token(self) -> Part:
        """With advantages one a token."""
        if "advantages" in self.tokens:
            return self
        columns = dict(self.columns)
        return Part(
            self.offsets,
            self.tokens | {"advantages": np.repeat(columns.pop("advantages"), self.lengths)},
            columns,
        )


def joined(parts: Sequence[Part]) -> dict[str, Any]:
    """What `Monitor.submit` and `summarize` take. Raises InputError when a column is in some parts only."""
    if any("advantages" in part.tokens for part in parts):
        parts = [part.by_token() for part in parts]
    for row, part in enumerate(parts):
        odd = (part.tokens | part.columns).keys() ^ (parts[0].tokens | parts[0].columns).keys()
        if odd:
            raise InputError("length", "is in some micro-batches only", column=min(odd), row=row)
    lengths = np.concatenate([part.lengths for part in parts]) if parts else np.zeros(0, np.int64)
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
    first = parts[0] if parts else Part(offsets, {}, {})
    tokens = {name: np.concatenate([part.tokens[name] for part in parts]) for name in first.tokens}
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in first.columns}
    if tokens.keys() & {"advantages", "policy_versions"} and offsets[-1] == lengths.size > 0:
        return columns | {name: np.split(values, offsets[1:-1]) for name, values in tokens.items()}
    return columns | tokens | {"offsets": offsets}
