"""Causes that relate the two columns as a whole: offset, temperature, raw log-probs, shift, strangers, coarse numbers.

Slope. With noise in either column the true slope of learner on sampler lies between the least-squares slope of learner
on sampler and 1 / (that of sampler on learner). A temperature is named only when both ends lie on one side of 1 and
likely and unlikely tokens are off in opposite directions, as T makes them: log p / T + c(context).

Offset. The gap of tokens that were a choice is narrow, on one side, and the same at every level of the sampler's
log-prob; or it varies with the mass that was cut and never goes the other way: over one support exp(gap) has mean 1,
so some gaps are positive however the paths differ. Settings lower the thresholds only when they predict what is seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from triage_monitor.judge.causes import Finding
from triage_monitor.judge.causes_gaps import CORE, FAR, Gaps, by_sampler, choices, filling, followed
from triage_monitor.summary.symptoms import LAGS, Symptoms

FEWEST, MANY, SURELY, LEAST_SHARE = 5, 30, 200, 0.05
MARGIN, TOLD_MARGIN, MIN_CORRELATION = 0.06, 0.02, 0.85
AGREEMENT, SIDE_AGREEMENT = 0.75, 0.6
UNRELATED_TOKENS, UNRELATED_NATS, UNRELATED_CORRELATION, UNRELATED_FOLLOWED = 256, 0.5, 0.2, 0.4
OTHER_SIDE, TOLD_OTHER_SIDE, LEVEL_OTHER_SIDE = 0.04, 0.12, 0.15  # of choices; healthy ones have a fifth or more
ELSEWHERE_CORRELATION, FEWEST_SHIFTED = 0.3, 48
MIN_OFFSET, TOLD_OFFSET, LEAST_MASS = 0.02, 0.004, 0.2


@dataclass(frozen=True, slots=True)
class Slope:
    """Both ends of the slope of learner on sampler over choices; `agreement`, of signs with a change of temperature."""

    low: float
    high: float
    correlation: float
    agreement: float
    tokens: int

    @property
    def middle(self) -> float:
        return math.sqrt(self.low * self.high)

    @property
    def is_plain(self) -> bool:
        """A line, not a cloud: it speaks for all tokens however few of them were choices."""
        return self.tokens >= MANY and self.agreement >= 0.9 and self.correlation >= 0.97


def _carries(symptoms: Symptoms, choices: int) -> bool:
    """Enough of the tokens were choices to speak for all: a policy that has no choice left shows nothing by them."""
    tokens = max(symptoms.count("tokens"), 1)
    return choices >= LEAST_SHARE * tokens and (choices >= MANY or 2 * choices >= tokens)


def setting(symptoms: Symptoms, name: str) -> float | None:
    """A numeric setting, if all shards told the same."""
    told = symptoms.settings.get(name, ())
    return float(told[0]) if len(told) == 1 else None


def slope_of(symptoms: Symptoms) -> Slope | None:
    count = symptoms.count("fit_n")
    if count < FEWEST:
        return None
    learner, sampler, ll, ss, ls = (symptoms.total(f"fit_{name}") / count for name in ("l", "s", "ll", "ss", "ls"))
    spread_l, spread_s, cross = ll - learner**2, ss - sampler**2, ls - learner * sampler
    if min(spread_l, spread_s) < 0.01 or cross <= 0:
        return None
    correlation = cross / math.sqrt(spread_l * spread_s)
    return Slope(cross / spread_s, spread_l / cross, correlation, _agreement(symptoms, cross < spread_s), count)


def _agreement(symptoms: Symptoms, sharper_sampler: bool) -> float:
    """Best share of choices whose gap has the sign a temperature gives, over places where the sign may turn.

    A sharper sampler leaves unlikely tokens with positive gaps and likely ones with negative gaps. 0 when either side
    agrees no better than chance."""
    levels = by_sampler(symptoms)
    expected = [(gaps.positive(), gaps.negative()) for gaps in levels]
    if not sharper_sampler:
        expected = [(negative, positive) for positive, negative in expected]
    total = sum(gaps.count for gaps in levels)
    best = 0.0
    for turn in range(1, len(levels)):
        low, high = expected[:turn], expected[turn:]
        low_count, high_count = (sum(gaps.count for gaps in part) for part in (levels[:turn], levels[turn:]))
        if min(low_count, high_count) < max(2, 0.04 * total):
            continue
        low_right, high_right = sum(right for right, _ in low), sum(right for _, right in high)
        if low_right >= SIDE_AGREEMENT * low_count and high_right >= SIDE_AGREEMENT * high_count:
            best = max(best, (low_right + high_right) / total)
    return best


def temperature(symptoms: Symptoms) -> Finding | None:
    slope = slope_of(symptoms)
    if slope is None or slope.agreement < AGREEMENT or not (slope.is_plain or _carries(symptoms, slope.tokens)):
        return None
    if slope.correlation < (MIN_CORRELATION if slope.tokens >= MANY else 0.995):
        return None
    told = setting(symptoms, "temperature")
    predicted = _predicted(slope, told)
    margin = TOLD_MARGIN if predicted else MARGIN
    if not (slope.high < 1 - margin or slope.low > 1 + margin):
        return None
    evidence: dict[str, int | float | str | list[str] | list[int]] = {
        "slope": _short(slope.middle),
        "slope_low": _short(slope.low),
        "slope_high": _short(slope.high),
        "correlation": _short(slope.correlation),
        "sign_agreement": _short(slope.agreement),
        "tokens": slope.tokens,
    }
    if told is not None:
        evidence["temperature"] = told
    text = f"learner log-probs over sampler log-probs have slope {slope.middle:.3g}, not 1"
    if _mode(symptoms) == "raw" and _towards(slope, told):
        why = f"{text}: the engine reports raw log-probs while the learner applies temperature {told}"
        sure = "high" if predicted else "medium"
        return Finding("raw_versus_processed_logprobs", why, sure, evidence | {"logprobs_mode": _told_mode(symptoms)})
    which = "sharper" if slope.middle < 1 else "flatter"
    text += f": the sampler's distribution is {which}, temperature ratio about {slope.middle:.3g}"
    if _mode(symptoms) != "processed":
        text += " (two temperatures, or raw log-probs on one side)"
    certain = predicted or (slope.tokens >= MANY and slope.agreement >= 0.85) or slope.correlation > 0.9999
    return Finding("temperature_mismatch", text, "high" if certain else "medium", evidence)


def _predicted(slope: Slope, told: float | None) -> bool:
    """The told temperature T explains the slope: learner at T and sampler at 1 give 1 / T, the other way round T."""
    if told is None or told <= 0 or abs(math.log(told)) < TOLD_MARGIN:
        return False
    return any(abs(math.log(slope.middle / ratio)) < 0.05 + 0.2 * abs(math.log(told)) for ratio in (told, 1 / told))


def _towards(slope: Slope, told: float | None) -> bool:
    """On the side of 1 where a learner at temperature `told` stands to raw log-probs, about 1 / `told` at most: the sum
    that each context divides by blurs the slope."""
    if told is None or told <= 0 or told == 1:
        return False
    way = math.log(slope.middle) / -math.log(told)
    return way > 0 and (way <= 1.2 or _predicted(slope, told))


def _told_mode(symptoms: Symptoms) -> str:
    told = symptoms.settings.get("logprobs_mode", ())
    return told[0] if len(told) == 1 else ""


def _mode(symptoms: Symptoms) -> str:
    words = _told_mode(symptoms).lower()
    return "raw" if "raw" in words else "processed" if "processed" in words else ""


def offset(symptoms: Symptoms) -> Finding | None:
    """Every choice is off by the same amount; also when only a share of the responses is."""
    gaps = choices(symptoms)
    if gaps.count >= FEWEST and _carries(symptoms, gaps.count):
        centre = gaps.median
        width, broad = gaps.quantile(0.75) - gaps.quantile(0.25), gaps.quantile(0.95) - gaps.quantile(0.05)
        side = gaps.negative() if centre < 0 else gaps.positive()
        known = symptoms.count("pairs") > 0
        enough = abs(centre) >= (TOLD_OFFSET if _kept_as_told(symptoms, centre) else MIN_OFFSET)
        narrow = enough and width <= 0.6 * abs(centre) and side >= 0.8 * gaps.count
        narrow &= broad <= (1.5 if gaps.count >= MANY else 0.5) * abs(centre)
        if narrow and (_flat(symptoms, centre) if known else _all_alike(gaps, centre) and width <= 0.25 * abs(centre)):
            if known:  # the sums are finer than the histogram
                mean = (symptoms.total("fit_l") - symptoms.total("fit_s")) / max(symptoms.count("fit_n"), 1)
                centre = mean if 0.9 <= mean / centre <= 1.1 else centre
            return _offset_finding(symptoms, centre, broad, gaps.count, 1.0, known)
    return _cut_support(symptoms, gaps) or _offset_of_some(symptoms)


def _cut_support(symptoms: Symptoms, gaps: Gaps) -> Finding | None:
    """The gaps of choices go one way only, by no more than a cut takes, at every level that holds tokens."""
    if not symptoms.count("pairs") or gaps.count < MANY:
        return None
    centre = gaps.median
    one_way = gaps.count >= SURELY and min(gaps.positive(), gaps.negative()) <= 0.01 * gaps.count
    furthest = max(-gaps.quantile(0.005), gaps.quantile(0.995))
    if abs(centre) < (TOLD_OFFSET if one_way else MIN_OFFSET) or furthest > -math.log(LEAST_MASS):
        return None
    levels = [level for level in by_sampler(symptoms) if level.count >= max(2, 0.02 * gaps.count)]
    others = [level.positive() if centre < 0 else level.negative() for level in (gaps, *levels)]
    told = _cut(symptoms) and _reach(symptoms, gaps)
    if len(levels) < 3 or others[0] > (TOLD_OTHER_SIDE if told else OTHER_SIDE) * gaps.count:
        return None
    if any(other > max(1, LEVEL_OTHER_SIDE * level.count) for other, level in zip(others[1:], levels, strict=True)):
        return None
    broad = gaps.quantile(0.95) - gaps.quantile(0.05)
    return _offset_finding(symptoms, centre, broad, gaps.count, 1.0, True)


def _reach(symptoms: Symptoms, gaps: Gaps) -> bool:
    """No told top-p forbids the offset: it cuts no more than 1 - top_p, whatever the context."""
    top_p = setting(symptoms, "top_p")
    return top_p is None or not 0 < top_p < 1 or abs(gaps.median) <= -1.1 * math.log(top_p)


def _cut(symptoms: Symptoms) -> bool:
    """The settings tell of a cut."""
    top_p, top_k = setting(symptoms, "top_p"), setting(symptoms, "top_k")
    return (top_p is not None and top_p < 1) or (top_k is not None and top_k > 0)


def _flat(symptoms: Symptoms, centre: float) -> bool:
    """The same at every level that holds tokens, three of them at least, and no slope: one token that most choices
    fall on has one gap too, whatever made it."""
    total = sum(gaps.count for gaps in by_sampler(symptoms))
    levels = [gaps for gaps in by_sampler(symptoms) if gaps.count >= (1 if total < MANY else max(2, 0.01 * total))]
    slope = slope_of(symptoms)
    even = slope is None or (slope.low < 1.05 and slope.high > 0.95)
    return even and len(levels) >= 3 and all(0.4 <= gaps.median / centre <= 1.8 for gaps in levels)


def _all_alike(gaps: Gaps, centre: float) -> bool:
    """Without log-probs to compare with: no token further off than by 0.6 of the offset, but for one in 200."""
    low, high = sorted((0.4 * centre, 1.6 * centre))
    return gaps.number(low, high) >= 0.995 * gaps.count


def _offset_of_some(symptoms: Symptoms) -> Finding | None:
    negative, positive = symptoms.count("offset_neg"), symptoms.count("offset_pos")
    votes, testable = max(negative, positive), symptoms.count("testable")
    if votes < 3 or votes < 0.05 * testable or 5 * min(negative, positive) > votes:
        return None
    if symptoms.count("pairs") and votes > 0.8 * testable:  # nearly all: the log-probs have told already
        return None
    mean = symptoms.total("offset_sum") / (negative + positive)
    square = symptoms.total("offset_squares") / (negative + positive)
    spread = math.sqrt(max(square - mean**2, 0.0))
    if abs(mean) < MIN_OFFSET or spread > 0.3 * abs(mean) or (mean < 0) != (negative > positive):
        return None
    return _offset_finding(symptoms, mean, spread, votes, votes / testable, symptoms.count("pairs") > 0)


def _offset_finding(
    symptoms: Symptoms, centre: float, spread: float, count: int, share: float, known: bool
) -> Finding | None:
    top_p, top_k = setting(symptoms, "top_p"), setting(symptoms, "top_k")
    cut = _cut(symptoms)
    evidence: dict[str, int | float | str | list[str] | list[int]] = {
        "median_gap": _short(centre),
        "gap_spread": _short(spread),
        "kept_mass": _short(math.exp(-abs(centre))),
        "tokens" if share == 1.0 else "responses": count,
    }
    for name, value in (("top_p", top_p), ("top_k", top_k)):
        if value is not None:
            evidence[name] = value
    if share < 1.0:
        evidence["share"] = _short(share)
    words = f"the gap is {centre:+.3g} nats throughout (spread {spread:.2g})"
    if spread > abs(centre):
        words = f"the gap of choices goes one way only, {centre:+.3g} nats at the median (spread {spread:.2g})"
    if math.exp(-abs(centre)) < LEAST_MASS:
        return Finding("undetermined", f"{words}: too much to be the mass that top-p or top-k cuts", "low", evidence)
    if centre < 0:
        text = f"{words}: the sampler's log-probs are renormalised over {math.exp(centre):.1%} of the mass"
        sure = "high" if cut else "medium" if known else "low"
        return Finding("renormalised_sampler_logprobs", text, sure, evidence)
    if _mode(symptoms) == "raw" and cut:
        text = f"{words}: the learner renormalises over the kept tokens and the engine reports raw log-probs"
        return Finding("raw_versus_processed_logprobs", text, "high", evidence)
    return Finding("undetermined", f"{words}: as if the learner alone renormalised over a part", "low", evidence)


def _kept_as_told(symptoms: Symptoms, centre: float) -> bool:
    """The kept mass lies where the told top-p puts it: from top_p up to two thirds of the way to 1."""
    top_p = setting(symptoms, "top_p")
    return top_p is not None and 0 < top_p < 1 and 0.33 <= math.log(math.exp(centre)) / math.log(top_p) <= 1.1


def misalignment(symptoms: Symptoms) -> Finding | None:
    """Votes of whole responses; of short ones all together; without log-probs, from gaps that telescope."""
    votes = {lag: symptoms.count(f"shifted_{lag}") for lag in LAGS if lag}
    found, tested = symptoms.count("misaligned"), symptoms.count("alignable")
    lag = max(votes, key=lambda key: votes[key])
    moments = {lag: _moments(symptoms, lag) for lag in LAGS}
    if found == 0:
        lag = min(LAGS, key=lambda key: moments[key][0])
        if not (lag and _shifted(moments[lag], moments[0]) and symptoms.count(f"shift_{lag}_n") >= FEWEST_SHIFTED):
            return _telescoping(symptoms)
    elif not (found >= 2 or tested <= 4 or "misaligned" not in symptoms.examples) or found < 0.02 * tested:
        return None
    if max(moments[0][1], moments[lag][1]) < ELSEWHERE_CORRELATION:  # the others do not fit as they are either
        return None
    evidence: dict[str, int | float | str | list[str] | list[int]] = {
        "lag": lag,
        "responses": found,
        "tested_responses": tested,
        "correlation_lag_0": _short(moments[0][1]),
        "correlation_best_lag": _short(moments[lag][1]),
        "mean_abs_lag_0": _short(moments[0][0]),
        "mean_abs_best_lag": _short(moments[lag][0]),
    }
    names = symptoms.examples.get("misaligned")
    if names:
        evidence["response_ids"] = list(names)
    text = f"learner log-probs fit the sampler's {abs(lag)} token{'s' * (abs(lag) > 1)} "
    text += f"{'later' if lag > 0 else 'earlier'} in {found} of {tested} responses"
    return Finding("token_misalignment", text, "high", evidence)


def unrelated(symptoms: Symptoms) -> Finding | None:
    """Far apart and uncorrelated at every lag tried, and what is unlikely on one side is not so on the other: a few
    huge gaps undo a correlation but leave the other tokens alone. Collapsing runs of the testbed stayed above a
    correlation of 0.25 with a mean gap below 0.4, on two engines that had nearly nothing in common any more."""
    size, correlation = _moments(symptoms, 0)
    count = symptoms.count("shift_0_n")
    related = max(_moments(symptoms, lag)[1] for lag in LAGS)
    if count < UNRELATED_TOKENS or not UNRELATED_NATS <= size < math.inf or related > UNRELATED_CORRELATION:
        return None
    same = followed(symptoms)
    if (same is not None and same > UNRELATED_FOLLOWED) or filling(symptoms, CORE) <= FAR:
        return None
    evidence: dict[str, int | float | str | list[str] | list[int]] = {
        "correlation": _short(correlation),
        "correlation_best_lag": _short(related),
        "mean_abs": _short(size),
        "tokens": count,
    }
    text = f"learner and sampler log-probs have correlation {correlation:.2g} and differ by {size:.2g} nats on average"
    return Finding("unrelated_columns", text, "medium", evidence)


def _moments(symptoms: Symptoms, lag: int) -> tuple[float, float]:
    """Mean abs(l_t - s_(t + lag)) and the correlation at this lag, over all responses; (inf, 0) without pairs."""
    count = symptoms.count(f"shift_{lag}_n")
    if not count:
        return math.inf, 0.0
    names = ("l", "s", "ll", "ss", "ls", "abs")
    left, right, ll, ss, ls, size = (symptoms.total(f"shift_{lag}_{name}") / count for name in names)
    spread = (ll - left * left) * (ss - right * right)
    return size, (ls - left * right) / math.sqrt(spread) if spread > 1e-4 else 0.0


def _shifted(here: tuple[float, float], there: tuple[float, float]) -> bool:
    return there[0] >= 0.1 and here[0] <= 0.35 * there[0] and here[1] >= 0.8 and there[1] <= here[1] - 0.2


def _telescoping(symptoms: Symptoms) -> Finding | None:
    if symptoms.count("pairs") or symptoms.count("next_n") < 64:
        return None
    squares, block = symptoms.total("next_squares"), symptoms.total("squares")
    if squares < 0.25 * symptoms.count("next_n") or block <= 0:
        return None
    neighbour, ratio = symptoms.total("next_products") / squares, symptoms.total("sum_squares") / block
    if not (-0.58 <= neighbour <= -0.42 and ratio <= 0.25):
        return None
    evidence = {"neighbour_correlation": _short(neighbour), "block_ratio": _short(ratio)}
    text = "neighbouring gaps cancel as they do when one column is shifted by a token; the log-probs would prove it"
    return Finding("token_misalignment", text, "low", evidence)


def low_precision(symptoms: Symptoms) -> Finding | None:
    sides = [
        name
        for name in ("learner", "sampler")
        if symptoms.count(f"{name}_values") >= 32
        and symptoms.count(f"{name}_coarse") >= 0.98 * symptoms.count(f"{name}_values")
        and symptoms.count(f"{name}_rich") >= max(8, 0.2 * symptoms.count(f"{name}_values"))
    ]
    zero = symptoms.count("zero_gap") / max(symptoms.count("tokens"), 1)
    distinct = sum(int(word).bit_count() for word in symptoms.seen[1])
    gaps_only = symptoms.count("pairs") == 0 and symptoms.count("gap_values") >= 32 and 0.05 <= zero < 0.95
    if gaps_only and symptoms.count("gap_coarse") >= 0.98 * symptoms.count("gap_values") and distinct >= 6:
        sides = ["gap"]
    if not sides:
        return None
    evidence: dict[str, int | float | str | list[str] | list[int]] = {
        "columns": sides,
        "tokens": symptoms.count("tokens"),
        "exact_zero_share": _short(zero),
    }
    text = f"every {' and '.join(sides)} value is a bfloat16 number; {zero:.0%} of the gaps are exactly 0"
    return Finding("low_precision_logprobs", text, "medium" if gaps_only else "high", evidence)


def _short(number: float) -> float:
    return float(f"{number:.6g}")
