"""Arrow tables of the contract, written out by hand, as UpdateRows."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from arrow_tables import FLOATS, table

from triage_monitor.errors import InputError
from triage_monitor.summary.rows import UpdateRows, rows_from_table

BOOLS = pa.list_(pa.bool_())


def mask(*rows: list[bool | None] | None) -> pa.Array:
    return pa.array(rows, BOOLS)


def test_null_without_a_mask_is_a_masked_position() -> None:
    rows = rows_from_table(table([[0.1, None, 0.3], [0.4]], [1.0, -1.0]))
    assert rows.mask.tolist() == [True, False, True, True]
    assert rows.missing is None
    assert rows.summarize().count("tokens") == 3


def test_null_under_a_mask_of_1_is_missing_and_under_0_is_nothing() -> None:
    rows = rows_from_table(table([[0.1, None, None], [0.4]], [1.0, -1.0], mask=mask([True, True, False], [True])))
    assert rows.mask.tolist() == [True, True, False, True]
    assert rows.missing.tolist() == [False, True, False, False]
    counts = rows.summarize().counts
    assert (counts["tokens"], counts["valid_tokens"], counts["missing"]) == (3, 2, 1)


def test_null_in_either_log_prob_counts_once() -> None:
    given = pa.table(
        {
            "learner_logprobs": pa.array([[-1.0, None, -2.0]]),
            "sampler_logprobs": pa.array([[-1.0, None, None]]),
            "advantage": [1.0],
            "mask": mask([True, True, True]),
        }
    )
    assert rows_from_table(given).missing.tolist() == [False, True, True]
    assert rows_from_table(given.drop_columns("mask")).mask.tolist() == [True, False, False]


def test_null_advantage_is_no_number_and_not_zero() -> None:
    rows = rows_from_table(table([[0.1], [0.2]], [1.0, None]))
    assert rows.advantages[0] == 1.0 and math.isnan(rows.advantages[1])
    assert rows.summarize().count("unusable_advantage") == 1


def test_null_in_an_advantage_list_masks_without_a_mask_and_is_unusable_with_one() -> None:
    given = pa.table({"gap": pa.array([[0.1, 0.2]], FLOATS), "advantage": pa.array([[1.0, None]])})
    assert rows_from_table(given).mask.tolist() == [True, False]
    masked = rows_from_table(given.append_column("mask", mask([True, True])))
    assert masked.mask.tolist() == [True, True] and math.isnan(masked.advantages[1])


def test_padding_rows_are_left_out_and_counted() -> None:
    given = table([[0.1], [9.0, 9.0], [0.3]], [1.0, 0.0, -1.0], padding=[False, True, False], group=["a", "b", "a"])
    rows = rows_from_table(given)
    assert rows.gap.tolist() == pytest.approx([0.1, 0.3])
    assert rows.advantages.tolist() == [1.0, -1.0]
    assert rows.padding_rows == 1
    assert len(rows.groups) == 2 and rows.groups[0] == rows.groups[1]
    assert rows.summarize().count("padding_rows") == 1


def test_error_after_a_padding_row_names_the_row_of_the_file() -> None:
    given = table([[0.1], None, None], [1.0, 0.0, 1.0], padding=[False, True, False])
    with pytest.raises(InputError) as caught:
        rows_from_table(given)
    assert (caught.value.column, caught.value.row) == ("gap", 2)


FORMS = {
    "list": lambda rows: pa.array(rows, pa.list_(pa.float32())),
    "large_list": lambda rows: pa.array(rows, pa.large_list(pa.float32())),
    "float64": lambda rows: pa.array(rows, pa.list_(pa.float64())),
    "float16": lambda rows: pa.array([[np.float16(x) for x in row] for row in rows], pa.list_(pa.float16())),
    "fixed_size_list": lambda rows: pa.array(rows, pa.list_(pa.float32(), 2)),
    "list_view": lambda rows: pa.ListViewArray.from_arrays(
        pa.array([4, 0, 2], pa.int32()),
        pa.array([2, 2, 2], pa.int32()),
        pa.array([x for row in (*rows[1:], rows[0]) for x in row], pa.float32()),
    ),
    "integers": lambda rows: pa.array([[int(4 * x) for x in row] for row in rows], pa.list_(pa.int64())),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_list_form_holds_the_same_values(form: str) -> None:
    scale = 4 if form == "integers" else 1
    rows = rows_from_table(
        pa.table({"gap": FORMS[form]([[0.25, 0.5], [1.0, -0.25], [2.0, 4.0]]), "advantage": [1.0, 2, 3]})
    )
    assert (rows.gap / scale).tolist() == [0.25, 0.5, 1.0, -0.25, 2.0, 4.0]
    assert rows.offsets.tolist() == [0, 2, 4, 6]
    assert rows.gap.dtype == (np.float64 if form in ("float64", "integers") else np.float32)


def test_sliced_and_chunked_tables_are_read_where_they_begin() -> None:
    whole = table([[9.0], [0.5, None], [], [1.5], [9.0]], [9.0, 1.0, 2.0, 3.0, 9.0])
    chunked = pa.concat_tables([whole.slice(1, 1), whole.slice(2, 2)])
    for given in (whole.slice(1, 3), chunked):
        rows = rows_from_table(given)
        assert rows.offsets.tolist() == [0, 2, 2, 3]
        assert rows.gap[[0, 2]].tolist() == [0.5, 1.5]
        assert rows.mask.tolist() == [True, False, True]
        assert rows.advantages.tolist() == [1.0, 2.0, 3.0]


def test_no_rows_and_null_typed_lists_are_empty_updates() -> None:
    assert rows_from_table(table([], [])).responses == 0
    nothing = pa.table({"gap": pa.array([[], []], pa.list_(pa.null())), "advantage": [1.0, 2.0]})
    assert (rows_from_table(nothing).responses, rows_from_table(nothing).tokens) == (2, 0)
    record_batch = table([[0.5]], [1.0]).to_batches()[0]
    assert rows_from_table(record_batch).gap.tolist() == [0.5]


def test_dictionary_text_and_text_views_are_text() -> None:
    plain = pa.array(["a", "b", "a"])
    codes = rows_from_table(table([[0.0]] * 3, [1.0] * 3, group=plain)).groups
    assert codes[0] == codes[2] != codes[1]
    for form in (plain.dictionary_encode(), plain.cast(pa.string_view()), plain.cast(pa.large_string())):
        rows = rows_from_table(table([[0.0]] * 3, [1.0] * 3, group=form, engine=form, response_id=form))
        assert rows.groups.tolist() == codes.tolist()
        assert rows.engines.tolist() == rows.response_ids.tolist() == ["a", "b", "a"]


def test_masks_may_be_numbers_of_0_and_1() -> None:
    for kind in (pa.int8(), pa.float32()):
        given = table([[0.1, 0.2]], [1.0], mask=pa.array([[1, 0]], pa.list_(kind)))
        assert rows_from_table(given).mask.tolist() == [True, False]


def test_versions_per_response_and_per_token() -> None:
    flat = rows_from_table(table([[0.1, 0.2], [0.3]], [1.0, 1.0], policy_version=[7, 8]))
    assert flat.policy_versions.tolist() == [7, 8] and not flat.versions_per_token
    lists = pa.array([[7, 8], [9]], pa.list_(pa.int64()))
    token = rows_from_table(table([[0.1, 0.2], [0.3]], [1.0, 1.0], policy_version=lists))
    assert token.policy_versions.tolist() == [7, 8, 9] and token.versions_per_token


def test_columns_without_a_value_count_as_absent() -> None:
    none = pa.array([None], pa.int64())
    rows = rows_from_table(
        table([[0.1]], [1.0], group=none, policy_version=none, reward=pa.array([None], pa.float64()))
    )
    assert rows.groups is None and rows.policy_versions is None and rows.rewards is None


def test_unknown_columns_are_left_alone_and_listed() -> None:
    rows = rows_from_table(table([[0.1]], [1.0], step=[3], attempt=[1], entropy=[0.5], learner_logprobs=[[0.1]]))
    assert rows.ignored_columns == ("entropy", "learner_logprobs")


def test_settings_are_read_from_the_schema() -> None:
    given = table([[0.1]], [1.0]).replace_schema_metadata({"temperature": "0.7", "learner": "theta", "pandas": "{}"})
    assert rows_from_table(given).settings == {"temperature": "0.7", "learner": "theta"}


WRONG = {
    "null list": (table([[0.1], None], [1.0, 1.0]), "gap", 1, "null"),
    "no gap": (pa.table({"advantage": [1.0]}), "gap", None, "not there"),
    "one log-prob": (
        pa.table({"learner_logprobs": [[0.1]], "advantage": [1.0]}),
        "sampler_logprobs",
        None,
        "not there",
    ),
    "both forms": (
        pa.table({"gap": [[0.1]], "learner_logprobs": [[0.1]], "sampler_logprobs": [[0.1]], "advantage": [1.0]}),
        "gap",
        None,
        "one of the two",
    ),
    "no advantage": (pa.table({"gap": [[0.1]]}), "advantage", None, "not there"),
    "slip": (table([[0.1]], [1.0], masks=[[True]]), "masks", None, "'mask'"),
    "text for floats": (pa.table({"gap": [["a"]], "advantage": [1.0]}), "gap", None, "string"),
    "float for list": (pa.table({"gap": [0.1], "advantage": [1.0]}), "gap", None, "list"),
    "nested lists": (pa.table({"gap": [[[0.1]]], "advantage": [1.0]}), "gap", None, "list"),
    "text advantage": (pa.table({"gap": [[0.1]], "advantage": ["1"]}), "advantage", None, "string"),
    "shorter mask": (
        table([[0.1], [0.1] * 5], [1.0, 1.0], mask=mask([True], [True] * 4)),
        "mask",
        1,
        "4 entries where 'gap' has 5",
    ),
    "null in mask": (table([[0.1], [0.2]], [1.0, 1.0], mask=mask([True], [None])), "mask", 1, "null"),
    "mask of 2": (table([[0.1]], [1.0], mask=pa.array([[2]])), "mask", 0, "2"),
    "advantage list length": (
        pa.table({"gap": pa.array([[0.1, 0.2]], FLOATS), "advantage": [[1.0]]}),
        "advantage",
        0,
        "1 entries where 'gap' has 2",
    ),
    "sampler length": (
        pa.table({"learner_logprobs": [[0.1, 0.2]], "sampler_logprobs": [[0.1]], "advantage": [1.0]}),
        "sampler_logprobs",
        0,
        "1 entries where 'learner_logprobs' has 2",
    ),
    "some groups": (table([[0.1], [0.1]], [1.0, 1.0], group=["a", None]), "group", 1, "null"),
    "fractional version": (table([[0.1]], [1.0], policy_version=[1.5]), "policy_version", 0, "1.5"),
    "padding null": (table([[0.1], [0.1]], [1.0, 1.0], padding=[True, None]), "padding", 1, "null"),
    "timestamp reward": (table([[0.1]], [1.0], reward=pa.array([0], pa.timestamp("s"))), "reward", None, "timestamp"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_tables_are_refused_by_column_and_row(name: str) -> None:
    given, column, row, words = WRONG[name]
    with pytest.raises(InputError) as caught:
        rows_from_table(given)
    assert (caught.value.column, caught.value.row) == (column, row)
    assert words in str(caught.value)


def test_the_same_column_twice_is_refused() -> None:
    twice = pa.Table.from_arrays([pa.array([[0.1]]), pa.array([[0.1]]), pa.array([1.0])], ["gap", "gap", "advantage"])
    with pytest.raises(InputError, match="more than once"):
        rows_from_table(twice)


def test_rows_are_frozen() -> None:
    rows: UpdateRows = rows_from_table(table([[0.1]], [1.0]))
    with pytest.raises(AttributeError):
        rows.gap = None  # type: ignore[misc]
