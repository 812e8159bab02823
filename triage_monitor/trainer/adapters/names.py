"""The frameworks' own mismatch metrics by our names, and the traps of their data with the place each is handled.

Both become tables of the README. `checked` says how a row was established: `run` means that the framework's installed
function and our summary were given the same random tensors in a test; `run from source` the same, with a checkout of
the commit read, on request; `read` that its source was read.
"""

from __future__ import annotations

from typing import NamedTuple


class Name(NamedTuple):
    framework: str
    theirs: str
    ours: str
    difference: str  # "" when equal
    checked: str


NAMES: tuple[Name, ...] = (
    Name("verl", "rollout_corr/kl", "kl_k1", "", "run"),
    Name("verl", "rollout_corr/k3_kl", "kl_k3", "", "run"),
    Name("verl", "rollout_corr/chi2_token", "chi2_token", "equal up to a gap of 20; clamped there", "run"),
    Name("verl", "rollout_corr/log_ppl_diff", "log_ppl_diff_mean", "", "run"),
    Name("verl", "rollout_corr/log_ppl_abs_diff", "log_ppl_diff_abs_mean", "", "run"),
    Name("verl", "rollout_corr/log_ppl_diff_max", "log_ppl_diff_max", "", "run"),
    Name("verl", "rollout_corr/log_ppl_diff_min", "log_ppl_diff_min", "", "run"),
    Name("verl", "rollout_corr/training_ppl", "ppl_learner", "", "run"),
    Name("verl", "rollout_corr/rollout_ppl", "ppl_sampler", "", "run"),
    Name("verl", "rollout_corr/ppl_ratio", "geo_ratio", "the inverse ratio inside the mean over responses", "run"),
    Name("verl", "training/rollout_probs_diff_mean", "prob_abs_diff_mean", "", "run"),
    Name("verl", "training/rollout_probs_diff_max", "prob_abs_diff_max", "", "run"),
    Name("verl", "training/rollout_actor_probs_pearson_corr", "prob_pearson", "", "run"),
    Name(
        "verl",
        "rollout_corr/rollout_is_mean, _max, _min, _eff_sample_size",
        "rho_mean, rho_max, ess_fraction",
        "of weights after truncation",
        "read",
    ),
    Name("TRL", "sampling/sampling_logp_difference/mean", "abs_delta_mean", "mean of rank means; vLLM only", "read"),
    Name("TRL", "sampling/sampling_logp_difference/max", "abs_delta_max", "vLLM only", "read"),
    Name("TRL", "sampling/importance_sampling_ratio/*", "rho_mean, rho_max", "after truncation or masking", "read"),
    Name(
        "SkyRL",
        "policy/rollout_train_logprobs_abs_diff_mean, _max",
        "abs_delta_mean, abs_delta_max",
        "holds -9999 sentinels, which are missing here",
        "read",
    ),
    Name("SkyRL", "minibatch_rollout_logprobs_abs_diff_mean", "abs_delta_mean", "of the current log-probs", "run"),
    Name(
        "SkyRL",
        "minibatch_rollout_logprobs_abs_diff_max",
        "abs_delta_max",
        "of the current log-probs; 0 where masked",
        "run",
    ),
    Name("SkyRL", "is_ratio_std, _min", "", "over rho times mask, zeros of the padding included", "read"),
    Name("NeMo RL", "token_mult_prob_error", "mult_prob_error", "", "run from source"),
    Name("NeMo RL", "gen_kl_error", "kl_k3", "", "run from source"),
    Name("NeMo RL", "policy_kl_error", "kl_k3_reverse", "", "run from source"),
    Name(
        "NeMo RL",
        "sampling_importance_ratio",
        "rho_mean",
        "equal without truncation; of the truncated weights with it",
        "run from source",
    ),
    Name("prime-rl", "mismatch_kl/all/mean", "kl_k3", "of the current log-probs", "run from source"),
    Name("OpenRLHF", "vllm_kl", "kl_k1", "equal for one micro-batch; mean of their means", "run"),
    Name("AReaL", "behave_approx_kl", "delta_mean", "the other sign of verl's kl; accepted tokens only", "run"),
    Name("slime, miles", "train_rollout_logprob_abs_diff", "abs_delta_mean", "mean over samples of means", "read"),
    Name("miles", "train_rollout_kl", "kl_k3", "clamped to +-10, mean over samples of means", "read"),
    Name("ms-swift", "rollout_correction/kl", "kl_k1", "mean of rank means", "run"),
    Name("ms-swift", "rollout_correction/k3_kl", "kl_k3", "clamped to +-10, mean of rank means", "run"),
    Name("ms-swift", "rollout_correction/log_ppl_diff", "log_ppl_diff_mean", "mean of rank means", "run"),
    Name("ms-swift", "rollout_correction/log_ppl_abs_diff", "log_ppl_diff_abs_mean", "mean of rank means", "run"),
    Name("ms-swift", "rollout_correction/training_ppl", "ppl_learner", "mean of rank means", "run"),
    Name("ms-swift", "rollout_correction/rollout_ppl", "ppl_sampler", "mean of rank means", "run"),
    Name("ms-swift", "rollout_correction/chi2_token", "chi2_token", "clamped, mean of rank means", "run"),
    Name("ms-swift", "rollout_correction/chi2_seq", "", "of the geometric mean; verl's is of the product", "read"),
    Name(
        "open-instruct",
        "debug/vllm_vs_local_logprob_diff_mean",
        "abs_delta_mean",
        "last micro-batch only",
        "run from source",
    ),
    Name(
        "open-instruct",
        "debug/vllm_vs_local_logprob_diff_max",
        "abs_delta_max",
        "last micro-batch only, mean of ranks",
        "run from source",
    ),
    Name("PipelineRL", "rl/kl_new_old", "kl_k3", "mean over sequences of means", "read"),
)


class Trap(NamedTuple):
    trap: str
    handled: str


TRAPS: tuple[Trap, ...] = (
    Trap("old log-probs are the sampler's", "bit-equal sides counted (`learner_is_sampler`), run not observable"),
    Trap("learner drifts within a batch", "recomputed old log-probs are observed where kept; else `learner=theta`"),
    Trap("temperature, raw or processed log-probs, top-p", "sent as settings; the sidecar names the cause"),
    Trap("learner log-prob set to 0 by a top-p filter (NeMo RL)", "missing token, counted (`zeroed_learner_tokens`)"),
    Trap("NaN, infinities, -9999", "excluded and counted; -9999 is missing (`sentinel_tokens`)"),
    Trap("placeholder zeros on tool tokens", "only the loss mask decides, never a value"),
    Trap(
        "mask after rejection",
        "taken before it; slime's own TIS and verl's rollout_rs in bypass mode refused, else leave rollout_rs null",
    ),
    Trap(
        "rows that fill up a batch",
        "left out as `padding_rows` (AReaL); a row without tokens counts as empty elsewhere",
    ),
    Trap("padding side, shift, dummy first position", "layouts, tested on random shapes"),
    Trap("metrics after truncation, clamps", "raw log-probs are taken, never weights"),
    Trap("reducers that average maxima or sum micro-batches", "additive summaries; only a version number is logged"),
    Trap(
        "packing, one row of many responses",
        "cu_seqlens, positions or ids; open-instruct: unbroken stretches of the mask",
    ),
    Trap("context, tensor, pipeline parallelism", "slices joined first; one rank emits; slime with CP refused"),
    Trap(
        "advantages per response or token, rescaled",
        "both read; SkyRL's sequence_mean undone; groups of equal reward counted",
    ),
    Trap("several policy versions in a response", "per-token versions where kept (AReaL)"),
    Trap("micro-batches under bf16", "gaps formed in at least float32"),
    Trap("log-probs not requested", "refused at start or at the first update, with the option that asks for them"),
    Trap("MoE routing replay, engine versions", "not visible to the adapters: not handled"),
)
