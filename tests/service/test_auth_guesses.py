"""Wrong tokens again and again: 429 with a time to wait, for wrong ones only; a right one passes throughout."""

from __future__ import annotations

from pathlib import Path

from service.access_help import bearer, guarded

from triage_monitor.service.guesses import FREE, MAX_ADDRESSES, SECONDS, Guesses

WRONG = bearer("tm_" + "x" * 43)


class Seconds:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def test_address_may_fail_freely_then_once_a_while() -> None:
    clock = Seconds()
    guesses = Guesses(clock)
    assert [guesses.failed("10.0.0.1") for _ in range(FREE + 2)] == [None] * FREE + [1, 1]
    assert guesses.failed("10.0.0.2") is None
    clock.now += SECONDS
    assert [guesses.failed("10.0.0.1") for _ in range(2)] == [None, 1]
    clock.now += FREE * SECONDS
    assert [guesses.failed("10.0.0.1") for _ in range(FREE)] == [None] * FREE


def test_table_is_bounded_and_forgets_whoever_failed_longest_ago() -> None:
    guesses = Guesses(Seconds())
    for _ in range(FREE + 1):
        guesses.failed("old")
    for number in range(MAX_ADDRESSES):
        guesses.failed(str(number))
    assert len(guesses) == MAX_ADDRESSES
    assert guesses.failed("old") is None


def test_clock_that_goes_back_frees_and_blocks_nobody() -> None:
    clock = Seconds()
    guesses = Guesses(clock)
    guesses.failed("a")
    clock.now -= 1000.0
    assert [guesses.failed("a") for _ in range(FREE)] == [None] * (FREE - 1) + [1]


def test_wrong_tokens_are_slowed_and_a_right_one_never(tmp_path: Path) -> None:
    with guarded(tmp_path) as (live, _):
        codes = [live.http.get("/v1/runs", headers=WRONG).status_code for _ in range(3 * FREE)]
        assert codes[:FREE] == [401] * FREE
        assert codes.count(429) > FREE
        refused = live.http.get("/v1/runs", headers=WRONG)
        while refused.status_code != 429:  # one was earned meanwhile
            refused = live.http.get("/v1/runs", headers=WRONG)
        assert refused.json()["reason"] == "token_attempts"
        assert int(refused.headers["retry-after"]) >= 1
        assert live.http.get("/v1/runs").status_code == 200
        assert live.http.get("/healthz", headers=WRONG).status_code == 200
        assert live.metrics()['triage_access_refused_total{reason="token_attempts"}'] > FREE
