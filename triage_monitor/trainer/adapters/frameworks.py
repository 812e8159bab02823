"""What is known of each framework: version read, hooks with their parameters, what the adapter does, how it was proven.

`differences` compares the recorded hooks with the sources installed on this machine, without importing them (imports of
these packages take a GPU, minutes, or both): `triage-monitor doctor --framework NAME` shows it. The README's table of
frameworks is made from FRAMEWORKS.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Hook:
    """A function or method and the parameters that the adapter relies on."""

    module: str
    name: str  # `function` or `Class.method`
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Framework:
    package: str  # what is imported
    version: str  # the release or commit read
    adapter: str  # module under triage_monitor.trainer.adapters
    activation: str
    act: str
    proof: str
    hooks: tuple[Hook, ...]
    asks_log_probs: str  # what makes it keep the sampler's log-probs


_BOTH = "gate, repair, skip"
_SOURCE = "on request, from a checkout (no registry offers it): {} on CPU tensors"
FRAMEWORKS: dict[str, Framework] = {
    "trl": Framework(
        "trl",
        "1.16.0",
        "trl",
        "`TriageGRPOTrainer(..., monitor=Monitor(..))`",
        "gate, repair, skip, stop",
        "a real GRPOTrainer run on a CPU, streaming to a served sidecar whose parameters move its loss",
        (
            Hook("trl.trainer.grpo_trainer", "GRPOTrainer._compute_loss", ("model", "inputs")),
            Hook("trl.trainer.grpo_trainer", "GRPOTrainer._generate_and_score_completions", ("inputs",)),
            Hook(
                "trl.trainer.grpo_trainer",
                "GRPOTrainer._get_per_token_logps_and_entropies",
                ("model", "input_ids", "attention_mask", "logits_to_keep"),
            ),
        ),
        "vLLM, or a rollout_func that returns `logprobs`",
    ),
    "verl": Framework(
        "verl",
        "0.9.1",
        "verl",
        "entry point `verl.plugins`; `policy_loss.loss_mode=triage`",
        _BOTH,
        "verl 0.9.1 from PyPI loads it as its plug-in and its own ppo_loss calls it on nested CPU tensors",
        (
            Hook("verl.trainer.ppo.core_algos", "register_policy_loss", ("name",)),
            Hook("verl.trainer.ppo.core_algos", "get_policy_loss_fn", ("name",)),
            Hook(
                "verl.trainer.ppo.core_algos",
                "compute_policy_loss_vanilla",
                (
                    *("old_log_prob", "log_prob", "advantages", "response_mask", "loss_agg_mode", "config"),
                    "rollout_is_weights",
                ),
            ),
            Hook("verl.workers.utils.losses", "ppo_loss", ("config", "model_output", "data", "dp_group")),
        ),
        "actor_rollout_ref.rollout.calculate_log_probs=true",
    ),
    "openrlhf": Framework(
        "openrlhf",
        "0.11.2",
        "openrlhf",
        "ray `worker_process_setup_hook`: `..openrlhf.activate`",
        _BOTH,
        "openrlhf 0.11.2 from PyPI: its ActorPPOTrainer builds it and calls it in training_step on CPU tensors; "
        "vllm, deepspeed and flash-attn, which that step does not use, stood empty",
        (
            Hook(
                "openrlhf.models.loss",
                "PolicyLoss.forward",
                (
                    *("log_probs", "old_log_probs", "advantages", "action_mask", "rollout_log_probs", "dp_size"),
                    *("batch_num_tokens", "global_batch_size"),
                ),
            ),
            Hook("openrlhf.models.loss", "PolicyLoss.__init__", ("policy_loss_type", "is_correction_level")),
        ),
        "--algo.advantage.is_correction_level token",
    ),
    "skyrl": Framework(
        "skyrl",
        "0.3.0",
        "skyrl",
        "`..skyrl.register()`; `policy_loss_type=triage`",
        "gate, skip (no repair: the scale is folded into the advantages)",
        "skyrl 0.3.0 from PyPI: its policy worker takes it from SkyRL's registry and calls it on CPU tensors "
        "(on Python 3.11 with typing_extensions' TypedDict for typing's)",
        (
            Hook(
                "skyrl.backends.skyrl_train.utils.ppo_utils",
                "ppo_policy_loss",
                ("log_probs", "old_log_probs", "advantages", "config", "loss_mask", "rollout_logprobs"),
            ),
            Hook("skyrl.backends.skyrl_train.utils.ppo_utils", "register_policy_loss", ("name",)),
        ),
        "generator.sampling_params.logprobs",
    ),
    "areal": Framework(
        "areal",
        "1.0.4",
        "areal",
        "`..areal.activate()` on every rank",
        _BOTH,
        "areal 1.0.4 from PyPI: its PPOActor forms advantages and hands it to the engine (played) as its loss, on CPU "
        "tensors; servers and trackers that it imports stood empty",
        (Hook("areal.trainer.ppo.actor", "grpo_loss_fn", ("logprobs", "entropy", "input_data")),),
        "always kept",
    ),
    "nemo-rl": Framework(
        "nemo_rl",
        "commit 7ea279a",
        "nemo_rl",
        "`TriageLossFn(master_config.loss_fn)`",
        _BOTH,
        _SOURCE.format("its ClippedPGLossFn, subclassed and pickled, on log-probs that its prepare_loss_input made"),
        (
            Hook(
                "nemo_rl.algorithms.loss.loss_functions",
                "ClippedPGLossFn.__call__",
                ("next_token_logprobs", "data", "global_valid_seqs", "global_valid_toks"),
            ),
        ),
        "always kept",
    ),
    "ms-swift": Framework(
        "swift",
        "4.6.0",
        "ms_swift",
        "`--external_plugins` with `..ms_swift.activate()`",
        _BOTH,
        "ms-swift 4.6.0 and trl 0.29.1 from PyPI: its GRPOTrainer, patched, computes its loss with it on CPU tensors; "
        "the model's log-probs were given",
        (
            Hook(
                "swift.rlhf_trainers.grpo_trainer",
                "GRPOTrainer._compute_loss_and_metrics",
                ("model", "model_inputs", "grpo_batch"),
            ),
        ),
        "log_rollout_offpolicy_metrics=true",
    ),
    "prime-rl": Framework(
        "prime_rl",
        "commit 559b447",
        "prime_rl",
        '`[trainer.loss] type="custom"`, `import_path="..prime_rl.loss"`',
        _BOTH,
        _SOURCE.format("its set-up imports the loss by path and its compute_loss calls it"),
        (Hook("prime_rl.trainer.rl.loss", "default_loss_fn", ("inputs", "loss_config")),),
        "always kept",
    ),
    "slime": Framework(
        "slime",
        "commit 624b824",
        "slime",
        "`--custom-loss-function-path ..slime.loss`",
        _BOTH,
        _SOURCE.format("its loss_function loads it by path and calls it, Megatron's log-softmax played,"),
        (
            Hook(
                "slime.backends.megatron_utils.loss",
                "policy_loss_function",
                ("args", "batch", "logits", "sum_of_sample_mean"),
            ),
            Hook("slime.backends.megatron_utils.loss", "get_log_probs_and_entropy", ("logits", "args")),
        ),
        "always kept",
    ),
    "miles": Framework(
        "miles",
        "commit 31f1ca9",
        "slime",
        "`--custom-loss-function-path ..slime.miles_loss`",
        _BOTH,
        _SOURCE.format("its loss_function loads it by path and calls it, Megatron's log-softmax played,"),
        (
            Hook(
                "miles.backends.training_utils.loss_hub.losses",
                "policy_loss_function",
                ("args", "batch", "logits", "sum_of_sample_mean"),
            ),
        ),
        "always kept",
    ),
    "open-instruct": Framework(
        "open_instruct",
        "commit e6c3044",
        "open_instruct",
        "`..open_instruct.activate()` in every learner",
        "gate, skip (no repair: the hook has no current log-probs)",
        _SOURCE.format("its own functions in the order of its training step") + "; the step itself needs DeepSpeed",
        (
            Hook(
                "open_instruct.grpo_utils",
                "compute_rho_correction",
                ("old_logprob", "vllm_logprobs", "response_mask", "advantages", "config"),
            ),
        ),
        "always kept",
    ),
    "pipelinerl": Framework(
        "pipelinerl",
        "commit 58d3934",
        "pipelinerl",
        "`..pipelinerl.activate()` in the finetune process",
        _BOTH,
        _SOURCE.format("its rl_step, wrapped, with its own batch class,"),
        (Hook("pipelinerl.finetune.rl", "rl_step", ("model", "batch", "current_step", "max_step", "config")),),
        "always kept",
    ),
}


def source_of(module: str) -> Path | None:
    """The file of a module, without importing any part of its package."""
    top, *rest = module.split(".")
    spec = find_spec(top)
    for home in () if spec is None else spec.submodule_search_locations or ():
        place = Path(home, *rest)
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                return file
    return None


def parameters_of(source: str, name: str) -> tuple[str, ...] | None:
    """The parameter names of a function or method in Python source, `self` left out; None when it is not there."""
    body: list[ast.stmt] = ast.parse(source).body
    for part in name.split("."):
        found = [
            item
            for item in body
            if isinstance(item, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and item.name == part
        ]
        if not found:
            return None
        node = found[-1]
        body = node.body
    if isinstance(node, ast.ClassDef):
        return None
    arguments = node.args
    names = (item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
    return tuple([item for item in names if item != "self"])


def differences(framework: Framework) -> Iterator[tuple[Hook, str]]:
    """Each recorded hook, and how the installed source differs from it ("" when it does not)."""
    for hook in framework.hooks:
        file = source_of(hook.module)
        if file is None:
            yield hook, f"there is no module {hook.module}"
            continue
        found = parameters_of(file.read_text(encoding="utf-8"), hook.name)
        if found is None:
            yield hook, f"{hook.module} has no {hook.name}"
            continue
        gone = [name for name in hook.parameters if name not in found]
        yield hook, f"{hook.name} takes no {', '.join(gone)}" if gone else ""
