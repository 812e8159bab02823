"""The causes that can be named, and what to do about each; the README's table is made from this one.

A `fault` says that the numbers of this run do not mean what they should, or that something broke. A `note` is true and
worth knowing, and no fault: it explains a pattern. `blinds` marks faults under which gaps are no basis for an alarm.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    name: str
    kind: str
    shows: str
    remedy: str
    blinds: bool = False


def _fault(name: str, shows: str, remedy: str, *, blinds: bool = False) -> Cause:
    return Cause(name, "fault", shows, remedy, blinds)


def _note(name: str, shows: str, remedy: str) -> Cause:
    return Cause(name, "note", shows, remedy)


UNDETERMINED = "undetermined"
CAUSES: tuple[Cause, ...] = (
    _fault(
        "renormalised_sampler_logprobs",
        "the gap of every choice is negative, whatever the log-prob: one offset, or no more than a cut takes; top-p or"
        " top-k renormalised the sampler's log-probs over the kept tokens; exp(median gap) is the kept mass",
        "score both sides over one support: replay the kept set in the learner, ask the engine for log-probs of the"
        " full vocabulary, or sample with top_p 1 and top_k off",
    ),
    _fault(
        "temperature_mismatch",
        "learner over sampler log-probs has a slope other than 1 from both sides, likely and unlikely tokens are off in"
        " opposite directions: the two sides divide the logits by different temperatures",
        "divide the learner's logits by the sampling temperature, and ask the engine for processed log-probs",
        blinds=True,
    ),
    _fault(
        "raw_versus_processed_logprobs",
        "the settings say that the engine reports raw log-probs, and the gap has just the slope or offset that its"
        " temperature or top-p makes",
        "set the engine's logprobs_mode to processed log-probs, or let the learner score without temperature and top-p",
        blinds=True,
    ),
    _fault(
        "token_misalignment",
        "the columns fit one another when shifted by a token or two, and not as they are",
        "check the shift between labels and logits where the learner's log-probs are gathered, and the first token of"
        " each response",
        blinds=True,
    ),
    _fault(
        "unrelated_columns",
        "the columns are half a nat apart on average and not correlated, as they are or shifted by a token or two, and"
        " what one finds unlikely the other does not: they do not belong to the same tokens",
        "check that both log-probs are of the same responses in the same order (rows sorted again, packed or sliced"
        " differently on the two sides), and the shift within each",
        blinds=True,
    ),
    _fault(
        "dummy_tokens",
        "runs of tokens under mask 1 whose log-prob is a filler (0, minus infinity, -9999), with ordinary ones around",
        "give tool, observation and padding tokens mask 0; never use log-prob 0 as a mask",
        blinds=True,
    ),
    _fault(
        "appended_tokens",
        "large gaps stand only on the last tokens of the responses: tokens the engine never sampled were appended",
        "mask out what the trainer appends (end-of-text tokens, truncation marks), or take the engine's own token ids",
    ),
    _fault(
        "retokenised_turn_borders",
        "large gaps stand only within four tokens after a turn begins: decoding and tokenising the history again"
        " changed token ids",
        "carry token ids between turns instead of text",
    ),
    _fault(
        "not_observable",
        "every gap is exactly 0: learner and sampler log-probs are one array",
        "recompute the learner's log-probs; look for an option that takes the sampler's for the old policy's",
        blinds=True,
    ),
    _fault(
        "exact_zero_gaps",
        "in a share of the responses every gap is exactly 0 although they have an advantage",
        "find which responses skip the learner's forward pass and take the sampler's values instead",
    ),
    _fault(
        "low_precision_logprobs",
        "the log-probs are bfloat16 numbers: they move in steps of up to 0.8%, many gaps are exactly 0",
        "compute the log-softmax in float32 and store float32; deep tails are off by 0.1 nat until then",
    ),
    _fault(
        "nonfinite_gap",
        "tokens under mask 1 have a gap that is not a number or infinite",
        "find the rows; engine kernels that divide 0 by 0 give NaN, fillers give infinity. Never replace them by 0",
    ),
    _fault(
        "missing_values",
        "tokens under mask 1 came back without a value",
        "find out why the engine gives none for these tokens; they are left out, never filled",
    ),
    _fault(
        "no_usable_token",
        "updates in which no token has a usable gap",
        "nothing can be judged from these; see the other findings for why",
    ),
    _fault(
        "unusable_advantage",
        "responses whose advantage is not a number",
        "groups of one have no standard deviation: use the biased one, or drop such groups",
    ),
    _fault(
        "degenerate_sampler",
        "responses end in long runs to which the sampler gives probability one and the learner almost none: one token"
        " repeated",
        "the engine is broken for these responses: restart it, check its kernels (NVFP4 experts that give NaN), and"
        " throw the responses away",
        blinds=True,
    ),
    _fault(
        "broken_responses",
        "a share of the responses is off on most of its tokens while the others agree",
        "look at the named responses: same prompt, same engine, same length? Leave them out of training until known",
    ),
    _fault(
        "one_engine",
        "the responses of one engine have several times the gap of all others'",
        "drain this engine and compare its weights, settings and build with another's",
    ),
    _fault(
        "stale_weights",
        "one update, or up to three, has several times the gap of those before and after it, on both sides: the sampler"
        " missed a weight sync and caught up",
        "check that weight syncs are acknowledged by every engine before it samples again; send policy versions",
    ),
    _note(
        "mixed_policy_versions",
        "tokens were sampled by several versions of the policy: a part of their gap is staleness",
        "read rho_asym_lag_0 for what the two paths do alone; bound the staleness if it grows",
    ),
    _fault(
        "symmetric_heavy_tails",
        "large gaps in both directions in about equal number around a narrow core: the two engines took different"
        " branches, as when each routes tokens to other experts",
        "replay the sampler's expert routing in the learner",
    ),
    _fault(
        "engine_drift",
        "the gap has widened on both sides and for both signs of the advantage alike: no direction in it",
        "compare numerics before training settings: calibration, cache scales, engine version, kernels",
    ),
    _fault(
        "amplifying_quantisation",
        "the deep negative tail grows, and the update's pressure with it, above the run's own start: quantisation error"
        " amplified along the policy gradient",
        "gate and repair (or truncate the importance weights), fall back to bf16 if it goes on",
    ),
    _fault(
        "undeclared_padding",
        "rows whose gaps and advantages are all exactly 0: padding that counts as healthy tokens",
        "mark the rows with padding: true, or give them mask 0",
    ),
    _note(
        "short_responses",
        "many responses of a word or two beside long ones: a loop that goes on after its context is full",
        "drop truncated answers before training; they enter no segment statistic",
    ),
    _note(
        "no_advantage_signal",
        "every advantage is 0: nothing is learnt from these updates and no direction is defined",
        "groups whose rewards are all equal teach nothing: sample them again or change their prompts",
    ),
    _fault(
        UNDETERMINED,
        "something is plainly wrong and the evidence separates no cause from its neighbours",
        "send both log-probs, masks, engines, policy versions and the sampling settings; then look at the evidence",
    ),
)
CAUSE: dict[str, Cause] = {cause.name: cause for cause in CAUSES}
CAUSE_NAMES: tuple[str, ...] = tuple(CAUSE)
