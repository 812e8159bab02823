"""What the policy remembers: bounded, restorable, older forms read."""

import json
from dataclasses import replace

from policy_series import (
    ADAPTIVE,
    DRIFT,
    TERMINAL,
    calm,
    run,
    then,
)

from triage_monitor.judge.policy import (
    PolicyState,
)
from triage_monitor.parameters import TriageParams


def test_state_of_a_version_that_climbed_levels_is_read() -> None:
    old = {
        "params": TriageParams().with_changes({"gate.enabled": True, "repair.enabled": True}).to_dict(),
        "level": 1,
        "started": True,
        "held": False,
        "since_change": 40,
        "calm": 3,
        "attempt": 2,
        "note": "",
        "rules": [{"q0.001_all/negative/rel/1.5": [True, 0]}, {}, {}],
    }
    state = PolicyState.from_dict(old)
    assert (state.remedy, state.since_change, state.attempt, state.params.gate.enabled) == ("gentle", 40, 2, True)
    assert PolicyState.from_dict({**old, "level": 0}).remedy == ""
    after, found = run(ADAPTIVE, [(replace(item, attempt=2), stage) for item, stage in then(1, 0, DRIFT)], state)
    assert (found, after.params) == ([], state.params)


def test_what_is_remembered_is_bounded() -> None:
    state, _ = run(ADAPTIVE, calm(50) + then(3000, 50, DRIFT))
    assert max(len(values) for values in state.recent.values()) == 25
    assert len(json.dumps(state.to_dict())) < 6000


def test_stopped_at_any_point_it_continues_bit_for_bit() -> None:
    seen = calm(30) + then(1, 30, DRIFT) + then(30, 31, DRIFT, reward_mean=0.5) + calm(70, 61) + then(40, 131, TERMINAL)
    whole, expected = run(ADAPTIVE, seen)
    assert {change.kind for _, change in expected} == {"strengthen", "switch", "relax"}
    for cut in range(len(seen)):
        head, first = run(ADAPTIVE, seen[:cut])
        restored = PolicyState.from_dict(json.loads(json.dumps(head.to_dict(), allow_nan=False)))
        tail, second = run(ADAPTIVE, seen[cut:], restored)
        assert first + second == expected
        assert tail.to_dict() == whole.to_dict()
