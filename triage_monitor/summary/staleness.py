"""Staleness: how the amplifying masses split by policy-version lag (asynchronous training mixes versions, C37).

Lag is the learner's version minus the version that sampled a token; buckets 0, 1, 2 and more. A token whose version is
ahead of the learner's is refused: the numbers would be someone else's.
"""

from __future__ import annotations

import numpy as np

from triage_monitor.errors import InputError
from triage_monitor.summary.inputs import Array, Tokens, valid_positions
from triage_monitor.summary.step import LAGS
from triage_monitor.summary.writable import Draft


def add_staleness(tokens: Tokens, version_T: Array, current_version: int | None, draft: Draft) -> None:
    valid = valid_positions(tokens)
    if not valid.any():
        return
    current = int(version_T[valid].max()) if current_version is None else current_version
    lag = current - version_T
    if (lag[valid] < 0).any():
        at = int(np.flatnonzero(valid & (lag < 0))[0])
        row = int(np.searchsorted(tokens.offset_R1, at, side="right")) - 1
        raise InputError(
            "version_ahead",
            f"version {version_T[at]} is ahead of the learner's {current}",
            column="policy_version",
            row=row,
        )
    if tokens.advantage_T.size:
        advantage = tokens.advantage_T
    else:
        advantage = np.repeat(tokens.advantage_R, np.diff(tokens.offset_R1))
    weight = np.where(np.isfinite(advantage), advantage, 0.0)
    gap = np.where(valid, tokens.gap_T, 0.0)
    draft.add("lag_tokens_weighted", float(lag[valid].sum()))
    for bucket, name in enumerate(LAGS):
        here = valid & (lag == bucket if bucket < len(LAGS) - 1 else lag >= bucket)
        draft.count(f"lag_tokens_{name}", int(here.sum()))
        draft.add(f"lag_mass_a_neg_{name}", float(-weight[here & (weight < 0) & (gap < 0)].sum()))
        draft.add(f"lag_mass_a_pos_{name}", float(weight[here & (weight > 0) & (gap > 0)].sum()))
