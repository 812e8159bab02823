"""What the objective and the tap cost a learner update, measured as the paper does: paired repetitions of one frozen
batch, each contender once a repetition, in an order that turns; the median of the paired differences counts.

    plain       log-probs, token loss, sequence mean, backward, clipping, AdamW: the trainer without us
    objective   the same with `TriageLoss`, gate and repair on
    together    that, then `Monitor.submit` of its arrays to a sidecar by the first of the taps

A contender's own part is also timed alone (`alone`): the difference of two long times is good to their noise only. On
the CPU seconds are those of the training thread (one thread, so a neighbour slows them least); on a device, of the
clock between two waits for it. What the client's threads do meanwhile is `behind`, CPU seconds of this process beside
the training thread: on one core they are paid too, on a machine with a core to spare they are not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from triage_monitor.parameters import TriageParams
from triage_monitor.testbed.grpo import clipped_surrogate
from triage_monitor.testbed.learner import response_logprobs
from triage_monitor.testbed.model import Shape, Weights, initial_weights
from triage_monitor.testbed.precision import FLOAT32, NVFP4_LEARNER, Precision
from triage_monitor.trainer.baselines import objective
from triage_monitor.trainer.loss import TriageLoss

Submit = Callable[[int, Mapping[str, Tensor]], object]


@dataclass(frozen=True, slots=True)
class Workload:
    """A learner update: model, precision of its linears, B prompts [B, P] with responses [B, R], all frozen."""

    name: str
    shape: Shape
    precision: Precision
    responses: int
    prompt_tokens: int
    response_tokens: int
    segment: int

    @property
    def tokens(self) -> int:
        return self.responses * self.response_tokens


WORKLOADS = {
    "testbed": Workload("testbed", Shape(12, 144), NVFP4_LEARNER, 64, 16, 128, segment=32),
    "transformer": Workload(
        "transformer",
        Shape(1024, 1040, width=256, layers=4, heads=8, hidden=1024),
        FLOAT32,
        responses=8,
        prompt_tokens=16,
        response_tokens=1024,
        segment=64,
    ),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one contender, in seconds an update: `alone` its own part timed by itself, `paired` the quartiles of the
    paired differences to the plain update (None where that was not measured), `behind` the client's threads."""

    name: str
    alone: float
    paired: tuple[float, float, float] | None
    behind: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    workload: str
    device: str
    tokens: int
    repetitions: int
    plain: float
    costs: tuple[Cost, ...] = field(default_factory=tuple)


class Frozen:
    """One batch and one set of weights; every update starts from the same bits."""

    def __init__(self, workload: Workload, device: str) -> None:
        generator = torch.Generator().manual_seed(0)
        shape, count = workload.shape, workload.responses
        self.workload, self.device = workload, torch.device(device)
        start = initial_weights(shape, 0)
        self._start = {name: weight.to(self.device) for name, weight in start.items()}
        self._weights: Weights = {name: weight.clone().requires_grad_() for name, weight in self._start.items()}

        def tokens(length: int) -> Tensor:
            return torch.randint(shape.vocabulary, (count, length), generator=generator).to(self.device)

        self.prompts, self.rollout = tokens(workload.prompt_tokens), tokens(workload.response_tokens)
        with torch.no_grad():
            self.old = self._logprobs()
        noise = torch.randn(self.old.shape, generator=generator).to(self.device)
        self.sampler = self.old + 0.05 * noise
        self.advantages = torch.randn(count, generator=generator).to(self.device)
        self.mask = torch.ones(self.old.shape, dtype=torch.bool, device=self.device)
        self.loss: TriageLoss = objective("triage", params=TriageParams(), **{"gate.segment": workload.segment})
        self.optimizer = torch.optim.AdamW(self._weights.values(), lr=1e-6, weight_decay=0.0)

    def arrays(self) -> dict[str, Tensor]:
        return {
            "learner_logprobs": self.old,
            "sampler_logprobs": self.sampler,
            "advantages": self.advantages,
            "mask": self.mask,
        }

    def update(self, *, guarded: bool) -> None:
        """One optimiser step of the whole batch."""
        with torch.no_grad():
            for name, weight in self._weights.items():
                weight.copy_(self._start[name])
        self.optimizer.zero_grad()
        self.loss_of(self._logprobs(), guarded=guarded).backward()  # type: ignore[no-untyped-call]  # torch's own
        torch.nn.utils.clip_grad_norm_(self._weights.values(), 1.0)
        self.optimizer.step()

    def loss_of(self, logprobs: Tensor, *, guarded: bool) -> Tensor:
        token_loss = clipped_surrogate(logprobs, self.old, self.advantages)
        if guarded:
            return self.loss(token_loss, logprobs, self.sampler, self.advantages, self.mask, step=1)[0]
        kept = self.mask.to(token_loss.dtype)
        return ((token_loss * kept).sum(1) / kept.sum(1).clamp(min=1)).mean()

    def loss_alone(self, *, guarded: bool) -> None:
        """Loss and its backward pass down to the log-probs: all that the objective changes."""
        leaf = self.old.clone().requires_grad_()
        self.loss_of(leaf, guarded=guarded).backward()  # type: ignore[no-untyped-call]  # torch's own

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            return time.perf_counter()
        return time.thread_time()

    def _logprobs(self) -> Tensor:
        workload = self.workload
        return response_logprobs(self._weights, workload.shape, workload.precision, self.prompts, self.rollout)[0]


def measure(
    frozen: Frozen,
    taps: Mapping[str, tuple[Submit, Callable[[], object]]],
    repetitions: int,
    progress: Callable[[str], object],
) -> Measured:
    """`taps`: a contender's name -> (submit an update, wait until all submitted ones have been sent)."""
    torch.set_num_threads(1)
    contenders: dict[str, Callable[[int], object]] = {
        "plain": lambda step: frozen.update(guarded=False),
        "objective": lambda step: frozen.update(guarded=True),
    }
    first, (submit, flush) = next(iter(taps.items()))
    contenders[f"objective and {first}"] = _tapped(frozen, submit)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for repetition in range(repetitions + 1):  # the first warms up
        turn = repetition % len(names)
        for name in names[turn:] + names[:turn]:
            progress(f"{frozen.workload.name}: repetition {repetition}/{repetitions} {name}")
            started = frozen.now()
            contenders[name](repetition)
            if repetition:
                times[name].append(frozen.now() - started)
            flush()
    alone, behind = _alone(frozen, taps, 3 * repetitions)
    plain = times.pop("plain")
    alone[f"objective and {first}"] = alone["objective"] + alone[first]
    costs = tuple(_cost(name, times.get(name), plain, alone[name], behind.get(name)) for name in alone)
    return Measured(
        frozen.workload.name, str(frozen.device), frozen.workload.tokens, repetitions, statistics.median(plain), costs
    )


def _tapped(frozen: Frozen, submit: Submit) -> Callable[[int], object]:
    def run(step: int) -> None:
        frozen.update(guarded=True)
        submit(step, frozen.arrays())

    return run


def _alone(
    frozen: Frozen, taps: Mapping[str, tuple[Submit, Callable[[], object]]], repetitions: int
) -> tuple[dict[str, float], dict[str, float]]:
    pairs = []
    for _ in range(repetitions + 1):
        seconds = []
        for guarded in (False, True):
            started = frozen.now()
            frozen.loss_alone(guarded=guarded)
            seconds.append(frozen.now() - started)
        pairs.append(seconds[1] - seconds[0])
    alone, behind = {"objective": statistics.median(pairs[1:])}, {}
    for name, (submit, flush) in taps.items():
        own, other = [], []
        for step in range(repetitions + 1):
            started, everything, mine = frozen.now(), time.process_time(), time.thread_time()
            submit(1000 + step, frozen.arrays())
            own.append(frozen.now() - started)
            flush()
            other.append(time.process_time() - everything - (time.thread_time() - mine))
        alone[name], behind[name] = statistics.median(own[1:]), statistics.median(other[1:])
    return alone, behind


def _cost(name: str, own: list[float] | None, plain: list[float], alone: float, behind: float | None) -> Cost:
    paired = None
    if own is not None:
        low, middle, high = statistics.quantiles([a - b for a, b in zip(own, plain, strict=True)], n=4)
        paired = (low, middle, high)
    return Cost(name, alone, paired, behind)


def as_document(measured: list[Measured]) -> dict[str, Any]:
    """For `--json`: seconds, and shares of the plain update."""
    return {
        "synthetic": True,
        "workloads": [
            {
                "workload": one.workload,
                "device": one.device,
                "tokens": one.tokens,
                "repetitions": one.repetitions,
                "plain_seconds": one.plain,
                "costs": [
                    {
                        "name": cost.name,
                        "share": cost.alone / one.plain,
                        "paired_share_quartiles": None
                        if cost.paired is None
                        else [value / one.plain for value in cost.paired],
                        "seconds": cost.alone,
                        "behind_share": None if cost.behind is None else cost.behind / one.plain,
                    }
                    for cost in one.costs
                ],
            }
            for one in measured
        ],
    }
