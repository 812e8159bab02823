"""verl loads the adapter as its plug-in, and verl's own ppo_loss calls it on nested CPU tensors, as its engines do."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from trainer.adapters.framework_help import need, run_with

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


def test_verl_loads_the_plug_in_and_its_own_loss_calls_it(tmp_path: Path) -> None:
    home = need("verl")
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    name, module = next(iter(project["project"]["entry-points"]["verl.plugins"].items()))
    installed = tmp_path / "triage_plugin-0.dist-info"  # what an installation writes of that table
    installed.mkdir()
    (installed / "entry_points.txt").write_text(f"[verl.plugins]\n{name} = {module}\n", encoding="utf-8")
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: triage-plugin\nVersion: 0\n", encoding="utf-8")
    out = json.loads(run_with(SCRIPT, tmp_path, home).strip().splitlines()[-1])
    assert out["registered"]
    assert out["off"], "with gate and repair off the loss must be verl's, bit for bit"
    assert out["gated"] == pytest.approx(out["expected"], rel=1e-5)
    assert out["gated"] != pytest.approx(out["plain"], rel=1e-4)
    assert out["finite"]
    assert out["offsets"] == [0, 24, 33, 50, 51]
    assert out["gap"] == pytest.approx(out["want"], rel=1e-5)
    assert "calculate_log_probs=true" in out["refused"]
