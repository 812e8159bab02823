import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from triage_monitor.cli.main import build_app
from triage_monitor.errors import InputError
from triage_monitor.evaluation.closed_loop import document, mean, read_runs, scores, write_runs
from triage_monitor.evaluation.closed_loop_figure import draw, smoothed
from triage_monitor.testbed.closed_loop_run import LoopRun

UPDATES = 60


def run(arm: str, seed: int, reward: float, group: str = "fast", **changes: object) -> LoopRun:
    """Reward 0.8 for 35 updates, then `reward` for the last 25."""
    rewards = (0.8,) * (UPDATES - 25) + (reward,) * 25
    made = LoopRun(group, arm, seed, rewards, (True,) * UPDATES, ((0, "none"),))
    return replace(made, **changes)  # type: ignore[arg-type]


def three_starts() -> list[LoopRun]:
    steered = {"in_force": ((0, "none"), (20, "gate+repair"), (50, "bf16")), "seconds": 9.0, "monitor_seconds": 1.0}
    return [
        *(run("none", seed, reward) for seed, reward in enumerate((0.2, 0.5, 0.8))),
        *(run("adaptive", seed, reward, **steered) for seed, reward in enumerate((0.7, 0.8, 0.9))),
        *(run("paper", seed, reward, in_force=((0, "gate+repair"),)) for seed, reward in enumerate((0.1, 0.4, 0.6))),
        *(run("none", seed, 0.6, "calm") for seed in range(2)),
        *(run("adaptive", seed, 0.6, "calm") for seed in range(2)),
    ]


def test_arms_are_compared_start_by_start() -> None:
    none, adaptive, paper, *_ = scores(three_starts())
    assert none.to_none is None
    assert none.final.value == pytest.approx(0.5)
    assert (none.starts, none.survivors, adaptive.survivors, paper.survivors) == (3, 2, 3, 2)
    assert adaptive.to_none is not None and paper.to_none is not None
    assert adaptive.to_none.value == pytest.approx((0.5 + 0.3 + 0.1) / 3)
    assert (adaptive.to_none.low, adaptive.to_none.high) == (pytest.approx(0.1), pytest.approx(0.5))
    assert paper.to_none.value == pytest.approx((-0.1 - 0.1 - 0.2) / 3)


def test_harm_is_said_when_the_whole_interval_lies_below_doing_nothing() -> None:
    found = {(row.group, row.arm): row.harm for row in scores(three_starts())}
    assert found["fast", "adaptive"] == "better"
    assert found["fast", "paper"] == "worse"
    assert found["calm", "adaptive"] == "the same runs"
    mixed = [*three_starts()[:3], run("adaptive", 0, 0.1), run("adaptive", 1, 0.6), run("adaptive", 2, 0.7)]
    assert scores(mixed)[1].harm == "not worse"


def test_two_starts_are_no_verdict() -> None:
    two = [run("none", seed, 0.2) for seed in range(2)] + [run("adaptive", seed, 0.9) for seed in range(2)]
    assert scores(two)[1].harm == "too few starts"


def test_cost_is_counted_in_updates_and_in_the_monitors_share() -> None:
    adaptive = scores(three_starts())[1]
    assert (adaptive.gated, adaptive.bf16) == (30.0, 10.0)
    assert adaptive.overhead == pytest.approx(0.1)
    assert scores(three_starts())[0].overhead is None


def test_arm_without_a_run_of_none_has_no_difference() -> None:
    (row,) = scores([run("adaptive", 0, 0.8)])
    assert row.to_none is None and row.harm == ""


def test_best_is_a_mean_over_25_updates() -> None:
    assert scores([run("none", 0, 0.3)])[0].best.value == pytest.approx(0.8)
    assert scores([run("none", 0, 0.9)])[0].best.value == pytest.approx(0.9)


def test_interval_of_a_mean_covers_it_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(300):
        found = mean(rng.normal(0.0, 1.0, 20))
        assert found.low is not None and found.high is not None
        hits += found.low <= 0.0 <= found.high
    assert 0.87 < hits / 300 < 0.98


def test_curve_is_a_trailing_mean() -> None:
    line = smoothed([0.0] * 25 + [1.0] * 25)
    assert line[24] == 0.0
    assert line[29] == pytest.approx(0.2)
    assert line[49] == 1.0


def test_runs_survive_their_file(tmp_path: Path) -> None:
    runs = three_starts()
    runs[0] = replace(runs[0], finite=(True,) * 59 + (False,), changes=((20, "strengthen", "base -> gentle: why"),))
    path = tmp_path / "runs.parquet"
    write_runs(path, runs)
    assert read_runs(path) == runs


def test_other_file_is_refused_naming_it(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match=r"other\.parquet"):
        read_runs(path)


def test_document_is_json_and_says_harm_regime_by_regime() -> None:
    made = json.loads(json.dumps(document(three_starts()), allow_nan=False))
    assert made["no_harm"] == {"fast": "better", "calm": "the same runs"}
    assert made["runs"][0]["collapse"] == 35
    assert made["arms"][1]["harm"] == "better"


def test_command_prints_the_table_and_draws_the_figure(tmp_path: Path) -> None:
    path, png = tmp_path / "runs.parquet", tmp_path / "figure.png"
    write_runs(path, three_starts())
    result = CliRunner().invoke(build_app(), ["bench", "closed-loop", "--data", str(path), "--png", str(png)])
    assert result.exit_code == 0, result.output
    assert "fast: the adaptive policy is better than doing nothing" in result.stdout
    assert "calm: the adaptive policy is doing nothing: no alarm, no change" in result.stdout
    assert png.read_bytes().startswith(b"\x89PNG")


def test_figure_draws_what_there_is(tmp_path: Path) -> None:
    draw([run("none", 0, 0.8, "calm"), run("adaptive", 0, 0.8, "calm")], tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_missing_file_says_how_to_make_the_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--make"):
        read_runs(tmp_path / "none.parquet")
