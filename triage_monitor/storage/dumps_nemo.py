"""NeMo RL's `train_data_step{N}.jsonl`: one line a training sample, the step in the file's name only.

Layout as of NVIDIA-NeMo/RL 7ea279a (nemo_rl/algorithms/grpo.py, grpo_sync.py, ppo.py; the writer is
nemo_rl/utils/logger.py::log_batched_dict_as_jsonl): every field is a list of one item, since lines are slices of one
row. `token_loss_mask, advantages, generation_logprobs, prev_logprobs` are right-padded to the batch's width, prompt
included, with value t about token t and a dummy at position 0; `sample_loss_mask` takes a whole sample out of the loss.

    learner = prev_logprobs (the policy before the update), sampler = generation_logprobs, mask = token x sample mask

Traps handled: a trained position 0 has no learner value and is missing; a learner log-prob of exactly 0 where the
sampler's is below -1 is what mask_out_neg_inf_logprobs writes for -inf (a token outside the learner's own nucleus) and
is missing; prev_logprobs that are 0 throughout are the placeholder of force_on_policy_ratio, and refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from triage_monitor.errors import InputError
from triage_monitor.storage.dumps_rows import (
    DumpRow,
    finite_or_none,
    flags,
    numbers,
    response_span,
    same_length,
    step_of,
)
from triage_monitor.storage.json_lines import JsonLine, json_lines
from triage_monitor.summary.rows_values import Array

NAME = re.compile(r"train_data_step([0-9]{1,15})\.jsonl")
SETTINGS = {"learner": "old"}
REPLACED_BELOW = -1.0  # nats; a learner that is certain of a token agrees with the sampler to far less
_TOKENS = ("token_loss_mask", "advantages", "generation_logprobs", "prev_logprobs")


def nemo_step(path: Path) -> int:
    match = NAME.fullmatch(path.name)
    if match is None:
        detail = "is a NeMo RL dump under another name; its step is known only from 'train_data_step{N}.jsonl'"
        raise InputError("step", detail, path=str(path))
    return step_of(int(match[1]), "step")


def nemo_rows(path: Path) -> Iterator[DumpRow]:
    """Raises InputError naming file, line and field."""
    step = nemo_step(path)
    learner_seen = sampler_seen = trained = False
    for line in json_lines(path):
        try:
            row = _row(step, line)
        except InputError as error:
            raise line.placed(error) from None
        here = row.mask
        trained = trained or bool(here.any())
        learner_seen = learner_seen or bool((row.learner[here] != 0).any())
        sampler_seen = sampler_seen or bool((row.sampler[here] != 0).any())
        yield row
    for name, seen in (("prev_logprobs", learner_seen), ("generation_logprobs", sampler_seen)):
        if trained and not seen:
            raise InputError("not_observable", _PLACEHOLDERS[name], column=name, path=str(path))


_PLACEHOLDERS = {
    "prev_logprobs": (
        "is 0 at every trained token: the placeholder that force_on_policy_ratio leaves. The gap cannot be observed "
        "from this dump; let the learner compute prev_logprobs"
    ),
    "generation_logprobs": (
        "is 0 at every trained token: the engine returned no log-probs. The gap cannot be observed from this dump"
    ),
}


def _row(step: int, line: JsonLine) -> DumpRow:
    record = line.value
    for name in _TOKENS:
        if record.get(name) is None:
            what = " (the gap is not observable without it)" if name.endswith("logprobs") else ""
            raise InputError("missing_column", f"is not there{what}", column=name)
    token_mask = flags(_unwrapped(record["token_loss_mask"]), "token_loss_mask")
    width = len(token_mask)
    columns: dict[str, Array] = {}
    for name in _TOKENS[1:]:
        columns[name] = numbers(_unwrapped(record[name]), name)
        if name == "advantages" and len(columns[name]) == 1:  # one for the response, as older versions had it
            columns[name] = np.full(width, columns[name][0])
        same_length(name, columns[name], "token_loss_mask", width)
    span = response_span(token_mask)
    learner, sampler = columns["prev_logprobs"][span], columns["generation_logprobs"][span]
    mask = token_mask[span] & _is_trained(record)
    missing = mask & (learner == 0) & (sampler < REPLACED_BELOW)
    if span.start == 0 and len(missing):
        missing[0] = mask[0]
    return DumpRow(
        step=step,
        response_id=str(record.get("idx", line.number - 1)),
        learner=learner,
        sampler=sampler,
        advantage=columns["advantages"][span],
        mask=mask,
        missing=missing,
        reward=_reward(record),
    )


def _is_trained(record: dict[str, Any]) -> bool:
    value = _only(record.get("sample_loss_mask", 1))
    if not isinstance(value, int | float) or value not in (0, 1):
        raise InputError("mask_value", f"is {value!r:.40}; only 0 and 1 are a mask", column="sample_loss_mask")
    return bool(value)


def _reward(record: dict[str, Any]) -> float | None:
    """With dynamic sampling `rewards` belongs to the unfiltered batch and `filtered_rewards` to these rows."""
    name = "filtered_rewards" if "filtered_rewards" in record else "rewards"
    value = _only(record.get(name))
    if value is None:
        return None
    if not isinstance(value, int | float):
        raise InputError("wrong_type", f"is {value!r:.40}, not a number", column=name)
    return finite_or_none(value)


def _only(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else None if value == [] else value


def _unwrapped(value: Any) -> Any:
    """A row's list, with or without the batch dimension of one around it."""
    return value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list) else value


def is_nemo(record: dict[str, Any]) -> bool:
    return "token_loss_mask" in record and ("generation_logprobs" in record or "prev_logprobs" in record)
