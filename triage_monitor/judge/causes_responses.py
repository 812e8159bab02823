"""Causes that single out responses: fillers, broken ones, one engine's, rows of zeros, short ones, several versions.

Shares are over the responses that were drawn for a closer look; names are those of the first found, at most twenty.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from triage_monitor.judge.causes import Finding, Value
from triage_monitor.summary.symptoms import Symptoms

FEW_RESPONSES = 8  # among more, a single one's end is chance
FEW_EXPECTED = 0.01  # rows of zeros that chance would make, as a share of those found
ENGINE_RATIO_BINS = 6  # 2.8 times the gap: a quarter octave each
ENGINE_AUC, ENGINE_Z = 0.85, 3.5
MIN_ENGINE_GAP_BIN = 33  # mean abs(gap) of 0.02
NOT_OBSERVABLE_TOKENS = 64


def _named(symptoms: Symptoms, what: str, evidence: dict[str, Value]) -> dict[str, Value]:
    for key, name in ((what, "response_ids"), (f"{what}@engine", "engines")):
        found = symptoms.examples.get(key)
        if found:
            evidence[name] = list(found)
    return evidence


def fillers(symptoms: Symptoms) -> list[Finding]:
    found = []
    degenerate = symptoms.count("degenerate")
    if degenerate or "degenerate" in symptoms.examples:
        evidence: dict[str, Value] = {
            "responses": degenerate,
            "tokens": symptoms.count("degenerate_tokens"),
            "share": _share(degenerate, symptoms.count("responses")),
        }
        text = (
            f"{degenerate} responses end in runs to which the sampler gives probability 1 and the learner almost none"
        )
        found.append(
            Finding(
                "degenerate_sampler", text, "high", _named(symptoms, "degenerate", evidence), ("responses", "tokens")
            )
        )
    dummy = _dummies(symptoms)
    if dummy is not None:
        found.append(dummy)
    responses = symptoms.count("appended")
    enough = responses >= 2 or (responses == 1 and symptoms.count("responses") <= FEW_RESPONSES)
    if enough and responses >= symptoms.count("dummy"):
        evidence = _named(symptoms, "appended", {"responses": responses, "sampler_zero": 1})
        text = f"the last tokens of {responses} responses have sampler log-prob 0 and are unlikely to the learner"
        found.append(Finding("appended_tokens", text, "medium", evidence))
    return found


def _dummies(symptoms: Symptoms) -> Finding | None:
    responses, infinite = symptoms.count("dummy"), symptoms.count("sampler_infinite")
    sentinels, learner = symptoms.count("sentinels"), symptoms.count("learner_zero")
    learner = learner if learner >= 3 and learner >= 0.001 * symptoms.count("pairs") else 0
    if not (responses or infinite or sentinels or learner):
        return None
    evidence: dict[str, Value] = {"responses": responses, "tokens": symptoms.count("dummy_tokens")}
    for name, value in (("minus_infinity", infinite), ("sentinels", sentinels), ("learner_zero", learner)):
        if value:
            evidence[name] = value
    parts = [f"runs of exact 0 in {responses} responses"] if responses else []
    parts += [f"{infinite} of minus infinity"] if infinite else []
    parts += [f"{sentinels} below -1000"] if sentinels else []
    parts += [f"{learner} exact 0 of the learner"] if learner else []
    text = f"log-probs that no engine computes for a token it sampled, under mask 1: {', '.join(parts)}"
    return Finding("dummy_tokens", text, "high", _named(symptoms, "dummy", evidence))


def broken(symptoms: Symptoms) -> Finding | None:
    """A share apart from the others: those agree, and few responses lie between."""
    found, testable = symptoms.count("broken"), symptoms.count("testable")
    if "broken" not in symptoms.examples:
        return None
    rest = testable - found
    alone = 2 * found <= testable and 2 * symptoms.count("calm") >= rest and symptoms.count("between") <= max(found, 1)
    evidence = _named(symptoms, "broken", {"responses": found, "share": _share(found, testable)})
    if alone:
        text = f"{found} of {testable} responses are off by more than 1 nat on average while the others agree"
        return Finding("broken_responses", text, "high" if found > 1 else "medium", evidence)
    if 2 * found > testable:
        text = f"{found} of {testable} responses are off by more than 1 nat on average"
        return Finding("undetermined", text, "low", evidence)
    return None


def one_engine(symptoms: Symptoms) -> Finding | None:
    """Exactly one engine whose responses stand above all others': their median by 2.8 times, and pair by pair."""
    engines = {name: bins for name, bins in symptoms.engines.items() if bins.sum() >= 4}
    if len(engines) < 2:
        return None
    total = np.sum(list(engines.values()), axis=0)
    apart = {name: numbers for name, bins in engines.items() if (numbers := _apart(bins, total - bins)) is not None}
    if len(apart) != 1:
        return None
    ((name, (ratio, auc)),) = apart.items()
    evidence: dict[str, Value] = {
        "engine": name,
        "engines": len(engines),
        "responses": int(engines[name].sum()),
        "gap_ratio": float(f"{ratio:.3g}"),
        "above_others": float(f"{auc:.3g}"),
    }
    text = f"engine {name} has {ratio:.3g} times the gap of the {len(engines) - 1} others (median over responses)"
    return Finding("one_engine", text, "high" if len(engines) > 2 else "medium", evidence)


def _apart(mine: NDArray[np.int64], others: NDArray[np.int64]) -> tuple[float, float] | None:
    count, rest = int(mine.sum()), int(others.sum())
    if rest < 4:
        return None
    below = np.cumsum(others) - others
    auc = float((mine * (below + 0.5 * others)).sum() / (count * rest))
    z = (auc - 0.5) / math.sqrt((count + rest + 1) / (12 * count * rest))
    middle, other = _median_bin(mine), _median_bin(others)
    if middle < MIN_ENGINE_GAP_BIN or middle - other < ENGINE_RATIO_BINS or auc < ENGINE_AUC:
        return None
    return (2 ** ((middle - other) / 4), auc) if z >= min(ENGINE_Z, 2.2 + 0.1 * count) else None


def _median_bin(bins: NDArray[np.int64]) -> int:
    return int(np.searchsorted(np.cumsum(bins), (bins.sum() + 1) // 2))


def zero_rows(symptoms: Symptoms) -> list[Finding]:
    """Rows of exact zeros: padding, copied log-probs, or everything."""
    tokens, zero = symptoms.count("tokens"), symptoms.count("zero_gap")
    padding, copied = symptoms.count("padding"), symptoms.count("zero_rows")
    if not padding + copied:
        return []
    if zero >= 0.999 * tokens:
        if tokens < NOT_OBSERVABLE_TOKENS or not copied:
            return []
        return [
            Finding("not_observable", "every gap is exactly 0", "high", {"valid_tokens": tokens}, ("valid_tokens",))
        ]
    found = []
    inside = symptoms.count("padding_tokens") + symptoms.count("zero_row_tokens")
    chance = (zero - inside) / max(tokens - inside, 1)
    responses = symptoms.count("responses")
    for what, cause, rows, among, words in (
        ("padding", "undeclared_padding", padding, symptoms.count("zero_advantage"), "gaps and advantages"),
        ("zero_rows", "exact_zero_gaps", copied, responses - symptoms.count("zero_advantage"), "gaps"),
    ):
        length = symptoms.count("padding_tokens" if what == "padding" else "zero_row_tokens") / max(rows, 1)
        if (
            not rows
            or among * chance**length > FEW_EXPECTED * rows
            or (what == "zero_rows" and rows < 0.02 * responses)
        ):
            continue
        evidence: dict[str, Value] = {
            "responses": rows,
            "tokens": round(length * rows),
            "share": _share(rows, responses),
        }
        text = f"{rows} of {responses} responses whose {words} are all exactly 0"
        found.append(Finding(cause, text, "high", _named(symptoms, what, evidence)))
    return found


def short_responses(symptoms: Symptoms) -> Finding | None:
    """Two kinds of length: at most 4 tokens, or at least 16, and little between."""
    short, medium, long = (symptoms.count(name) for name in ("short", "medium", "long"))
    total = short + medium + long
    if short < 3 or short < 0.1 * total or long < 3 or medium > 0.25 * (medium + long):
        return None
    evidence: dict[str, Value] = {"responses": short, "share": _share(short, total)}
    text = f"{short} of {total} responses have 4 tokens at most while the others have 16 and more"
    return Finding("short_responses", text, "high", evidence)


def no_signal(symptoms: Symptoms) -> Finding | None:
    responses = symptoms.count("responses")
    if not responses or symptoms.count("zero_advantage") < responses:
        return None
    return Finding("no_advantage_signal", "every advantage is 0", "high", {"responses": responses})


def versions(symptoms: Symptoms) -> Finding | None:
    lags = {name: symptoms.count(f"lag_{name}") for name in ("0", "1", "2_plus")}
    total = sum(lags.values())
    if not total or total == max(lags.values()):
        return None
    evidence: dict[str, Value] = {f"share_lag_{name}": _share(count, total) for name, count in lags.items()}
    text = ", ".join(f"{count / total:.1%} of lag {name.replace('_', ' ')}" for name, count in lags.items() if count)
    return Finding("mixed_policy_versions", f"tokens of several policy versions: {text}", "high", evidence)


def _share(part: int, whole: int) -> float:
    return float(f"{part / whole:.6g}") if whole else 0.0
