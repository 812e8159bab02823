"""The form in which a rank's updates travel: raw rows, or a summary made at the edge, on the device or on the host.

`hold` runs while the trainer waits, `encode` in the client's thread. A step is sent in one form only, under one key: a
summary's `raw_every`-th steps go as rows instead, so nothing is counted twice. torch loads when tensors come from a
device, or `reduce_on` says "device"; the module is imported by name, since this package's client knows no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from triage_monitor.errors import ConfigError, InputError
from triage_monitor.summary.rows import STREAM_MIME, SUMMARY_MIME, encode_half, encode_stream, rows_from_arrays
from triage_monitor.summary.rows_halves import SAMPLER, SIDES
from triage_monitor.summary.spec import SummarySpec
from triage_monitor.trainer.arrays import Held, hold, response_form

_REDUCTION = "reduction"
_LEADS = ("gap", "learner_logprobs", "sampler_logprobs")


@dataclass(frozen=True, slots=True)
class Form:
    mode: str
    reduce_on: str
    raw_every: int | None
    spec: SummarySpec
    compression: str | None
    side: str | None = None

    def is_raw(self, step: int) -> bool:
        return self.mode == "raw" or (self.raw_every is not None and step % self.raw_every == 0)

    def mime(self, step: int) -> str:
        return STREAM_MIME if self.is_raw(step) else SUMMARY_MIME

    def hold(self, step: int, arrays: Mapping[str, Any]) -> dict[str, Held]:
        """Copies, or a reduction on its way. Raises what wrong arrays raise."""
        if self.side != SAMPLER and "advantages" not in arrays:
            raise InputError("missing_column", "are needed, one a response or one a token", column="advantages")
        if not self.is_raw(step) and _is_reducible(arrays, self.reduce_on):
            return {_REDUCTION: import_module("triage_monitor.trainer.edge").HeldReduction(arrays, self.spec)}
        if any(_is_away(value) for value in arrays.values()):
            held: dict[str, Held] = import_module("triage_monitor.trainer.landing").hold_all(arrays)
            return held
        return {name: hold(value) for name, value in arrays.items()}

    def encode(self, step: int, held: Mapping[str, Held], settings: Mapping[str, str]) -> bytes:
        """The body; raises InputError for arrays that do not fit together."""
        arrays = {name: item.restore() for name, item in held.items()}
        if _REDUCTION in arrays:
            body: bytes = arrays[_REDUCTION].report(settings, arrays.get("objective") or {})
            return body
        if self.side is not None:
            return encode_half(self.side, response_form(arrays), settings, compression=self.compression)
        rows = rows_from_arrays(**response_form(arrays), settings=settings)
        if self.is_raw(step):
            return encode_stream(rows, compression=self.compression)
        from triage_monitor.summary.report import encode_report
        from triage_monitor.summary.symptoms_rows import symptoms_of

        return encode_report(rows.summarize(self.spec), symptoms_of(rows))


def checked_form(mode: Any, reduce_on: Any, raw_every: Any, spec: Any, compression: Any, side: Any = None) -> Form:
    if side not in (None, *SIDES):
        raise ConfigError(f"side {side!r} must be None, 'sampler' or 'learner'")
    if side is not None and mode != "raw":
        raise ConfigError("a side reports its rows, which the monitor joins: mode must be 'raw'")
    if mode not in ("raw", "summary"):
        raise ConfigError(f"mode {mode!r} must be 'raw' or 'summary'")
    if reduce_on not in ("auto", "device", "host"):
        raise ConfigError(f"reduce_on {reduce_on!r} must be 'auto', 'device' or 'host'")
    if raw_every is not None and (type(raw_every) is not int or raw_every < 1):
        raise ConfigError(f"raw_every must be a number of steps of at least 1, got {raw_every!r}")
    if mode == "raw" and (raw_every is not None or reduce_on != "auto"):
        raise ConfigError("raw_every and reduce_on go with mode 'summary'")
    if compression not in (None, "zstd", "lz4"):
        raise ConfigError(f"compression {compression!r} must be None, 'zstd' or 'lz4'")
    if not isinstance(spec, SummarySpec):
        raise ConfigError(f"spec must be a SummarySpec, got {type(spec).__name__}")
    return Form(mode, reduce_on, raw_every, spec, compression, side)


def _is_away(value: Any) -> bool:
    """A tensor outside CPU memory, or a list that begins with one; torch is not imported to find out."""
    first = value[0] if isinstance(value, list | tuple) and len(value) else value
    return hasattr(first, "detach") and first.device.type != "cpu"


def _is_reducible(arrays: Mapping[str, Any], reduce_on: str) -> bool:
    """Whether the device reduces: the gaps are there, and at least one; by itself on CUDA only, where float64 is."""
    lead = next((arrays[name] for name in _LEADS if name in arrays), None)
    first = lead[0] if isinstance(lead, list | tuple) and len(lead) else lead
    if reduce_on == "host" or first is None or not hasattr(first, "detach"):
        return False
    positions = sum(int(item.numel()) for item in lead) if isinstance(lead, list | tuple) else int(first.numel())
    return positions > 0 and (reduce_on == "device" or first.device.type == "cuda")
