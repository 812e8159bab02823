"""Copies of the trainer's arrays: equal to what was given, whatever its form, and out of the trainer's reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from triage_monitor.errors import InputError
from triage_monitor.trainer.arrays import hold, unpad

VALUES = np.array([0.5, -1.25, 3.0, -0.0, 7.5, 2.0], np.float32)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "bool"])
def test_array_copied_is_equal_and_of_the_same_type(dtype: str) -> None:
    array = VALUES.astype(dtype)
    copy = hold(array).restore()
    assert copy.dtype == array.dtype
    assert np.array_equal(copy, array)


def test_array_written_to_after_the_copy_leaves_the_copy_alone() -> None:
    array = VALUES.copy()
    held = hold(array)
    array[:] = -9.0
    assert np.array_equal(held.restore(), VALUES)


def test_strided_and_empty_arrays_are_copied_in_order() -> None:
    assert hold(VALUES[::-2]).restore().tolist() == [2.0, -0.0, -1.25]
    assert hold(VALUES[:0]).restore().shape == (0,)


def test_tensor_of_a_graph_is_copied_without_it() -> None:
    tensor = torch.tensor(VALUES, requires_grad=True)
    held = hold(tensor * 1.0)
    assert np.array_equal(held.restore(), VALUES)


def test_bfloat16_tensor_is_widened_without_loss() -> None:
    tensor = torch.tensor(VALUES).bfloat16()
    copy = hold(tensor).restore()
    assert copy.dtype == np.float32
    assert copy.tolist() == [float(x) for x in tensor]


@pytest.mark.parametrize("form", [np.asarray, torch.tensor, list, lambda rows: np.asarray(rows, np.float64)[::1]])
def test_list_of_responses_comes_back_response_by_response(form: Any) -> None:
    rows = [[0.5, -1.25], [3.0], [-2.0, 7.5, 2.0]]
    copy = hold([form(row) for row in rows]).restore()
    assert [[float(x) for x in row] for row in copy] == rows


def test_list_of_responses_written_to_after_the_copy_leaves_the_copy_alone() -> None:
    for rows in ([VALUES[:2].copy(), VALUES[2:].copy()], [torch.tensor(VALUES[:2]), torch.tensor(VALUES[2:])]):
        held = hold(rows)
        for row in rows:
            row[:] = -9.0
        assert np.concatenate(held.restore()).tolist() == VALUES.tolist()


def test_list_of_strided_views_and_of_mixed_tensors_keeps_each_value() -> None:
    assert [row.tolist() for row in hold([VALUES[::2], VALUES[::-3]]).restore()] == [[0.5, 3.0, 7.5], [2.0, 3.0]]
    mixed = [torch.tensor([1.5]), torch.tensor([2.0], dtype=torch.float64), np.array([3.5]), [4.0]]
    assert [float(x) for row in hold(mixed).restore() for x in row] == [1.5, 2.0, 3.5, 4.0]


def test_list_with_an_empty_first_and_last_response_keeps_both() -> None:
    rows = [VALUES[:0], VALUES[:4], VALUES[4:], VALUES[:0]]
    assert [len(row) for row in hold(rows).restore()] == [0, 4, 2, 0]


def test_list_of_mixed_types_keeps_each_value() -> None:
    rows = [VALUES[:2], VALUES[2:4].astype(np.float64), [7.5, 2.0]]
    assert [float(x) for row in hold(rows).restore() for x in row] == VALUES.tolist()


def test_numbers_texts_and_scalar_arrays_are_kept() -> None:
    assert hold([1.5, 2, None, "a"]).restore() == [1.5, 2, None, "a"]
    assert [float(x) for x in hold([np.float32(1.5), np.float32(2.5)]).restore()] == [1.5, 2.5]
    assert [float(x) for x in hold([torch.tensor(1.5), torch.tensor(2.5)]).restore()] == [1.5, 2.5]
    assert hold(7).restore() == 7


@pytest.mark.parametrize("nonsense", [object(), np.array([object()]), [np.array([None]), np.array([None])], {"a": 1}])
def test_what_is_no_array_of_numbers_is_refused(nonsense: Any) -> None:
    with pytest.raises(TypeError):
        hold(nonsense)


def test_memory_counted_is_at_least_the_bytes_held() -> None:
    assert hold(VALUES).nbytes == VALUES.nbytes
    assert hold([VALUES, VALUES]).nbytes == 2 * VALUES.nbytes
    assert hold([1.0] * 100).nbytes >= 100 * 8


def test_padding_on_either_side_is_cut_and_inner_holes_stay() -> None:
    gap = np.arange(12, dtype=np.float32).reshape(3, 4)
    mask = np.array([[0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0]])
    flat = unpad({"gap": gap, "mask": mask, "advantages": np.array([1.0, 2.0, 3.0])})
    assert flat["gap"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert flat["mask"].tolist() == [1, 0, 1, 1, 1]
    assert flat["offsets"].tolist() == [0, 3, 5, 5]
    assert flat["advantages"].tolist() == [1.0, 2.0, 3.0]


def test_advantages_per_token_are_cut_like_the_gap() -> None:
    mask = np.array([[1, 1, 0], [0, 1, 1]], bool)
    flat = unpad({"gap": np.zeros((2, 3)), "mask": mask, "advantages": np.arange(6.0).reshape(2, 3)})
    assert flat["advantages"].tolist() == [0.0, 1.0, 4.0, 5.0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mask": None}, "padded_without_mask"),
        ({"offsets": np.array([0, 6])}, "padded_with_offsets"),
        ({"mask": np.ones((3, 2))}, "shape"),
    ],
)
def test_padded_arrays_that_do_not_fit_are_refused(changes: dict[str, Any], reason: str) -> None:
    arrays: dict[str, Any] = {"gap": np.zeros((2, 3)), "mask": np.ones((2, 3)), **changes}
    with pytest.raises(InputError) as raised:
        unpad({name: value for name, value in arrays.items() if value is not None})
    assert raised.value.reason == reason
