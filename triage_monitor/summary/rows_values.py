"""UpdateRows: one update's responses as flat arrays, whatever form they came in.

Tokens of all responses lie behind one another; response i owns positions offsets[i]:offsets[i+1]. Every form of
input (arrays, lists of arrays, Arrow tables, wire bodies, recordings) becomes this value, and `summarize` reads it.
Lengths and types are checked here; values are not judged: NaN and infinities pass through, the kernel counts them.
Both log-probs stay apart, so that their difference is formed once, in float64.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from triage_monitor.errors import InputError

if TYPE_CHECKING:
    from triage_monitor.summary.spec import SummarySpec
    from triage_monitor.summary.step import StepSummary

Array: TypeAlias = npt.NDArray[Any]
Given: TypeAlias = "npt.ArrayLike | Sequence[npt.ArrayLike]"

MAX_PADDING_ROWS = 1 << 48  # as for every count of a report
SETTING_NAMES = ("temperature", "top_p", "top_k", "logprobs_mode", "learner", "precision")


@dataclass(frozen=True, slots=True, eq=False)
class UpdateRows:
    """T tokens in R responses: `gap`, or both log-probs, float32/64 [T]; `offsets` int64 [R+1]; `advantages` and
    `policy_versions` [R], or [T] when the flag beside them says so; `mask` and `missing` bool [T], None when every
    position is a token and none is missing; `groups` int64 [R]; `rewards` and `grad_norms` float64 [R], NaN where
    unknown; `turn_starts` bool [T], where a turn of the policy begins; `objective`: the sums that the trainer's
    objective told of the update (`summary.objective`).

    Arrays may be read-only views of the bytes they came from.
    """

    offsets: Array
    advantages: Array
    gap: Array | None = None
    learner_logprobs: Array | None = None
    sampler_logprobs: Array | None = None
    mask: Array | None = None
    missing: Array | None = None
    groups: Array | None = None
    policy_versions: Array | None = None
    rewards: Array | None = None
    grad_norms: Array | None = None
    response_ids: Array | None = None
    engines: Array | None = None
    turn_starts: Array | None = None
    padding_rows: int = 0
    advantages_per_token: bool = False
    versions_per_token: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    objective: Mapping[str, float] = field(default_factory=dict)
    ignored_columns: tuple[str, ...] = ()

    @property
    def responses(self) -> int:
        return len(self.offsets) - 1

    @property
    def tokens(self) -> int:
        """Positions, masked ones included."""
        return int(self.offsets[-1])

    def summarize(self, spec: SummarySpec | None = None, *, each: Any = map) -> StepSummary:
        """`each` as in `summarize`: an executor's map reduces a large shard in two threads."""
        from triage_monitor.summary.build import summarize
        from triage_monitor.summary.spec import DEFAULT_SPEC

        # A flat array says by its length whether it is per response; where T equals R only lists of arrays can.
        per_token = (self.advantages_per_token, self.versions_per_token)
        split = any(per_token) and self.tokens == self.responses > 0

        def form(values: Array | None, is_per_token: bool = True) -> Any:
            return np.split(values, self.offsets[1:-1]) if split and is_per_token and values is not None else values

        return summarize(
            gap=form(self.gap),
            learner_logprobs=form(self.learner_logprobs),
            sampler_logprobs=form(self.sampler_logprobs),
            advantages=form(self.advantages, self.advantages_per_token),
            offsets=None if split else self.offsets,
            mask=form(self.mask),
            missing=form(self.missing),
            groups=self.groups,
            policy_versions=form(self.policy_versions, self.versions_per_token),
            rewards=self.rewards,
            grad_norm=self.grad_norms,
            padding_rows=self.padding_rows,
            spec=spec or DEFAULT_SPEC,
            each=each,
        )


def checked_settings(settings: Mapping[str, object]) -> dict[str, str]:
    """Sampling settings as they travel: known names, text values. Raises InputError for a wrong name or value."""
    checked: dict[str, str] = {}
    for name, value in settings.items():
        if name not in SETTING_NAMES:
            raise InputError("unknown_setting", f"'{name}' is no sampling setting; known: {', '.join(SETTING_NAMES)}")
        text = str(value)
        if len(text) > 200:
            raise InputError("bad_setting", f"setting '{name}' is {len(text)} characters long; 200 at most")
        if name == "learner" and text not in ("old", "theta"):
            raise InputError("bad_setting", f"setting 'learner' is '{text}'; it must be 'old' or 'theta'")
        if name in ("temperature", "top_p", "top_k"):
            _check_number(name, text)
        checked[name] = text
    return checked


def _check_number(name: str, text: str) -> None:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not np.isfinite(number):
        raise InputError("bad_setting", f"setting '{name}' is '{text}'; it must be a finite number")


def rows_from_arrays(
    *,
    advantages: Given,
    gap: Given | None = None,
    learner_logprobs: Given | None = None,
    sampler_logprobs: Given | None = None,
    offsets: npt.ArrayLike | None = None,
    mask: Given | None = None,
    missing: Given | None = None,
    groups: npt.ArrayLike | None = None,
    policy_versions: Given | None = None,
    rewards: npt.ArrayLike | None = None,
    grad_norm: npt.ArrayLike | None = None,
    response_ids: Sequence[str] | None = None,
    engines: Sequence[str] | None = None,
    turn_starts: Sequence[Sequence[int]] | None = None,
    padding_rows: int = 0,
    settings: Mapping[str, object] | None = None,
    objective: Mapping[str, float] | None = None,
) -> UpdateRows:
    """The arrays of `summarize`: flat [T] with `offsets` [R+1], or (no offsets) lists of R per-response arrays.

    `advantages` and `policy_versions` are [R] or [T] (R wins where both fit), or lists of per-response arrays;
    `turn_starts` is a list of positions for each response.
    Raises InputError naming column, row and both lengths.
    """
    forms = {"gap": gap, "learner_logprobs": learner_logprobs, "sampler_logprobs": sampler_logprobs}
    given: dict[str, Any] = {name: value for name, value in forms.items() if value is not None}
    if set(given) not in ({"gap"}, {"learner_logprobs", "sampler_logprobs"}):
        raise InputError("gap_or_logprobs", "give `gap`, or `learner_logprobs` and `sampler_logprobs`; one of the two")
    lead = next(iter(given))
    bounds = _offsets(lead, given[lead], offsets)
    values = {name: _floats(name, _token_column(name, value, bounds)) for name, value in given.items()}
    advantage, advantages_per_token = _per_response_or_token("advantages", advantages, bounds)
    version, versions_per_token = _per_response_or_token("policy_versions", policy_versions, bounds)
    if version is not None and version.dtype.kind not in "iu":
        raise InputError("wrong_type", f"must be integers, not {version.dtype}", column="policy_versions")
    assert advantage is not None
    return UpdateRows(
        offsets=bounds,
        advantages=_floats("advantages", advantage),
        gap=values.get("gap"),
        learner_logprobs=values.get("learner_logprobs"),
        sampler_logprobs=values.get("sampler_logprobs"),
        mask=_flags("mask", mask, bounds),
        missing=_flags("missing", missing, bounds),
        groups=_groups(groups, bounds),
        policy_versions=None if version is None else version.astype(np.int64, copy=False),
        rewards=_per_response("rewards", rewards, bounds, np.dtype(np.float64)),
        grad_norms=_per_response("grad_norm", _spread(grad_norm, bounds), bounds, np.dtype(np.float64)),
        response_ids=_per_response("response_ids", response_ids, bounds, np.dtype(object)),
        engines=_per_response("engines", engines, bounds, np.dtype(object)),
        turn_starts=None if turn_starts is None else _turns(turn_starts, bounds),
        padding_rows=checked_padding(padding_rows),
        advantages_per_token=advantages_per_token,
        versions_per_token=versions_per_token,
        settings=checked_settings(settings or {}),
        objective=objective or {},
    )


def checked_padding(value: Any) -> int:
    """How many rows only filled up a batch. Raises InputError for what is no whole number from 0 on."""
    try:
        rows = operator.index(value)
    except TypeError:
        rows = -1
    if not 0 <= rows <= MAX_PADDING_ROWS:
        raise InputError("padding_rows", f"is {value!r:.40}, not a whole number from 0 on", column="padding_rows")
    return rows


def _spread(value: npt.ArrayLike | None, bounds: Array) -> npt.ArrayLike | None:
    """One number for the whole update, as a response's."""
    return value if value is None or np.ndim(value) else np.full(len(bounds) - 1, value)


def check_lengths(column: str, lengths: Array, lead: str, expected: Array) -> None:
    """Every per-token column of a response has as many entries as the first one."""
    if len(lengths) != len(expected):
        raise InputError("length", f"has {len(lengths)} responses where {lead} has {len(expected)}", column=column)
    wrong = np.flatnonzero(lengths != expected)
    if len(wrong):
        row = int(wrong[0])
        detail = f"has {int(lengths[row])} entries where {lead} has {int(expected[row])}"
        raise InputError("length", detail, column=column, row=row)


def _offsets(lead: str, value: Given, offsets: npt.ArrayLike | None) -> Array:
    if offsets is None:
        lengths = _lengths(lead, value)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    bounds = np.asarray(offsets)
    if bounds.ndim != 1 or bounds.dtype.kind not in "iu" or len(bounds) == 0:
        raise InputError("offsets", "must be a flat list of integers, one more than responses", column="offsets")
    bounds = bounds.astype(np.int64, copy=False)
    tokens = len(_flat(lead, value))
    falling = np.flatnonzero(np.diff(bounds) < 0)
    if bounds[0] != 0 or len(falling) or bounds[-1] != tokens:
        row = int(falling[0]) if len(falling) else None
        detail = f"must start at 0, never decrease and end at the {tokens} entries of '{lead}'"
        raise InputError("offsets", detail, column="offsets", row=row)
    return bounds


def _is_nested(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.dtype == object or value.ndim == 2)
    return isinstance(value, (list, tuple)) and len(value) > 0 and np.ndim(value[0]) > 0


def _lengths(name: str, value: Any) -> Array:
    if not _is_nested(value) and len(value):
        raise InputError("offsets", "a flat array needs `offsets`; else give one array per response", column=name)
    return np.fromiter((len(row) for row in value), dtype=np.int64, count=len(value))


def _flat(name: str, value: Any) -> Array:
    array = np.concatenate([np.asarray(row) for row in value]) if _is_nested(value) else np.asarray(value)
    if array.ndim != 1:
        raise InputError("shape", f"must be flat, not {array.ndim}-dimensional", column=name)
    return array


def _token_column(name: str, value: Any, bounds: Array) -> Array:
    if _is_nested(value):
        check_lengths(name, _lengths(name, value), "the response", np.diff(bounds))
    flat = _flat(name, value)
    if len(flat) != bounds[-1]:
        raise InputError("length", f"has {len(flat)} entries where offsets end at {int(bounds[-1])}", column=name)
    return flat


def _floats(name: str, array: Array) -> Array:
    """float32 and float64 as given, float16 widened, whole numbers as float64; anything else is refused."""
    if array.dtype in (np.float32, np.float64) or len(array) == 0:
        return array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)
    if array.dtype == np.float16:
        return array.astype(np.float32)
    if array.dtype.kind in "iu":
        return array.astype(np.float64)
    raise InputError("wrong_type", f"must be float16, float32 or float64, not {array.dtype}", column=name)


def _flags(name: str, value: Any, bounds: Array) -> Array | None:
    if value is None:
        return None
    flat = _token_column(name, value, bounds)
    return as_flags(name, flat, np.diff(bounds))


def as_flags(name: str, flat: Array, lengths: Array) -> Array:
    """Booleans, or numbers that are all 0 or 1."""
    if flat.dtype == np.bool_:
        return flat
    if flat.dtype.kind not in "iuf" and len(flat):
        raise InputError("wrong_type", f"must be booleans (or 0 and 1), not {flat.dtype}", column=name)
    wrong = np.flatnonzero((flat != 0) & (flat != 1))
    if len(wrong):
        row = int(np.searchsorted(np.cumsum(lengths), wrong[0], side="right"))
        raise InputError("mask_value", f"holds {flat[wrong[0]]}; only 0 and 1 are a mask", column=name, row=row)
    return flat.astype(np.bool_)


def _per_response_or_token(name: str, value: Any, bounds: Array) -> tuple[Array | None, bool]:
    if value is None:
        return None, False
    if _is_nested(value):
        return _token_column(name, value, bounds), True
    flat = _flat(name, value)
    if len(flat) == len(bounds) - 1:
        return flat, False
    if len(flat) == bounds[-1]:
        return flat, True
    detail = f"has {len(flat)} entries; there are {len(bounds) - 1} responses and {int(bounds[-1])} tokens"
    raise InputError("length", detail, column=name)


def _turns(turn_starts: Sequence[Sequence[int]], bounds: Array) -> Array:
    if len(turn_starts) != len(bounds) - 1:
        detail = f"has {len(turn_starts)} entries; there are {len(bounds) - 1} responses"
        raise InputError("length", detail, column="turn_starts")
    lengths = _lengths("turn_starts", turn_starts)
    values = np.concatenate([np.asarray(row, dtype=np.int64) for row in turn_starts]) if len(turn_starts) else lengths
    return turn_flags(values, lengths, bounds)


def turn_flags(values: Array, lengths: Array, bounds: Array) -> Array:
    """Positions within each response -> bool [T]; a position outside its response is refused."""
    of = np.repeat(np.arange(len(lengths)), lengths)
    wrong = np.flatnonzero((values < 0) | (values >= np.diff(bounds)[of]))
    if len(wrong):
        row = int(of[wrong[0]])
        detail = f"names position {values[wrong[0]]} of {int(bounds[row + 1] - bounds[row])}"
        raise InputError("turn_start", detail, column="turn_starts", row=row)
    flags = np.zeros(int(bounds[-1]), np.bool_)
    flags[bounds[:-1][of] + values] = True
    return flags


def _groups(groups: Any, bounds: Array) -> Array | None:
    if groups is not None and len(groups) and isinstance(groups[0], str):
        groups = group_codes(groups)
    return _per_response("groups", groups, bounds, np.dtype(np.int64))


def group_codes(names: Sequence[str]) -> Array:
    """A 64-bit code for each name, the same in every shard, process and file."""
    codes = {name: int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") for name in set(names)}
    return np.fromiter((codes[name] for name in names), dtype=np.uint64, count=len(names)).view(np.int64)


def _per_response(name: str, value: Any, bounds: Array, dtype: np.dtype[Any]) -> Array | None:
    if value is None:
        return None
    text = dtype.kind == "O"
    array: Array = np.asarray(value, dtype=dtype if text else None)
    if array.ndim != 1 or len(array) != len(bounds) - 1:
        detail = f"has {len(array)} entries; there are {len(bounds) - 1} responses"
        raise InputError("length", detail, column=name)
    allowed = "iu" if dtype == np.int64 else "iuf"
    if not text and array.dtype.kind not in allowed and len(array):
        raise InputError("wrong_type", f"must be {dtype}, not {array.dtype}", column=name)
    return array.astype(dtype, copy=False)
