"""The frameworks' dumps read as recordings: the same numbers as the plain form, traps handled or refused by name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from storage.dump_writers import (
    Series,
    miles_payloads,
    nemo_lines,
    slime_payload,
    synthetic,
    write_miles,
    write_nemo,
    write_plain,
    write_prime,
    write_prime_step,
    write_slime,
)

from triage_monitor.errors import InputError
from triage_monitor.storage.dumps_follow import Follower
from triage_monitor.storage.recordings import RecordedUpdate, iter_updates
from triage_monitor.storage.recordings_order import index_updates, iter_ordered

WRITERS = {"nemo": write_nemo, "prime": write_prime, "slime": write_slime, "miles": write_miles}


def by_step(updates: Any) -> dict[int, list[RecordedUpdate]]:
    found: dict[int, list[RecordedUpdate]] = {}
    for update in updates:
        found.setdefault(update.step, []).append(update)
    return found


def tokens(updates: list[RecordedUpdate]) -> list[tuple[Any, ...]]:
    """Every valid token with its place in its response, in an order that files do not decide."""
    rows = []
    for update in updates:
        data = update.rows
        mask = np.ones(data.tokens, np.bool_) if data.mask is None else data.mask
        assert data.learner_logprobs is not None and data.sampler_logprobs is not None
        for start, end in zip(data.offsets[:-1], data.offsets[1:], strict=True):
            inside = mask[start:end]
            values = (data.learner_logprobs, data.sampler_logprobs, data.advantages)
            columns = [array[start:end][inside].tolist() for array in values]
            rows.append((np.flatnonzero(inside).tolist(), *columns))
    return sorted(rows)


def without_the_untrained(series: Series) -> Series:
    return {step: [answer for answer in answers if answer.trained] for step, answers in series.items()}


def error_of(path: object) -> InputError:
    with pytest.raises(InputError) as caught:
        list(iter_updates(path))
    return caught.value


@pytest.mark.parametrize("form", WRITERS)
def test_a_dump_holds_the_tokens_of_the_plain_form(tmp_path: Path, form: str) -> None:
    series = synthetic(seed=5)
    found = by_step(iter_updates(WRITERS[form](tmp_path / form, series)))
    plain = series if form != "prime" else without_the_untrained(series)
    expected = by_step(iter_updates(write_plain(tmp_path / "plain.jsonl", plain)))
    assert found.keys() == expected.keys() == {1, 2, 3}
    for step in expected:
        assert tokens(found[step]) == tokens(expected[step])
        if form != "prime":
            rewards = [np.sort(part[step][0].rows.rewards).tolist() for part in (found, expected)]
            assert rewards[0] == rewards[1]
    assert next(iter(found.values()))[0].run == form


@pytest.mark.parametrize("form", WRITERS)
def test_replay_goes_through_a_dump_in_the_order_of_its_steps(tmp_path: Path, form: str) -> None:
    index = index_updates([WRITERS[form](tmp_path / form, synthetic(seed=6, steps=(2, 10, 1)))])
    assert list(dict.fromkeys(update.step for update in iter_ordered(index))) == [1, 2, 10]


@pytest.mark.parametrize(
    "parallel", [{"cp": 1, "tp": 1, "dp": 1}, {"cp": 4, "tp": 1}, {"cp": 1, "tp": 3}, {"cp": 3, "dp": 3}]
)
def test_ranks_of_a_rollout_are_joined_whatever_the_parallelism(tmp_path: Path, parallel: dict[str, int]) -> None:
    series = synthetic(seed=7, steps=(4,), answers=7, longest=40)
    (found,) = by_step(iter_updates(write_miles(tmp_path / "miles", series, **parallel))).values()
    (expected,) = by_step(iter_updates(write_plain(tmp_path / "plain.jsonl", series))).values()
    assert tokens(found) == tokens(expected)


def test_settings_say_which_learner_a_dump_holds(tmp_path: Path) -> None:
    series = synthetic(seed=8, steps=(1,))
    told = {form: next(iter_updates(write(tmp_path / form, series))).rows.settings for form, write in WRITERS.items()}
    assert told == {
        "nemo": {"learner": "old"},
        "prime": {"learner": "theta"},
        "slime": {"learner": "old"},
        "miles": {"learner": "old"},
    }


def nemo_with(tmp_path: Path, change: Any) -> Path:
    """A NeMo RL file whose second line is changed."""
    lines = nemo_lines(synthetic(seed=9, steps=(1,))[1])
    record = json.loads(lines[1])
    change(record)
    path = tmp_path / "train_data_step1.jsonl"
    path.write_text("\n".join([lines[0], json.dumps(record), *lines[2:]]) + "\n")
    return path


def first_trained(record: dict[str, Any]) -> int:
    return next(place for place, one in enumerate(record["token_loss_mask"][0]) if one)


def test_a_learner_log_prob_that_was_replaced_by_zero_is_missing(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        at = first_trained(record)
        record["prev_logprobs"][0][at], record["generation_logprobs"][0][at] = 0.0, -5.5

    (update,) = iter_updates(nemo_with(tmp_path, change))
    assert update.rows.missing is not None and update.rows.missing.sum() == 1


def test_a_trained_first_position_has_no_learner_value(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        record["token_loss_mask"][0][0] = 1.0

    (update,) = iter_updates(nemo_with(tmp_path, change))
    assert update.rows.missing is not None and np.flatnonzero(update.rows.missing).tolist() == [update.rows.offsets[1]]


def test_infinities_of_a_nemo_dump_are_kept_as_they_are(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        record["generation_logprobs"][0][first_trained(record)] = float("-inf")

    (update,) = iter_updates(nemo_with(tmp_path, change))
    assert update.rows.summarize().count("pos_inf") == 1


@pytest.mark.parametrize("name", ["prev_logprobs", "generation_logprobs"])
def test_placeholders_of_zero_are_no_log_probs(tmp_path: Path, name: str) -> None:
    lines = [json.loads(line) for line in nemo_lines(synthetic(seed=9, steps=(1,))[1])]
    path = tmp_path / "train_data_step1.jsonl"
    zeroed = [line | {name: [[0.0] * len(line[name][0])]} for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in zeroed))
    error = error_of(path)
    assert (error.reason, error.column, error.path) == ("not_observable", name, str(path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: record.pop("generation_logprobs"), ["line 2", "generation_logprobs", "not observable"]),
        (lambda record: record["advantages"][0].pop(), ["line 2", "advantages", "token_loss_mask"]),
        (lambda record: record["prev_logprobs"][0].__setitem__(3, "x"), ["line 2", "prev_logprobs", "'x'"]),
        (lambda record: record["prev_logprobs"][0].__setitem__(3, None), ["line 2", "prev_logprobs", "null"]),
        (lambda record: record["token_loss_mask"][0].__setitem__(3, 0.5), ["line 2", "token_loss_mask", "0.5"]),
        (lambda record: record.__setitem__("sample_loss_mask", [0.3]), ["line 2", "sample_loss_mask", "0.3"]),
        (lambda r: r["advantages"][0].__setitem__(1, "0.5"), ["line 2", "'advantages'", "'0.5', which is no number"]),
    ],
)
def test_a_wrong_line_is_named_with_its_field(tmp_path: Path, change: Any, words: list[str]) -> None:
    path = nemo_with(tmp_path, change)
    sentence = str(error_of(path))
    assert str(path) in sentence and all(word in sentence for word in words)


def test_a_nemo_dump_of_another_name_has_no_step(tmp_path: Path) -> None:
    path = nemo_with(tmp_path, lambda record: None).rename(tmp_path / "some.jsonl")
    assert error_of(path).reason == "step"


def test_a_step_without_its_marker_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    series = synthetic(seed=10, steps=(1, 2))
    write_prime(tmp_path, series)
    write_prime_step(tmp_path / "token_exports", 3, series[1], stable=False)
    assert by_step(iter_updates(tmp_path)).keys() == {1, 2}
    assert "step_3" in caplog.text


def test_times_of_a_copied_export_do_not_matter(tmp_path: Path) -> None:
    write_prime(tmp_path, synthetic(seed=10, steps=(1,)))
    step = tmp_path / "token_exports" / "step_1"
    os.utime(step / "STABLE", ns=(0, (step / "rank_0.jsonl").stat().st_mtime_ns - 1))
    assert by_step(iter_updates(tmp_path)).keys() == {1}
    (step / "STABLE").unlink()
    assert error_of(tmp_path).reason == "unfinished_file"


def prime_with(tmp_path: Path, change: Any) -> Path:
    write_prime(tmp_path, synthetic(seed=11, steps=(1,)))
    path = tmp_path / "token_exports" / "step_1" / "rank_0.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines[0])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path.parent / "STABLE").touch()
    return path


def test_values_that_were_not_finite_are_missing(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        at = record["loss_mask"].index(True)
        record["trainer_logprobs"][at] = None

    (update,) = iter_updates(prime_with(tmp_path, change))
    assert update.rows.missing is not None and update.rows.missing.sum() == 1


def test_tokens_of_a_frozen_model_do_not_count(tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        record["rl_weights"] = [0.0] * len(record["loss_mask"])

    before = sum(
        len(row[0]) for row in tokens(list(iter_updates(prime_with(tmp_path / "a", lambda record: None).parent)))
    )
    path = prime_with(tmp_path / "b", change)
    own = json.loads(path.read_text().splitlines()[0])["loss_mask"]
    after = sum(len(row[0]) for row in tokens(list(iter_updates(path.parent))))
    assert before - after == sum(own)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: record.__setitem__("schema_version", 2), ["schema_version", "line 1"]),
        (lambda record: record.__setitem__("step", 8), ["step_1", "line 1"]),
        (lambda record: record["advantages"].pop(), ["advantages", "loss_mask", "line 1"]),
        (lambda record: record.pop("inference_logprobs"), ["inference_logprobs"]),
    ],
)
def test_a_wrong_export_is_refused_by_name(tmp_path: Path, change: Any, words: list[str]) -> None:
    sentence = str(error_of(prime_with(tmp_path, change).parent.parent))
    assert all(word in sentence for word in words)


@pytest.mark.parametrize("name", ["log_probs", "rollout_log_probs"])
def test_a_dump_without_one_of_the_log_probs_is_not_observable(tmp_path: Path, name: str) -> None:
    payload = slime_payload(1, synthetic(seed=12, steps=(1,))[1])
    del payload["samples"][2][name]
    torch.save(payload, tmp_path / "1.pt")
    error = error_of(tmp_path / "1.pt")
    assert (error.column, error.row) == (name, 2) and "not observable" in str(error)


def test_a_slice_of_context_parallelism_is_not_taken_for_the_response(tmp_path: Path) -> None:
    payload = slime_payload(1, synthetic(seed=12, steps=(1,))[1])
    sample = next(sample for sample in payload["samples"] if sample["response_lengths"] > 4)
    sample["log_probs"] = sample["log_probs"][:3]
    torch.save(payload, tmp_path / "1.pt")
    assert "context parallelism" in str(error_of(tmp_path / "1.pt"))


def test_a_rollout_that_lacks_a_slice_is_refused(tmp_path: Path) -> None:
    for payload in miles_payloads(1, synthetic(seed=13, steps=(1,))[1], dp=1, cp=2, tp=1)[:1]:
        torch.save(payload, tmp_path / f"1_{payload['rank']}.pt")
    error = error_of(tmp_path)
    assert error.reason == "cp_slices" and "ranks 1" in str(error)


def test_slices_without_the_rank_that_held_them_are_refused(tmp_path: Path) -> None:
    for payload in miles_payloads(1, synthetic(seed=13, steps=(1,))[1], dp=1, cp=2, tp=1)[:2]:
        del payload["cp_rank"], payload["cp_size"]
        torch.save(payload, tmp_path / f"1_{payload['rank']}.pt")
    assert error_of(tmp_path).reason == "length"


def test_one_sampling_version_is_taken_and_several_are_not(tmp_path: Path) -> None:
    payload = slime_payload(1, synthetic(seed=14, steps=(1,))[1])
    for sample in payload["samples"]:
        sample["weight_versions"] = ["3", "3"]
    torch.save(payload, tmp_path / "1.pt")
    (update,) = iter_updates(tmp_path / "1.pt")
    assert update.rows.policy_versions is not None and set(update.rows.policy_versions.tolist()) == {3}
    payload["samples"][0]["weight_versions"] = ["2", "3"]
    torch.save(payload, tmp_path / "1.pt")
    (update,) = iter_updates(tmp_path / "1.pt")
    assert update.rows.policy_versions is None


def test_a_directory_of_two_frameworks_is_refused(tmp_path: Path) -> None:
    series = synthetic(seed=15, steps=(1,))
    write_nemo(tmp_path / "a", series)
    write_slime(tmp_path / "b", series)
    assert "nemo_rl and slime" in str(error_of(tmp_path))


def test_two_launches_are_not_one_run(tmp_path: Path) -> None:
    for launch in ("exp_001", "exp_002"):
        write_nemo(tmp_path / launch, synthetic(seed=15, steps=(1,)))
    assert error_of(tmp_path).reason == "run"


def test_what_is_still_being_written_is_left_out_of_a_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    series = synthetic(seed=16, steps=(1, 2))
    nemo, slime = write_nemo(tmp_path / "nemo", series), write_slime(tmp_path / "slime", series) / "train_data"
    for path in (nemo / "train_data_step2.jsonl", slime / "2.pt"):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        assert by_step(iter_updates(path.parent)).keys() == {1}
        assert error_of(path).reason == "unfinished_file"
    assert "train_data_step2.jsonl" in caplog.text and "2.pt" in caplog.text


NONSENSE = [None, True, -1, 10**400, "x", [], {}, torch.zeros(2, 2), torch.tensor(3), np.array(3)]


def understood_or_refused(path: Path) -> None:
    try:
        list(iter_updates(path))
    except InputError as error:
        assert error.path == str(path)


@pytest.mark.parametrize("form", ["slime", "miles"])
def test_nonsense_in_any_field_ends_in_a_sentence_that_names_the_file(tmp_path: Path, form: str) -> None:
    answers = synthetic(seed=17, steps=(1,), answers=2, longest=5)[1]

    def made() -> tuple[dict[str, Any], dict[str, Any]]:
        if form == "slime":
            payload = slime_payload(1, answers)
            return payload, payload["samples"][0]
        payload = miles_payloads(1, answers, dp=1, cp=1, tp=1)[0]
        return payload, payload["rollout_data"]

    for part in (0, 1):
        for name in made()[part]:
            for value in NONSENSE:
                payload = made()
                payload[part][name] = value
                torch.save(payload[0], tmp_path / "1.pt")
                understood_or_refused(tmp_path / "1.pt")


def test_nonsense_in_any_field_of_a_line_ends_in_a_sentence_that_names_the_file(tmp_path: Path) -> None:
    answers = synthetic(seed=17, steps=(1,), answers=2, longest=5)[1]
    path = tmp_path / "train_data_step1.jsonl"
    plain = [value for value in NONSENSE if not hasattr(value, "shape")]
    for name in json.loads(nemo_lines(answers)[0]):
        for value in (*plain, *([value] for value in plain), *([[value] * 3] for value in plain), "\ud800"):
            path.write_text(json.dumps(json.loads(nemo_lines(answers)[0]) | {name: value}) + "\n")
            understood_or_refused(path)


def test_a_pipe_of_a_dumps_name_is_not_waited_for(tmp_path: Path) -> None:
    directory = write_nemo(tmp_path / "run", synthetic(seed=3, steps=(1,)))
    os.mkfifo(directory / "train_data_step2.jsonl")
    os.mkfifo(directory / "3_0.pt")
    assert {update.step for update in iter_updates([directory])} == {1}
    (step,) = Follower(directory, settle=0.0).whole(0.0, is_last_look=True)
    assert step.step == 1


def test_a_number_beyond_any_float_in_a_list_of_numbers_is_refused(tmp_path: Path) -> None:
    payload = slime_payload(1, synthetic(seed=4, steps=(1,))[1])
    payload["samples"][0]["rollout_log_probs"] = [10**500] * len(payload["samples"][0]["loss_masks"])
    torch.save(payload, tmp_path / "1_0.pt")
    with pytest.raises(InputError, match="row 0, column 'rollout_log_probs': holds a whole number beyond"):
        list(iter_updates([tmp_path / "1_0.pt"]))
