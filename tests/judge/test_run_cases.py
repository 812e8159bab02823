"""Cases C01, C25 and C53 through the whole judge at its default settings: the verdict, not the arithmetic."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from triage_monitor.judge.run import Judgement, JudgeSettings, RunMonitor
from triage_monitor.judge.stages import Stage
from triage_monitor.summary.build import summarize

INPUTS = Path(__file__).parents[1] / "cases" / "inputs"
UPDATES = 60


def case(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((INPUTS / f"{name}.json").read_text())
    return content


def judged(gap: list[float], advantage: list[float], copies: int) -> list[Judgement]:
    """The case's tokens as one response, `copies` of it an update, for UPDATES updates."""
    summary = summarize(
        gap=np.tile(gap, copies),
        advantages=np.tile(np.asarray(advantage, dtype=float), copies),
        offsets=np.arange(copies + 1) * len(gap),
    )
    monitor = RunMonitor(JudgeSettings.from_dict({"policy": {"mode": "adaptive"}}))
    return [monitor.accept(step, 0, summary) for step in range(UPDATES)]


def test_c53_same_distribution_is_judged_only_when_there_is_enough_of_it() -> None:
    given = case("C53")
    few = judged(given["input"]["delta"], given["input"]["advantage"], 1)
    many = judged(given["input"]["delta"], given["input"]["advantage"], 1000)
    assert few[-1].update["indicators"]["rho_asym"] == many[-1].update["indicators"]["rho_asym"] == 1.0
    assert (few[-1].stage, few[-1].why) == (Stage.WARMING_UP, "too_few_responses")
    assert many[-1].stage is Stage.HEALTHY
    assert not any(item.transition or item.change or item.notices for item in few)


def test_c25_symmetric_heavy_tail_gives_neither_direction_nor_drift() -> None:
    given = case("C25")["input"]
    found = judged(given["delta"], given["advantage"], 20)
    assert found[-1].window["quantiles"]["all"]["0.001"] < -5.9
    assert found[-1].stage is Stage.HEALTHY
    assert not any(item.notices or item.change for item in found)


def test_c01_constant_offset_gives_no_direction_and_no_drift() -> None:
    given = case("C01")["input"]
    gap = np.subtract(given["learner"], given["sampler"]).tolist()
    found = judged(gap, given["advantage"], 200)
    assert found[-1].stage is Stage.HEALTHY
    assert not any(item.change for item in found)
    assert {notice.kind for item in found for notice in item.notices} == {"one_sided"}


def test_c29_zero_advantages_give_no_alarm_of_any_kind() -> None:
    delta = case("C29")["input"]["delta"]
    found = judged(delta, [0.0] * len(delta), 100)
    assert found[-1].window["indicators"]["rho_asym"] is None
    assert found[-1].stage is Stage.HEALTHY
    assert not any(item.notices or item.change for item in found)
