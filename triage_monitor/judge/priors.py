"""What a healthy start looks like per precision: the yardstick for the time before a run has its own baseline.

| precision | mean abs gap | kl_k3 | from |
|---|---|---|---|
| `bf16` | 0.02 | 0.001 | abs gap about 0.010 on a large Qwen3 model (miles); a KL below 1e-3 is acceptable (NeMo RL) |
| `fp8` | 0.3 | 0.005 | noise floor 0.0014 to 0.0050 over 126 to 586 steps (NeMo RL); a flat 0.27 (miles 1678) |
| `mxfp8` | 0.15 | 0.0025 | sampled-token KL 43 to 70% below tensor-wise FP8 in a trial (verl 7519) |
| `mxfp4` | 0.15 | 0.067 | no report known: twice the largest of our testbed, below |
| `nvfp4` | 0.1 | 0.03 | the gate for W4A4 rollouts of a 30B MoE (NeMo RL); our testbed starts at 0.045 and 0.02 |

Our testbed (regime M1, emulated formats, 30 to 40 healthy updates an arm, seeds 0 and 1, rewards steady or rising),
median and largest of an update, sampler/learner:

| arm | mean abs gap | kl_k3 |
|---|---|---|
| `fp8/bf16` | 0.0077, 0.0069; largest 0.0100 | 0.0002; largest 0.0010 |
| `fp8-block/bf16` | 0.0074, 0.0077; largest 0.0101 | 0.0002; largest 0.0011 |
| `fp8/fp8` | 0.0047, 0.0047; largest 0.0074 | 0.0002; largest 0.0010 |
| `mxfp8/bf16` | 0.0094, 0.0098; largest 0.0127 | 0.0002, 0.0003; largest 0.0020 |
| `mxfp4/bf16` | 0.058, 0.059; largest 0.075 | 0.017, 0.020; largest 0.034 |
| `nvfp4/bf16` | 0.028, 0.030; largest 0.040 | 0.003, 0.005; largest 0.018, but 0.13 once |
| `nvfp4/nvfp4-qat` | 0.015, 0.016; largest 0.032 | 0.0015, 0.0021; largest 0.017 |
| `mxfp4/mxfp4-qat` | 0.033, 0.033; largest 0.047 | 0.010, 0.011; largest 0.027 |
| `mxfp8/mxfp8`, `mxfp4/mxfp4` | 0; largest 0.0003 | 0; largest 0.00001 |

The last two round both paths alike: a format by itself makes no gap, two ways of computing in it do.

The testbed's model is small and its warm-up used NVFP4 weights, so its FP8 gaps lie far below what large models were
reported with: where both are known the larger counts. These are upper ends of what was healthy, on other models than
yours: a start far above (`FAR` times) is worth a notice, since a baseline learned from it calls sick normal; a start
below proves nothing. They never make a stage, so a flat offset that is a format's own stays no alarm.
"""

from __future__ import annotations

from collections.abc import Mapping

FAR = 3.0
PRIORS: dict[str, dict[str, float]] = {
    "bf16": {"abs_delta_mean": 0.02, "kl_k3": 0.001},
    "fp8": {"abs_delta_mean": 0.3, "kl_k3": 0.005},
    "mxfp8": {"abs_delta_mean": 0.15, "kl_k3": 0.0025},
    "mxfp4": {"abs_delta_mean": 0.15, "kl_k3": 0.067},
    "nvfp4": {"abs_delta_mean": 0.1, "kl_k3": 0.03},
}


def far_above_prior(precision: str | None, values: Mapping[str, float | None]) -> dict[str, dict[str, float]]:
    """Indicators more than `FAR` times a healthy start of this precision, as evidence; empty for one not known.

    Both must be: a mean gap alone is what a mere offset moves, a KL alone what a few tokens do.
    """
    prior = PRIORS.get((precision or "").lower(), {})
    beyond = {
        name: {"value": value, "level": level}
        for name, level in prior.items()
        if (value := values.get(name)) is not None and value > FAR * level
    }
    return beyond if len(beyond) == len(prior) else {}
