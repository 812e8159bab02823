import pytest
from judge_series import window

from triage_monitor.judge.notices import NoticeSettings, NoticeState, notice
from triage_monitor.judge.observation import Observation
from triage_monitor.judge.priors import PRIORS, far_above_prior

# NVFP4's prior is 0.1 and 0.03: these are five times that.
SICK = {"abs_delta_mean": 0.5, "kl_k3": 0.15}


def said(seen: Observation, *, learning: bool, updates: int = 6) -> list[str]:
    state, found = NoticeState(), ()
    for _ in range(updates):
        state, found = notice(
            NoticeSettings(), state, seen, judged=True, elevated=False, best_reward=None, learning=learning
        )
    return [item.kind for item in found]


def start(precision: str | None, **values: float) -> Observation:
    seen = window(40, **values)
    return Observation(
        seen.step, 0, seen.updates, seen.responses, seen.tokens, values=dict(seen.values), precision=precision
    )


def test_start_far_above_its_precision_is_noticed_while_the_baseline_is_learned() -> None:
    assert said(start("nvfp4", **SICK), learning=True) == ["unhealthy_start"]
    assert said(start("NVFP4", **SICK), learning=True) == ["unhealthy_start"]
    assert said(start("nvfp4", **SICK), learning=False) == []


def test_flat_fp8_gap_is_a_healthy_fp8_start() -> None:  # case C23
    assert said(start("fp8", abs_delta_mean=0.271, kl_k3=0.004), learning=True) == []


def test_same_numbers_are_noticed_for_bf16_only() -> None:
    numbers = {"abs_delta_mean": 0.09, "kl_k3": 0.004}
    assert said(start("bf16", **numbers), learning=True) == ["unhealthy_start"]
    assert said(start("nvfp4", **numbers), learning=True) == []


# The largest mean abs gap and k3 of a healthy update of our testbed, per format (BF16 learner).
MEASURED = {"fp8": (0.0101, 0.0011), "mxfp8": (0.0127, 0.0020), "mxfp4": (0.075, 0.034)}


@pytest.mark.parametrize("precision", MEASURED)
def test_what_the_testbed_measured_is_a_healthy_start_and_ten_priors_are_not(precision: str) -> None:
    gap, k3 = MEASURED[precision]
    assert said(start(precision, abs_delta_mean=gap, kl_k3=k3), learning=True) == []
    sick = {name: 10 * level for name, level in PRIORS[precision].items()}
    assert said(start(precision, **sick), learning=True) == ["unhealthy_start"]


@pytest.mark.parametrize("precision", [None, "int4", ""])
def test_unknown_precision_has_no_prior(precision: str | None) -> None:
    assert said(start(precision, **SICK), learning=True) == []


def test_one_indicator_alone_is_not_far_above() -> None:
    assert far_above_prior("nvfp4", {"abs_delta_mean": 0.9, "kl_k3": 0.01}) == {}
    assert far_above_prior("nvfp4", {"abs_delta_mean": 0.9, "kl_k3": None}) == {}
    assert far_above_prior("nvfp4", {"abs_delta_mean": 0.9, "kl_k3": 0.2}) == {
        "abs_delta_mean": {"value": 0.9, "level": 0.1},
        "kl_k3": {"value": 0.2, "level": 0.03},
    }
