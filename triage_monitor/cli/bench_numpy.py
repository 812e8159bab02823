"""The baseline of `bench`: every statistic of the summary in vectorised numpy, as a careful user would write it.

float32 exponentials and partial sorts where they do, one pass per statistic, no Python loop over tokens, segments or
responses. It needs several times the gaps' memory, and its quantiles do not merge; it is here to be measured against.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triage_monitor.judge.indicators import QUANTILES
from triage_monitor.summary.spec import DEFAULT_SPEC, SummarySpec

Floats = NDArray[np.float32]


def statistics(
    gap: Floats, advantage_R: NDArray[np.float64], offsets: NDArray[np.int64], spec: SummarySpec = DEFAULT_SPEC
) -> dict[str, float]:
    """Every response has at least one token; all tokens are valid."""
    finite = np.isfinite(gap)
    if not finite.all():
        raise ValueError("the baseline takes finite gaps only")
    lengths = np.diff(offsets)
    advantage = np.repeat(advantage_R.astype(np.float32), lengths)
    result = _magnitudes(gap)
    result |= _regions(gap, advantage, advantage_R, offsets, spec)
    for side, values in (("all", gap), ("neg", gap[advantage < 0]), ("pos", gap[advantage > 0])):
        result |= _quantiles(side, values)
    return result | _segments(gap, advantage, offsets, lengths, spec)


def _magnitudes(gap: Floats) -> dict[str, float]:
    n = gap.size
    size = np.abs(gap)
    weight = np.exp(np.minimum(gap, 80.0))
    inverse = np.exp(np.minimum(-gap, 80.0))
    total = gap.sum(dtype=np.float64)
    square = np.square(gap).sum(dtype=np.float64)
    weights = weight.sum(dtype=np.float64)
    squares = np.square(weight, dtype=np.float64).sum()
    return {
        "delta_mean": total / n,
        "abs_delta_mean": size.sum(dtype=np.float64) / n,
        "delta_std": float(np.sqrt(square / n - (total / n) ** 2)),
        "mismatch_energy": square / n / 2,
        "near_zero_fraction": np.count_nonzero(size < 0.05) / n,
        "kl_k3": (weight - 1 - gap).sum(dtype=np.float64) / n,
        "kl_k3_reverse": (inverse - 1 + gap).sum(dtype=np.float64) / n,
        "mult_prob_error": np.maximum(weight, inverse).sum(dtype=np.float64) / n,
        "chi2_token": squares / n - 1,
        "ess_fraction": weights * weights / (n * squares),
        "frac_rho_gt_2": np.count_nonzero(weight > 2) / n,
        "frac_rho_lt_0.5": np.count_nonzero(weight < 0.5) / n,
        "frac_rho_lt_1e-4": np.count_nonzero(weight < 1e-4) / n,
        "gap_zero": np.count_nonzero(gap == 0) / n,
    }


def _regions(
    gap: Floats, advantage: Floats, advantage_R: NDArray[np.float64], offsets: NDArray[np.int64], spec: SummarySpec
) -> dict[str, float]:
    negative, positive = gap < 0, gap > 0
    mass = np.abs(advantage)
    pressure = advantage * gap
    starts = offsets[:-1]
    x = np.where(advantage_R < 0, -advantage_R, 0) * np.add.reduceat(negative, starts, dtype=np.int64)
    y = np.where(advantage_R > 0, advantage_R, 0) * np.add.reduceat(positive, starts, dtype=np.int64)
    against, along = advantage < 0, advantage > 0
    mean = np.add.reduceat(gap, starts, dtype=np.float64) / np.diff(offsets)
    tail = np.abs(gap) >= spec.tau_ana
    units = len(advantage_R)
    return {
        "rho_asym": x.sum() / y.sum(),
        "log_rho_se": float(np.sqrt(units / (units - 1) * np.square(x / x.sum() - y / y.sum()).sum())),
        "mass_c_neg": mass[against & positive].sum(dtype=np.float64) / mass.sum(dtype=np.float64),
        "mass_c_pos": mass[along & negative].sum(dtype=np.float64) / mass.sum(dtype=np.float64),
        "advantage_mass_ratio": mass[against].sum(dtype=np.float64) / mass[along].sum(dtype=np.float64),
        "sign_odds_blind": np.count_nonzero(negative) / np.count_nonzero(positive),
        "rho_asym_tail": mass[against & negative & tail].sum(dtype=np.float64)
        / mass[along & positive & tail].sum(dtype=np.float64),
        "rho_pressure": pressure[against & negative].sum(dtype=np.float64)
        / pressure[along & positive].sum(dtype=np.float64),
        "amplification": np.maximum(pressure, 0).sum(dtype=np.float64),
        "contraction": np.maximum(-pressure, 0).sum(dtype=np.float64),
        "deep_tail_neg": np.count_nonzero(against & (gap < spec.deep_tail)) / np.count_nonzero(against),
        "deep_tail_pos": np.count_nonzero(along & (gap < spec.deep_tail)) / np.count_nonzero(along),
        "log_ppl_diff_max": -mean.min(),
        "geo_ratio": np.exp(mean).mean(),
    }


def _quantiles(side: str, values: Floats) -> dict[str, float]:
    ranks = np.clip(np.ceil(np.array(QUANTILES) * values.size).astype(np.int64) - 1, 0, values.size - 1)
    ordered = np.partition(values, ranks)
    result = {f"q{q}_{side}": float(ordered[rank]) for q, rank in zip(QUANTILES, ranks, strict=True)}
    return result | {f"min_{side}": float(values.min()), f"max_{side}": float(values.max())}


def _segments(
    gap: Floats, advantage: Floats, offsets: NDArray[np.int64], lengths: NDArray[np.int64], spec: SummarySpec
) -> dict[str, float]:
    per_response = -(-lengths // spec.segment)
    owner = np.repeat(np.arange(lengths.size), per_response)
    index = np.arange(owner.size) - np.repeat(np.cumsum(per_response) - per_response, per_response)
    starts = offsets[owner] + index * spec.segment
    n = np.minimum(spec.segment, offsets[owner + 1] - starts)
    eligible = n >= spec.minimum_valid
    mean = np.add.reduceat(gap, offsets[:-1], dtype=np.float64) / lengths
    result: dict[str, float] = {}
    negative = (advantage < 0) & (gap <= -spec.tau_ana)
    positive = (advantage > 0) & (gap >= spec.tau_ana)
    for family, tail in (("all", negative | positive), ("a_neg", negative), ("a_pos", positive)):
        c = np.add.reduceat(tail, starts, dtype=np.int64)
        share = np.where(eligible, c / n, -1.0)
        heavy = eligible & (share >= spec.phi)
        take = 0.05 * np.count_nonzero(eligible)
        top = np.partition(share, share.size - int(take) - 1)[share.size - int(take) - 1]
        adjacent = eligible[:-1] & eligible[1:] & (owner[:-1] == owner[1:])
        responses = np.unique(owner[heavy])
        result |= {
            f"tail_token_fraction_{family}": np.count_nonzero(tail) / gap.size,
            f"heavy_segment_fraction_{family}": np.count_nonzero(heavy) / np.count_nonzero(eligible),
            f"top5_{family}": _held(c, share > top, share == top, take) / max(c[eligible].sum(), 1),
            f"both_heavy_{family}": float(np.count_nonzero(adjacent & heavy[:-1] & heavy[1:])),
            f"first_heavy_{family}": float(np.count_nonzero(adjacent & heavy[:-1])),
            f"masked_{family}": float(np.count_nonzero(np.abs(mean[responses]) < spec.near_zero)),
        }
    return result


def _held(c: NDArray[np.int64], above: NDArray[np.bool_], tied: NDArray[np.bool_], take: float) -> float:
    """Tail tokens of the `take` heaviest segments; those tied at the cut enter pro rata."""
    return float(c[above].sum() + c[tied].sum() * (take - np.count_nonzero(above)) / np.count_nonzero(tied))
