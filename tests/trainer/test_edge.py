"""The reduction on the device against the kernel's: the same counts bit for bit, nothing asked of the device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from agreement import assert_agrees
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Spec
from strategies import UpdateInput, realistic_update, seeded_updates, small_updates
from trainer.edge_forms import FORMS, arguments, assert_same_summary, reduced, tensors
from trainer.questions import RefusesQuestions

from triage_monitor.errors import InputError
from triage_monitor.summary.build import summarize
from triage_monitor.summary.rows import rows_from_arrays
from triage_monitor.summary.spec import DEFAULT_SPEC, SummarySpec
from triage_monitor.summary.symptoms_rows import symptoms_of
from triage_monitor.trainer import edge_layout, edge_reduce
from triage_monitor.trainer.edge import HeldReduction
from triage_monitor.trainer.edge_sample import draw

DRAWN = settings(max_examples=100, deadline=None, derandomize=True)
SEEDED = settings(max_examples=25, deadline=None, derandomize=True)


def has_tokens(update: UpdateInput) -> bool:
    """And not as many as responses: a flat advantage array would then be read as one a response, whatever it was."""
    return sum(map(len, update.responses)) not in (0, len(update.responses))


@given(small_updates().filter(has_tokens), st.sampled_from(FORMS))
@DRAWN
def test_small_updates_have_the_kernels_counts(update: UpdateInput, form: str) -> None:
    arrays, spec = arguments(update)
    assert_same_summary(reduced(arrays, spec, form), summarize(**arrays, spec=spec))


@given(seeded_updates(), st.sampled_from(FORMS))
@SEEDED
def test_realistic_updates_have_the_kernels_counts_and_the_definitions(update: UpdateInput, form: str) -> None:
    arrays, spec = arguments(update)
    got = reduced(arrays, spec, form)
    assert_same_summary(got, summarize(**arrays, spec=spec))
    assert_agrees(got, update.responses, update.spec)


@pytest.mark.parametrize("segment", [8, 64, 100, 512])
@pytest.mark.parametrize("form", FORMS)
def test_segments_restart_with_every_response_and_may_be_of_any_length(segment: int, form: str) -> None:
    update = realistic_update(seed=segment, responses=30, spec=Spec(segment=segment), holes=True, longest=1200)
    arrays, spec = arguments(update)
    assert_same_summary(reduced(arrays, spec, form), summarize(**arrays, spec=spec))


def test_passes_over_a_large_update_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_reduce, "CHUNK_TOKENS", 640)
    arrays, spec = arguments(realistic_update(seed=4, responses=40, both=True, holes=True, per_token=True))
    assert_same_summary(reduced(arrays, spec, "packed"), summarize(**arrays, spec=spec))


@pytest.mark.parametrize("deep", [-0.55, -0.7, -1.1])
def test_thresholds_are_compared_in_the_gaps_own_type(deep: float) -> None:
    """A float32 gap written as the threshold is not below it, one advantage a response or one a token."""
    spec = SummarySpec(deep_tail=deep, tau_ana=0.3, near_zero=0.3)
    gap = np.array([deep, deep, np.nextafter(np.float32(deep), np.float32(-9)), -0.3, 0.3], np.float32)
    for advantages in (np.array([-1.0]), np.array([-1.0, -1.0, -1.0, -1.0, -2.0])):
        given = {"gap": [gap], "advantages": advantages if len(advantages) == 1 else [advantages]}
        want = summarize(**given, spec=spec)
        assert want.count("deep_neg") == 1 and want.count("near_zero") == 0
        assert_same_summary(reduced(given, spec, "packed"), want)


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_versions_groups_rewards_and_norms_are_booked_alike(form: str, per_token: bool) -> None:
    rng = np.random.default_rng(5)
    arrays, spec = arguments(realistic_update(seed=5, responses=24, holes=True, grouped=True))
    lengths = [len(row) for row in arrays["gap"]]
    versions = [rng.integers(3, 7, n) for n in lengths] if per_token else rng.integers(3, 7, len(lengths))
    rest = {"rewards": rng.random(24), "grad_norm": 0.7, "groups": arrays["groups"], "padding_rows": 2}
    want = summarize(**{**arrays, **rest, "policy_versions": versions}, spec=spec)
    got = reduced({**arrays, **rest, "policy_versions": versions}, spec, form)
    assert_same_summary(got, want)
    assert got.count("groups") == 6 and got.count("grad_norm_responses") == 24 and got.count("lag_tokens_2_plus") > 0


def test_offsets_that_only_the_device_knows_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no other device here: CPU offsets are treated as those of one."""
    monkeypatch.setattr(edge_layout, "_is_known_here", lambda offsets: False)
    arrays, spec = arguments(realistic_update(seed=6, responses=17, both=True, holes=True))
    packed = tensors(arrays, "packed")
    packed["offsets"] = torch.tensor(packed["offsets"])
    assert_same_summary(HeldReduction(packed, spec).read()[0], summarize(**arrays, spec=spec))
    packed["offsets"][3] = 10**6
    held = HeldReduction(packed, spec)
    with pytest.raises(InputError, match="never decrease"):
        held.read()


@pytest.mark.parametrize("form", FORMS)
def test_nothing_asks_the_device(form: str) -> None:
    arrays, spec = arguments(realistic_update(seed=7, responses=9, both=True, per_token=True, holes=True))
    given = {**tensors(arrays, form), "policy_versions": torch.arange(9)}
    with RefusesQuestions():
        HeldReduction(given, spec)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_runs_where_tensors_hold_no_data(form: str, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shape follows from shapes; meta tensors answer no question."""
    if not known:
        monkeypatch.setattr(edge_layout, "_is_known_here", lambda offsets: False)
    arrays, spec = arguments(realistic_update(seed=7, responses=9, both=True, per_token=True, holes=True))
    given = {**tensors(arrays, form, "meta"), "policy_versions": torch.arange(9, device="meta")}
    if "offsets" in given and not known:
        given["offsets"] = torch.tensor(given["offsets"], device="meta")
    tokens = edge_layout.lay_out(given, spec.segment)
    vector = edge_reduce.reduce_tokens(tokens, spec)
    assert {part.device.type for part in (vector, *draw(tokens)[1].values())} == {"meta"}
    assert vector.shape == (sum(math.prod(shape) for shape in edge_reduce.sections(spec, 9).values()),)


def test_the_same_bits_every_time_also_under_torchs_own_switch() -> None:
    arrays, spec = arguments(realistic_update(seed=8, responses=60, both=True, holes=True))
    first = reduced(arrays, spec, "packed")
    torch.use_deterministic_algorithms(True)
    try:
        assert reduced(arrays, spec, "packed") == first
    finally:
        torch.use_deterministic_algorithms(False)
    assert reduced(arrays, spec, "packed") == first


def test_later_writes_by_the_trainer_are_not_seen() -> None:
    arrays, spec = arguments(realistic_update(seed=9, responses=8))
    given = tensors(arrays, "packed")
    held = HeldReduction(given, spec)
    given["gap"].fill_(torch.nan)
    assert_same_summary(held.read()[0], summarize(**arrays, spec=spec))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"mask": torch.full((6,), 2)}, "0 and 1"),
        ({"missing": torch.full((6,), 0.5)}, "0 and 1"),
        ({"advantages": torch.ones(4)}, "advantages"),
        ({"offsets": [0, 4, 7]}, "offsets"),
        ({"offsets": [0, 5, 4, 6]}, "offsets"),
        ({"learner_logprobs": torch.zeros(6)}, "one of the two"),
        ({"mask": torch.ones(5)}, "mask"),
        ({"policy_versions": torch.ones(2)}, "integers"),
        ({"rewards": [1.0]}, "rewards"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    given = {"gap": torch.zeros(6), "advantages": torch.ones(2), "offsets": [0, 3, 6]}
    with pytest.raises(InputError, match=named):
        HeldReduction({**given, **change}, DEFAULT_SPEC).read()


@pytest.mark.parametrize("form", FORMS)
def test_symptoms_of_a_small_update_are_those_of_its_rows(form: str) -> None:
    arrays, spec = arguments(realistic_update(seed=10, responses=30, both=True, holes=True))
    ids, engines = [f"r{i}" for i in range(30)], [f"engine-{i % 3}" for i in range(30)]
    said = {"temperature": "1.0"}
    given = {**tensors(arrays, form), "response_ids": ids, "engines": engines}
    want = symptoms_of(rows_from_arrays(**arrays, response_ids=ids, engines=engines, settings=said))
    assert HeldReduction(given, spec).read(said, {})[1] == want
    assert want.count("responses") == 30


@pytest.mark.parametrize("form", FORMS)
def test_symptoms_of_a_large_update_are_those_of_whole_responses_spread_over_it(form: str) -> None:
    rng = np.random.default_rng(11)
    rows = [rng.normal(0, 0.02, 600).astype(np.float32) for _ in range(400)]
    arrays = {"gap": rows, "advantages": np.ones(400)}
    summary, symptoms = HeldReduction(tensors(arrays, form), DEFAULT_SPEC).read()
    assert summary.count("tokens") == 240_000
    assert 50_000 < symptoms.count("tokens") <= 2**16 + 600
    assert symptoms.count("tokens") == 600 * symptoms.count("responses")
