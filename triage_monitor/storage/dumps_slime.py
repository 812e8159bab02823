"""slime's and miles' training dumps: the `.pt` files of `--save-debug-train-data` (and `--dump-details`).

Layouts as of THUDM/slime 624b824 (slime/observability/train_data_utils.py, `format_version` 2: one file a rollout, one
dict a sample, context-parallel slices joined by the trainer) and radixark/miles 31f1ca9 (its train_dump_utils.py:
one file a rank, columns of `rollout_data`; see dumps_miles). Per-token fields cover the response only, without
padding; `rollout_id` is the step.

    learner = log_probs, sampler = rollout_log_probs, mask = loss_masks, rewards = the raw ones (`rewards`, which is
    normalised within its group, only where a dump has no raw ones)

A response that was taken out of training has a mask of zeros and stays as a response without tokens. Refused: dumps
without `log_probs` (miles with --use-rollout-logprobs or --skip-actor-forward-only) or without `rollout_log_probs`: the
gap is not observable; fields whose length is not the response's: slices of context parallelism.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from triage_monitor.errors import InputError
from triage_monitor.storage.dumps_rows import DumpRow, finite_or_none, step_of
from triage_monitor.storage.torch_file import TorchFile
from triage_monitor.storage.torch_pickle import StoredArray, TensorView
from triage_monitor.summary.rows_values import Array

SETTINGS = {"learner": "old"}
SLIME_MARKS = (b"rollout_id", b"samples", b"loss_masks")
MILES_MARKS = (b"rollout_data", b"response_lengths")
FORMAT_VERSION = 2
UNOBSERVED = {
    "log_probs": (
        "is not there: the learner's log-probs were not computed (--use-rollout-logprobs, --skip-actor-forward-only) "
        "or this rank is no last pipeline stage. The gap is not observable from this dump"
    ),
    "rollout_log_probs": "is not there: the engine returned no log-probs. The gap is not observable from this dump",
    "advantages": "is not there: the dump was written before advantages were computed",
}


def slime_rows(path: Path) -> Iterator[DumpRow]:
    """Raises InputError naming file, sample (row) and field."""
    with TorchFile(path) as file:
        step = rollout_id(file.value, path)
        version = file.value.get("format_version", FORMAT_VERSION)
        if version != FORMAT_VERSION:
            raise InputError("format_version", f"is {version!r:.40}; {FORMAT_VERSION} is known", path=str(path))
        samples = file.value.get("samples")
        if not isinstance(samples, list):
            raise InputError("wrong_type", "is no list", column="samples", path=str(path))
        for number, sample in enumerate(samples):
            try:
                yield _row(file, step, number, sample)
            except InputError as error:
                raise error.at(path=str(path), row=number) from None


def rollout_id(value: Any, path: Path) -> int:
    try:
        return step_of(value.get("rollout_id") if isinstance(value, dict) else None, "rollout_id")
    except InputError as error:
        raise error.at(path=str(path)) from None


def _row(file: TorchFile, step: int, number: int, sample: Any) -> DumpRow:
    if not isinstance(sample, dict):
        raise InputError("wrong_type", f"is a {type(sample).__name__}, not a dict", column="samples")
    mask = mask_of(vector(file, _field(sample, "loss_masks"), "loss_masks"))
    length = sample.get("response_lengths")
    if length is not None and length != len(mask):
        raise InputError("length", f"has {len(mask)} entries where the response has {length}", column="loss_masks")
    values = {name: vector(file, _field(sample, name), name) for name in UNOBSERVED}
    for name, array in values.items():
        check_length(name, array, len(mask))
    raw = _at(file.value.get("raw_reward"), sample.get("rollout_position"))
    return DumpRow(
        step=step,
        response_id=str(sample.get("sample_index", number)),
        learner=values["log_probs"],
        sampler=values["rollout_log_probs"],
        advantage=values["advantages"],
        mask=mask,
        reward=finite_or_none(_first(sample.get("local_raw_reward"), raw, sample.get("rewards"))),
        policy_version=version_of(sample.get("weight_versions")),
    )


def _field(sample: Mapping[str, Any], name: str) -> Any:
    value = sample.get(name)
    if value is None:
        raise InputError("missing_column", UNOBSERVED.get(name, "is not there"), column=name)
    return value


def check_length(name: str, array: Array, expected: int) -> None:
    if len(array) != expected:
        detail = f"has {len(array)} entries where the response has {expected}: a slice of context parallelism?"
        raise InputError("length", detail, column=name)


def vector(file: TorchFile, value: Any, name: str) -> Array:
    """A tensor, numpy array or list of numbers as a flat array; float16 widens, whole numbers stay."""
    if isinstance(value, TensorView | StoredArray):
        array = file.array(value)
    elif isinstance(value, list | tuple) and all(isinstance(item, int | float) for item in value):
        try:
            array = np.array(value, dtype=np.float64)
        except OverflowError:
            raise InputError("wrong_type", "holds a whole number beyond any float", column=name) from None
    else:
        raise InputError("wrong_type", f"is a {type(value).__name__}, not a tensor of numbers", column=name)
    if array.ndim != 1:
        raise InputError("wrong_type", f"has {array.ndim} dimensions, not 1", column=name)
    if name == "loss_masks" or array.dtype in (np.float32, np.float64):
        return array
    return array.astype(np.float32 if array.dtype == np.float16 else np.float64)


def mask_of(values: Array) -> Array:
    wrong = np.flatnonzero((values != 0) & (values != 1))
    if len(wrong):
        raise InputError("mask_value", f"holds {values[wrong[0]]:g}; only 0 and 1 are a mask", column="loss_masks")
    return values.astype(np.bool_)


def version_of(versions: Any) -> int | None:
    """The version that sampled a response, where it is one and a number; a response of several has none."""
    distinct = (
        set(versions) if isinstance(versions, list) and all(isinstance(v, str | int) for v in versions) else set()
    )
    only = str(distinct.pop()) if len(distinct) == 1 else ""
    return int(only) if only.isascii() and only.isdigit() and len(only) < 16 else None


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _at(values: Any, position: Any) -> Any:
    if isinstance(values, list) and isinstance(position, int) and 0 <= position < len(values):
        return values[position]
    return None
