"""Trailing windows against the reference's reading of a run's history: late updates, resumptions, any arrival order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Response, Update, report, trailing_window
from strategies import UpdateInput

from triage_monitor import indicators
from triage_monitor.summary.window import TrailingWindow

HISTORY = settings(max_examples=50, deadline=None, derandomize=True)


def update(step: int, attempt: int, minus: int) -> Update:
    """rho_asym of a merge tells which updates are in it: each has its own mass."""
    return Update(step, (Response(-1.0, gap=[-0.1] * minus), Response(1.0, gap=[0.1] * 7)), attempt)


def assert_window_agrees(arrivals: Sequence[Update], size: int) -> None:
    window = TrailingWindow(size)
    for item in arrivals:
        window.put(item.step, item.attempt, UpdateInput(item.responses, dtype="float64").summary())
    kept, merged = trailing_window(arrivals, size), window.merged()
    assert merged is not None
    assert (merged.first_step, merged.last_step, merged.updates) == (kept[0].step, kept[-1].step, len(kept))
    want = report(kept)["indicators"]["rho_asym"]
    assert indicators(merged.summary)["rho_asym"] == pytest.approx(want, rel=1e-12)


@given(st.permutations(range(9)), st.integers(1, 9))
@HISTORY
def test_late_updates_take_their_own_place(steps: list[int], size: int) -> None:
    assert_window_agrees([update(step, 1, step + 1) for step in steps], size)


@st.composite
def resumed_histories(draw: st.DrawFn) -> list[Update]:
    """Up to three attempts, each from anywhere the one before has been, in any order of arrival."""
    found: list[Update] = []
    start = 0
    for attempt in range(1, draw(st.integers(1, 3)) + 1):
        length = draw(st.integers(1, 6))
        found += [update(start + k, attempt, 3 * attempt + k) for k in range(length)]
        start = draw(st.integers(0, start + length))
    return draw(st.permutations(found))


@given(resumed_histories())
@HISTORY
def test_newest_attempt_wins_from_its_first_step_on_in_any_order_of_arrival(arrivals: list[Update]) -> None:
    assert_window_agrees(arrivals, size=25)


@given(st.integers(0, 20), st.integers(5, 12))
@HISTORY
def test_attempt_of_a_windows_length_leaves_nothing_of_the_older_one(back: int, length: int) -> None:
    first = [update(step, 1, 2) for step in range(25)]
    second = [update(25 - back + k, 2, 5) for k in range(length)]
    assert_window_agrees([*first, *second], size=5)
