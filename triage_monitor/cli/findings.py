"""Named causes that follow from a recording's own counts, one entry a cause, from the first update that shows it.

Only faults of the data so far: the two log-probs are one array, tokens without a usable gap, advantages that are no
number. A finding states counts over the whole recording; whether training suffers is the stages' business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Update = Mapping[str, Any]

NONFINITE = ("nan", "pos_inf", "neg_inf")


def findings(updates: Sequence[Update]) -> list[dict[str, Any]]:
    """The contract's `{"cause", "step", "evidence"}` objects; evidence holds counts, and the last step concerned."""
    causes: tuple[tuple[str, Callable[[Update], bool], tuple[str, ...]], ...] = (
        ("not_observable", _not_observable, ("valid_tokens",)),
        ("nonfinite_gap", _nonfinite, (*NONFINITE, "tokens")),
        ("missing_values", _missing, ("missing", "tokens")),
        ("no_usable_token", _nothing_usable, ("tokens",)),
        (
            "unusable_advantage",
            _bad_advantage,
            ("unusable_advantage", "responses"),
        ),
    )
    found = []
    for cause, shows, names in causes:
        concerned = [update for update in updates if shows(update)]
        if concerned:
            evidence = {name: sum(update["counts"][name] for update in concerned) for name in names}
            evidence |= {"updates": len(concerned), "last_step": concerned[-1]["step"]}
            found.append({"cause": cause, "step": concerned[0]["step"], "evidence": evidence})
    return sorted(found, key=lambda item: item["step"])


def _not_observable(update: Update) -> bool:
    return bool(update["indicators"].get("not_observable"))


def _nonfinite(update: Update) -> bool:
    return any(update["counts"][name] for name in NONFINITE)


def _missing(update: Update) -> bool:
    return bool(update["counts"]["missing"])


def _bad_advantage(update: Update) -> bool:
    return bool(update["counts"]["unusable_advantage"])


def _nothing_usable(update: Update) -> bool:
    counts = update["counts"]
    return bool(counts["tokens"] > 0 and counts["valid_tokens"] == 0)
