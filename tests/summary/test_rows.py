"""UpdateRows from arrays, and back through the wire."""

from __future__ import annotations

import math

import numpy as np
import pytest

from triage_monitor.errors import InputError
from triage_monitor.summary.rows import decode_stream, encode_arrays, encode_stream, rows_from_arrays


def sent(**arrays):
    return decode_stream(encode_arrays(**arrays), max_tokens=1000)


def test_flat_arrays_and_lists_give_the_same_rows() -> None:
    flat = sent(gap=np.array([0.5, -0.25, 2.0], np.float32), offsets=[0, 2, 2, 3], advantages=[1.0, 2.0, -1.0])
    lists = sent(gap=[[0.5, -0.25], [], [2.0]], advantages=[1.0, 2.0, -1.0])
    for rows in (flat, lists):
        assert rows.gap.tolist() == [0.5, -0.25, 2.0]
        assert rows.offsets.tolist() == [0, 2, 2, 3]
        assert rows.advantages.tolist() == [1.0, 2.0, -1.0]
        assert (rows.responses, rows.tokens) == (3, 3)
        assert rows.mask is None and rows.missing is None and rows.groups is None


def test_every_column_survives_the_wire() -> None:
    rows = sent(
        learner_logprobs=[np.array([-1.0, -0.5]), np.array([-2.0])],
        sampler_logprobs=[np.array([-1.25, -0.5]), np.array([-1.0])],
        advantages=[[1.0, -3.0], [0.5]],
        mask=[[1, 0], [1]],
        missing=[[False, False], [True]],
        groups=[7, -9],
        policy_versions=[[3, 4], [5]],
        rewards=[1.0, math.nan],
        response_ids=["r-1", "r-2"],
        engines=["vllm", "sglang"],
        settings={"temperature": 0.7, "learner": "old"},
    )
    assert rows.learner_logprobs.tolist() == [-1.0, -0.5, -2.0]
    assert rows.sampler_logprobs[:2].tolist() == [-1.25, -0.5]
    assert rows.advantages.tolist() == [1.0, -3.0, 0.5] and rows.advantages_per_token
    assert rows.mask.tolist() == [True, False, True]
    assert rows.missing.tolist() == [False, False, True]
    assert rows.groups.tolist() == [7, -9]
    assert rows.policy_versions.tolist() == [3, 4, 5] and rows.versions_per_token
    assert rows.rewards[0] == 1.0 and math.isnan(rows.rewards[1])
    assert rows.response_ids.tolist() == ["r-1", "r-2"]
    assert rows.engines.tolist() == ["vllm", "sglang"]
    assert rows.settings == {"temperature": "0.7", "learner": "old"}


def test_both_log_probs_keep_float64() -> None:
    # A gap of 1e-9 near -5 is lost in float32, whose spacing there is 4.8e-7.
    rows = sent(learner_logprobs=[np.array([-5.0 + 1e-9])], sampler_logprobs=[np.array([-5.0])], advantages=[1.0])
    assert rows.learner_logprobs.dtype == np.float64
    assert rows.learner_logprobs[0] - rows.sampler_logprobs[0] == pytest.approx(1e-9, rel=1e-6)


@pytest.mark.parametrize(
    ("given", "held"), [(np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64)]
)
def test_gap_types_are_kept_or_widened(given: type, held: type) -> None:
    assert rows_from_arrays(gap=[np.array([0.5], given)], advantages=[1.0]).gap.dtype == held


def test_non_finite_values_pass_through() -> None:
    rows = sent(gap=[[math.nan, math.inf, -math.inf, 1.0]], advantages=[math.nan])
    assert [str(value) for value in rows.gap] == ["nan", "inf", "-inf", "1.0"]
    assert math.isnan(rows.advantages[0])


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("gap_dtype", ["float32", "float16"])
def test_compressed_and_halved_bodies_hold_the_same_values(compression: str | None, gap_dtype: str) -> None:
    gap = np.tile(np.array([0.5, -0.25, 8.0, 0.0], np.float32), 50)  # exact in float16
    body = encode_arrays(
        gap=gap, offsets=[0, 100, 200], advantages=[1.0, -1.0], gap_dtype=gap_dtype, compression=compression
    )
    rows = decode_stream(body, max_tokens=200)
    assert rows.gap.dtype == np.float32
    assert rows.gap.tolist() == gap.tolist()


def test_float16_keeps_the_side_of_tiny_gaps() -> None:
    # Below 3e-8 float16 rounds to zero, and a token whose gap is 0 is in no region.
    rows = decode_stream(encode_arrays(gap=[[1e-9, -1e-9, 0.0]], advantages=[1.0], gap_dtype="float16"), max_tokens=3)
    assert np.sign(rows.gap).tolist() == [1.0, -1.0, 0.0]
    assert np.abs(rows.gap).max() < 1e-7


def test_float16_refuses_a_finite_gap_that_would_become_infinite() -> None:
    with pytest.raises(InputError, match="float16 cannot hold") as caught:
        encode_arrays(gap=[[-70000.0, math.inf]], advantages=[1.0], gap_dtype="float16")
    assert caught.value.column == "gap"
    encode_arrays(gap=[[math.inf]], advantages=[1.0], gap_dtype="float16")


def test_group_names_have_the_same_code_in_every_body() -> None:
    first = sent(gap=[[1.0], [1.0]], advantages=[1, 1], groups=["p-1", "p-2"]).groups
    second = sent(gap=[[1.0], [1.0], [1.0]], advantages=[1, 1, 1], groups=["p-2", "p-3", "p-1"]).groups
    assert first.tolist() == [second[2], second[0]]
    assert len(set(second.tolist())) == 3


def test_no_responses_and_no_tokens_are_updates_too() -> None:
    assert sent(gap=[], advantages=[]).responses == 0
    empty = sent(gap=[[], []], advantages=[1.0, -1.0])
    assert (empty.responses, empty.tokens) == (2, 0)
    assert empty.summarize().count("empty_responses") == 2


def test_as_many_tokens_as_responses_is_not_taken_for_one_each() -> None:
    """Two responses, two tokens, both in the first: [1, -3] per token is not [1, -3] per response."""
    per_token = sent(gap=[[1.0, 2.0], []], advantages=[[1.0, -3.0], []])
    per_response = sent(gap=[[1.0, 2.0], []], advantages=[1.0, -3.0])
    assert per_token.summarize().total("mass_total") == 4.0
    assert per_response.summarize().total("mass_total") == 2.0


@pytest.mark.parametrize(
    ("arrays", "column", "row", "words"),
    [
        ({"mask": [[1, 1, 1, 1]]}, "mask", 0, ("4", "5")),
        ({"mask": [1, 1, 1, 1]}, "mask", None, ("4", "5")),
        ({"mask": [[1, 1, 1, 1, 2]]}, "mask", 0, ("2",)),
        ({"advantages": [1.0, 2.0]}, "advantages", None, ("2", "5")),
        ({"rewards": [1.0, 2.0]}, "rewards", None, ("2", "1")),
        ({"groups": [1, 2]}, "groups", None, ("2", "1")),
        ({"groups": [1.5]}, "groups", None, ("int64",)),
        ({"policy_versions": [1.5]}, "policy_versions", None, ("integers",)),
        ({"gap": [["a", "b", "c", "d", "e"]]}, "gap", None, ("float",)),
        ({"gap": np.zeros(5, np.float32)}, "gap", None, ("offsets",)),
        ({"offsets": [0, 4, 9]}, "offsets", None, ("5",)),
        ({"offsets": [0, 5, 3, 5]}, "offsets", 1, ("5",)),
        ({"offsets": [-1, 4, 5]}, "offsets", None, ("5",)),
        ({"offsets": [0, 4]}, "offsets", None, ("5",)),
        ({"learner_logprobs": [[0.0] * 5]}, None, None, ("one of the two",)),
    ],
)
def test_wrong_arrays_are_named(arrays: dict, column: str | None, row: int | None, words: tuple[str, ...]) -> None:
    good = {"gap": [[0.1, 0.2, 0.3, 0.4, 0.5]], "advantages": [1.0]}
    if "offsets" in arrays:
        good["gap"] = np.zeros(5, np.float32)
    with pytest.raises(InputError) as caught:
        rows_from_arrays(**(good | arrays))
    assert (caught.value.column, caught.value.row) == (column, row)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [{"temprature": 1.0}, {"temperature": "hot"}, {"learner": "new"}, {"precision": "x" * 500}, {"top_p": math.nan}],
)
def test_wrong_settings_are_refused(settings: dict) -> None:
    with pytest.raises(InputError, match="setting"):
        encode_arrays(gap=[[1.0]], advantages=[1.0], settings=settings)


def test_decoding_copies_no_float32() -> None:
    body = encode_stream(rows_from_arrays(gap=[np.arange(100, dtype=np.float32)], advantages=[1.0]))
    rows = decode_stream(body, max_tokens=100)
    begin = np.frombuffer(body, np.uint8).__array_interface__["data"][0]
    assert begin <= rows.gap.__array_interface__["data"][0] < begin + len(body)
    assert not rows.gap.flags.writeable
