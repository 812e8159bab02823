"""The early-warning score by hand: what it is made of, what it leaves out, and that it says so."""

import json
import math
from dataclasses import replace

import pytest
from judge_series import CALM, THRESHOLD, THRESHOLD_MISMATCH, raised, window

from triage_monitor.errors import ConfigError
from triage_monitor.judge.alarm_rate import score_threshold
from triage_monitor.judge.defaults import SCORE_SETTINGS, DetectorSettings
from triage_monitor.judge.detector import DetectorState, detect
from triage_monitor.judge.observation import Observation
from triage_monitor.judge.rules import Take
from triage_monitor.judge.score import History, Score, ScoreSettings, Term, early_warning
from triage_monitor.judge.stages import Transition

TAIL = Term("tail", 2.0, 0.1, Take.NEGATIVE)
GAP = Term("gap", 1.0, 0.01)
MASKED = Term("masked", 1.0, 0.02, Take.COMPLEMENT)
SETTINGS = ScoreSettings(
    (TAIL, GAP, MASKED),
    trend_weight=2.0,
    reward_weight=5.0,
    grad_norm_weight=6.0,
    signature_band=0.5,
    signature_scale=0.4,
)
BASELINE = {"tail": -2.0, "gap": 0.04, "masked": 0.9}
RATE = 1.0


def h(reward: bool = False, grad_norm: bool = False, rate: float = RATE) -> float:
    return score_threshold(rate, reward=reward, grad_norm=grad_norm)


def score(
    values: dict[str, float | None], history: History | None = None, baseline: dict[str, float] | None = None
) -> Score:
    found = early_warning(SETTINGS, values, baseline or BASELINE, history or History(), RATE)
    assert found is not None
    assert sum(found.shares.values()) == pytest.approx(found.value, abs=1e-12)
    return found


def test_level_is_the_weighted_mean_of_log_ratios() -> None:
    """Tail doubled at weight 2, gap three-fold at weight 1, unmasked share 0.1 -> 0.05: (2 ln 2 + ln 3 - ln 2) / 4."""
    found = score({"tail": -4.0, "gap": 0.12, "masked": 0.95})
    level = (math.log(2) + math.log(3)) / 4
    assert found.level == pytest.approx(level)
    assert found.value == pytest.approx(level / h())
    assert found.shares == pytest.approx(
        {"tail": math.log(2) / 2 / h(), "gap": math.log(3) / 4 / h(), "masked": -math.log(2) / 4 / h()}
    )


def test_values_at_the_baseline_score_zero() -> None:
    assert score(dict(BASELINE)).value == 0.0


def test_floor_holds_on_either_side_of_the_ratio() -> None:
    assert TAIL.efolds(-0.05, -0.001) == 0.0  # both too small to matter
    assert TAIL.efolds(-0.2, -0.001) == pytest.approx(math.log(2))
    assert TAIL.efolds(0.3, -0.2) == pytest.approx(-math.log(2))  # no tail on that side at all
    assert GAP.efolds(0.0, 0.02) == pytest.approx(-math.log(2))
    assert MASKED.efolds(1.0, 0.96) == pytest.approx(-math.log(2))
    assert MASKED.efolds(0.9, 1.0) == pytest.approx(math.log(5))


@pytest.mark.parametrize("missing", ["value", "baseline"])
def test_absent_term_drops_out_of_the_mean(missing: str) -> None:
    """Tail doubled: 2 ln 2 / 4 of three terms, 2 ln 2 / 3 when the gap is not known."""
    values: dict[str, float | None] = {"tail": -4.0, "gap": None if missing == "value" else 0.04, "masked": 0.9}
    baseline = {"tail": -2.0, "masked": 0.9} if missing == "baseline" else BASELINE
    found = score(values, baseline=baseline)
    assert found.level == pytest.approx(2 * math.log(2) / 3)
    assert set(found.shares) == {"tail", "masked"}


def test_without_a_known_term_there_is_no_score() -> None:
    assert early_warning(SETTINGS, {"tail": None, "reward_mean": 0.1}, BASELINE, History(None, 0.7), RATE) is None
    assert early_warning(SETTINGS, {"tail": -4.0}, {}, History(), RATE) is None


@pytest.mark.parametrize(("before", "trend"), [(0.1, 2.0 * (0.5 * math.log(2) - 0.1)), (0.9, 0.0), (None, None)])
def test_trend_counts_a_rise_only(before: float | None, trend: float | None) -> None:
    found = score({"tail": -4.0, "gap": 0.04, "masked": 0.9}, History(level_before=before))
    assert found.level == pytest.approx(0.5 * math.log(2))  # the trend is no part of what later trends are taken from
    expected = None if trend is None else pytest.approx(trend / h())
    assert found.shares.get("trend") == expected


@pytest.mark.parametrize(
    ("reward", "best", "share"),
    [
        (0.35, 0.7, 5 * 0.5),
        (-0.7, 0.7, 5 * 2.0),
        (0.8, 0.7, 0.0),  # better than ever
        (None, 0.7, None),  # not sent
        (0.35, None, None),  # no best yet
        (-1.0, -0.5, None),  # a best that is not above 0 has no half
        (0.0, 0.0, None),
    ],
)
def test_reward_enters_when_sent_and_only_when_it_falls(
    reward: float | None, best: float | None, share: float | None
) -> None:
    found = score({**BASELINE, "reward_mean": reward}, History(best_reward=best))
    expected = None if share is None else pytest.approx(share / h(reward=True))
    assert found.shares.get("reward_mean") == expected


@pytest.mark.parametrize(
    ("norm", "normal", "share"),
    [(0.4, 0.2, 6 * math.log(2)), (0.1, 0.2, 0.0), (None, 0.2, None), (0.4, None, None)],
)
def test_gradient_norm_enters_when_sent_and_only_when_it_grows(
    norm: float | None, normal: float | None, share: float | None
) -> None:
    baseline = {**BASELINE, **({} if normal is None else {"grad_norm": normal})}
    found = score({**BASELINE, "grad_norm": norm}, baseline=baseline)
    expected = None if share is None else pytest.approx(share / h(grad_norm=True))
    assert found.shares.get("grad_norm") == expected


def test_signals_sent_choose_the_threshold() -> None:
    tail = {**BASELINE, "tail": -4.0}
    baseline = {**BASELINE, "grad_norm": 0.2}
    for reward in (False, True):
        for norm in (False, True):
            values = tail | ({"reward_mean": 0.7} if reward else {}) | ({"grad_norm": 0.2} if norm else {})
            found = score(values, History(best_reward=0.7), baseline)
            own = h(rate=0.5) if reward or norm else math.inf  # the gaps by themselves, at half the rate
            assert found.value == pytest.approx(0.5 * math.log(2) / min(h(reward, norm), own))


def test_calm_signals_of_the_trainer_do_not_mute_the_gaps() -> None:
    """Everything twenty-fold with reward at its best and a flat gradient norm: an alarm as without them."""
    torn = {"tail": -40.0, "gap": 0.8, "masked": 0.1}
    history, baseline = History(best_reward=0.7), {**BASELINE, "grad_norm": 0.2}
    told = score({**torn, "reward_mean": 0.7, "grad_norm": 0.2}, history, baseline)
    alone = score(torn)
    level = (2 * math.log(20) + math.log(20) + math.log(9)) / 4
    assert told.value == pytest.approx(level / h(rate=0.5))
    assert told.shares["reward_mean"] == told.shares["grad_norm"] == 0.0
    assert told.mismatch == alone.mismatch == pytest.approx(level / h())


def test_raw_is_the_sum_before_any_threshold() -> None:
    found = score({**BASELINE, "tail": -4.0, "reward_mean": 0.35}, History(best_reward=0.7))
    assert found.raw == pytest.approx(0.5 * math.log(2) + 5.0 * 0.5)


def test_rate_asked_for_divides_every_share_alike() -> None:
    values = {**BASELINE, "tail": -4.0, "reward_mean": 0.35}
    history = History(0.0, 0.7)
    usual = early_warning(SETTINGS, values, BASELINE, history, 1.0)
    rare = early_warning(SETTINGS, values, BASELINE, history, 0.1)
    assert usual is not None and rare is not None
    ratio = h(reward=True) / h(reward=True, rate=0.1)
    assert rare.level == usual.level
    assert rare.shares == pytest.approx({name: share * ratio for name, share in usual.shares.items()})


LEANING: dict[str, float | None] = {"rho_asym": 1.6, "log_rho_se": 0.05, "top5_tail_share": 0.45, "persistence": 3.6}
NORMAL = {"rho_asym": 1.0, "top5_tail_share": 0.3, "persistence": 3.0}
# direction less its uncertainty, and the growth of both kinds of crowding
SIGNATURE = (math.log(1.6) - 1.96 * 0.05) + math.log(1.5) + math.log(1.2)


def signature(changes: dict[str, float | None], tail: float = -2.5) -> float | None:
    values = {**BASELINE, "tail": tail, **LEANING, **changes}
    return score(values, baseline=BASELINE | NORMAL).shares.get("signature")


def test_signature_is_direction_and_crowding_beyond_a_band() -> None:
    assert signature({}) == pytest.approx((SIGNATURE - 0.5) / 0.4)
    assert signature({"rho_asym": 1 / 1.6}) == pytest.approx((SIGNATURE - 0.5) / 0.4)  # either side
    assert signature({"persistence": 2.0}) == pytest.approx((SIGNATURE - math.log(1.2) - 0.5) / 0.4)


def test_direction_without_any_crowding_is_no_signature() -> None:
    assert signature({"rho_asym": 5.0, "top5_tail_share": 0.3, "persistence": 3.0}) == 0.0


def test_signature_within_the_band_is_nothing() -> None:
    assert signature({"rho_asym": 1.05, "top5_tail_share": 0.4}) == 0.0


def test_signature_beside_a_tail_at_its_normal_is_nothing() -> None:
    assert signature({}, tail=-2.0) == 0.0
    assert signature({}, tail=-1.0) == 0.0


@pytest.mark.parametrize("name", ["rho_asym", "log_rho_se", "top5_tail_share", "persistence"])
def test_signature_needs_all_its_parts(name: str) -> None:
    assert signature({name: None}) is None


def test_signature_is_not_divided_by_the_threshold() -> None:
    values = {**BASELINE, "tail": -2.1, **LEANING}
    usual = early_warning(SETTINGS, values, BASELINE | NORMAL, History(), 1.0)
    rare = early_warning(SETTINGS, values, BASELINE | NORMAL, History(), 0.1)
    assert usual is not None and rare is not None
    assert usual.shares["signature"] == rare.shares["signature"]


def test_words_name_what_stands_out_and_nothing_else() -> None:
    told = Score(1.234, 0.5, {"tail": 0.9, "gap": 0.004, "masked": -0.06, "trend": 0.39}).words()
    assert told == "early-warning score 1.23 (1 alarms): tail +0.90, masked -0.06, trend +0.39"
    assert Score(0.0, 0.0, {"tail": 0.0}).words() == "early-warning score 0.00 (1 alarms): nothing stands out"


def test_score_is_told_as_plain_numbers() -> None:
    found = score({**BASELINE, "tail": -4.0})
    assert json.loads(json.dumps(found.to_dict())) == {
        "value": found.value,
        "level": found.level,
        "shares": dict(found.shares),
        "mismatch": found.value,
        "raw": 0.5 * math.log(2),
    }


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Term("tail", 0.0, 0.1),
        lambda: Term("tail", 1.0, 0.0),
        lambda: replace(SETTINGS, terms=()),
        lambda: replace(SETTINGS, trend_weight=-1.0),
        lambda: replace(SETTINGS, reward_weight=-1.0),
        lambda: replace(SETTINGS, grad_norm_weight=-1.0),
        lambda: replace(SETTINGS, signature_band=-0.1),
        lambda: replace(SETTINGS, signature_scale=0.0),
    ],
)
def test_settings_that_make_no_score_are_refused(wrong) -> None:
    with pytest.raises(ConfigError):
        wrong()


# ---- with its history, in the detector


def follow(seen: list[Observation], state: DetectorState | None = None) -> tuple[list[DetectorState], list[Transition]]:
    states, found, state = [], [], state or DetectorState()
    for item in seen:
        state, transition = detect(DetectorSettings(), state, item)
        states.append(state)
        found += [transition] if transition else []
    return states, found


def rising(count: int = 60) -> list[Observation]:
    """50 calm windows, then a rise of 1% of the alarm an update."""
    return [window(k) for k in range(50)] + [window(50 + k, **raised(0.01 * k)) for k in range(count)]


def test_trend_needs_25_judged_windows_and_looks_25_back() -> None:
    """Windows 33 on have a baseline and so a level: the 26th of them, window 59, is the first with a trend."""
    states, _ = follow(rising())
    scores = [state.score for state in states]
    assert next(k for k, item in enumerate(scores) if item is not None) == 34
    assert next(k for k, item in enumerate(scores) if item is not None and "trend" in item.shares) == 59
    at = scores[90]
    assert at is not None
    # raised(s) moves the level by s * THRESHOLD / 2; 40 updates into the rise, 15 of them 25 updates before
    assert at.level == pytest.approx(0.40 * THRESHOLD / 2)
    assert at.shares["trend"] == pytest.approx((0.40 - 0.15) / 2)


def test_transition_lists_value_level_and_shares() -> None:
    _, found = follow(rising(140))
    drift = next(item for item in found if item.to_stage == "drift")
    numbers = drift.evidence["warning_score"]
    shares = {"trend", "reward_mean", "signature", *(term.indicator for term in SCORE_SETTINGS.terms)}
    assert set(numbers) == {"value", "level"} | shares
    assert sum(numbers[name] for name in shares) == pytest.approx(numbers["value"])
    assert numbers["level"] == 0.5
    assert numbers["value"] > 0.5
    assert f"early-warning score {numbers['value']:.2f} (1 alarms)" in drift.text
    assert f"mismatch_energy {numbers['mismatch_energy']:+.2f}" in drift.text


def test_state_with_its_levels_survives_json_and_replay_is_identical() -> None:
    seen = rising(140)
    states, expected = follow(seen)
    assert len(expected) >= 2
    assert follow(seen)[1] == expected
    for cut in (10, 45, 70, 100, 130):
        stored = json.loads(json.dumps(states[cut - 1].to_dict(), allow_nan=False))
        later, found = follow(seen[cut:], DetectorState.from_dict(stored))
        assert found == [item for item in expected if item.step >= cut]
        assert later[-1] == states[-1]


def test_state_stored_without_levels_still_loads() -> None:
    states, _ = follow(rising(10))
    stored = states[-1].to_dict()
    del stored["levels"], stored["score"]
    loaded = DetectorState.from_dict(stored)
    assert (loaded.levels, loaded.score) == ((), None)
    later, _ = follow([window(60 + k) for k in range(26)], loaded)
    assert [state.score is not None and "trend" in state.score.shares for state in later] == [False] * 25 + [True]


def test_window_that_is_not_judged_has_no_score() -> None:
    seen = rising(1)
    states, _ = follow([*seen, replace(window(51), observable=False), replace(window(52), tokens=3)])
    assert states[-3].score is not None
    assert (states[-2].score, states[-1].score) == (None, None)


def test_default_terms_are_weighed_as_the_other_tests_assume() -> None:
    weights = {term.indicator: term.weight for term in SCORE_SETTINGS.terms}
    assert sum(weights.values()) == 3.5
    assert sum(weights[name] for name in raised(1.0) if name in weights) == 2.0
    assert SCORE_SETTINGS.trend_weight == 1.0
    assert set(weights) <= set(CALM)
    state = follow([*(window(k) for k in range(70)), window(70, **raised(1.0))])[0][-1]
    assert state.score is not None and state.score.value == pytest.approx(1.0)
    bare = [*(window(k, reward_mean=None) for k in range(70))]
    bare.append(window(70, reward_mean=None, **raised(1.0, THRESHOLD_MISMATCH)))
    state = follow(bare)[0][-1]
    assert state.score is not None and state.score.value == pytest.approx(1.0)


@pytest.mark.parametrize(("noise", "sent"), [(0.0, True), (0.04, True), (0.05, False)])
def test_reward_must_be_clear_of_its_noise(noise: float, sent: bool) -> None:
    """Best 0.7: fifteen times a noise of 0.0467. Rewards that are centred on nothing say nothing by their share."""
    found = score({**BASELINE, "reward_mean": 0.35}, History(best_reward=0.7, reward_noise=noise))
    assert ("reward_mean" in found.shares) is sent
