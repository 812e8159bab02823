"""doctor's line on native NVFP4: what a machine has is given, what is said of it is looked at."""

from __future__ import annotations

import pytest

from triage_monitor.cli.checkup import State
from triage_monitor.cli.checkup_machine import native
from triage_monitor.trainer import native as execution
from triage_monitor.trainer.native import Found


@pytest.mark.parametrize(
    ("found", "state", "words"),
    [
        (Found(None, None, None), State.NOTE, ("found no CUDA device", "transformer-engine is not installed")),
        (Found(None, None, "2.9.0"), State.NOTE, ("found no CUDA device", "transformer-engine 2.9.0")),
        (Found("H200", (9, 0), "2.9.0"), State.NOTE, ("found H200 of 9.0", "emulated", "transformer-engine 2.9.0")),
        (Found("B200", (10, 0), None), State.NOTE, ("it is not installed: pip install",)),
        (Found("B200", (10, 0), "2.1.0"), State.NOTE, ("2.9 or newer", "found 2.1.0")),
        (Found("B200", (10, 0), "2.9.1"), State.OK, ("B200 of compute capability 10.0", "2.9.1 can run NVFP4")),
    ],
)
def test_the_machine_is_told_with_its_gpu_and_engine(
    found: Found, state: State, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "found_here", lambda: found)
    said = native()
    assert said.state is state
    for part in words:
        assert part in said.what
    assert said.what.count("transformer-engine") >= 1


def test_this_machine_is_asked_itself() -> None:
    assert native().area == "nvfp4"
