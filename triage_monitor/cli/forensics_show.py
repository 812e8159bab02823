"""One update for `show`: its report, and its worst responses with where in them the amplifying tail sits.

From a server: cells of neighbouring segments, as the store keeps them. From a recording also the worst tail tokens one
by one: position in the response as recorded (from 0), gap in nats, and the token where the recording holds tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from triage_monitor.cli.operator import call, run_path
from triage_monitor.errors import InputError

if TYPE_CHECKING:
    from triage_monitor.storage.recordings import RecordedUpdate
    from triage_monitor.summary.rows import UpdateRows
    from triage_monitor.summary.spec import SummarySpec

SHOWN_TOKENS = 8


def served_update(url: str, run: str, step: int) -> dict[str, Any]:
    worst = call("GET", url, f"{run_path(run)}/worst?step={step}", holds="responses").json()
    here = f"{run_path(run)}/updates?from={step}&to={step}&limit=1"
    update = call("GET", url, here, holds="updates").json()["updates"][-1]
    window = call("GET", url, f"{here}&scope=window", holds="windows").json()["windows"][-1]
    responses = [{**item, "cells": cells(item, worst["segment"])} for item in worst["responses"]]
    shards = {name: worst[name] for name in ("shards", "shards_with_rows")}
    return _answer(run, update, window, worst["tau_ana"], worst["segment"], responses) | shards


def recorded_update(path: str, step: int, window: int) -> dict[str, Any]:
    from triage_monitor.cli.analysis import analyse
    from triage_monitor.storage.recordings import iter_updates
    from triage_monitor.storage.recordings_tokens import read_tokens
    from triage_monitor.summary.spec import SummarySpec

    spec = SummarySpec()
    kept: list[RecordedUpdate] = []
    result = analyse(_tapped(iter_updates([path]), step, kept), spec=spec, window=window, keep_worst=True)
    if not kept:
        steps = [item["step"] for item in result.document["updates"]]
        held = f"it holds {min(steps)} to {max(steps)}" if steps else "it is empty"
        raise InputError("unknown_step", f"there is no update {step}; {held}", column="--step", path=path)
    key = (kept[0].attempt, step)
    update = next(item for item in result.document["updates"] if (item["attempt"], item["step"]) == key)
    merged = next(item for item in result.document["windows"] if (item["attempt"], item["step"]) == key)
    tokens = read_tokens([path], *key)
    if len(tokens) != sum(item.rows.responses for item in kept):
        tokens = []
    responses = []
    for item in map(asdict, result.story.worst(key)):
        before = sum(shard.rows.responses for shard in kept[: item["shard"]])
        own = tokens[before + item["row"]] if tokens else []
        tail = tail_tokens(kept[item["shard"]].rows, item["row"], spec, own)
        responses.append({**item, "cells": cells(item, spec.segment), "worst_tokens": tail})
    return _answer(result.document["run"], update, merged, spec.tau_ana, spec.segment, responses)


def cells(response: Mapping[str, Any], segment: int) -> list[dict[str, Any]]:
    """Cells with a tail token; positions count from 0 at the response's first token under mask 1."""
    width = response["per_cell"] * segment
    return [
        {"first_position": place * width, "last_position": (place + 1) * width - 1, "tail": tail}
        | {"tokens": response["tokens"][place], "lowest": response["lowest"][place]}
        for place, tail in enumerate(response["tail"])
        if tail
    ]


def tail_tokens(rows: UpdateRows, row: int, spec: SummarySpec, tokens: Sequence[int | str]) -> list[dict[str, Any]]:
    """The amplifying-tail tokens with the largest gaps; `token` is None where the recording has none."""
    import numpy as np

    from triage_monitor.summary.symptoms_sample import gap_at

    place = np.arange(rows.offsets[row], rows.offsets[row + 1])
    with np.errstate(invalid="ignore", over="ignore"):
        gap = gap_at(rows, place)
    advantage = rows.advantages[place] if rows.advantages_per_token else np.full(len(place), rows.advantages[row])
    valid = np.isfinite(gap) if rows.mask is None else np.isfinite(gap) & rows.mask[place].astype(bool)
    if rows.missing is not None:
        valid &= ~rows.missing[place].astype(bool)
    push = np.where(valid, gap, 0.0) * np.sign(np.nan_to_num(advantage))
    found = np.flatnonzero(push >= spec.tau_ana)
    largest = found[np.argsort(-push[found], kind="stable")[:SHOWN_TOKENS]]
    has_tokens = len(tokens) == len(place)
    return [
        {"position": int(at), "gap": round(float(gap[at]), 6), "token": tokens[at] if has_tokens else None}
        for at in largest
    ]


def _tapped(shards: Iterator[RecordedUpdate], step: int, kept: list[RecordedUpdate]) -> Iterator[RecordedUpdate]:
    """Keeps the shards of this step, those of the newest attempt only."""
    for shard in shards:
        if shard.step == step:
            if kept and shard.attempt > kept[0].attempt:
                kept.clear()
            if not kept or shard.attempt == kept[0].attempt:
                kept.append(shard)
        yield shard


def _answer(
    run: str,
    update: Mapping[str, Any],
    window: Mapping[str, Any],
    tau_ana: float,
    segment: int,
    responses: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    place = {"run": run, "step": update["step"], "attempt": update["attempt"], "stage": window["stage"]}
    return {**place, "update": update, "window": window, "tau_ana": tau_ana, "segment": segment, "responses": responses}
