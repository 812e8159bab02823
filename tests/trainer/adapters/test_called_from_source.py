"""Frameworks that no registry offers: their own code calls the adapter where their sources are at hand.

`TRIAGE_FRAMEWORK_SOURCES` names a folder of checkouts (of the commits in frameworks.py), each by its repository's name;
without it these tests skip, in CI too. They also need what .ci/frameworks.txt installs. One process each: their
imports do not agree with one another.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from trainer.adapters.framework_help import TESTS, need, run_with
from trainer.adapters.test_called import DRIVER, check_calls, check_numbers

PLACES = {  # module of the proof: (checkout, what of it is imported from)
    "nemo_rl": ("RL", "."),
    "prime_rl": ("prime-rl", "src", "packages/prime-rl-configs/src"),
    "slime": ("slime", "."),
    "miles": ("miles", "."),
    "open_instruct": ("open-instruct", "."),
    "pipelinerl": ("PipelineRL", "."),
}
COMPARED = {
    "nemo_rl": ("NeMo RL", "old"),
    "prime_rl": ("prime-rl", "learner"),
    "open_instruct": ("open-instruct", "old"),
}


@pytest.mark.parametrize("name", list(PLACES))
def test_the_frameworks_own_code_calls_the_adapter(name: str) -> None:
    told = os.environ.get("TRIAGE_FRAMEWORK_SOURCES")
    if not told:
        pytest.skip("TRIAGE_FRAMEWORK_SOURCES names no folder of checkouts: no registry offers this framework")
    checkout, *parts = PLACES[name]
    sources = [Path(told, checkout, part) for part in parts]
    if not all(path.is_dir() for path in sources):
        pytest.skip(f"there is no {checkout} in {told}")
    home = need("verl")
    out = json.loads(run_with(DRIVER.format(names=(name,)), TESTS, *sources, home).strip().splitlines()[-1])[name]
    check_calls(out)
    if name in COMPARED:
        check_numbers(COMPARED[name][0], out["numbers"], COMPARED[name][1])
