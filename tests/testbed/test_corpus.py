"""Which runs the corpus holds, when one is over, and that making it is resumable: real runs, of three tiny updates."""

import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from triage_monitor.testbed import corpus
from triage_monitor.testbed.config import TrainConfig
from triage_monitor.testbed.corpus import CorpusRun, corpus_runs, is_made, make_corpus, make_run
from triage_monitor.testbed.warmup import WarmupRecipe

RUNS = corpus_runs()
TINY = TrainConfig(updates=3, response_tokens=16, prompts=2, group_size=4, warmup=WarmupRecipe(updates=2, batch=4))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIAGE_CACHE_DIR", str(tmp_path / "cache"))


def tiny(seed, **changes):
    return CorpusRun("tiny", seed, replace(TINY, rl_seed=seed, **changes))


def split(name):
    return [run for run in RUNS if run.split == name]


# ---- what it holds


def test_every_run_has_a_name_of_its_own():
    assert len({run.name for run in RUNS}) == len(RUNS) >= 60
    assert len({json.dumps(run.config.to_dict(), sort_keys=True) for run in RUNS}) == len(RUNS)


def test_runs_of_a_group_differ_by_seed_alone():
    for name in {run.group for run in RUNS}:
        configs = {replace(run.config, rl_seed=0, warmup_seed=0) for run in RUNS if run.group == name}
        assert len(configs) == 1, name
    assert all((run.config.rl_seed, run.config.warmup_seed) == (run.seed, run.seed % 4) for run in RUNS)


def test_split_is_by_start_weights():
    """Held-out runs start from models that no development run started from."""
    development, held_out = ({run.config.warmup_seed for run in split(name)} for name in ("development", "held-out"))
    assert len(split("development")) + len(split("held-out")) == len(RUNS)
    assert development == {0, 1}
    assert held_out == {2, 3}


def test_both_splits_hold_every_group_alike():
    groups = {run.group: [other.seed for other in RUNS if other.group == run.group] for run in RUNS}
    for name, seeds in groups.items():
        sides = [
            {run.config.warmup_seed for run in split(side) if run.group == name} for side in ("development", "held-out")
        ]
        assert len(sides[0]) == len(sides[1]) == (2 if len(seeds) >= 4 else 1), name


def test_unfinished_corpus_is_a_balanced_one():
    """Seed by seed across the groups: the first runs are one of each group."""
    groups = {run.group for run in RUNS}
    assert {run.group for run in RUNS[: len(groups)]} == groups
    assert [run.seed for run in RUNS[: len(groups)]] == [0] * len(groups)


def test_every_configuration_is_one_that_trains():
    for run in RUNS:
        regime = run.config.resolved_regime()
        assert 150 <= regime.updates <= 320
        assert regime.response_tokens % regime.segment == 0 or regime.name in ("H", "D")
    assert {"nvfp4-kv4", "nvfp4-kv8", "nvfp4-matched", "nvfp4+tis", "nvfp4+triage"} <= {run.config.arm for run in RUNS}
    assert {run.config.stale_updates for run in RUNS} == {0, 4}


# ---- when a run is over


def over(rewards, planned, finite=None):
    return corpus._over(rewards, [True] * len(rewards) if finite is None else finite, planned)


def test_run_is_over_after_its_updates():
    assert not over([0.8] * 99, 100)
    assert over([0.8] * 100, 100)


def test_collapsed_run_is_over_ten_updates_after_the_collapse_is_certain():
    assert not over([0.8] * 40 + [0.1] * 29, 200)
    assert over([0.8] * 40 + [0.1] * 30, 200)
    broken = [True] * 40 + [False] * 30
    assert not over([0.8] * 69, 200, broken[:69])
    assert over([0.8] * 70, 200, broken)


def test_falling_run_goes_on_until_its_fate_is_known():
    """The trailing mean at 0.6 of 0.8 is below 0.85 of the best; at 0.7 it is not."""
    falling = [0.8] * 90 + [0.6] * 10
    assert not over(falling, 100)
    assert over([0.8] * 90 + [0.7] * 10, 100)
    assert over(falling + [0.8] * 10, 100)  # it healed
    assert not over(falling + [0.1] * 29, 100)  # it falls on, and this is not certain long enough
    assert over(falling + [0.1] * 30, 100)
    assert not over(falling + [0.6] * 99, 100)
    assert over(falling + [0.6] * 100, 100)  # it stays there: that is enough


# ---- making it


def test_made_run_is_a_recording_and_says_how_it_ended(tmp_path):
    run = tiny(0)
    end = make_run(run, tmp_path)
    home = tmp_path / "tiny-s0"
    lines = [json.loads(line) for line in (home / "updates.jsonl").read_text().splitlines()]
    assert json.loads((home / "done.json").read_text()) == end
    assert (end["run"], end["updates"], end["collapse"]) == ("tiny-s0", 3, None)
    assert end["last_reward"] == pytest.approx(sum(line["reward_mean"] for line in lines) / 3)
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert pq.read_table(home / "updates")["step"].to_pylist() == [step for step in range(3) for _ in range(8)]
    assert TrainConfig.from_dict(json.loads((home / "config.json").read_text())["config"]) == run.config


def test_run_is_determined_by_its_configuration(tmp_path):
    make_run(tiny(1), tmp_path / "a")
    make_run(tiny(1), tmp_path / "b")
    first, second = (
        pq.read_table(tmp_path / name / "tiny-s1" / "updates").drop_columns("wall_seconds") for name in "ab"
    )
    assert first.equals(second)


def test_half_made_run_is_made_again_from_its_start(tmp_path):
    make_run(tiny(2), tmp_path)
    home = tmp_path / "tiny-s2"
    expected = pq.read_table(home / "updates").drop_columns("wall_seconds")
    (home / "done.json").unlink()
    (home / "updates" / "left-over.txt").write_text("from a run that was killed")
    assert not is_made(tiny(2), tmp_path)
    make_run(tiny(2), tmp_path)
    assert is_made(tiny(2), tmp_path)
    assert not (home / "updates" / "left-over.txt").exists()
    assert pq.read_table(home / "updates").drop_columns("wall_seconds").equals(expected)
    assert len((home / "updates.jsonl").read_text().splitlines()) == 3


def test_making_makes_what_is_missing_and_only_that(tmp_path):
    runs = [tiny(3), tiny(4)]
    make_run(runs[0], tmp_path)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "tiny-s3").rglob("*")}
    ((made, end),) = make_corpus(tmp_path, runs, workers=1)
    assert (made, end["run"]) == (2, "tiny-s4")
    assert all(is_made(run, tmp_path) for run in runs)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "tiny-s3").rglob("*")} == before
    assert list(make_corpus(tmp_path, runs, workers=1)) == []
