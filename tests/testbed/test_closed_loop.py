import json
from dataclasses import replace
from pathlib import Path

import pytest

from triage_monitor.errors import ConfigError, InputError
from triage_monitor.judge.run import JudgeSettings
from triage_monitor.parameters import TriageParams
from triage_monitor.testbed.closed_loop import make_cell, make_missing
from triage_monitor.testbed.closed_loop_plan import CELLS, Cell, read_recorded
from triage_monitor.testbed.closed_loop_run import LoopRun, in_words, read_run, write_run
from triage_monitor.testbed.config import TrainConfig
from triage_monitor.testbed.record import RunRecorder
from triage_monitor.testbed.train import Trainer, train
from triage_monitor.testbed.warmup import WarmupRecipe

UPDATES = 12
RECIPE = WarmupRecipe(updates=40, batch=32, learning_rate=1e-2)
CONFIG = TrainConfig(
    regime="demo",
    response_tokens=16,
    segment=8,
    updates=UPDATES,
    warmup=RECIPE,
    rl_seed=3,
    prompts=4,
    group_size=4,
)
CELL = Cell("tiny", 3, CONFIG, ("none", "adaptive", "fallback"), {"none": "tiny"})


def alarmed(indicator: str, rule: str = "drift") -> JudgeSettings:
    """Windows of four updates; `rule` holds as soon as the indicator is above 0 for seven of them."""
    above = {"criteria": [{"indicator": indicator, "level": 1e-12, "leave": 0.0, "form": "abs"}], "enter_updates": 7}
    never = {"criteria": [{"indicator": "missing_fraction", "level": 1.0, "leave": 1.0, "form": "abs"}]}
    detector = {
        "minimum": {"tokens": 100, "responses": 8, "updates": 2},
        "baseline": {"first_updates": 2, "min_windows": 2, "windows": 4, "span_windows": 8},
        "drift": above,
        "pre_terminal": above if rule == "pre_terminal" else never,
        "terminal": never,
    }
    return JudgeSettings.from_dict({"window_updates": 4, "detector": detector})


ALARM = alarmed("abs_delta_mean")
CALM = alarmed("missing_fraction")


@pytest.fixture(scope="session", autouse=True)
def _warm_ups(tmp_path_factory: pytest.TempPathFactory):
    patch = pytest.MonkeyPatch()
    patch.setenv("TRIAGE_CACHE_DIR", str(tmp_path_factory.mktemp("warm-ups")))
    yield
    patch.undo()


@pytest.fixture(scope="session")
def plain() -> tuple[float, ...]:
    rewards: list[float] = []
    train(replace(CONFIG, arm="nvfp4"), on_update=lambda result: rewards.append(result.reward_mean))
    return tuple(rewards)


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[LoopRun]]:
    """The cell under a policy that sees drift, trained without recordings."""
    home = tmp_path_factory.mktemp("live")
    return home, make_cell(CELL, home, None, ALARM)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("corpus")
    record(home / "tiny-s3", replace(CONFIG, arm="nvfp4"))
    return home


def record(home: Path, config: TrainConfig) -> None:
    with RunRecorder(home, config, run="tiny-s3") as recorder:
        train(config, on_update=recorder)
    (home / "done.json").write_text("{}")


def test_steered_run_is_the_untouched_one_until_its_first_change(
    live: tuple[Path, list[LoopRun]], plain: tuple[float, ...]
) -> None:
    none, adaptive, fallback = live[1]
    assert none.rewards == fallback.rewards == plain
    first = adaptive.in_force[1][0]
    assert adaptive.in_force == ((0, "none"), (first, "gate+repair"))
    assert [step for step, _, _ in adaptive.changes] == [first]
    assert 2 < first < UPDATES - 1
    assert adaptive.rewards[: first + 1] == plain[: first + 1]  # the changed update's rollout came before its step
    assert adaptive.updates_with("gate") == UPDATES - first
    assert fallback.changes == ()  # drift is no alarm for bf16
    assert adaptive.monitor_seconds is not None and adaptive.monitor_seconds > 0


def test_pre_terminal_alarm_moves_the_fallback_arm_to_bf16(tmp_path: Path, plain: tuple[float, ...]) -> None:
    settings = alarmed("abs_delta_mean", "pre_terminal")
    _, fallback = make_cell(replace(CELL, arms=("none", "fallback")), tmp_path, None, settings)
    first = fallback.in_force[1][0]
    assert fallback.in_force == ((0, "none"), (first, "bf16"))
    assert fallback.rewards[:first] == plain[:first]
    assert fallback.rewards[first:] != plain[first:]
    assert fallback.updates_with("bf16") == UPDATES - first


def test_runs_are_trained_once(live: tuple[Path, list[LoopRun]]) -> None:
    home, first = live
    times = {path: path.stat().st_mtime_ns for path in home.iterdir()}
    assert make_cell(CELL, home, None, ALARM) == first
    assert {path: path.stat().st_mtime_ns for path in home.iterdir()} == times
    assert list(make_missing([CELL], home, None, 1, ALARM)) == []


def test_arm_that_was_missing_is_added_to_what_is_there(tmp_path: Path, live: tuple[Path, list[LoopRun]]) -> None:
    home, whole = live
    for path in home.iterdir():
        if "adaptive" not in path.name:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    added = make_cell(CELL, tmp_path, None, ALARM)[1]
    assert (added.rewards, added.in_force, added.changes) == (whole[1].rewards, whole[1].in_force, whole[1].changes)


def test_recorded_run_under_a_calm_policy_is_trained_by_nobody(
    tmp_path: Path, corpus: Path, plain: tuple[float, ...]
) -> None:
    none, adaptive, fallback = make_cell(CELL, tmp_path, corpus, CALM)
    assert none.rewards == adaptive.rewards == fallback.rewards == plain
    assert none.seconds is None and adaptive.seconds is None
    assert adaptive.in_force == ((0, "none"),)


def test_recorded_run_and_a_live_one_get_the_same_answer(
    tmp_path: Path, corpus: Path, live: tuple[Path, list[LoopRun]]
) -> None:
    recorded = make_cell(replace(CELL, arms=("none", "adaptive")), tmp_path, corpus, ALARM)
    assert [run.rewards for run in recorded] == [run.rewards for run in live[1][:2]]
    assert recorded[1].changes == live[1][1].changes


def test_recording_of_another_run_is_refused(tmp_path: Path, corpus: Path) -> None:
    other = replace(CELL, config=replace(CONFIG, rl_seed=4), arms=("none", "adaptive"))
    with pytest.raises(ConfigError, match=r"tiny-s3: update \d has reward"):
        make_cell(other, tmp_path, corpus, ALARM)


def test_recording_that_was_cut_is_not_used(tmp_path: Path, plain: tuple[float, ...]) -> None:
    record(tmp_path / "corpus" / "tiny-s3", replace(CONFIG, arm="nvfp4", updates=3))
    assert read_recorded(CELL, "none", tmp_path / "corpus") is None
    none = make_cell(replace(CELL, arms=("none",)), tmp_path / "runs", tmp_path / "corpus", CALM)[0]
    assert none.rewards == plain


def test_arms_that_leave_the_papers_run_share_its_first_half(tmp_path: Path) -> None:
    cell = replace(CELL, arms=("none", "paper", "tis-later", "none-later"))
    _, paper, tis, nothing = make_cell(cell, tmp_path, None, CALM)
    half = UPDATES // 2
    for run, words in ((tis, "tis"), (nothing, "none")):
        assert run.in_force == ((0, "gate+repair"), (half, words))
        assert run.rewards[: half + 1] == paper.rewards[: half + 1]
        assert len(run.rewards) == UPDATES


def test_paper_arm_trains_as_the_trainer_does_by_itself(tmp_path: Path) -> None:
    paper = make_cell(replace(CELL, arms=("none", "paper")), tmp_path, None, CALM)[1]
    trainer = Trainer(replace(CONFIG, arm="nvfp4+triage"))
    assert paper.rewards == tuple(trainer.update().reward_mean for _ in range(UPDATES))


def test_updates_under_a_part_are_counted_to_the_end() -> None:
    in_force = ((0, "none"), (3, "gate+repair"), (7, "tis"), (8, "bf16"))
    run = LoopRun("tiny", "adaptive", 0, (0.5,) * 10, (True,) * 10, in_force)
    assert [run.updates_with(part) for part in ("gate", "repair", "tis", "bf16", "none")] == [4, 4, 1, 2, 3]


def test_words_name_what_is_on() -> None:
    both = TriageParams().with_changes({"gate.enabled": True, "repair.enabled": True})
    assert (in_words(TriageParams()), in_words(both)) == ("none", "gate+repair")
    assert in_words(TriageParams().with_changes({"precision": "bf16"})) == "bf16"


def test_run_survives_its_file_and_a_broken_file_is_named(tmp_path: Path) -> None:
    changes = ((4, "strengthen", "base -> gentle: because"),)
    run = LoopRun("tiny", "adaptive", 2, (0.1, 1 / 3), (True, False), ((0, "none"),), 1.5, 0.25, changes)
    write_run(tmp_path, run)
    path = tmp_path / "tiny-s2-adaptive.json"
    assert read_run(path) == run
    path.write_text(json.dumps({"group": "tiny"}))
    with pytest.raises(InputError, match=r"tiny-s2-adaptive\.json"):
        read_run(path)


def test_plan_has_eight_starts_in_the_main_regime_and_no_two_cells_of_one_name() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    main = [cell for cell in CELLS if cell.group == "fast"]
    assert len(main) == 8
    for cell in CELLS:
        assert {"none", "adaptive"} <= set(cell.arms)
        assert ("fallback" in cell.arms) == (cell.group in ("fast", "reuse", "ramp"))
        assert cell.config.rl_seed == cell.seed and cell.config.warmup_seed == cell.seed % 4
