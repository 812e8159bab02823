"""Rewards of hand-written answers, and the right answers that warm-up teaches."""

import pytest
import torch

from triage_monitor.errors import ConfigError
from triage_monitor.testbed.tasks import AutomatonWalk, RunningSum, make_task

# Tokens of the small walk: states 0..3, moves 4 and 5, end of prompt 6. move 4: s -> s + 1, move 5: s -> s + 2 (mod 4).
TABLE = torch.tensor([[1, 2], [2, 3], [3, 0], [0, 1]])


def small_walk(pairs: int = 3) -> AutomatonWalk:
    task = AutomatonWalk(pairs=pairs, states=4, moves=2, forbidden=1)
    object.__setattr__(task, "table", TABLE)
    return task


def reward_of(response: list[int], prompt: list[int]) -> float:
    mask = torch.ones(1, len(response), dtype=torch.bool)
    return small_walk().rewards(torch.tensor([prompt]), torch.tensor([response]), mask).item()


def test_walk_without_violation_earns_one():
    assert reward_of([4, 1, 5, 3, 4, 0], [2, 0, 6]) == 1.0


def test_walk_earns_its_right_prefix():
    assert reward_of([4, 1, 5, 3, 4, 1], [2, 0, 6]) == pytest.approx(2 / 3)  # 3 + 1 is 0, not 1


def test_walk_into_a_forbidden_state_ends_the_reward():
    assert reward_of([5, 2, 4, 3, 4, 0], [2, 0, 6]) == 0.0


def test_walk_earns_nothing_behind_a_violation():
    assert reward_of([4, 1, 4, 2, 4, 3], [2, 0, 6]) == pytest.approx(1 / 3)


def test_walk_needs_a_move_then_a_state():
    assert reward_of([1, 4, 5, 3, 4, 0], [2, 0, 6]) == 0.0
    assert reward_of([4, 1, 5, 3, 4, 6], [2, 0, 6]) == pytest.approx(2 / 3)
    assert reward_of([6, 1, 5, 3, 4, 0], [2, 0, 6]) == 0.0


def sum_reward(response: list[int], length: int) -> float:
    mask = (torch.arange(len(response)) < length)[None]
    return RunningSum(digits=3).rewards(torch.tensor([[7, 5, 9, 10]]), torch.tensor([response]), mask).item()


def test_running_sum_needs_the_right_last_sum_and_length():
    assert sum_reward([7, 2, 1, 11], 4) == 1.0  # 7, 12, 21
    assert sum_reward([7, 2, 2, 11], 4) == 0.0
    assert sum_reward([7, 2, 1, 1], 4) == 0.0
    assert sum_reward([7, 11, 11, 11], 2) == 0.0


def test_running_sum_does_not_look_at_the_way_there():
    assert sum_reward([0, 0, 1, 11], 4) == 1.0


@pytest.mark.parametrize(("name", "tokens"), [("runsum", 9), ("awalk", 16), ("awalk", 256)])
def test_right_answers_earn_one_and_fit_the_vocabulary(name, tokens):
    task = make_task(name, tokens)
    generator = torch.Generator().manual_seed(3)
    prompts = task.prompts(32, generator)
    answers = task.answers(prompts, generator)
    assert prompts.shape == (32, task.prompt_tokens)
    assert answers.shape == (32, tokens)
    assert task.rewards(prompts, answers, torch.ones_like(answers, dtype=torch.bool)).tolist() == [1.0] * 32
    assert int(torch.cat([prompts, answers], 1).max()) < task.vocabulary


def test_walk_has_several_right_answers_and_the_same_automaton_every_time():
    task, again = make_task("awalk", 16), make_task("awalk", 16)
    prompts = task.prompts(1, torch.Generator().manual_seed(0)).expand(16, -1)
    answers = task.answers(prompts, torch.Generator().manual_seed(1))
    assert len({tuple(answer) for answer in answers.tolist()}) > 8
    assert torch.equal(task.table, again.table)


@pytest.mark.parametrize(
    ("name", "tokens", "word"), [("awalk", 15, "even"), ("runsum", 2, "runsum"), ("chess", 8, "chess")]
)
def test_impossible_task_is_refused_by_name(name, tokens, word):
    with pytest.raises(ConfigError, match=word):
        make_task(name, tokens)
