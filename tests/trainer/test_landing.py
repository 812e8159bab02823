"""Tensors on their way to the host. There is no other device here, so what is checked is what is copied, not when."""

from __future__ import annotations

import numpy as np
import torch

from triage_monitor.trainer.arrays import HeldSums
from triage_monitor.trainer.landing import HeldTensor, Landing, hold_all, hold_calls, is_away


def test_what_lands_is_what_was_there_when_it_was_sent() -> None:
    values = torch.arange(6, dtype=torch.float64).reshape(2, 3).t()
    landing = Landing({"values": values})
    values.fill_(-1.0)
    assert landing.nbytes == 48
    np.testing.assert_array_equal(landing.arrays()["values"], [[0, 3], [1, 4], [2, 5]])


def test_bfloat16_lands_as_float32_exactly() -> None:
    landed = Landing({"gap": torch.tensor([0.1, -3.0], dtype=torch.bfloat16)}).arrays()["gap"]
    assert landed.dtype == np.float32
    np.testing.assert_array_equal(landed, np.float32([0.10009765625, -3.0]))


def test_list_of_responses_is_cut_again_behind_the_copy() -> None:
    held = HeldTensor(Landing({"gap": torch.arange(5)}), "gap", 40, (2, 0, 3))
    assert [part.tolist() for part in held.restore()] == [[0, 1], [], [2, 3, 4]]


def test_arrays_of_this_memory_are_copied_as_ever() -> None:
    assert not is_away(torch.ones(2)) and not is_away([1.0]) and is_away(torch.ones(2, device="meta"))
    held = hold_all({"gap": torch.ones(3), "advantages": [1.0, 2.0]})
    assert held["gap"].restore().tolist() == [1.0, 1.0, 1.0] and held["advantages"].restore() == [1.0, 2.0]


def test_objectives_sums_land_in_one_copy_a_call_and_add_up() -> None:
    calls = [
        {"tokens": torch.tensor(3), "mass_total": torch.tensor(0.5)},
        {"tokens": torch.tensor(4), "mass_total": 1.25},
    ]
    held = hold_calls(calls)
    for call in calls:
        call["tokens"].fill_(-1)
    assert HeldSums(held).restore() == {"tokens": 7.0, "mass_total": 1.75}
