"""verl's own mismatch functions and our summary on the same random tensors: equal, or different as names.py says."""

from __future__ import annotations

import json

import numpy as np
import pytest
from trainer.adapters.framework_help import need, run_with

from triage_monitor import indicators, summarize
from triage_monitor.trainer import layouts
from triage_monitor.trainer.adapters.names import NAMES

SEED, ROWS, LENGTH = 5, 6, 40
SCRIPT = """
import json
import numpy as np, torch
from verl import DataProto
from verl.trainer.ppo.rollout_corr_helper import compute_offpolicy_metrics
from verl.utils.debug.metrics import calculate_debug_metrics

arrays = np.load(PATH)
old, sampler, mask = (torch.from_numpy(arrays[name]) for name in ("learner", "sampler", "mask"))
found = compute_offpolicy_metrics(old, sampler, mask.float())
told = {"rollout_corr/" + name: float(value) for name, value in found.items()}
data = DataProto.from_single_dict(dict(rollout_log_probs=sampler, old_log_probs=old, response_mask=mask.long(),
    responses=torch.ones(old.shape, dtype=torch.long)))
told |= {name: float(value) for name, value in calculate_debug_metrics(data).items()}
print(json.dumps(told))
"""


def test_verls_numbers_are_ours(tmp_path_factory: pytest.TempPathFactory) -> None:
    home = need("verl")
    rng = np.random.default_rng(SEED)
    mask = np.arange(LENGTH) < rng.integers(1, LENGTH + 1, ROWS)[:, None]
    learner = -rng.exponential(1.0, (ROWS, LENGTH))
    sampler = np.minimum(learner + rng.normal(0, 0.3, (ROWS, LENGTH)), 0.0)
    file = tmp_path_factory.mktemp("verl") / "arrays.npz"
    np.savez(file, learner=np.where(mask, learner, 0.0), sampler=np.where(mask, sampler, 0.0), mask=mask)
    theirs = json.loads(run_with(f"PATH = {str(file)!r}\n{SCRIPT}", home).strip().splitlines()[-1])
    sent = layouts.padded(mask).submission(learner=learner, sampler=sampler, advantages=rng.normal(size=ROWS))
    ours = indicators(summarize(**sent))
    compared = [row for row in NAMES if row.checked == "run" and row.ours != "geo_ratio"]
    assert len(compared) == 12
    for row in compared:
        assert theirs[row.theirs] == pytest.approx(ours[row.ours], rel=2e-5, abs=1e-7), row
    means = [(learner - sampler)[row][mask[row]].mean() for row in range(ROWS)]
    assert theirs["rollout_corr/ppl_ratio"] == pytest.approx(np.exp(-np.array(means)).mean(), rel=1e-5)
    assert ours["geo_ratio"] == pytest.approx(np.exp(means).mean(), rel=1e-5)
