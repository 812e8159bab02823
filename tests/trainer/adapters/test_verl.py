"""verl loads the adapter as its plug-in, its own ppo_loss calls it on nested CPU tensors as its engines do, and its
mismatch functions give our numbers for the same tensors. One process: verl takes ten CPU seconds to import."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainer.adapters.framework_help import need, run_with

from triage_monitor import indicators, summarize
from triage_monitor.trainer import layouts
from triage_monitor.trainer.adapters.names import NAMES

SEED, ROWS, LENGTH = 5, 6, 40
SCRIPT = """
import json, sys
import verl                                   # loads its plug-ins: ours registers, nobody calls it
import torch
from tensordict import TensorDict
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss

registered = "triage" in core_algos.POLICY_LOSS_REGISTRY
torch.manual_seed(0)
rows, prompt, length = 4, 3, 24
lengths = [24, 9, 17, 1]
mask = torch.tensor([[t < n for t in range(length)] for n in lengths])
def values(scale): return torch.where(mask, -torch.rand(rows, length) * scale, 0.0)
old = values(1.0); sampler = torch.where(mask, old + torch.randn(rows, length) * 0.3, 0.0)
advantages = torch.tensor([1.0, -1.0, -0.5, 0.7])[:, None] * mask
def nested(values): return torch.nested.nested_tensor([row[:n] for row, n in zip(values, lengths)], layout=torch.jagged)
ones = torch.ones(rows, length, dtype=torch.long)
data = TensorDict(dict(
    prompts=torch.nested.nested_tensor(list(ones[:, :prompt]), layout=torch.jagged), responses=nested(ones),
    response_mask=nested(mask.long()), old_log_probs=nested(old), rollout_log_probs=nested(sampler),
    advantages=nested(advantages)), batch_size=rows)
tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=int(mask.sum()), global_batch_size=rows)
whole = [prompt + n for n in lengths]
current = torch.randn(sum(whole)).mul(0.1).requires_grad_()
full = torch.nested.nested_tensor_from_jagged(-current.abs() - 0.9, torch.tensor([0, *whole]).cumsum(0))

def config(mode):
    made = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=rows, ppo_mini_batch_size=rows)
    object.__setattr__(made, "policy_loss", type(made.policy_loss)(loss_mode=mode))
    return made

def loss(mode): return ppo_loss(config(mode), {"log_probs": full}, data.copy())

from triage_monitor.parameters import TriageParams
from triage_monitor.trainer.adapters import tap as taps, verl as adapter
from triage_monitor.trainer.client import Monitor
quiet = taps.Tap(Monitor("http://127.0.0.1:9", run="v"))
adapter._tap = quiet
plain, _ = loss("vanilla"); ours, metrics = loss("triage")
off = torch.equal(plain, ours)
sent = dict(quiet._parts[0].tokens); offsets = quiet._parts[0].offsets.tolist()
on = TriageParams().with_changes({"gate.enabled": True, "gate.segment": 8, "gate.w_min": 0.2,
    "repair.enabled": True, "repair.lambda_rep": 2.0})
acting = taps.Tap(Monitor("http://127.0.0.1:9", run="v", safe_default=on)); adapter._tap = acting
gated, _ = loss("triage"); gated.backward()
from triage_monitor.trainer import TriageLoss
from verl.workers.utils.padding import no_padding_2_padding
log_prob = no_padding_2_padding(full, data).detach()
ratio = (log_prob - old).exp()
surrogate = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
surrogate = torch.where(advantages < 0, torch.minimum(surrogate, -advantages * 3.0), surrogate)
expected, _ = TriageLoss(on, "token_mean")(surrogate, log_prob, sampler, advantages, mask, step=0)
try:
    ppo_loss(config("triage"), {"log_probs": full}, data.exclude("rollout_log_probs")); refused = ""
except Exception as error: refused = str(error)
print(json.dumps(dict(registered=registered, off=off, gated=float(gated), expected=float(expected), plain=float(plain),
    finite=bool(torch.isfinite(current.grad).all()), offsets=offsets, refused=refused,
    gap=float((sent["learner_logprobs"] - sent["sampler_logprobs"]).sum()), want=float((old - sampler)[mask].sum()))))
"""
NUMBERS = """
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


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What verl did: `loss` and `numbers`, beside the arrays that the numbers are about."""
    home, place = need("verl"), tmp_path_factory.mktemp("verl")
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    name, module = next(iter(project["project"]["entry-points"]["verl.plugins"].items()))
    installed = place / "triage_plugin-0.dist-info"  # what an installation writes of that table
    installed.mkdir()
    (installed / "entry_points.txt").write_text(f"[verl.plugins]\n{name} = {module}\n", encoding="utf-8")
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: triage-plugin\nVersion: 0\n", encoding="utf-8")
    rng = np.random.default_rng(SEED)
    mask = np.arange(LENGTH) < rng.integers(1, LENGTH + 1, ROWS)[:, None]
    learner = -rng.exponential(1.0, (ROWS, LENGTH))
    sampler = np.minimum(learner + rng.normal(0, 0.3, (ROWS, LENGTH)), 0.0)
    file = place / "arrays.npz"
    np.savez(file, learner=np.where(mask, learner, 0.0), sampler=np.where(mask, sampler, 0.0), mask=mask)
    lines = run_with(f"PATH = {str(file)!r}\n{SCRIPT}\n{NUMBERS}", place, home).strip().splitlines()
    loss, numbers = (json.loads(line) for line in lines[-2:])
    return {"loss": loss, "numbers": numbers, "learner": learner, "sampler": sampler, "mask": mask}


def test_verl_loads_the_plug_in_and_its_own_loss_calls_it(said: dict[str, Any]) -> None:
    out = said["loss"]
    assert out["registered"]
    assert out["off"], "with gate and repair off the loss must be verl's, bit for bit"
    assert out["gated"] == pytest.approx(out["expected"], rel=1e-5)
    assert out["gated"] != pytest.approx(out["plain"], rel=1e-4)
    assert out["finite"]
    assert out["offsets"] == [0, 24, 33, 50, 51]
    assert out["gap"] == pytest.approx(out["want"], rel=1e-5)
    assert "calculate_log_probs=true" in out["refused"]


def test_verls_numbers_are_ours_or_differ_as_the_table_says(said: dict[str, Any]) -> None:
    learner, sampler, mask, theirs = (said[name] for name in ("learner", "sampler", "mask", "numbers"))
    sent = layouts.padded(mask).submission(learner=learner, sampler=sampler, advantages=np.ones(ROWS))
    ours = indicators(summarize(**sent))
    compared = [row for row in NAMES if (row.framework, row.checked) == ("verl", "run") and row.ours != "geo_ratio"]
    assert len(compared) == 12
    for row in compared:
        assert theirs[row.theirs] == pytest.approx(ours[row.ours], rel=2e-5, abs=1e-7), row
    means = [(learner - sampler)[row][mask[row]].mean() for row in range(ROWS)]
    assert theirs["rollout_corr/ppl_ratio"] == pytest.approx(np.exp(-np.array(means)).mean(), rel=1e-5)
    assert ours["geo_ratio"] == pytest.approx(np.exp(means).mean(), rel=1e-5)
