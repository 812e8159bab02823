"""Every layout of random responses gives the summary of the plain form, and back again what was put in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from triage_monitor.errors import InputError
from triage_monitor.summary.build import summarize
from triage_monitor.summary.spec import SummarySpec
from triage_monitor.trainer import layouts
from triage_monitor.trainer.layouts import Placement

SPEC = SummarySpec(segment=8)
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


class Plain:
    """Responses as the summary's own plain form: full lists with a mask, prompts in front where there are any."""

    def __init__(self, seed: int, responses: int, longest: int, dtype: str, per_token: bool) -> None:
        rng = np.random.default_rng(seed)
        self.dtype, self.per_token = DTYPES[dtype], per_token
        lengths = rng.integers(0, longest + 1, responses)
        self.prompts = rng.integers(1, 4, responses)
        self.masks = [rng.random(n) < rng.choice([0.0, 0.5, 0.9, 1.0]) for n in lengths]
        self.learner = [self._values(rng, n) for n in lengths]
        self.sampler = [values + self._values(rng, n, 0.3) for values, n in zip(self.learner, lengths, strict=True)]
        shape = [int(n) if per_token else 1 for n in lengths]
        self.advantages = [torch.from_numpy(rng.normal(size=n).astype("float32")) for n in shape]

    def _values(self, rng: Any, size: int, scale: float = 1.0) -> torch.Tensor:
        values = rng.normal(size=size) * scale
        values[rng.random(size) < 0.03] = rng.choice([np.nan, np.inf, -40.0])
        return torch.from_numpy(values).to(self.dtype)

    @property
    def size(self) -> int:
        return len(self.masks)

    def summary(self) -> Any:
        wide = [[np.asarray(row.float()) for row in column] for column in (self.learner, self.sampler)]
        advantages: Any = [np.asarray(row) for row in self.advantages]
        if not self.per_token:
            advantages = np.concatenate(advantages) if advantages else np.zeros(0, "float32")
        return summarize(
            learner_logprobs=wide[0], sampler_logprobs=wide[1], advantages=advantages, mask=self.masks, spec=SPEC
        )

    def columns(self) -> dict[str, list[torch.Tensor]]:
        masks = [torch.from_numpy(mask) for mask in self.masks]
        columns = {"learner": self.learner, "sampler": self.sampler, "mask": masks}
        return columns | ({"advantages": self.advantages} if self.per_token else {})

    def given(self, laid: Any) -> Any:
        return laid["advantages"] if self.per_token else torch.cat([*self.advantages, torch.zeros(0)])


@st.composite
def plains(draw: st.DrawFn, smallest: int = 0) -> Plain:
    return Plain(
        draw(st.integers(0, 2**32)),
        draw(st.integers(smallest, 6)),
        draw(st.sampled_from([0, 1, 3, 9, 40])),
        draw(st.sampled_from(sorted(DTYPES))),
        draw(st.booleans()),
    )


def agrees(plain: Plain, placement: Placement, laid: dict[str, Any]) -> None:
    sent = placement.submission(learner=laid["learner"], sampler=laid["sampler"], advantages=plain.given(laid))
    assert placement.responses == plain.size
    assert summarize(**sent, spec=SPEC) == plain.summary()
    learner = laid["learner"]
    if isinstance(learner, list) and not learner:
        return
    flat = placement.take(learner)
    back = placement.put(flat, 7.0)
    whole, again = (learner, back) if torch.is_tensor(learner) else (torch.cat([*learner, flat[:0]]), None)
    again = torch.cat([*back, flat[:0]]) if again is None else again
    kept = torch.zeros(whole.numel(), dtype=torch.bool)
    kept[torch.from_numpy(placement.index)] = True
    torch.testing.assert_close(again.reshape(-1)[kept], whole.reshape(-1)[kept], equal_nan=True, rtol=0, atol=0)
    assert (again.reshape(-1)[~kept] == 7.0).all()


def padding(value: torch.Tensor, count: int) -> torch.Tensor:
    """What no layout may read: NaN where there is one, set bits outside a mask never."""
    return torch.full((count,), 0 if value.dtype == torch.bool else float("nan"), dtype=value.dtype)


def widened(row: torch.Tensor, before: int, after: int) -> torch.Tensor:
    return torch.cat([padding(row, before), row, padding(row, after)])


def stacked(columns: dict[str, list[torch.Tensor]], before: Any, width: int) -> dict[str, torch.Tensor]:
    return {
        name: torch.stack(
            [widened(row, int(b), width - len(row) - int(b)) for row, b in zip(rows, before, strict=True)]
        )
        if rows
        else torch.zeros((0, width), dtype=torch.bool if name == "mask" else torch.float32)
        for name, rows in columns.items()
    }


@given(plains(), st.sampled_from(["left", "right", "between"]), st.integers(0, 5))
@settings(deadline=None, max_examples=50)
def test_padding_on_either_side_changes_nothing(plain: Plain, side: str, extra: int) -> None:
    longest = max((len(mask) for mask in plain.masks), default=0) + extra
    room = [longest - len(mask) for mask in plain.masks]
    before = {"left": room, "right": [0] * plain.size, "between": [r // 2 for r in room]}[side]
    laid = stacked(plain.columns(), before, longest)
    agrees(plain, layouts.padded(laid["mask"]), laid)
    agrees(plain, layouts.padded(laid["mask"].to(torch.bfloat16)), laid)


@given(plains())
@settings(deadline=None, max_examples=50)
def test_a_dummy_first_position_is_left_out_whatever_its_mask_says(plain: Plain) -> None:
    width = max((len(m) + p for m, p in zip(plain.masks, plain.prompts, strict=True)), default=1)
    laid = stacked(plain.columns(), plain.prompts, width)
    laid["mask"][:, 0] = True
    agrees(plain, layouts.padded(laid["mask"], dummy_first=True), laid)
    lists = {name: [widened(r, 1, 0) for r in rows] for name, rows in plain.columns().items()}
    lists["mask"] = [torch.cat([torch.ones(1, dtype=torch.bool), mask[1:]]) for mask in lists["mask"]]
    agrees(plain, layouts.per_sample(lists["mask"], dummy_first=True), lists)


def in_a_row(plain: Plain, tail: int) -> tuple[dict[str, torch.Tensor], list[int]]:
    """Prompts and responses packed, `tail` positions of padding behind them."""
    columns = {
        name: torch.cat([*[widened(r, int(p), 0) for r, p in zip(rows, plain.prompts, strict=True)], padding(z, tail)])
        for name, rows in plain.columns().items()
        for z in [torch.zeros(0, dtype=torch.bool if name == "mask" else rows[0].dtype if rows else torch.float32)]
    }
    return columns, [len(m) + int(p) for m, p in zip(plain.masks, plain.prompts, strict=True)]


@given(plains(), st.integers(0, 5), st.booleans())
@settings(deadline=None, max_examples=50)
def test_packing_by_offsets_positions_and_ids_changes_nothing(plain: Plain, tail: int, as_row: bool) -> None:
    laid, lengths = in_a_row(plain, tail)
    if as_row:
        laid = {name: values[None] for name, values in laid.items()}
    offsets = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    agrees(plain, layouts.packed(laid["mask"], offsets), laid)
    position = torch.cat([*[torch.arange(n) for n in lengths], torch.zeros(tail, dtype=torch.int64)])
    agrees(plain, layouts.by_position(laid["mask"], position, responses=plain.size), laid)
    ids = torch.cat([*[torch.full((n,), i + 1) for i, n in enumerate(lengths)], torch.zeros(tail, dtype=torch.int64)])
    ids = ids.to(torch.int64).reshape(laid["mask"].shape)
    agrees(plain, layouts.by_id(ids * laid["mask"], ids), laid)


@given(plains())
@settings(deadline=None, max_examples=50)
def test_lists_are_taken_as_they_are(plain: Plain) -> None:
    laid: dict[str, Any] = plain.columns()
    agrees(plain, layouts.per_sample(laid["mask"]), laid)
    sent = layouts.per_sample(laid["mask"]).submission(
        learner=laid["learner"], sampler=laid["sampler"], advantages=plain.advantages
    )
    assert summarize(**sent, spec=SPEC) == plain.summary()


@given(plains(smallest=1), st.booleans())
@settings(deadline=None, max_examples=50)
def test_next_token_arrays_are_moved_onto_their_tokens(plain: Plain, as_packed: bool) -> None:
    laid, lengths = in_a_row(plain, 0)
    offsets = np.array([0, *np.cumsum(lengths)])
    rolled = {name: torch.roll(laid[name], -1) for name in ("learner", "sampler")}
    moved = {name: layouts.shifted(values, 1, cu_seqlens=offsets) for name, values in rolled.items()}
    assert all((values[offsets[:-1]] == 0).all() for values in moved.values())
    agrees(plain, layouts.packed(laid["mask"], offsets, dummy_first=True), laid | moved)


@given(plains(smallest=1), st.integers(1, 4), st.booleans())
@settings(deadline=None, max_examples=50)
def test_context_parallel_slices_join_before_anything_is_counted(plain: Plain, ranks: int, keeps_padding: bool) -> None:
    laid: dict[str, Any] = {}
    for name, rows in plain.columns().items():
        joined = []
        for row in rows:
            chunk = -(-len(row) // (2 * ranks))
            parts = torch.cat([row, padding(row, 2 * ranks * chunk - len(row))]).split(chunk) if chunk else []
            slices = [torch.cat([parts[r], parts[2 * ranks - 1 - r]]) if chunk else row for r in range(ranks)]
            if not keeps_padding:
                real = [torch.from_numpy(layouts.held_positions(len(row), ranks, r)) < len(row) for r in range(ranks)]
                slices = [part[keep] for part, keep in zip(slices, real, strict=True)]
            joined.append(layouts.join_slices(slices, len(row)))
        laid[name] = joined
    agrees(plain, layouts.per_sample(laid["mask"]), laid)


@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 4))
def test_a_response_cut_where_its_tokens_are_predicted_comes_together(response: int, prompt: int, ranks: int) -> None:
    total = response + prompt
    values = np.arange(response) + 100.0
    chunk = -(-total // (2 * ranks))
    owner = np.minimum(np.arange(total) // chunk, 2 * ranks - 1 - np.arange(total) // chunk)
    predicted_at = np.arange(response) + prompt - 1  # token t of the sample is predicted at t - 1
    slices = [values[owner[predicted_at] == rank] for rank in range(ranks)]
    assert layouts.join_response_slices(slices, total, response).tolist() == values.tolist()


def test_packed_samples_are_cut_each_on_its_own() -> None:
    row = np.arange(8 + 4)
    first = [0, 1, 6, 7, 8, 11]  # of 8: chunks 0 and 3; of 4: chunks 0 and 3
    second = [2, 3, 4, 5, 9, 10]
    assert layouts.join_packed_slices([row[first], row[second]], [0, 8, 12]).tolist() == row.tolist()


def test_a_joined_slice_keeps_its_gradient() -> None:
    whole = torch.arange(6.0, requires_grad=True)
    joined = layouts.join_slices([whole[:2], whole[2:]], 6)  # chunks 0 1 | 2 3 | 4 5 | padding
    joined[2].backward()
    assert whole.grad is not None and whole.grad.tolist() == [0, 0, 1, 0, 0, 0]


def test_a_wrong_slice_names_its_rank() -> None:
    with pytest.raises(InputError, match=r"row 1, column 'logp'"):
        layouts.join_slices([np.zeros(2), np.zeros(5)], 4, "logp")
