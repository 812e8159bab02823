"""prime-rl's token exports: `token_exports/step_{N}/rank_{R}.jsonl`, one line a packed sequence, complete once STABLE.

Layout as of PrimeIntellect-ai/prime-rl 559b447 (src/prime_rl/trainer/rl/token_export.py, schema_version 1): flat lists
over one sequence, prompt and responses interleaved, value t about token t, a dummy at position 0, trailing padding cut
off; values that are not finite are null. `STABLE` is touched after all ranks have written, and again when a resumed
run writes a step anew: until then the marker of the writing before stands beside newer files (`is_current`). A copied
directory may have its times in any order, so who reads what nobody writes any more asks for the marker alone.

    learner = trainer_logprobs (the weights in the loss's forward pass: theta), sampler = inference_logprobs

As in the trainer's own mismatch metrics a token counts when loss_mask is set and it belongs to the rl or ref_kl
component (a null weight is the default: rl 1.0, no ref_kl). A trained position 0 has no learner value and is missing.
With context parallelism the trainer gathers before it exports, so there are no slices to join.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from triage_monitor.errors import InputError
from triage_monitor.storage.dumps_rows import DumpRow, flags, numbers, response_span, same_length, step_of
from triage_monitor.storage.json_lines import JsonLine, json_lines
from triage_monitor.summary.rows_values import Array

RANK = re.compile(r"rank_(\d+)\.jsonl")
STEP = re.compile(r"step_([0-9]{1,15})")
MARKER = "STABLE"
SCHEMA_VERSION = 1
SETTINGS = {"learner": "theta"}
_TOKENS = ("loss_mask", "advantages", "inference_logprobs", "trainer_logprobs")


def is_stable(step: Path) -> bool:
    return (step / MARKER).exists()


def is_current(step: Path) -> bool:
    """Whether the marker was set after the newest of the ranks' files."""
    try:
        marked = (step / MARKER).stat().st_mtime_ns
        return all(file.stat().st_mtime_ns <= marked for file in step.glob("rank_*.jsonl"))
    except OSError:
        return False


def prime_rows(path: Path) -> Iterator[DumpRow]:
    """Raises InputError naming file, line and field."""
    inside = STEP.fullmatch(path.parent.name)
    for line in json_lines(path):
        try:
            row = _row(line)
            if inside is not None and row.step != int(inside[1]):
                raise InputError("step", f"is {row.step} in the directory '{path.parent.name}'", column="step")
        except InputError as error:
            raise line.placed(error) from None
        yield row


def _row(line: JsonLine) -> DumpRow:
    record = line.value
    version = record.get("schema_version")
    if version != SCHEMA_VERSION:
        raise InputError("schema_version", f"is {version!r:.40}; {SCHEMA_VERSION} is known", column="schema_version")
    for name in _TOKENS:
        if record.get(name) is None:
            raise InputError("missing_column", "is not there", column=name)
    loss_mask = flags(record["loss_mask"], "loss_mask")
    columns: dict[str, Array] = {}
    for name in _TOKENS[1:]:
        columns[name] = numbers(record[name], name, nulls=True)
        same_length(name, columns[name], "loss_mask", len(loss_mask))
    span = response_span(loss_mask)
    learner, sampler = columns["trainer_logprobs"][span], columns["inference_logprobs"][span]
    mask = (loss_mask & _sampled(record, len(loss_mask)))[span]
    missing = mask & (np.isnan(learner) | np.isnan(sampler))
    if span.start == 0 and len(missing):
        missing[0] = mask[0]
    return DumpRow(
        step_of(record.get("step"), "step"),
        _name(record, line),
        learner,
        sampler,
        columns["advantages"][span],
        mask,
        missing,
    )


def _sampled(record: dict[str, Any], length: int) -> Array:
    rl, ref_kl = (_weights(record, name, length) for name in ("rl_weights", "ref_kl_weights"))
    member = np.ones(length, np.bool_) if rl is None else rl != 0
    return member if ref_kl is None else member | (ref_kl != 0)


def _weights(record: dict[str, Any], name: str, length: int) -> Array | None:
    """None where the column is absent or null throughout: the default."""
    value = record.get(name)
    if value is None:
        return None
    weights = numbers(value, name, nulls=True)
    same_length(name, weights, "loss_mask", length)
    return None if np.isnan(weights).all() else np.nan_to_num(weights, nan=0.0)


def _name(record: dict[str, Any], line: JsonLine) -> str:
    return f"rank {record.get('rank')}, sequence {record.get('export_sequence_idx', line.row)}"


def is_prime(record: dict[str, Any]) -> bool:
    return "loss_mask" in record and ("inference_logprobs" in record or "trainer_logprobs" in record)
