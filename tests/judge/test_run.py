"""RunMonitor on small real summaries: 8 responses of 64 tokens an update, a window of 5, a policy that follows."""

import json
from functools import cache

import numpy as np
import pytest
from judge_series import THRESHOLD

from triage_monitor.errors import ConfigError, SpecMismatch, StoreCorrupt
from triage_monitor.judge.context import NOTHING_KNOWN, Context
from triage_monitor.judge.run import Judgement, JudgeSettings, RunMonitor
from triage_monitor.judge.stages import Stage
from triage_monitor.parameters import TriageParams
from triage_monitor.summary.build import summarize
from triage_monitor.summary.spec import DEFAULT_SPEC, SummarySpec
from triage_monitor.summary.step import StepSummary

RESPONSES, TOKENS = 8, 64


def scored(efolds: float) -> dict[str, object]:
    """A rule on the score in e-folds, before it is divided by the threshold of the day."""
    level = {
        "indicator": "warning_score",
        "form": "abs",
        "level": efolds / THRESHOLD,
        "leave": 0.8 * efolds / THRESHOLD,
    }
    return {"criteria": [level]}


TABLE = {
    "window_updates": 5,
    "detector": {
        "minimum": {"tokens": 1000, "responses": 16, "updates": 3},
        "baseline": {"first_updates": 5, "min_windows": 4, "windows": 8, "span_windows": 16},
        "drift": scored(0.8),
        "pre_terminal": scored(1.2),
    },
    "policy": {"mode": "adaptive", "min_dwell_updates": 3, "calm_updates": 6},
}
SETTINGS = JudgeSettings.from_dict(TABLE)
Update = tuple[int, int, StepSummary]


@cache
def update(seed: int, scale: float = 1.0, reward: float = 0.7, spec: SummarySpec = DEFAULT_SPEC) -> StepSummary:
    """Gaps of both signs with a tail of fixed depth, all `scale` times as large; advantages of both signs."""
    rng = np.random.default_rng(seed)
    gap = rng.normal(0.0, 0.02, (RESPONSES, TOKENS))
    gap[:, 10] = [-1.5, 0.8, -0.8, -1.5, 0.8, -2.0, 1.5, 0.8]
    advantages = np.array([1.0, -1.0] * (RESPONSES // 2))
    return summarize(gap=list(gap * scale), advantages=advantages, rewards=np.full(RESPONSES, reward), spec=spec)


def zeros() -> StepSummary:
    gap = [np.zeros(256) for _ in range(RESPONSES)]
    return summarize(gap=gap, advantages=np.array([1.0, -1.0] * (RESPONSES // 2)))


def calm(count: int, first: int = 0, attempt: int = 0) -> list[Update]:
    return [(first + k, attempt, update(first + k)) for k in range(count)]


def worse(count: int, first: int, scale: float = 4.0, reward: float = 0.7) -> list[Update]:
    return [(first + k, 0, update(first + k, scale, reward)) for k in range(count)]


def story() -> list[Update]:
    """Calm, collapse, a resumed attempt; a late update, a repeated one, an empty one and one of exact zeros."""
    late, *rest = calm(30)[20:]
    empty = summarize(gap=[np.zeros(0)], advantages=np.array([1.0]))
    return [
        *calm(20),
        *rest,
        late,
        rest[-1],
        (30, 0, empty),
        (31, 0, zeros()),
        *calm(6, 32),
        *worse(12, 38),
        *calm(14, 44, attempt=1),
        (45, 0, update(45)),
    ]


def run(updates: list[Update], monitor: RunMonitor | None = None) -> tuple[RunMonitor, list[Judgement]]:
    monitor = monitor or RunMonitor(SETTINGS)
    return monitor, [monitor.accept(*item) for item in updates]


def marks(judgements: list[Judgement]) -> list[tuple[int, str]]:
    return [(item.step, item.transition.to_stage.value) for item in judgements if item.transition]


def test_calm_run_is_healthy_and_its_parameters_stay() -> None:
    monitor, judgements = run(calm(60))
    # Windows are full from step 4 on; the fourth learned one ends at step 7.
    assert marks(judgements) == [(7, "healthy")]
    assert all(item.change is None for item in judgements)
    assert monitor.params == TriageParams()


def test_collapse_is_warned_of_and_answered() -> None:
    _, judgements = run(calm(40) + worse(20, 40))
    assert marks(judgements) == [(7, "healthy"), (44, "pre_terminal"), (45, "terminal")]
    changes = [item.change for item in judgements if item.change]
    assert changes[0].kind == "strengthen"
    assert changes[0].params.gate.enabled
    assert "q0.001_all" in changes[0].reason


def test_window_and_update_have_the_contracts_fields() -> None:
    _, judgements = run(calm(30))
    last = judgements[-1]
    assert set(last.update) == {"step", "attempt", "indicators", "reasons", "quantiles", "masses", "counts"}
    assert set(last.window) == set(last.update) | {"updates", "first_step", "stage", "score"}
    assert (last.window["first_step"], last.window["step"], last.window["updates"]) == (25, 29, 5)
    assert last.window["stage"] == "healthy"
    assert last.update["counts"]["valid_tokens"] == RESPONSES * TOKENS
    assert last.window["counts"]["valid_tokens"] == 5 * RESPONSES * TOKENS
    score = last.window["score"]
    assert set(score) == {"value", "level", "shares", "mismatch", "raw"}
    assert sum(score["shares"].values()) == pytest.approx(score["value"])
    assert judgements[5].window["score"] is None  # no baseline yet
    json.dumps([last.update, last.window], allow_nan=False)


def test_late_update_enters_its_window_but_is_not_judged() -> None:
    monitor, _ = run([*calm(3), *calm(2, 4)])
    late = monitor.accept(3, 0, update(3))
    assert not late.judged
    assert (late.window["first_step"], late.window["step"], late.window["updates"]) == (1, 5, 5)
    in_order, judgements = run(calm(6))
    assert late.window["indicators"] == judgements[-1].window["indicators"]
    assert monitor.window_keys() == in_order.window_keys()


def test_repeated_update_replaces_and_is_not_judged_again() -> None:
    monitor, judgements = run(calm(30))
    before = monitor.state()
    again = monitor.accept(29, 0, update(29))
    assert not again.judged
    assert again.window == judgements[-1].window
    assert monitor.state() == before


def test_update_without_a_token_changes_nothing() -> None:  # case C11
    monitor, _ = run(calm(30))
    stage, detector = monitor.stage, monitor.state()["detector"]
    empty = summarize(gap=[np.zeros(0)], advantages=np.array([1.0]))
    judgement = monitor.accept(30, 0, empty)
    assert not judgement.judged
    assert (monitor.stage, monitor.state()["detector"]) == (stage, detector)


def test_exact_zeros_are_not_observable() -> None:
    _, judgements = run([*calm(30), (30, 0, zeros())])
    assert judgements[-1].stage is Stage.NOT_OBSERVABLE


def test_new_attempt_replaces_the_older_ones_steps_and_unlatches() -> None:
    monitor, _ = run(calm(30) + worse(15, 30, scale=10.0))
    assert monitor.stage is Stage.TERMINAL
    baseline = monitor.baseline
    monitor.start_attempt(1, 25)
    _, judgements = run(calm(20, 25, attempt=1), monitor)
    assert [name for _, name in marks(judgements)] == ["warming_up", "healthy"]
    assert monitor.baseline == baseline
    old = monitor.accept(44, 0, update(44, 10.0))
    assert not old.judged
    assert old.window["indicators"] == judgements[-1].window["indicators"]


def test_operator_clears_and_holds() -> None:
    monitor, _ = run(calm(30) + worse(15, 30, scale=10.0))
    transition = monitor.clear(45)
    assert transition is not None
    assert transition.rule == "cleared"
    assert monitor.clear(45) is None
    mine = TriageParams().with_changes({"tis.enabled": True})
    monitor.hold(mine, "operator")
    _, judgements = run(worse(20, 45, scale=10.0), monitor)
    assert all(item.change is None for item in judgements)
    assert monitor.params == mine
    assert monitor.policy_note == "held: operator set the parameters"


def test_stopped_after_any_update_it_continues_bit_for_bit() -> None:  # case C39
    updates = story()
    whole, expected = run(updates)
    assert {stage for _, stage in marks(expected)} >= {"healthy", "not_observable", "terminal", "warming_up"}
    assert any(item.change for item in expected)
    stored = {}
    monitor, judgements = RunMonitor(SETTINGS), []
    for step, attempt, summary in updates:
        stored[step, attempt] = summary
        judgements.append(monitor.accept(step, attempt, summary))
        text = json.dumps(monitor.state(), allow_nan=False)
        recent = [(*key, stored[key]) for key in reversed(monitor.window_keys())]
        monitor = RunMonitor.restore(SETTINGS, DEFAULT_SPEC, json.loads(text), recent)
        assert json.dumps(monitor.state()) == text
    assert judgements == expected
    assert monitor.state() == whole.state()


def test_replay_of_the_same_updates_gives_identical_judgements() -> None:
    assert run(story())[1] == run(story())[1]


def test_restart_alone_makes_no_transition_and_pushes_no_parameter() -> None:  # case C39
    updates = calm(40) + worse(8, 40)
    monitor, judgements = run(updates)
    assert any(item.change for item in judgements)
    restored = RunMonitor.restore(SETTINGS, DEFAULT_SPEC, json.loads(json.dumps(monitor.state())), updates)
    assert (restored.stage, restored.params) == (monitor.stage, monitor.params)
    assert restored.accept(47, 0, update(47, 4.0)).change is None


def test_restored_run_tells_the_score_of_a_late_update_as_the_whole_one_does() -> None:
    updates = calm(30)
    whole, _ = run(updates)
    restored = RunMonitor.restore(SETTINGS, DEFAULT_SPEC, json.loads(json.dumps(whole.state())), updates[-5:])
    score = whole.accept(28, 0, update(28)).window["score"]
    assert score is not None
    assert restored.accept(28, 0, update(28)).window["score"] == score


def test_state_stored_before_there_was_a_score_still_loads() -> None:
    updates = calm(30)
    stored = run(updates)[0].state()
    del stored["detector"]["levels"], stored["detector"]["score"]
    restored = RunMonitor.restore(SETTINGS, DEFAULT_SPEC, stored, updates[-5:])
    _, (judgement,) = run(calm(1, 30), restored)
    assert judgement.stage is Stage.HEALTHY
    assert "trend" not in judgement.window["score"]["shares"]  # nothing is known of the levels before


def test_restored_before_a_new_attempt_the_window_is_full_again() -> None:  # case C34
    updates = calm(31)
    monitor, _ = run(updates)
    rewound = RunMonitor.restore(SETTINGS, DEFAULT_SPEC, monitor.state(), updates[:21])
    _, judgements = run(calm(3, 21, attempt=1), rewound)
    last = judgements[-1].window
    assert (last["first_step"], last["step"], last["attempt"], last["updates"]) == (19, 23, 1, 5)


def test_restore_refuses_a_state_of_another_format() -> None:
    with pytest.raises(StoreCorrupt, match="format 99"):
        RunMonitor.restore(SETTINGS, DEFAULT_SPEC, {**RunMonitor(SETTINGS).state(), "format": 99}, [])


def test_other_spec_is_refused_and_nothing_kept() -> None:
    monitor, _ = run(calm(6))
    before = monitor.state()
    with pytest.raises(SpecMismatch):
        monitor.accept(6, 0, update(6, spec=SummarySpec(segment=32)))
    assert monitor.state() == before


def test_paper_mode_starts_with_the_gate_on() -> None:
    settings = JudgeSettings.from_dict({**TABLE, "policy": {"mode": "paper", "base": {"repair": {"k_rep": 9}}}})
    monitor = RunMonitor(settings)
    change = monitor.start()
    assert change is not None
    params = change.params
    assert (params.gate.enabled, params.repair.enabled, params.repair.k_rep) == (True, True, 9)
    assert all(monitor.accept(*item).change is None for item in calm(10))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"windows": 5}, r"judge\.windows: there is no such setting"),
        ({"window_updates": "25"}, r"judge\.window_updates: '25' is not"),
        ({"window_updates": 10}, r"judge: window_updates 10 is below the 25 updates"),
        ({"detector": {"minimum": {"token": 5}}}, r"judge\.detector\.minimum\.token: there is no such setting"),
        ({"detector": {"drift": {"criteria": [], "votes": 1}}}, r"judge\.detector\.drift: votes 1"),
        ({"policy": {"mode": "bold"}}, r"judge\.policy\.mode: 'bold' is not one of"),
        ({"policy": {"base": {"gate": {"w_min": 7}}}}, r"judge\.policy: parameter .*gate\.w_min"),
    ],
)
def test_wrong_configuration_is_refused_naming_the_key(table: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        JudgeSettings.from_dict(table)


def test_criteria_and_remedies_come_from_configuration() -> None:
    """The policy has no criteria of its own: it acts on the stage that the detector's rules made."""
    criterion = {"indicator": "kl_k3", "level": 2.0, "leave": 1.5, "form": "rel", "floor": 0.001}
    rule = {"criteria": [criterion], "votes": 1, "enter_updates": 2, "leave_updates": 4}
    remedy = {"name": "only", "stages": ["drift"], "changes": {"tis.enabled": True, "tis.cap": 3.0}}
    policy = {"mode": "adaptive", "remedies": [remedy], "harm": {"trial_updates": 30}}
    settings = JudgeSettings.from_dict({"detector": {"drift": rule}, "policy": policy})
    assert "kl_k3" in settings.learned()
    assert settings.policy.under(TriageParams(), settings.policy.named("only")).tis.cap == 3.0
    assert settings.policy.harm.trial_updates == 30


def flawed_every(spacing: int, count: int, scale: float = 1.0) -> list[tuple[Update, Context]]:
    """Every `spacing`-th update is wild and known to be misaligned."""
    blind = Context(blinded_by=("token_misalignment",))
    wild = {k for k in range(count) if k % spacing == spacing - 1}
    return [
        ((k, 0, update(k, 30.0 if k in wild else scale)), blind if k in wild else NOTHING_KNOWN) for k in range(count)
    ]


def test_flaw_in_every_third_update_withholds_no_verdict_and_teaches_nothing() -> None:
    monitor = RunMonitor(SETTINGS)
    judgements = [monitor.accept(*item, context) for item, context in flawed_every(3, 39)]
    assert [item.stage.value for item in judgements[-6:]] == ["healthy", "healthy", "not_observable"] * 2
    clean, _ = run([item for item, context in flawed_every(3, 39) if context is NOTHING_KNOWN])
    learned, expected = monitor.baseline["levels"], clean.baseline["levels"]
    assert learned.keys() == expected.keys()
    assert all(learned[name]["median"] == expected[name]["median"] for name in learned)


def test_flawed_updates_stay_in_the_window_that_is_shown() -> None:
    monitor = RunMonitor(SETTINGS)
    judgements = [monitor.accept(*item, context) for item, context in flawed_every(3, 39)]
    shown = judgements[-1].window
    assert (shown["first_step"], shown["updates"]) == (34, 5)
    assert shown["indicators"]["abs_delta_max"] == pytest.approx(30 * 2.0)  # of update 35 and 38


def test_run_that_falls_apart_beside_flawed_updates_is_caught() -> None:
    monitor = RunMonitor(SETTINGS)
    for item, context in flawed_every(3, 30):
        monitor.accept(*item, context)
    stages = [monitor.accept(30 + k, 0, update(30 + k, 10.0)).stage for k in range(15)]
    assert stages[-1] is Stage.TERMINAL


def test_stopped_among_flawed_updates_it_continues_bit_for_bit() -> None:  # case C39
    story = flawed_every(3, 36)
    whole = RunMonitor(SETTINGS)
    expected = [whole.accept(*item, context) for item, context in story]
    stored: dict[tuple[int, int], StepSummary] = {}
    monitor, judgements = RunMonitor(SETTINGS), []
    for (step, attempt, summary), context in story:
        stored[step, attempt] = summary
        judgements.append(monitor.accept(step, attempt, summary, context))
        state = json.loads(json.dumps(monitor.state(), allow_nan=False))
        held = [(*key, stored[key]) for key in map(tuple, state["held"])]
        assert len(held) <= 5 + 2
        monitor = RunMonitor.restore(SETTINGS, DEFAULT_SPEC, state, held)
    assert judgements == expected


def test_updates_that_arrive_swapped_in_pairs_are_judged_as_early() -> None:
    in_order = [item.stage for item in run(calm(20))[1]]
    swapped = [calm(20)[k ^ 1] for k in range(20)]
    monitor, judgements = run(swapped)
    first = [item.stage for item in judgements].index(Stage.HEALTHY)
    assert first <= in_order.index(Stage.HEALTHY) + 5
    assert monitor.stage is Stage.HEALTHY
