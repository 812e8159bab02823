"""Two tasks whose answers a few tensor operations can verify.

`runsum`  n digits in, their running sums modulo 10 out, then an end token; reward 1 when length and last sum are right,
          else 0. Little entropy (there is one right answer), chance reward 0.1, responses end when they choose to.
`awalk`   a walk on a fixed random automaton: the prompt forbids some states and names the start; the response is
          pairs (MOVE, resulting STATE). Several moves are good at every fork (entropy about 0.7 nats a token), the
          state after a move is determined; reward = pairs before the first violation / pairs. All have full length.

A response longer than its reward needs does not occur: both tasks fix the number of response positions.
Tokens are int64; prompts of one task all have the same length, so nothing is padded on the left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from triage_monitor.errors import ConfigError


class Task(Protocol):
    """What the training needs to know of a task. Shapes: N prompts, P prompt tokens, R response positions."""

    @property
    def name(self) -> str: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def response_tokens(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def end_token(self) -> int | None: ...

    def prompts(self, count: int, generator: torch.Generator) -> Tensor:
        """[N, P] fresh prompts."""

    def answers(self, prompts: Tensor, generator: torch.Generator) -> Tensor:
        """[N, R] right answers, drawn uniformly over the choices that are open at each fork."""

    def rewards(self, prompts: Tensor, responses: Tensor, mask: Tensor) -> Tensor:
        """[N] float32 in [0, 1]; `mask` [N, R] is true for generated tokens, the end token included."""


@dataclass(frozen=True, slots=True)
class RunningSum:
    digits: int = 64
    base: int = 10

    name = "runsum"

    @property
    def prompt_tokens(self) -> int:
        return self.digits + 1

    @property
    def response_tokens(self) -> int:
        return self.digits + 1

    @property
    def vocabulary(self) -> int:
        return self.base + 2

    @property
    def end_token(self) -> int | None:
        return self.base + 1

    def prompts(self, count: int, generator: torch.Generator) -> Tensor:
        digits = torch.randint(0, self.base, (count, self.digits), generator=generator)
        return _with_last_column(digits, self.base)

    def answers(self, prompts: Tensor, generator: torch.Generator) -> Tensor:
        sums = prompts[:, : self.digits].cumsum(1) % self.base
        return _with_last_column(sums, self.base + 1)

    def rewards(self, prompts: Tensor, responses: Tensor, mask: Tensor) -> Tensor:
        last_sum = prompts[:, : self.digits].sum(1) % self.base
        right_length = mask.all(1) & (responses[:, -1] == self.base + 1)
        return (right_length & (responses[:, -2] == last_sum)).float()


@dataclass(frozen=True, slots=True)
class AutomatonWalk:
    pairs: int = 64
    states: int = 12
    moves: int = 6
    forbidden: int = 3
    table: Tensor = field(init=False, repr=False, compare=False)

    name = "awalk"
    end_token: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not self.forbidden < self.moves <= self.states:
            raise ConfigError("awalk needs forbidden < moves <= states: else a fork can have no way out")
        # One automaton for everybody: its seed is part of the task, not of a run.
        generator = torch.Generator().manual_seed(20)
        rows = [torch.randperm(self.states, generator=generator)[: self.moves] for _ in range(self.states)]
        object.__setattr__(self, "table", torch.stack(rows))

    @property
    def prompt_tokens(self) -> int:
        return self.forbidden + 2

    @property
    def response_tokens(self) -> int:
        return 2 * self.pairs

    @property
    def vocabulary(self) -> int:
        return self.states + self.moves + 1

    def prompts(self, count: int, generator: torch.Generator) -> Tensor:
        order = torch.rand(count, self.states, generator=generator).argsort(1)
        forbidden, start = order[:, : self.forbidden].sort(1).values, order[:, self.forbidden : self.forbidden + 1]
        return _with_last_column(torch.cat([forbidden, start], 1), self.states + self.moves)

    def answers(self, prompts: Tensor, generator: torch.Generator) -> Tensor:
        bad = self._forbidden_states(prompts)
        state = prompts[:, self.forbidden]
        tokens = []
        for _ in range(self.pairs):
            targets = self.table[state]
            open_moves = ~bad.gather(1, targets)
            move = torch.multinomial(open_moves.float(), 1, generator=generator)
            state = targets.gather(1, move).squeeze(1)
            tokens += [self.states + move.squeeze(1), state]
        return torch.stack(tokens, 1)

    def rewards(self, prompts: Tensor, responses: Tensor, mask: Tensor) -> Tensor:
        return self.right_pairs(prompts, responses).float().cumprod(1).mean(1)

    def right_pairs(self, prompts: Tensor, responses: Tensor) -> Tensor:
        """[N, pairs] bool: a move token, then the state it leads to from the state named before, and none forbidden."""
        move, state = responses[:, 0::2] - self.states, responses[:, 1::2]
        before = torch.cat([prompts[:, self.forbidden : self.forbidden + 1], state[:, :-1]], 1)
        typed = (move >= 0) & (move < self.moves) & (state < self.states) & (before < self.states)
        move = move.clamp(0, self.moves - 1)
        state, before = state.clamp(max=self.states - 1), before.clamp(max=self.states - 1)
        allowed = ~self._forbidden_states(prompts).gather(1, state)
        return typed & (self.table[before, move] == state) & allowed

    def _forbidden_states(self, prompts: Tensor) -> Tensor:
        none = torch.zeros(len(prompts), self.states, dtype=torch.bool)
        return none.scatter(1, prompts[:, : self.forbidden], True)


def make_task(name: str, response_tokens: int) -> Task:
    """A task by name and response length; ConfigError names what is wrong."""
    if name == "runsum":
        if response_tokens < 3:
            raise ConfigError(f"runsum needs response_tokens >= 3, got {response_tokens}")
        return RunningSum(digits=response_tokens - 1)
    if name == "awalk":
        if response_tokens < 2 or response_tokens % 2:
            raise ConfigError(f"awalk needs an even response_tokens >= 2, got {response_tokens}")
        return AutomatonWalk(pairs=response_tokens // 2)
    raise ConfigError(f"no task '{name}': choose runsum or awalk")


def _with_last_column(left: Tensor, token: int) -> Tensor:
    return torch.cat([left, torch.full((len(left), 1), token)], 1)
