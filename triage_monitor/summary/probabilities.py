"""Statistics that need both log-probs: probability differences, their correlation, perplexities (estimands section 5).

Over valid tokens p_l = exp(learner), p_s = exp(sampler); perplexity is per response, exp(-mean log-prob), as the
frameworks report it, and averaged over responses.
"""

from __future__ import annotations

import numpy as np

from triage_monitor.summary.inputs import Tokens, valid_positions
from triage_monitor.summary.writable import Draft

MAX_EXPONENT = 700.0


def add_probabilities(tokens: Tokens, draft: Draft) -> None:
    assert tokens.learner_T is not None and tokens.sampler_T is not None
    valid = valid_positions(tokens)
    owner = np.repeat(np.arange(tokens.responses), np.diff(tokens.offset_R1))[valid]
    lengths = np.bincount(owner, minlength=tokens.responses)
    heard = lengths > 0
    probability = {}
    for side, logprob_T in (("learner", tokens.learner_T), ("sampler", tokens.sampler_T)):
        logprob = logprob_T[valid].astype(np.float64)
        probability[side] = np.exp(np.minimum(logprob, MAX_EXPONENT))
        mean = np.bincount(owner, weights=logprob, minlength=tokens.responses)[heard] / lengths[heard]
        draft.add(f"ppl_{side}", float(np.exp(np.minimum(-mean, MAX_EXPONENT)).sum()))
        draft.add(f"prob_{side}", float(probability[side].sum()))
        draft.add(f"prob_{side}_sq", float(probability[side] @ probability[side]))
    difference = np.abs(probability["learner"] - probability["sampler"])
    draft.add("prob_cross", float(probability["learner"] @ probability["sampler"]))
    draft.add("prob_abs_diff", float(difference.sum()))
    draft.bound("prob_abs_diff", difference)
    draft.count("logprob_tokens", int(valid.sum()))
    draft.count("logprob_responses", int(heard.sum()))
