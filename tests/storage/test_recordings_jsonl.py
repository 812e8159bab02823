"""JSONL: what is a row, what is a slip, and that every slip is named by its line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from triage_monitor.errors import InputError
from triage_monitor.storage import recordings_jsonl
from triage_monitor.storage.recordings import iter_updates

GOOD = '{"step": 1, "advantage": -1, "gap": [0.5, 2]}'


def updates(tmp_path: Path, *lines: str) -> list:
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return list(iter_updates(path))


def rows(tmp_path: Path, *lines: str):
    (update,) = updates(tmp_path, *lines)
    return update.rows


def error(tmp_path: Path, *lines: str) -> InputError:
    with pytest.raises(InputError) as caught:
        updates(tmp_path, *lines)
    assert caught.value.path == str(tmp_path / "x.jsonl")
    return caught.value


def test_whole_numbers_and_floats_are_numbers(tmp_path: Path) -> None:
    held = rows(tmp_path, GOOD)
    assert held.gap.tolist() == [0.5, 2.0] and held.advantages.tolist() == [-1.0]


def test_values_are_read_to_the_last_bit(tmp_path: Path) -> None:
    values = [0.1, -1e-9, 1 / 3, 5e-324, 1.7976931348623157e308, -42.75]
    held = rows(tmp_path, json.dumps({"step": 1, "advantage": 0.1, "gap": values}))
    assert held.gap.tolist() == values


def test_non_finite_numbers_as_python_writes_them_and_as_words(tmp_path: Path) -> None:
    tokens = rows(tmp_path, '{"step": 1, "advantage": NaN, "gap": [NaN, Infinity, -Infinity, 1.5]}')
    words = rows(tmp_path, '{"step": 1, "advantage": "nan", "gap": ["NaN", "inf", "-Infinity", 1.5]}')
    for held in (tokens, words):
        assert [str(value) for value in held.gap] == ["nan", "inf", "-inf", "1.5"]
        assert math.isnan(held.advantages[0])


def test_nulls_mean_what_they_mean_in_arrow(tmp_path: Path) -> None:
    masked = rows(tmp_path, '{"step": 1, "advantage": null, "gap": [0.5, null], "reward": null}')
    assert masked.mask.tolist() == [True, False] and math.isnan(masked.advantages[0]) and masked.rewards is None
    missing = rows(tmp_path, '{"step": 1, "advantage": 1, "gap": [0.5, null], "mask": [true, true]}')
    assert missing.missing.tolist() == [False, True]


def test_masks_may_be_0_and_1_and_lists_may_be_empty(tmp_path: Path) -> None:
    held = rows(
        tmp_path,
        '{"step": 1, "advantage": 1, "gap": [], "mask": []}',
        '{"step": 1, "advantage": 1, "gap": [0.5, 1], "mask": [1, 0]}',
    )
    assert held.mask.tolist() == [True, False]


def test_all_columns_are_read(tmp_path: Path) -> None:
    line = {
        "step": 3,
        "attempt": 2,
        "advantage": [1, -1],
        "learner_logprobs": [-1, -2],
        "sampler_logprobs": [-1.5, -2],
        "mask": [True, True],
        "group": "p",
        "policy_version": [4, 5],
        "reward": 1,
        "engine": "vllm",
        "response_id": 17,
        "padding": False,
        "prompt": {"text": "left alone"},
    }
    (update,) = updates(tmp_path, json.dumps(line))
    held = update.rows
    assert (update.step, update.attempt, update.attempt_given) == (3, 2, True)
    assert held.advantages.tolist() == [1.0, -1.0] and held.advantages_per_token
    assert held.policy_versions.tolist() == [4, 5] and held.versions_per_token
    assert held.rewards.tolist() == [1.0]
    assert held.engines.tolist() == ["vllm"] and held.response_ids.tolist() == ["17"]
    assert held.ignored_columns == ("prompt",)


def test_blank_lines_a_mark_of_utf8_and_other_line_ends_are_no_rows(tmp_path: Path) -> None:
    held = rows(tmp_path, "\ufeff" + GOOD + "\r", "", "  ", GOOD)
    assert held.responses == 2


@pytest.mark.parametrize(
    ("line", "column", "words"),
    [
        ('{"step": 1, "advantage": -1, "gap": [0.5,}', None, "line 3 is no JSON"),
        ('{"step": 1, "advantage": -1, "gap": [0.5]} {}', None, "line 3 is no JSON"),
        ("[1, 2]", None, "line 3 is no JSON object"),
        ('{"step": 1, "step": 2, "advantage": -1, "gap": [0.5]}', None, "twice"),
        ('{"step": 1, "advantage": -1, "gap": ["x"]}', "gap", 'line 3 holds "x"'),
        ('{"step": 1, "advantage": -1, "gap": 0.5}', "gap", "line 3 holds 0.5"),
        ('{"step": 1, "advantage": -1, "gap": [[0.5]]}', "gap", "line 3"),
        ('{"step": 1, "advantage": true, "gap": [0.5]}', "advantage", "line 3 holds true"),
        ('{"step": 1, "advantage": [-1], "gap": [0.5]}', "advantage", "line 3 holds list"),
        ('{"step": 1.5, "advantage": -1, "gap": [0.5]}', "step", "line 3 holds 1.5"),
        ('{"step": "1", "advantage": -1, "gap": [0.5]}', "step", 'line 3 holds "1"'),
        ('{"step": null, "advantage": -1, "gap": [0.5]}', "step", "null"),
        ('{"advantage": -1, "gap": [0.5]}', "step", "null"),
        ('{"step": 1, "advantage": -1}', "gap", "null"),
        ('{"step": 1, "advantage": -1, "gap": [0.5], "mask": [1]}', "mask", "null"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, column: str | None, words: str) -> None:
    caught = error(tmp_path, GOOD, "", line, GOOD)
    assert caught.column == column
    assert words in str(caught)
    if column != "mask":  # there the rows without a mask are the wrong ones
        assert caught.row == 1


def test_mask_of_another_length_is_named_with_both_lengths(tmp_path: Path) -> None:
    values = '"learner_logprobs": [1,2,3,4,5], "sampler_logprobs": [1,2,3,4,5]'
    line = '{"step": 1, "advantage": 1, "mask": [1,1,1,1], ' + values + "}"
    caught = error(tmp_path, line)
    assert (caught.column, caught.row) == ("mask", 0)
    assert "4 entries where 'learner_logprobs' has 5" in str(caught)


def test_bytes_that_are_no_utf8_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(GOOD.encode() + b'\n{"step": 1, "engine": "\xff", "advantage": 1, "gap": []}')
    with pytest.raises(InputError, match="line 2 is not UTF-8"):
        list(iter_updates(path))


def test_blocks_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that starts late, is null for a while, or changes its spelling gives the same in blocks of any size."""
    lines = [
        '{"step": 1, "advantage": 1, "gap": [0.5, 1]}',
        '{"step": 1, "advantage": 1, "gap": [], "reward": 2}',
        '{"step": 1, "advantage": 1, "gap": ["nan"], "reward": null}',
        '{"step": 2, "advantage": 1, "gap": [1], "reward": 1.5}',
        '{"step": 2, "advantage": null, "gap": [1]}',
    ]
    seen = []
    for size in (1, 60, 1 << 20):
        monkeypatch.setattr(recordings_jsonl, "BLOCK_BYTES", size)
        found = updates(tmp_path, *lines)
        tokens = {step: [str(x) for u in found if u.step == step for x in u.rows.gap] for step in (1, 2)}
        rewards = [x for u in found if u.rows.rewards is not None for x in u.rows.rewards if not math.isnan(x)]
        seen.append((tokens, rewards))
    assert seen[0] == seen[1] == seen[2] == ({1: ["0.5", "1.0", "nan"], 2: ["1.0", "1.0"]}, [2.0, 1.5])
