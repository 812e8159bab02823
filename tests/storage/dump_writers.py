"""Dumps as each framework writes them, made from one plain series; written from the frameworks' sources, not from ours.

NVIDIA-NeMo/RL 7ea279a nemo_rl/algorithms/grpo.py + nemo_rl/utils/logger.py; PrimeIntellect-ai/prime-rl 559b447
src/prime_rl/trainer/rl/token_export.py; THUDM/slime 624b824 slime/observability/train_data_utils.py; radixark/miles
31f1ca9 miles/utils/train_dump_utils.py and miles/backends/training_utils/cp_utils.py. All values are synthetic.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Answer:
    """One response with its prompt's length; float32 values, so that every format holds them exactly."""

    prompt: int
    learner: np.ndarray[Any, Any]
    sampler: np.ndarray[Any, Any]
    advantage: np.ndarray[Any, Any]
    mask: np.ndarray[Any, Any]
    reward: float
    trained: bool = True

    def __len__(self) -> int:
        return len(self.mask)


Series = dict[int, list[Answer]]


def synthetic(seed: int, steps: tuple[int, ...] = (1, 2, 3), answers: int = 6, longest: int = 90) -> Series:
    rng = np.random.default_rng(seed)
    return {step: [_answer(rng, longest, number) for number in range(answers)] for step in steps}


def _answer(rng: np.random.Generator, longest: int, number: int) -> Answer:
    length = int(rng.integers(1, longest))
    sampler = -rng.gamma(1.0, 0.6, length)
    learner = np.minimum(sampler + rng.normal(-0.01, 0.15, length), -1e-4)
    mask = rng.random(length) < 0.9
    mask[[0, -1]] = True
    reward = float(rng.integers(0, 2))
    advantage = np.full(length, (reward - 0.5) * float(rng.uniform(0.5, 2.0)))
    single = [values.astype(np.float32) for values in (learner, sampler, advantage)]
    return Answer(int(rng.integers(1, 12)), *single, mask, reward, trained=number != 4)


def write_plain(path: Path, series: Series, *, rewards: bool = True) -> Path:
    """The contract's JSONL: one line a response."""
    with path.open("w") as file:
        for step, answers in series.items():
            for answer in answers:
                row: dict[str, Any] = {
                    "step": step,
                    "learner_logprobs": answer.learner.tolist(),
                    "sampler_logprobs": answer.sampler.tolist(),
                    "advantage": answer.advantage.tolist(),
                    "mask": (answer.mask & answer.trained).tolist(),
                }
                file.write(json.dumps(row | ({"reward": answer.reward} if rewards else {})) + "\n")
    return path


def nemo_lines(answers: list[Answer]) -> list[str]:
    """Right-padded to the batch's width, prompt included; a line is a slice of one row, so all fields are wrapped."""
    width = math.ceil(max(answer.prompt + len(answer) for answer in answers) / 8) * 8
    lines = []
    for number, answer in enumerate(answers):

        def laid(values: Any, answer: Answer = answer) -> list[float]:
            row = np.zeros(width, np.float32)
            row[answer.prompt : answer.prompt + len(answer)] = values
            return row.tolist()

        prompt_too = np.zeros(width, np.float32)
        prompt_too[1 : answer.prompt + len(answer)] = -3.0
        prompt_too[answer.prompt : answer.prompt + len(answer)] = answer.learner
        record = {
            "content": ["synthetic"],
            "rewards": [answer.reward],
            "input_lengths": [answer.prompt + len(answer)],
            "token_ids": [[7] * width],
            "token_loss_mask": [laid(answer.mask)],
            "sample_loss_mask": [float(answer.trained)],
            "advantages": [[float(answer.advantage[0])] * width],
            "generation_logprobs": [laid(answer.sampler * answer.mask)],
            "prev_logprobs": [prompt_too.tolist()],
            "idx": number,
        }
        lines.append(json.dumps(record))
    return lines


def write_nemo(directory: Path, series: Series) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for step, answers in series.items():
        (directory / f"train_data_step{step}.jsonl").write_text("\n".join(nemo_lines(answers)) + "\n")
        validation = {"content": ["synthetic"], "rewards": [1.0], "idx": 0}
        (directory / f"val_data_step{step}.jsonl").write_text(json.dumps(validation) + "\n")
    return directory


def write_prime_step(exports: Path, step: int, answers: list[Answer], *, ranks: int = 2, stable: bool = True) -> Path:
    directory = exports / f"step_{step}"
    directory.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        kept = [
            answer for answer in answers[rank::ranks] if answer.trained
        ]  # sequences without a trained token are not exported
        records = [_prime_record(step, rank, n, answer) for n, answer in enumerate(kept)]
        text = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
        (directory / f"rank_{rank}.jsonl").write_text(text)
    if stable:
        (directory / "STABLE").touch()
    return directory


def _prime_record(step: int, rank: int, number: int, answer: Answer) -> dict[str, Any]:
    before = [0.0] * answer.prompt
    length = answer.prompt + len(answer)
    gap = np.float32(answer.learner - answer.sampler).tolist()
    return {
        "schema_version": 1,
        "step": step,
        "rank": rank,
        "micro_step": 0,
        "micro_sequence_idx": number,
        "export_sequence_idx": number,
        "env_name": "synthetic",
        "token_ids": [7] * length,
        "position_ids": list(range(length)),
        "loss_mask": [False] * answer.prompt + (answer.mask & answer.trained).tolist(),
        "advantages": before + answer.advantage.tolist(),
        "inference_logprobs": before + answer.sampler.tolist(),
        "trainer_logprobs": [-6.9] * answer.prompt + answer.learner.tolist(),
        "log_importance_ratio": before + gap,
        "mismatch_kl": [None] * length,
        "rl_weights": [None] * length,
        "ce_weights": [None] * length,
        "ref_kl_weights": [None] * length,
    }


def write_prime(directory: Path, series: Series) -> Path:
    for step, answers in series.items():
        write_prime_step(directory / "token_exports", step, answers)
    return directory


def slime_payload(step: int, answers: list[Answer]) -> dict[str, Any]:
    samples = [
        {
            "data_parallel_rank": number % 2,
            "sample_index": 100 * step + number,
            "rollout_position": number,
            "tokens": torch.full((answer.prompt + len(answer),), 7, dtype=torch.int64),
            "response_lengths": len(answer),
            "total_lengths": answer.prompt + len(answer),
            "rewards": answer.reward - 0.5,
            "local_raw_reward": answer.reward,
            "truncated": 0,
            "loss_masks": torch.from_numpy((answer.mask & answer.trained).astype(np.int32)),
            "rollout_log_probs": torch.from_numpy(answer.sampler),
            "log_probs": torch.from_numpy(answer.learner),
            "advantages": torch.from_numpy(answer.advantage),
            "returns": torch.from_numpy(answer.advantage),
        }
        for number, answer in enumerate(answers)
    ]
    layout = [{"rank": 0, "data_parallel_rank": 0, "partition": list(range(len(answers))), "num_microbatches": [1]}]
    return {"format_version": 2, "rollout_id": step, "rank": 0, "samples": samples, "dp_shards": layout}


def write_slime(directory: Path, series: Series) -> Path:
    (directory / "train_data").mkdir(parents=True, exist_ok=True)
    (directory / "rollout_data").mkdir(exist_ok=True)
    for step, answers in series.items():
        payload = slime_payload(step, answers)
        torch.save(payload | {"raw_reward": [a.reward for a in answers]}, directory / "train_data" / f"{step}.pt")
        rollout = {"rollout_id": step, "samples": [{"tokens": [7], "rollout_log_probs": [-0.5]}]}
        torch.save(rollout, directory / "rollout_data" / f"{step}.pt")
    return directory


def zigzag(values: np.ndarray[Any, Any], answer: Answer, rank: int, size: int) -> torch.Tensor:
    """A response's values at one context-parallel rank: of 2 size chunks of the whole sequence the rank's first and
    its last; token t stands where its logit is, at t - 1."""
    total = answer.prompt + len(answer)
    chunk = (total + 2 * size - 1) // (2 * size)
    held = [
        logit
        for number in (rank, 2 * size - rank - 1)
        for logit in range(number * chunk, (number + 1) * chunk)
        if answer.prompt - 1 <= logit < total - 1
    ]
    return torch.tensor([float(values[logit + 1 - answer.prompt]) for logit in held])


def miles_payloads(step: int, answers: list[Answer], *, dp: int = 2, cp: int = 2, tp: int = 2) -> list[dict[str, Any]]:
    """One a rank: dp shards of interleaved samples x cp slices x tp copies, and a pipeline stage without log-probs."""
    payloads: list[dict[str, Any]] = []
    for shard in range(dp):
        numbers = list(range(shard, len(answers), dp))
        for cp_rank in range(cp):
            for _ in range(tp):
                payloads.append(_miles_rank(step, answers, numbers, cp_rank, cp, len(payloads)))
    first_stage = _miles_rank(step, answers, list(range(0, len(answers), dp)), 0, cp, len(payloads))
    del first_stage["rollout_data"]["log_probs"], first_stage["rollout_data"]["advantages"]
    return [*payloads, first_stage]


def _miles_rank(
    step: int, answers: list[Answer], numbers: list[int], cp_rank: int, cp: int, rank: int
) -> dict[str, Any]:
    mine = [answers[number] for number in numbers]

    def sliced(name: str) -> list[torch.Tensor]:
        if cp == 1:
            return [torch.from_numpy(getattr(answer, name)) for answer in mine]
        return [zigzag(getattr(answer, name), answer, cp_rank, cp) for answer in mine]

    columns = {
        "tokens": [torch.full((answer.prompt + len(answer),), 7) for answer in mine],
        "response_lengths": [len(answer) for answer in mine],
        "total_lengths": [answer.prompt + len(answer) for answer in mine],
        "rewards": [answer.reward - 0.5 for answer in mine],
        "raw_reward": [answer.reward for answer in answers],
        "sample_indices": [100 * step + number for number in numbers],
        "loss_masks": [torch.from_numpy((answer.mask & answer.trained).astype(np.int32)) for answer in mine],
        "rollout_log_probs": sliced("sampler"),
        "log_probs": sliced("learner"),
        "advantages": sliced("advantage"),
    }
    place = {"cp_rank": cp_rank, "cp_size": cp, "qkv_format": "thd"}
    return {"rollout_id": step, "rank": rank, "rollout_data": columns, **place}


def write_miles(directory: Path, series: Series, **parallel: int) -> Path:
    (directory / "train_data").mkdir(parents=True, exist_ok=True)
    for step, answers in series.items():
        for payload in miles_payloads(step, answers, **parallel):
            torch.save(payload, directory / "train_data" / f"{step}_{payload['rank']}.pt")
    return directory
