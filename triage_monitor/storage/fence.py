"""Which of several monitors a trainer obeys: the store's identity and its epoch.

`store_id` is drawn when a store is made; a copy or an old backup of its files has the same one. `epoch` starts as the
Unix time at which the store was made and grows by one at each start, so that a store made later outranks an older one,
and a restarted one its own past. `issuer` names one start of one store: two copies that come to the same epoch differ
in it. A trainer takes parameter sets of the highest (epoch, issuer) it has met and refuses all others.

Taking over (`above`): a restored backup, or a store made before the monitor it replaces, is outranked until its epoch
is raised past the other's. It then counts as another store, since its version numbers may repeat those that the
trainer has seen with other content.
"""

from __future__ import annotations

import secrets
import sqlite3
from dataclasses import dataclass, field
from typing import Any

_ID_BITS = 62  # fits SQLite's integers


@dataclass(frozen=True, slots=True)
class Fence:
    """One start of one store."""

    epoch: int
    store_id: str
    issuer: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "issuer", f"{self.store_id}.{secrets.token_hex(4)}")


def origin_json(fence: Fence) -> dict[str, Any]:
    """What an answer says about who gives it: a trainer that obeys another takes no word from this one."""
    return {"epoch": fence.epoch, "issuer": fence.issuer}


def new_fence(now: int, above: int = 0) -> Fence:
    """Of a store made at `now` (Unix seconds), whose epoch shall be larger than `above`."""
    return Fence(max(now, above + 1), f"{secrets.randbits(_ID_BITS):x}")


def next_fence(db: sqlite3.Connection, now: int, above: int, made: int | None) -> Fence:
    """Of the start that is under way, written to `meta` within the caller's transaction.

    `made` is when the store was made, None if just now. Of a store of before this rule, or one whose `meta` was lost
    with a damaged file, that is the name, and the time of this start the epoch.
    """
    stored = dict(db.execute("SELECT name, value FROM meta WHERE name IN ('fence', 'store_id')").fetchall())
    if made is None:
        fence = new_fence(now, above)
    elif len(stored) < 2:
        fence = Fence(max(now, made + 1, above + 1), f"{made:x}")
    elif stored["fence"] < above:
        fence = new_fence(now=above + 1)
    else:
        fence = Fence(stored["fence"] + 1, f"{stored['store_id']:x}")
    told = [("fence", fence.epoch), ("store_id", int(fence.store_id, 16))]
    db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", told)
    return fence
