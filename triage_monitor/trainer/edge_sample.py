"""The responses that symptoms are read off, taken from the device with the summary: drawn by shape alone.

Of an update of at most TOKEN_BUDGET positions all of them, so that the symptoms are those of the raw update; of a
larger one whole responses, evenly spread, that hold about as many; with offsets that only the device knows, the first
ones. They go to this host only and end as a few kB of counters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from triage_monitor.summary.rows_values import UpdateRows
from triage_monitor.summary.symptoms_sample import TOKEN_BUDGET
from triage_monitor.trainer.arrays import unpad
from triage_monitor.trainer.edge_layout import Borders, EdgeTokens, at, to_device

Ints = NDArray[np.int64]
Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """`rows`: the drawn responses, None for all or, where their borders are not known here, for the first ones."""

    borders: Borders
    rows: Ints | None
    advantages_per_token: bool
    versions_per_token: bool

    def rows_of(self, arrived: Columns, names: Mapping[str, Any], told: Mapping[str, Mapping[str, Any]]) -> UpdateRows:
        """`arrived`: what `draw` took; `names`: response_ids and engines of all responses; `told`: settings and the
        objective's sums."""
        columns, kept = self._flat(arrived)
        ids = names.get("response_ids")
        if ids is None and self.rows is not None:
            ids = [str(row) for row in self.rows]
        elif ids is not None:
            ids = [ids[row] for row in kept]
        engines = names.get("engines")
        return UpdateRows(
            **columns,
            response_ids=None if ids is None else np.array(ids, object),
            engines=None if engines is None else np.array([engines[row] for row in kept], object),
            advantages_per_token=self.advantages_per_token,
            versions_per_token=self.versions_per_token,
            settings=told["settings"],
            objective=told["objective"],
        )

    def _flat(self, arrived: Columns) -> tuple[dict[str, Any], Ints]:
        """(columns with offsets, the responses they are of)."""
        per_token = {name: values for name, values in arrived.items() if self.is_per_token(name)}
        rest = {name: values for name, values in arrived.items() if name not in per_token and name != "offsets"}
        ends = arrived["offsets"]
        kept = np.arange(len(ends)) if self.rows is None else self.rows
        if self.borders.padded is not None:
            length = self.borders.padded[1]
            columns = unpad({name: values.reshape(-1, length)[: len(kept)] for name, values in per_token.items()})
            kept = kept[: len(columns["offsets"]) - 1]
        else:
            taken = len(per_token["mask"])
            lengths = np.diff(ends, prepend=0)[kept]
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
            if offsets[-1] > taken:  # only the first positions came: whole responses, or the beginning of the first
                whole = max(1, int(np.searchsorted(offsets, taken, side="right")) - 1)
                kept, offsets = kept[:whole], np.minimum(offsets[: whole + 1], taken)
            columns = {name: values[: int(offsets[-1])] for name, values in per_token.items()} | {"offsets": offsets}
        return columns | {name: values[kept] for name, values in rest.items()}, kept

    def is_per_token(self, name: str) -> bool:
        if name == "advantages":
            return self.advantages_per_token
        return self.versions_per_token if name == "policy_versions" else name != "offsets"


def draw(tokens: EdgeTokens) -> tuple[Drawn, dict[str, Tensor]]:
    """The drawn positions' columns and those of one number a response, on the device; nothing waits for it."""
    borders = tokens.borders
    drawn = Drawn(borders, _rows(borders, tokens.gap.shape[0]), tokens.advantage_per_token, tokens.version_per_token)
    columns = {"mask": tokens.unmasked, "missing": tokens.unmasked & ~tokens.present, "offsets": borders.end}
    if tokens.learner is None or tokens.sampler is None:
        columns["gap"] = tokens.gap
    else:
        columns |= {"learner_logprobs": tokens.learner, "sampler_logprobs": tokens.sampler}
    columns["advantages"] = tokens.advantage
    if tokens.version is not None:
        columns["policy_versions"] = tokens.version
    if drawn.rows is not None:
        place = to_device(_positions(borders, drawn.rows), tokens.gap.device)
        return drawn, {name: at(v, place) if drawn.is_per_token(name) else v for name, v in columns.items()}
    if borders.padded is None:
        columns = {name: v[:TOKEN_BUDGET] if drawn.is_per_token(name) else v for name, v in columns.items()}
    return drawn, columns


def _rows(borders: Borders, positions: int) -> Ints | None:
    if positions <= TOKEN_BUDGET or (borders.padded is None and borders.offsets is None):
        return None
    count = borders.responses
    spread = np.unique(np.linspace(0, count - 1, max(1, int(count * TOKEN_BUDGET / positions))).astype(np.int64))
    if borders.offsets is None:
        return spread
    ends = np.cumsum(np.diff(borders.offsets)[spread])
    return spread[: max(1, int(np.searchsorted(ends, 2 * TOKEN_BUDGET)))]


def _positions(borders: Borders, rows: Ints) -> Ints:
    if borders.padded is not None:
        return (rows[:, None] * borders.padded[1] + np.arange(borders.padded[1])).reshape(-1)
    assert borders.offsets is not None
    return np.concatenate([np.arange(borders.offsets[row], borders.offsets[row + 1]) for row in rows])
