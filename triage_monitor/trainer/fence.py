"""Which monitor a trainer obeys: the one of the highest epoch it has met, and of one epoch the first it met.

Every parameter set and every answer to an update names the epoch and the issuer of the store it comes from
(storage/fence.py). What comes from another monitor, an old one that was left running, a copy or a restored backup, is
refused, and does not count as a word that would keep the lease alive. A legitimate replacement has a higher epoch.
What a trainer has met is forgotten with its process: a resumed trainer obeys the first monitor that it hears.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from triage_monitor.errors import InputError


class Origin(NamedTuple):
    """Epoch and issuer of an answer; (0, "") where it names none."""

    epoch: int = 0
    issuer: str = ""

    @property
    def store(self) -> str:
        return self.issuer.partition(".")[0]


def origin_of(document: Mapping[str, Any]) -> Origin:
    """Raises InputError for an epoch or issuer of another type."""
    epoch, issuer = document.get("epoch", 0), document.get("issuer", "")
    if type(epoch) is not int or not isinstance(issuer, str):
        raise InputError("parameter_type", "epoch must be an integer and issuer a text", column="epoch")
    return Origin(epoch, issuer[:64])


UNKNOWN = Origin()


@dataclass(slots=True)
class Fence:
    """The monitor obeyed, and how many answers of others were refused."""

    obeyed: Origin = UNKNOWN
    refused: int = 0

    def against(self, origin: Origin) -> str | None:
        """Why nothing of this origin is taken, or None."""
        mine = self.obeyed
        if origin.epoch < mine.epoch:
            return f"fenced: this trainer obeys a monitor of epoch {mine.epoch}; this one is of epoch {origin.epoch}"
        if origin.epoch == mine.epoch and mine.issuer and origin.issuer != mine.issuer:
            return f"fenced: this trainer obeys another monitor of epoch {mine.epoch}"
        return None

    def obey(self, origin: Origin) -> None:
        self.obeyed = origin
