"""Statistics that need both log-probs: probability differences, their correlation, perplexities (estimands section 5).

Over valid tokens p_l = exp(learner), p_s = exp(sampler); perplexity is per response, exp(-mean log-prob), as the
frameworks report it, and averaged over responses. One pass, a block of a response at a time, with the kernel's
exponential; exponents beyond MAX_EXPONENT either way are taken for it.
"""

from __future__ import annotations

import numpy as np

from triage_monitor.summary.inputs import Tokens
from triage_monitor.summary.jit import REORDER, compiled, locked
from triage_monitor.summary.kernel import BLOCK, States, all_present
from triage_monitor.summary.kernel_segment import MAX_EXPONENT, Floats, Gaps, Ints, exponentials
from triage_monitor.summary.states import PRESENT
from triage_monitor.summary.writable import Draft

PROBABILITY_SUMS = ("prob_learner", "prob_learner_sq", "prob_sampler", "prob_sampler_sq", "prob_cross", "prob_abs_diff")
_SUMS = ("ppl_learner", "ppl_sampler", *PROBABILITY_SUMS)
# where the pass leaves them: these sums, then
LARGEST, TOKENS, RESPONSES = range(len(_SUMS), len(_SUMS) + 3)


def add_probabilities(tokens: Tokens, part: slice, draft: Draft) -> None:
    """Of the responses of a part."""
    learner, sampler = tokens.learner_T, tokens.sampler_T
    assert learner is not None and sampler is not None
    if learner.dtype != sampler.dtype:
        learner, sampler = learner.astype(np.float64), sampler.astype(np.float64)
    found = np.zeros(len(_SUMS) + 3)
    offset_R1 = tokens.offset_R1[part.start : part.stop + 1]
    reduce_pairs(locked(learner), locked(sampler), locked(tokens.state_T), locked(offset_R1), found)
    for name, amount in zip(_SUMS, found, strict=False):
        draft.add(name, float(amount))
    if found[TOKENS]:
        draft.bound("prob_abs_diff", found[LARGEST : LARGEST + 1])
    draft.count("logprob_tokens", int(found[TOKENS]))
    draft.count("logprob_responses", int(found[RESPONSES]))


@compiled(REORDER)
def copy_pairs(learner_T: Gaps, sampler_T: Gaps, start: int, n: int, x: Floats, y: Floats) -> float:
    """Copies n tokens; the sum of the gaps, not finite where one of them is not."""
    base = np.uintp(start)
    total = np.float64(0)
    for i in range(n):
        x[i] = learner_T[base + np.uintp(i)]
        y[i] = sampler_T[base + np.uintp(i)]
        total += x[i] - y[i]
    return total


@compiled()
def pack_pairs(state_T: States, start: int, n: int, x: Floats, y: Floats) -> int:
    """Moves the valid ones of copied tokens to the front; how many there are."""
    base, kept = np.uintp(start), 0
    for i in range(n):
        x[kept], y[kept] = x[i], y[i]
        kept += np.isfinite(x[i] - y[i]) and not (state_T.size and state_T[base + np.uintp(i)] != PRESENT)
    return kept


@compiled(REORDER)
def add_pairs(x: Floats, y: Floats, n: int, grow_x: Floats, grow_y: Floats, found: Floats) -> tuple[float, float]:
    """Adds n valid tokens to `found`; the sums of their log-probs."""
    sum_x = sum_y = p = q = pp = qq = pq = apart = largest = np.float64(0)
    for i in range(n):
        a = grow_x[i] if x[i] > 0 else 1.0 / grow_x[i]
        b = grow_y[i] if y[i] > 0 else 1.0 / grow_y[i]
        sum_x += x[i]
        sum_y += y[i]
        p += a
        q += b
        pp += a * a
        qq += b * b
        pq += a * b
        distance = abs(a - b)
        apart += distance
        largest = max(largest, distance)
    for place, amount in enumerate((p, pp, q, qq, pq, apart)):
        found[2 + place] += amount
    found[LARGEST] = max(found[LARGEST], largest)
    found[TOKENS] += n
    return sum_x, sum_y


@compiled()
def reduce_pairs(learner_T: Gaps, sampler_T: Gaps, state_T: States, offset_R1: Ints, found: Floats) -> None:
    x, y, shift, grow_x, grow_y = np.zeros(BLOCK), np.zeros(BLOCK), np.zeros(BLOCK), np.zeros(BLOCK), np.zeros(BLOCK)
    bits = shift.view(np.int64)
    for r in range(offset_R1.size - 1):
        valid = 0
        sum_x = sum_y = 0.0
        for start in range(offset_R1[r], offset_R1[r + 1], BLOCK):
            n = min(BLOCK, offset_R1[r + 1] - start)
            total = copy_pairs(learner_T, sampler_T, start, n, x, y)
            if not np.isfinite(total) or (state_T.size and not all_present(state_T, start, n)):
                n = pack_pairs(state_T, start, n, x, y)
            exponentials(x, n, grow_x, shift, bits)
            exponentials(y, n, grow_y, shift, bits)
            more_x, more_y = add_pairs(x, y, n, grow_x, grow_y, found)
            sum_x += more_x
            sum_y += more_y
            valid += n
        if valid > 0:
            found[0] += np.exp(min(-sum_x / valid, MAX_EXPONENT))
            found[1] += np.exp(min(-sum_y / valid, MAX_EXPONENT))
            found[RESPONSES] += 1
