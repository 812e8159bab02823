import json
from dataclasses import replace

import pytest
from judge_series import window

from triage_monitor.errors import ConfigError
from triage_monitor.judge.baseline import Baseline, Level
from triage_monitor.judge.defaults import SCORE_TERMS
from triage_monitor.judge.notices import NoticeSettings, NoticeState, baseline_growth, imbalance, notice
from triage_monitor.judge.observation import Observation
from triage_monitor.judge.stages import Notice

SETTINGS = NoticeSettings()
LEANING = {"rho_asym": 1.5, "log_rho_se": 0.05, "asym_share": 0.6}


def said(
    seen: list[Observation], *, judged: bool = True, elevated: bool = False, best: float | None = 0.7
) -> list[tuple[Notice, ...]]:
    state, found = NoticeState(), []
    for item in seen:
        state, now = notice(SETTINGS, state, item, judged=judged, elevated=elevated, best_reward=best)
        found.append(now)
    return found


def kinds(found: list[tuple[Notice, ...]]) -> list[list[str]]:
    return [[item.kind for item in now] for now in found]


@pytest.mark.parametrize("ratio", [1.5, 1 / 1.5])
def test_imbalance_with_its_bound_is_noticed_on_both_sides(ratio: float) -> None:
    found = said([window(k, rho_asym=ratio, log_rho_se=0.05, rho_excess=1.4) for k in range(6)])
    assert kinds(found) == [[]] * 4 + [["directional_imbalance"]] * 2
    assert found[-1][0].since_step == 4
    side = "negative" if ratio > 1 else "positive"
    assert f"leans to the {side}-advantage side" in found[-1][0].text
    assert "direction beyond sign odds and lengths" in found[-1][0].text


def test_large_ratio_without_a_bound_is_not_noticed() -> None:
    # 1.5 with a standard error of 0.3: the interval is [0.83, 2.70].
    assert not any(said([window(k, rho_asym=1.5, log_rho_se=0.3) for k in range(20)]))
    assert not any(said([window(k, rho_asym=1.5, log_rho_se=None) for k in range(20)]))


def test_sure_but_small_ratio_is_not_noticed() -> None:
    assert not any(said([window(k, rho_asym=1.1, log_rho_se=0.001) for k in range(20)]))


def test_symmetric_heavy_tail_is_no_direction() -> None:  # case C25
    tail = {"q0_001_all": -6.0, "q0_05_all": -6.0, "abs_delta_mean": 1.208, "near_zero_fraction": 0.8}
    assert not any(said([window(k, rho_asym=1.0, asym_share=0.5, log_rho_se=0.02, **tail) for k in range(50)]))


def test_undefined_ratio_raises_no_direction_and_ends_none() -> None:  # case C29
    leaning = [window(k, **LEANING) for k in range(5)]
    undefined = [window(k, rho_asym=None, log_rho_se=None, asym_share=None) for k in range(5, 30)]
    assert not any(said(undefined))
    assert kinds(said(leaning + undefined))[-1] == ["directional_imbalance"]


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        ({"rho_excess": 1.02, "sign_odds_blind": 1.4, "advantage_mass_ratio": 1.05}, "the sign odds of the gap (1.4)"),
        ({"rho_excess": 0.98, "sign_odds_blind": 1.05, "advantage_mass_ratio": 1.5}, "the length ratio (1.5)"),
        ({"rho_excess": None}, "rho_excess is not defined"),
    ],
)
def test_imbalance_without_direction_says_what_it_is(factors: dict[str, float | None], words: str) -> None:
    found = said([window(k, **LEANING, **factors) for k in range(5)])
    assert words in found[-1][0].text
    assert found[-1][0].evidence["rho_asym"] == pytest.approx({"value": 1.5, "low": 1.36, "high": 1.654}, rel=1e-3)


@pytest.mark.parametrize(
    ("excess", "severity"), [(1.4, "alarm"), (1 / 1.4, "alarm"), (1.05, "notice"), (0.95, "notice"), (None, "notice")]
)
def test_imbalance_is_an_alarm_only_when_direction_is_left_in_it(excess: float | None, severity: str) -> None:
    """The band in which rho_excess says nothing is 1 / 1.1 to 1.1."""
    found = said([window(k, **LEANING, rho_excess=excess) for k in range(5)])
    assert [item.severity for item in found[-1]] == [severity]
    assert found[-1][0].to_dict()["severity"] == severity


def test_every_other_kind_is_a_notice() -> None:
    bad = replace(window(5, reward_mean=0.3, rho_asym=None, log_rho_se=None, asym_share=1.0), unusable_tokens=9)
    growth = {"q0.001_neg": 1.5}
    state = NoticeState()
    for _ in range(5):
        state, now = notice(SETTINGS, state, bad, judged=True, elevated=False, best_reward=0.7, growth=growth)
    assert {item.kind: item.severity for item in now} == dict.fromkeys(
        ("one_sided", "unusable_tokens", "unsettled_baseline", "reward_falling"), "notice"
    )


def test_all_mass_on_one_side_is_named_as_such() -> None:  # case C01
    found = said([window(k, rho_asym=None, log_rho_se=None, asym_share=1.0) for k in range(6)])
    assert kinds(found)[-1] == ["one_sided"]
    assert "constant offset" in found[-1][0].text


def test_too_little_data_raises_no_direction() -> None:
    assert not any(said([window(k, **LEANING) for k in range(20)], judged=False))


def test_unusable_tokens_are_noticed_at_once_and_end_with_the_window() -> None:
    bad = Observation(0, 0, updates=1, responses=4, tokens=900, unusable_tokens=100)
    assert kinds(said([bad, window(1)])) == [["unusable_tokens"], []]
    assert "100 tokens" in said([bad])[0][0].text
    assert "10.00%" in said([bad])[0][0].text


def test_reward_falling_beside_a_calm_mismatch_is_noticed() -> None:
    found = said([window(k, reward_mean=0.4) for k in range(6)])
    assert kinds(found) == [[]] * 4 + [["reward_falling"]] * 2
    assert "reward stands at 0.4 of 0.7" in found[-1][0].text


def test_reward_falling_with_the_mismatch_is_left_to_the_stage() -> None:
    assert not any(said([window(k, reward_mean=0.4) for k in range(20)], elevated=True))


def learned(first: float, last: float, frozen: bool = True) -> Baseline:
    return Baseline(frozen=frozen, levels={"q0.001_neg": Level((first + last) / 2, 0.1, 50, first, last)})


def test_baseline_that_rose_while_it_was_learned_is_noticed() -> None:
    growth = baseline_growth(SCORE_TERMS, learned(-2.0, -3.0))
    assert growth == {"q0.001_neg": pytest.approx(1.5)}
    _, now = notice(SETTINGS, NoticeState(), window(75), judged=True, elevated=False, best_reward=0.7, growth=growth)
    assert [item.kind for item in now] == ["unsettled_baseline"]
    assert "q0.001_neg 1.50 times" in now[0].text


def test_share_that_rises_towards_one_grows_by_its_complement() -> None:
    masked = Baseline(frozen=True, levels={"masked_response_fraction": Level(0.88, 0.01, 50, 0.9, 0.8)})
    assert baseline_growth(SCORE_TERMS, masked) == {"masked_response_fraction": pytest.approx(2.0)}


def test_growth_below_the_floor_is_none() -> None:
    assert baseline_growth(SCORE_TERMS, learned(-0.01, -0.09)) == {"q0.001_neg": 1.0}


def test_settled_or_unfinished_baseline_is_not_noticed() -> None:
    for baseline in (learned(-2.0, -2.2), learned(-3.0, -2.0), learned(-2.0, -3.0, frozen=False)):
        growth = baseline_growth(SCORE_TERMS, baseline)
        _, now = notice(SETTINGS, NoticeState(), window(9), judged=True, elevated=False, best_reward=0.7, growth=growth)
        assert now == ()


def test_imbalance_is_one_when_the_interval_holds_one() -> None:
    assert imbalance({"rho_asym": 1.5, "log_rho_se": 0.3}) == 1.0
    assert imbalance({"rho_asym": 0.5, "log_rho_se": 0.05}) == 2.0
    assert imbalance({"rho_asym": None}) is None


def test_state_survives_json_at_every_point() -> None:
    seen = [window(k, **LEANING) for k in range(8)] + [window(k, reward_mean=0.3) for k in range(8, 30)]
    state, expected = NoticeState(), []
    for item in seen:
        state, now = notice(SETTINGS, state, item, judged=True, elevated=False, best_reward=0.7)
        expected.append(now)
        state = NoticeState.from_dict(json.loads(json.dumps(state.to_dict())))
    assert expected == said(seen)
    assert {item.kind for now in expected for item in now} == {"directional_imbalance", "reward_falling"}


def test_levels_out_of_order_are_refused() -> None:
    with pytest.raises(ConfigError, match="leave_ratio"):
        NoticeSettings(ratio=1.2, leave_ratio=1.3)
