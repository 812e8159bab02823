"""Hypothesis strategies: updates as a trainer may send them, with everything that has gone wrong for somebody.

An `UpdateInput` holds plain responses (what the reference reads) and knows the arrays that `summarize` takes. Values
are rounded to the array's type first, so that both sides see the same numbers. Small updates are drawn token by token
and shrink well; seeded updates are larger and realistic: ragged, bursty tails, several segments a response.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st
from reference import DEFAULT, Response, Spec

from triage_monitor.summary.build import summarize
from triage_monitor.summary.spec import SummarySpec
from triage_monitor.summary.step import StepSummary

DTYPES = ("float16", "float32", "float64")
# Exact zeros, every threshold from both sides, both non-finite kinds, the paper's terminal gap, saturating exponents.
SPECIAL_GAPS = (
    0.0, -0.0, 0.05, -0.05, 0.25, -0.25, -1.0, 1.0, -1.001, -0.999, 0.0499, -0.0501, 1e-5, -1e-5, 2e-4, 0.7,
    -0.7, -9.25, -42.75, 350.5, 349.5, 800.0, -699.5, -701.0, math.nan, math.inf, -math.inf,
)  # fmt: skip
SPECIAL_ADVANTAGES = (-1.0, 1.0, -1.0, 1.0, 0.0, -0.0, 2.5, -0.3, math.nan, math.inf, -math.inf)
SPECIAL_LOG_PROBS = (0.0, -0.0, -0.05, -1.0, -3.0, -42.75, -9999.0, math.nan, -math.inf)
SPECS = (
    Spec(segment=8, tau_ana=0.05, phi=0.25),
    Spec(segment=8, tau_ana=0.25, phi=0.5),
    Spec(segment=12, tau_ana=0.05, phi=0.125),
    Spec(segment=16, tau_ana=0.25, phi=0.125),
    Spec(),
)


@dataclass(frozen=True)
class UpdateInput:
    responses: tuple[Response, ...]
    spec: Spec = DEFAULT
    dtype: str = "float32"
    flat: bool = True

    def summary_spec(self) -> SummarySpec:
        return SummarySpec(
            segment=self.spec.segment,
            tau_ana=self.spec.tau_ana,
            phi=self.spec.phi,
            near_zero=self.spec.near_zero,
            deep_tail=self.spec.deep_tail,
        )

    def arguments(self) -> dict[str, Any]:
        """What `summarize` takes, flat with offsets or as lists of arrays."""
        kept = [r for r in self.responses if not r.padding]
        out: dict[str, Any] = {"spec": self.summary_spec(), "padding_rows": len(self.responses) - len(kept)}
        with_gap = not kept or kept[0].gap is not None
        for name, column in (
            ("gap", [r.gap for r in kept] if with_gap else None),
            ("learner_logprobs", None if with_gap else [r.learner for r in kept]),
            ("sampler_logprobs", None if with_gap else [r.sampler for r in kept]),
        ):
            if column is not None:
                out[name] = [np.asarray(values, dtype=self.dtype) for values in column]
        for name, columns, default in (
            ("mask", [r.mask for r in kept], True),
            ("missing", [r.missing for r in kept], False),
        ):
            if any(column is not None for column in columns):
                filled = [[default] * len(r) if c is None else c for r, c in zip(kept, columns, strict=True)]
                out[name] = [np.asarray(column, dtype=bool) for column in filled]
        per_token = any(not isinstance(r.advantage, float) for r in kept)
        advantages = [
            np.broadcast_to(np.asarray(r.advantage, dtype="float32"), len(r) if per_token else ()) for r in kept
        ]
        out["advantages"] = advantages if per_token else np.asarray([float(a) for a in advantages], dtype="float32")
        if kept and kept[0].group is not None:
            out["groups"] = np.asarray([r.group for r in kept], dtype="int64")
        if kept and kept[0].reward is not None:
            out["rewards"] = np.asarray([r.reward for r in kept], dtype="float64")
        lengths = [len(r) for r in kept]
        # Flat per-token advantages of as many tokens as responses would read as per-response ones.
        ambiguous = per_token and sum(lengths) == len(lengths)
        return _flatten(out, lengths) if self.flat and not ambiguous else out

    def summary(self) -> StepSummary:
        return summarize(**self.arguments())

    def part(self, start: int, stop: int) -> UpdateInput:
        return replace(self, responses=self.responses[start:stop])

    def cuts(self) -> list[int]:
        """Places at which the update may be split into shards: between responses, never inside a group."""
        groups = [r.group for r in self.responses]
        return [
            i for i in range(len(groups) + 1) if all(g is None for g in groups) or not set(groups[:i]) & set(groups[i:])
        ]


def _flatten(arguments: dict[str, Any], lengths: Sequence[int]) -> dict[str, Any]:
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype="int64")]).astype("int64")
    joined = {
        name: np.concatenate(value) if value else np.zeros(0, "float32")
        for name, value in arguments.items()
        if isinstance(value, list)
    }
    return arguments | joined | {"offsets": offsets}


def rounded(values: Sequence[float], dtype: str) -> list[float]:
    return [float(v) for v in np.asarray(values, dtype=dtype)]


def gaps() -> st.SearchStrategy[float]:
    return st.one_of(st.sampled_from(SPECIAL_GAPS), st.floats(-3.0, 3.0, width=16))


def advantages() -> st.SearchStrategy[float]:
    return st.one_of(st.sampled_from(SPECIAL_ADVANTAGES), st.floats(-4.0, 4.0, width=16))


def _booleans(length: int, mostly: bool) -> st.SearchStrategy[list[bool]]:
    return st.lists(st.sampled_from([mostly, mostly, mostly, not mostly]), min_size=length, max_size=length)


@st.composite
def small_updates(draw: st.DrawFn, max_responses: int = 5, spec: Spec | None = None) -> UpdateInput:
    """Token by token; empty updates, empty responses and one-token responses included."""
    chosen = draw(st.sampled_from(SPECS)) if spec is None else spec
    dtype = draw(st.sampled_from(DTYPES))
    lengths = draw(st.lists(st.one_of(st.integers(0, 3), st.integers(0, 26)), max_size=max_responses))
    both, per_token, masked, missing = (draw(st.booleans()) for _ in range(4))
    grouped = draw(st.booleans())
    rows = [draw(_response(n, dtype, both, per_token, masked, missing, grouped)) for n in lengths]
    return UpdateInput(tuple(rows), chosen, dtype, flat=draw(st.booleans()))


@st.composite
def _response(
    draw: st.DrawFn, n: int, dtype: str, both: bool, per_token: bool, masked: bool, missing: bool, grouped: bool
) -> Response:
    def column(values: st.SearchStrategy[float], of: str) -> list[float]:
        return rounded(draw(st.lists(values, min_size=n, max_size=n)), of)

    log_probs = st.one_of(st.sampled_from(SPECIAL_LOG_PROBS), st.floats(-12.0, 0.0, width=16))
    return Response(
        advantage=column(advantages(), "float32") if per_token else rounded([draw(advantages())], "float32")[0],
        gap=None if both else column(gaps(), dtype),
        learner=column(log_probs, dtype) if both else None,
        sampler=column(log_probs, dtype) if both else None,
        mask=draw(_booleans(n, mostly=True)) if masked else None,
        missing=draw(_booleans(n, mostly=False)) if missing else None,
        group=draw(st.integers(0, 3)) if grouped else None,
        reward=draw(st.sampled_from([0.0, 1.0, 0.25, math.nan])),
    )


@st.composite
def seeded_updates(draw: st.DrawFn, max_responses: int = 12, spec: Spec | None = None) -> UpdateInput:
    """Realistic shapes from a seed: lognormal lengths, small gaps, bursts of tail tokens, holes, a few bad values."""
    chosen = draw(st.sampled_from(SPECS)) if spec is None else spec
    return realistic_update(
        seed=draw(st.integers(0, 2**32 - 1)),
        responses=draw(st.integers(1, max_responses)),
        spec=chosen,
        dtype=draw(st.sampled_from(DTYPES)),
        both=draw(st.booleans()),
        holes=draw(st.booleans()),
        grouped=draw(st.booleans()),
        per_token=draw(st.booleans()),
    )


def realistic_update(
    seed: int,
    responses: int,
    *,
    spec: Spec = DEFAULT,
    dtype: str = "float32",
    both: bool = False,
    holes: bool = False,
    grouped: bool = False,
    per_token: bool = False,
    longest: int = 300,
) -> UpdateInput:
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(responses):
        n = int(np.clip(rng.lognormal(math.log(longest / 4), 0.8), 1, longest))
        gap = rng.normal(0.0, 0.02, n)
        for start in rng.integers(0, n, size=1 + n // 80):
            gap[start : start + 12] += rng.choice([-1.5, 0.8]) * rng.random(len(gap[start : start + 12]))
        gap[rng.random(n) < 0.05] = 0.0
        sampler = -rng.exponential(0.7, n)
        learner, sampler, gap = (np.asarray(x, dtype=dtype) for x in (sampler + gap, sampler, gap))
        if holes:
            gap[rng.random(n) < 0.01] = rng.choice([np.nan, np.inf, -np.inf])
            sampler[rng.random(n) < 0.01] = -np.inf
        sign = rng.choice([-1.0, 1.0])
        scale = rng.random(n) + 0.1 if per_token else np.float64(rng.random() + 0.1)
        advantage = np.asarray(sign * scale, dtype="float32")
        rows.append(
            Response(
                advantage=[float(a) for a in advantage] if per_token else float(advantage),
                gap=None if both else [float(g) for g in gap],
                learner=[float(x) for x in learner] if both else None,
                sampler=[float(x) for x in sampler] if both else None,
                mask=[bool(m) for m in rng.random(n) > 0.1] if holes else None,
                group=i // 4 if grouped else None,
                reward=float(sign > 0),
            )
        )
    return UpdateInput(tuple(rows), spec, dtype)


def updates(max_responses: int = 6) -> st.SearchStrategy[UpdateInput]:
    return st.one_of(small_updates(max_responses), seeded_updates(max_responses))


@st.composite
def sharded(draw: st.DrawFn) -> tuple[UpdateInput, list[UpdateInput]]:
    """An update and a split of it between responses, in shuffled order; some shards are empty."""
    update = draw(updates())
    places = sorted(draw(st.lists(st.sampled_from(update.cuts()), max_size=4)))
    edges = [0, *places, len(update.responses)]
    parts = [update.part(a, b) for a, b in pairwise(edges)]
    return update, draw(st.permutations(parts))


@st.composite
def same_spec_updates(draw: st.DrawFn, count: int) -> list[UpdateInput]:
    spec = draw(st.sampled_from(SPECS))
    one = st.one_of(small_updates(4, spec), seeded_updates(4, spec))
    return [draw(one) for _ in range(count)]
