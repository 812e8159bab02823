"""A recorded run: the contract's Parquet, one JSON line per update, the configuration."""

import json

import numpy as np
import pyarrow.parquet as pq

from triage_monitor.testbed.config import TrainConfig
from triage_monitor.testbed.record import RunRecorder
from triage_monitor.testbed.train import Trainer, train

CONFIG = TrainConfig(arm="nvfp4+triage", updates=3, response_tokens=16, prompts=2, group_size=4)


def record(directory, running, attempt=1):
    results = []
    with RunRecorder(directory, CONFIG, run="small", attempt=attempt) as recorder:

        def both(result):
            recorder(result)
            results.append(result)

        train(running.config, trainer=running, on_update=both)
    return results


def test_recorded_updates_have_the_contracts_columns_and_the_runs_values(tmp_path, start):
    results = record(tmp_path, Trainer(CONFIG, start))
    table = pq.read_table(tmp_path / "updates")
    wanted = {"step", "attempt", "advantage", "learner_logprobs", "sampler_logprobs", "group", "reward"}
    assert wanted | {"policy_version", "response_id"} <= set(table.column_names)
    assert table["step"].to_pylist() == [step for step in range(3) for _ in range(8)]
    assert set(table["attempt"].to_pylist()) == {1}
    assert len(set(table["response_id"].to_pylist())) == 24
    assert table["entropy"].to_pylist() == [result.entropy for result in results for _ in range(8)]
    assert {"grad_norm", "wall_seconds", "params_version"} <= set(table.column_names)
    flat = np.concatenate(table["sampler_logprobs"].to_numpy())
    assert np.array_equal(flat, np.concatenate([result.rows.sampler_logprobs for result in results]))


def test_every_update_has_a_line_with_its_numbers(tmp_path, start):
    results = record(tmp_path, Trainer(CONFIG, start))
    lines = [json.loads(line) for line in (tmp_path / "updates.jsonl").read_text().splitlines()]
    for line, result in zip(lines, results, strict=True):
        assert (line["step"], line["reward_mean"], line["entropy"]) == (
            result.step,
            result.reward_mean,
            result.entropy,
        )
        assert line["grad_norm"] > 0
        assert line["wall_seconds"] > line["rollout_seconds"] > 0
        assert line["params_version"] == 0
        assert line["objective_tokens"] == 8 * 16


def test_configuration_is_kept_with_what_it_resolved_to(tmp_path, start):
    record(tmp_path, Trainer(CONFIG, start))
    kept = json.loads((tmp_path / "config.json").read_text())
    assert kept["run"] == "small"
    assert TrainConfig.from_dict(kept["config"]) == CONFIG
    assert kept["regime"]["learning_rate"] == 2.4e-4


def test_restored_run_goes_on_in_the_same_record_as_a_new_attempt(tmp_path, start):
    running = Trainer(CONFIG, start)
    running.update()
    running.save(tmp_path / "one.pt")
    record(tmp_path / "run", Trainer(CONFIG, start))
    record(tmp_path / "run", Trainer.restore(tmp_path / "one.pt"), attempt=2)
    table = pq.read_table(tmp_path / "run" / "updates")
    keys = sorted(set(zip(table["attempt"].to_pylist(), table["step"].to_pylist(), strict=True)))
    assert keys == [(1, 0), (1, 1), (1, 2), (2, 1), (2, 2)]
