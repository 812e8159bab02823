"""`analyze`: from files to the contract's object, against values by hand and against the independent reference."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from agreement import assert_counts_equal, assert_indicators_agree, fragile, within_sketch
from case_files import case
from reference import Response, Spec, Update, report

UPDATE_FIELDS = ["step", "attempt", "indicators", "reasons", "quantiles", "masses", "counts"]
COUNTS = {
    *("responses", "empty_responses", "tokens", "valid_tokens", "missing", "nan", "pos_inf", "neg_inf"),
    *("unusable_advantage", "segments", "eligible_segments", "heavy_segments", "overflow_tokens"),
}
QUANTILES = {"0.001", "0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99", "0.999"}


def strict(text: str) -> Any:
    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=no_constant)


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def analyze(cli):
    def call(*words: object) -> dict[str, Any]:
        done = cli("analyze", *words, "--json")
        assert done.code == 0, done.err
        document: dict[str, Any] = strict(done.out)
        return document

    return call


def test_values_by_hand(analyze, tmp_path: Path) -> None:
    # A = -2: gaps -0.2 (A-), 0.1 (C-). A = +1: 0.3 (A+), -0.4 (C+), 0.5 (A+), 0.0 (no region).
    path = write_jsonl(
        tmp_path / "run-a.jsonl",
        [
            {"step": 7, "advantage": -2, "gap": [-0.2, 0.1]},
            {"step": 7, "advantage": 1, "gap": [0.3, -0.4, 0.5, 0.0]},
        ],
    )
    document = analyze(path)
    assert list(document) == ["run", "updates", "windows", "findings"]
    assert (document["run"], document["findings"]) == ("run-a", [])
    (update,) = document["updates"]
    (window,) = document["windows"]
    assert list(update) == UPDATE_FIELDS
    assert set(window) == {*UPDATE_FIELDS, "updates", "first_step", "stage", "score"}
    assert (window["updates"], window["first_step"], window["stage"]) == (1, 7, "warming_up")
    assert (update["step"], update["attempt"]) == (7, 1)
    values = update["indicators"]
    assert update["masses"] == {"a_neg": 2.0, "a_pos": 2.0, "c_neg": 2.0, "c_pos": 1.0, "total": 8.0}
    assert values["rho_asym"] == 1.0  # 2 / 2
    assert values["mass_c_pos"] == 0.125  # 1 / 8
    assert values["advantage_mass_ratio"] == 1.0  # 4 / 4
    assert values["sign_odds_blind"] == pytest.approx(2 / 3)
    assert values["rho_pressure"] == pytest.approx(0.4 / 0.8)
    assert values["delta_mean"] == pytest.approx(0.05)
    assert values["near_zero_fraction"] == pytest.approx(1 / 6)
    assert values["mismatch_energy"] == pytest.approx(0.55 / 12)
    assert set(update["quantiles"]) == {"all", "neg", "pos"} and set(update["quantiles"]["all"]) == QUANTILES
    assert within_sketch(update["quantiles"]["all"]["0.05"], -0.4)
    assert within_sketch(update["quantiles"]["neg"]["0.5"], -0.2)
    assert set(update["counts"]) >= COUNTS
    assert (update["counts"]["responses"], update["counts"]["valid_tokens"]) == (2, 6)
    assert {name for name, value in values.items() if value is None} == set(update["reasons"])


def test_windows_merge_the_newest_updates(analyze, tmp_path: Path) -> None:
    # A- masses 1, 2, 3 and A+ masses 1, 1, 2: ratios of sums over two updates, not means of ratios.
    rows = []
    for step, (minus, plus) in enumerate([(1, 1), (2, 1), (3, 2)], start=10):
        rows.append({"step": step, "advantage": -1, "gap": [-0.1] * minus})
        rows.append({"step": step, "advantage": 1, "gap": [0.1] * plus})
    document = analyze(write_jsonl(tmp_path / "x.jsonl", rows), "--window", "2")
    seen = [(w["step"], w["first_step"], w["updates"], w["indicators"]["rho_asym"]) for w in document["windows"]]
    assert seen == [(10, 10, 1, 1.0), (11, 10, 2, 1.5), (12, 11, 2, pytest.approx(5 / 3))]


def random_updates(seed: int) -> list[Update]:
    random = np.random.default_rng(seed)
    updates = []
    for step in (3, 4, 6):
        responses = []
        for row in range(12):
            tokens = int(random.integers(0, 150))
            gap: list[float | None] = [float(np.float32(x)) for x in random.normal(0, 0.2, tokens)]
            for place in range(0, tokens, 17):
                gap[place] = [None, math.nan, math.inf, 0.0][place % 4]
            mask = [bool(x) for x in random.random(tokens) < 0.9]
            per_token = row % 3 == 0
            advantage = [float(x) for x in random.normal(size=tokens)] if per_token else float(random.normal())
            responses.append(Response(advantage, gap=gap, mask=mask, group=row // 4, reward=float(row % 2)))
        updates.append(Update(step, tuple(responses)))
    return updates


def as_rows(updates: list[Update]) -> list[dict[str, Any]]:
    rows = []
    for update in updates:
        for response in update.responses:
            advantage = response.advantage
            if not isinstance(advantage, list):
                advantage = [advantage] * len(response)
            row = {"step": update.step, "advantage": advantage, "gap": response.gap, "mask": response.mask}
            rows.append(row | {"group": f"prompt {response.group}", "reward": response.reward, "entropy": 0.5})
    return rows


SCHEMA = {
    "step": pl.Int64,
    "advantage": pl.List(pl.Float64),
    "gap": pl.List(pl.Float32),
    "mask": pl.List(pl.Boolean),
    "group": pl.String,
    "reward": pl.Float64,
    "entropy": pl.Float64,
}


@pytest.mark.parametrize("form", ["jsonl", "parquet", "arrow", "stream", "shuffled.parquet"])
def test_every_form_agrees_with_the_reference(analyze, tmp_path: Path, form: str) -> None:
    updates = random_updates(5)
    rows = as_rows(updates)
    path = tmp_path / f"run.{form}"
    if form == "jsonl":
        write_jsonl(path, rows)
    else:
        frame = pl.DataFrame(rows, schema=SCHEMA)
        if form.startswith("shuffled"):
            frame = frame.sample(fraction=1.0, shuffle=True, seed=1)
        {"arrow": frame.write_ipc, "stream": frame.write_ipc_stream}.get(form, frame.write_parquet)(path)
    document = analyze(path, "--segment", "16", "--tau-ana", "0.1", "--phi", "0.25")
    spec = Spec(segment=16, tau_ana=0.1, phi=0.25)
    assert [update["step"] for update in document["updates"]] == [3, 4, 6]
    for count, (found, update) in enumerate(zip(document["updates"], updates, strict=True), start=1):
        compare(found, [update], spec)
        compare(document["windows"][count - 1], updates[:count], spec)


def compare(found: dict[str, Any], inputs: list[Update], spec: Spec) -> None:
    expected = report(inputs, spec)
    assert_counts_equal(found["counts"], expected["counts"])
    assert_indicators_agree(found["indicators"], expected["indicators"], fragile(inputs, spec))
    for side, quantiles in expected["quantiles"].items():
        for q, value in quantiles.items():
            assert within_sketch(found["quantiles"][side][q], value), (side, q)


def test_c34_resumed_run_replaces_the_steps_it_repeats(analyze, tmp_path: Path) -> None:
    given, expected = case("C34")
    rows = []
    for record in given["in_order_of_arrival"]:
        place = {"step": record["step"], "attempt": record["attempt"]}
        rows.append(place | {"advantage": -1, "gap": [-0.1] * int(record["M_minus"])})
        rows.append(place | {"advantage": 1, "gap": [0.1] * int(record["M_plus"])})
    document = analyze(write_jsonl(tmp_path / "x.jsonl", rows))
    last = document["windows"][-1]
    assert [last["first_step"], last["step"]] == expected["window_steps"]
    assert last["updates"] == expected["window_updates"]
    assert last["indicators"]["rho_asym"] == pytest.approx(expected["rho_window"])
    assert len(document["updates"]) == len(given["in_order_of_arrival"])  # replaced updates stay listed


def test_new_attempt_goes_on_from_the_window_before_its_first_step(analyze, tmp_path: Path) -> None:
    """Steps 0 to 9, then from 4 on again: the window of 3 at the new step 4 holds steps 2, 3 and 4, not 4 alone."""
    rows = [{"step": step, "attempt": 1, "advantage": 1, "gap": [0.1]} for step in range(10)]
    rows += [{"step": step, "attempt": 2, "advantage": 1, "gap": [0.1]} for step in (4, 5)]
    document = analyze(write_jsonl(tmp_path / "x.jsonl", rows), "--window", "3")
    seen = [(w["attempt"], w["first_step"], w["step"], w["updates"]) for w in document["windows"][-2:]]
    assert seen == [(2, 2, 4, 3), (2, 3, 5, 3)]


def test_c03_missing_value_is_a_finding_and_never_filled(analyze, tmp_path: Path) -> None:
    given, _ = case("C03")
    rows = [
        {
            "step": 0,
            "advantage": given["advantage"][a],
            "learner_logprobs": given["learner"][a : a + 5],
            "sampler_logprobs": given["sampler"][a : a + 5],
            "mask": given["mask"][a : a + 5],
        }
        for a in (0, 5)
    ]
    document = analyze(write_jsonl(tmp_path / "x.jsonl", rows))
    update = document["updates"][0]
    assert update["indicators"]["rho_asym"] == 1.0
    assert (update["counts"]["valid_tokens"], update["counts"]["missing"]) == (9, 1)
    (finding,) = document["findings"]
    assert (finding["cause"], finding["step"]) == ("missing_values", 0)
    assert finding["evidence"] == {"missing": 1, "tokens": 10, "updates": 1, "last_step": 0}


@pytest.mark.parametrize("part", ["a", "b"])
def test_c05_dummies_under_mask_0_are_not_looked_at(analyze, tmp_path: Path, part: str) -> None:
    given, expected = case("C05")
    sampler = [-math.inf if value == "-inf" else value for value in given[part]["sampler"]]
    row = {
        "step": 0,
        "advantage": -1,
        "learner_logprobs": given["learner"],
        "sampler_logprobs": sampler,
        "mask": given[part]["mask"],
    }
    document = analyze(write_jsonl(tmp_path / "x.jsonl", [row]))
    assert document["updates"][0]["counts"]["valid_tokens"] == expected[part]["n_valid"]
    assert document["updates"][0]["indicators"]["delta_mean"] == pytest.approx(expected[part]["mean"])
    assert document["findings"] == []


def test_c08_arrays_of_different_length_are_refused_with_both_lengths(cli, tmp_path: Path) -> None:
    given, _ = case("C08")
    row = {"learner_logprobs": given["learner"], "sampler_logprobs": given["sampler"], "mask": given["mask"]}
    path = write_jsonl(tmp_path / "x.jsonl", [{"step": 0, "advantage": given["advantage"]} | row])
    done = cli("analyze", path, "--json")
    assert (done.code, done.out) == (2, "")
    assert f"{path}, row 0, column 'mask': has 4 entries where 'learner_logprobs' has 5" in done.err


def test_c11_update_without_a_valid_token_is_all_null(analyze, tmp_path: Path) -> None:
    given, _ = case("C11")
    rows = [
        {
            "step": 0,
            "advantage": given["advantage"][a],
            "gap": given["delta"][a : a + 2],
            "mask": given["mask"][a : a + 2],
        }
        for a in (0, 2, 4)
    ]
    document = analyze(write_jsonl(tmp_path / "x.jsonl", rows))
    update = document["updates"][0]
    assert update["counts"]["empty_responses"] == 3 and update["counts"]["valid_tokens"] == 0
    assert update["indicators"]["rho_asym"] is None and update["reasons"]["rho_asym"] == "no_tokens"
    assert all(update["indicators"][name] is None for name in ("delta_mean", "near_zero_fraction", "delta_min"))
    assert set(update["quantiles"]["all"].values()) == {None}


def test_c20_more_tokens_than_float32_counts(analyze, tmp_path: Path) -> None:
    _, expected = case("C20")
    gap = (-((np.arange(2**24 + 1) * 7919) % 1000) / 1000).astype(np.float32)
    lists = pa.ListArray.from_arrays(pa.array([0, gap.size], pa.int32()), pa.array(gap))
    whole = pa.table({"step": [0], "advantage": [-1.0], "gap": lists})
    with pa.ipc.new_file(tmp_path / "x.arrow", whole.schema) as writer:
        writer.write_table(whole)
    update = analyze(tmp_path / "x.arrow")["updates"][0]
    assert update["counts"]["valid_tokens"] == expected["n_valid"]
    assert update["masses"]["a_neg"] == expected["M_minus"]
    assert update["indicators"]["delta_mean"] == pytest.approx(expected["mean"], rel=1e-6)
    # The file interpolates between order statistics (-0.9492); the one at rank ceil(0.05 n) is -0.949.
    for q, value in (("0.05", -0.949), ("0.5", -0.5), ("0.01", -0.989)):
        assert update["quantiles"]["all"][q] == pytest.approx(value, rel=0.005)


def test_c32_declared_padding_stays_out(analyze, tmp_path: Path) -> None:
    given, expected = case("C32")
    rows = [
        {
            "step": 0,
            "advantage": given["advantage"][4 * row],
            "gap": given["delta"][4 * row : 4 * row + 4],
            "mask": given["mask"][4 * row : 4 * row + 4],
            "padding": bool(given["is_padding_response"][row]),
        }
        for row in range(8)
    ]
    update = analyze(write_jsonl(tmp_path / "x.jsonl", rows))["updates"][0]
    assert update["counts"]["tokens"] == expected["n_tokens"]
    assert update["counts"]["padding_rows"] == 2
    assert update["indicators"]["near_zero_fraction"] == expected["frac_near"]
    assert update["indicators"]["rho_asym"] == expected["rho_asym"]


def test_same_array_twice_is_not_observable(analyze, tmp_path: Path) -> None:
    values = [-0.001 * n for n in range(1000)]
    row = {"step": 4, "advantage": 1, "learner_logprobs": values, "sampler_logprobs": values}
    document = analyze(write_jsonl(tmp_path / "x.jsonl", [row]))
    assert document["updates"][0]["indicators"]["not_observable"] == 1
    assert [(item["cause"], item["step"]) for item in document["findings"]] == [("not_observable", 4)]


def test_nonfinite_and_unusable_data_are_findings_with_counts(analyze, tmp_path: Path) -> None:
    rows = [
        {"step": 0, "advantage": 1, "gap": [0.1, 0.2]},
        {"step": 1, "advantage": math.nan, "gap": [math.nan, math.inf, 0.1]},
        {"step": 2, "advantage": 1, "gap": [-math.inf]},
        {"step": 3, "advantage": 1, "gap": [0.1]},
    ]
    found = {item["cause"]: item for item in analyze(write_jsonl(tmp_path / "x.jsonl", rows))["findings"]}
    assert set(found) == {"nonfinite_gap", "unusable_advantage", "no_usable_token"}
    evidence = {"nan": 1, "pos_inf": 1, "neg_inf": 1, "tokens": 4, "updates": 2, "last_step": 2}
    assert (found["nonfinite_gap"]["step"], found["nonfinite_gap"]["evidence"]) == (1, evidence)
    assert found["unusable_advantage"]["evidence"]["unusable_advantage"] == 1
    assert (found["no_usable_token"]["step"], found["no_usable_token"]["evidence"]["tokens"]) == (2, 1)


def test_shards_in_files_merge_and_a_split_group_makes_the_response_the_unit(analyze, tmp_path: Path) -> None:
    responses = [
        Response(-1.0, gap=[-0.1] * 4, group=1),
        Response(1.0, gap=[0.1] * 3, group=1),
        Response(-1.0, gap=[-0.1] * 2, group=2),
        Response(1.0, gap=[0.1] * 5, group=2),
    ]
    for placed, units in (([0, 0, 1, 1], "groups"), ([0, 1, 0, 1], "responses")):
        directory = tmp_path / units
        directory.mkdir()
        for rank in (0, 1):
            rows = [
                {"step": step, "advantage": r.advantage, "gap": r.gap, "group": r.group}
                for step in (0, 1)
                for r, place in zip(responses, placed, strict=True)
                if place == rank
            ]
            write_jsonl(directory / f"rank-{rank}.jsonl", rows)
        found = analyze(directory)["updates"][0]
        known = responses if units == "groups" else [Response(r.advantage, gap=r.gap) for r in responses]
        expected = report([Update(0, tuple(known))])["indicators"]
        assert found["counts"]["responses"] == 4
        assert found["indicators"]["rho_asym"] == expected["rho_asym"]
        assert found["indicators"]["log_rho_se"] == pytest.approx(expected["log_rho_se"], rel=1e-12), units


def test_steps_that_come_back_without_an_attempt_are_merged_and_said(cli, tmp_path: Path) -> None:
    rows = [{"step": step, "advantage": 1, "gap": [0.1]} for step in (1, 2, 3, 2, 3)]
    path = write_jsonl(tmp_path / "x.jsonl", rows[:3])
    write_jsonl(tmp_path / "y.jsonl", rows[3:])
    done = cli("analyze", path, tmp_path / "y.jsonl", "--json")
    assert [update["counts"]["responses"] for update in strict(done.out)["updates"]] == [1, 2, 2]
    assert "step 2 comes again" in done.err and "`attempt`" in done.err


def test_ignored_columns_are_said(cli, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"step": 1, "advantage": 1, "gap": [0.1], "loss_mask": [1]}])
    done = cli("analyze", path, "--json")
    assert done.code == 0 and "columns left alone: loss_mask" in done.err


def test_table_shows_windows_stages_and_findings(cli, tmp_path: Path) -> None:
    rows = [{"step": step, "advantage": (-1) ** i, "gap": [0.1, -0.2]} for step in range(100) for i in range(4)]
    rows.append({"step": 100, "advantage": 1, "gap": [math.nan]})
    done = cli("analyze", write_jsonl(tmp_path / "run-a.jsonl", rows), "--rows", "10")
    assert done.code == 0
    assert "run run-a: 101 updates" in done.out
    for word in ("rho_asym", "[95%]", "adv mass", "sign odds", "excess", "pressure", "near zero", "q0.001", "reward"):
        assert word in done.out
    windows = done.out.split("trailing windows")[1]
    assert windows.count("warming_up") == 10
    assert "finding: nonfinite_gap from step 100" in windows


def test_check_turns_findings_into_exit_1(cli, tmp_path: Path) -> None:
    healthy = write_jsonl(tmp_path / "x.jsonl", [{"step": 1, "advantage": 1, "gap": [0.1]}])
    assert cli("analyze", healthy, "--check").code == 0
    faulty = write_jsonl(tmp_path / "y.jsonl", [{"step": 1, "advantage": 1, "gap": [math.nan, 0.1]}])
    assert cli("analyze", faulty).code == 0
    assert cli("analyze", faulty, "--check").code == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.parquet"], "no such file"),
        (["--segment", "4", "FILE"], "segment"),
        (["--tau-ana", "nan", "FILE"], "tau_ana"),
        (["--format", "csv", "FILE"], "csv"),
    ],
)
def test_wrong_options_exit_with_2_and_say_which(cli, tmp_path: Path, words: list[str], said: str) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"step": 1, "advantage": 1, "gap": [0.1]}])
    done = cli("analyze", *(str(path) if word == "FILE" else word for word in words))
    assert (done.code, done.out) == (2, "")
    assert said in done.err
