"""What the banner says of a run's numbers, for every stage; the page's own module in the browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from service.browser import chromium, watched
from service.live_server import serving

Words = Callable[[str, dict[str, Any]], Any]


@pytest.fixture(scope="module")
def words() -> Iterator[Words]:
    with chromium() as browser, serving() as live, watched(browser, live.address) as watch:
        page = watch.open()
        script = """async ([name, detail]) => (await import("/static/words.js"))[name](detail)"""
        yield lambda name, detail: page.evaluate(script, [name, detail])


def detail(stage: str, why: str = "", **indicators: float | None) -> dict[str, Any]:
    score = {"value": 1.836, "shares": {}, "mismatch": 0.7}
    return {
        "stage": stage,
        "why": why,
        "window": {"indicators": indicators, "reasons": {}, "updates": 7, "score": score, "counts": {}},
        "baseline": {"abs_delta_mean": 0.04},
        "thresholds": {"minimum_updates": 10, "excess_band": 1.1},
        "findings": [{"cause": "dummy_tokens", "text": "runs of filler tokens", "remedy": "mask them"}],
        "integrity": {},
    }


RHO = {"rho_asym": 1.9, "rho_asym_low": 1.6, "rho_asym_high": 2.2}


def test_imbalance_under_calm_averages_is_said_in_one_sentence(words: Words) -> None:
    found = words("direction", detail("pre_terminal", **RHO, abs_delta_mean=0.042))
    assert found == (
        "Negative-advantage updates amplify the gap 1.9 times as much as positive ones (95% interval 1.6 to 2.2);"
        " averages still look normal (mean |gap| 1.1 times its baseline)."
    )


def test_imbalance_to_the_other_side_is_turned_round_with_its_interval(words: Words) -> None:
    found = words("direction", detail("healthy", rho_asym=0.5, rho_asym_low=0.4, rho_asym_high=0.8))
    assert found == (
        "Positive-advantage updates amplify the gap 2.0 times as much as negative ones (95% interval 1.3 to 2.5)."
    )


def test_interval_over_one_is_no_imbalance_and_grown_averages_are_said(words: Words) -> None:
    found = words("direction", detail("drift", rho_asym=1.1, rho_asym_low=0.9, rho_asym_high=1.3, abs_delta_mean=0.1))
    assert found == (
        "Negative- and positive-advantage updates amplify the gap alike, ratio 1.1 (95% interval 0.90 to 1.3);"
        " the mean |gap| is 2.5 times its baseline."
    )


def test_undefined_ratio_is_said_with_its_reason_and_never_as_a_number(words: Words) -> None:
    given = detail("healthy", rho_asym=None)
    given["window"]["reasons"] = {"rho_asym": "no_positive_mass"}
    assert words("direction", given) == "Which side amplifies the gap is not defined (no positive mass)."


@pytest.mark.parametrize(
    ("stage", "why", "headline"),
    [
        ("healthy", "calm", "at this run's own normal: early-warning score 1.84, alarm at 1"),
        ("drift", "drift", "mismatch is growing: early-warning score 1.84, alarm at 1"),
        ("pre_terminal", "pre_terminal", "early signs of a collapse: early-warning score 1.84"),
        ("terminal", "terminal_magnitude", "bulk of the gaps has moved"),
        ("terminal", "terminal_reward", "reward has fallen below half of its best"),
        ("warming_up", "too_few_updates", "7 updates so far; judging begins at 10"),
        ("warming_up", "learning_baseline", "own normal is being learned"),
        ("not_observable", "gaps_exactly_zero", "Every gap is exactly 0"),
        ("not_observable", "dummy_tokens", "no basis for a verdict: runs of filler tokens"),
    ],
)
def test_every_stage_has_its_headline(words: Words, stage: str, why: str, headline: str) -> None:
    found = words("banner", detail(stage, why, **RHO))
    assert headline in found["headline"]
    assert found["mark"] and found["label"]


def test_what_to_do_is_said_where_something_is_to_be_done(words: Words) -> None:
    def todo(stage: str, why: str = "", **more: object) -> object:
        return words("banner", {**detail(stage, why, **RHO), **more})["todo"]

    assert todo("healthy") == todo("warming_up", "too_few_updates") == ""
    plain = todo("pre_terminal")
    assert str(plain).startswith("Save a checkpoint now.") and "version" not in str(plain)
    waiting = str(todo("terminal", params_version=3, params_applied={"version": 2, "step": 9}))
    assert waiting.startswith("Stop or pause the run") and "version 3 has not reached the trainer" in waiting
    assert str(todo("drift", params_version=3, params_applied={"version": 3})).endswith("is in force in the trainer.")
    assert str(todo("not_observable", "dummy_tokens")) == "Mask them."


def test_blinded_run_is_told_no_direction(words: Words) -> None:
    assert words("banner", detail("not_observable", "gaps_exactly_zero", **RHO))["sentences"] == []


def test_excess_says_whether_the_imbalance_is_more_than_odds_and_lengths(words: Words) -> None:
    same = words("banner", detail("drift", **RHO, rho_excess=1.01))["sentences"][1]
    more = words("banner", detail("drift", **RHO, rho_excess=1.5))["sentences"][1]
    assert same == "Sign odds and response lengths explain that imbalance (rho_excess 1.01)."
    assert "do not explain" in more and "1.50" in more


def test_flawed_data_is_listed_with_its_numbers(words: Words) -> None:
    given = detail("healthy")
    given["window"]["counts"] = {"tokens": 1000, "missing": 10, "nan": 0, "pos_inf": 0, "neg_inf": 0}
    given["integrity"] = {
        "partial_updates": 2, "missing_shards": 3, "late_shards": 0, "client_dropped": {"queue_full": 4},
    }  # fmt: skip
    assert words("integrity", given) == [
        "2 updates closed without all shards (3 shards missing)",
        "10 tokens of the window without a finite gap (1%)",
        "the trainer dropped 4 (queue full)",
    ]
