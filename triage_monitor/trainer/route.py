"""Who a trainer rank is to the monitor: run, shard, launch, and the form in which its updates travel.

Everything a caller can get wrong about it is said here, as ConfigError, when the monitor is built.
"""

from __future__ import annotations

import logging
import operator
import os
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from triage_monitor.errors import ConfigError, InputError
from triage_monitor.summary.rows import checked_settings
from triage_monitor.summary.rows_halves import SAMPLER
from triage_monitor.trainer.arrays import Held, hold
from triage_monitor.trainer.form import Form
from triage_monitor.trainer.outbox import Parcel

log = logging.getLogger("triage_monitor.monitor")

_LARGEST_ATTEMPT = 1_000_000  # as the monitor takes it
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Route:
    """What every call of one trainer rank has in common."""

    run: str
    shards: int
    shard: int
    launch_id: str
    form: Form
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def base(self) -> str:
        return f"/v1/runs/{self.run}"

    def encode(self, parcel: Parcel) -> bytes:
        """The body of one update; raises InputError for arrays that do not fit together."""
        return self.form.encode(parcel.step, parcel.held, self.settings)

    def rehearse(self) -> None:
        """Encodes one token, so that what loads on first use (numpy.ma, a compiled kernel) loads in this thread.

        A process forked while another thread imports would be left with half a module for good.
        """
        for kind in ("float32", "float64"):
            token: dict[str, Held] = {
                "gap": hold(np.zeros(1, kind)),
                "advantages": hold([0.0]),
                "offsets": hold([0, 1]),
                "mask": hold([1]),
            }
            if self.form.side is not None:
                token = {name: item for name, item in token.items() if name == "offsets"}
                token |= {f"{self.form.side}_logprobs": hold(np.zeros(1, kind)), "response_ids": hold(["r"])}
                token |= {} if self.form.side == SAMPLER else {"advantages": hold([0.0]), "mask": hold([1])}
            for step in range(2):  # of the two forms, when some updates are sent raw
                self.encode(Parcel(0, step, token, 0))


def checked_route(
    run: str,
    shards: int,
    shard: int,
    launch_id: str | None,
    form: Form,
    settings: Mapping[str, object] | None,
) -> Route:
    if not isinstance(run, str) or not _NAME.fullmatch(run):
        raise ConfigError(f"run {run!r} must be 1 to 128 of A-Z a-z 0-9 . _ - and not begin with a dot")
    shards = at_least_one("shards", shards)
    if not_negative("shard", shard) >= shards:
        raise ConfigError(f"shard {shard} is out of range for {shards} shards")
    if settings is not None and not isinstance(settings, Mapping):
        raise ConfigError(f"settings must be a mapping of names to values, got {type(settings).__name__}")
    try:
        texts = checked_settings(settings or {})
    except InputError as error:
        raise ConfigError(f"settings: {error}") from error
    launch = launch_id if launch_id is not None else launcher_id(shards)
    if not isinstance(launch, str) or not _NAME.fullmatch(launch):
        raise ConfigError(f"launch_id {launch!r} must be letters, digits, '.', '_', '-', at most 128")
    return Route(run, shards, shard, launch, form, texts)


def launcher_id(shards: int) -> str:
    """A random id for a single shard; else one that all ranks of a launch agree on, from the launcher's environment."""
    env = os.environ
    if shards == 1:
        return f"single-{uuid.uuid4().hex}"
    if env.get("TORCHELASTIC_RUN_ID", "none") != "none":
        parts = ["torchrun", env["TORCHELASTIC_RUN_ID"], env.get("TORCHELASTIC_RESTART_COUNT", "0")]
    elif "SLURM_JOB_ID" in env:
        parts = ["slurm", env["SLURM_JOB_ID"], env.get("SLURM_STEP_ID", "0"), env.get("SLURM_RESTART_COUNT", "0")]
    else:
        log.warning("no launch id: a restarted job will look like the same attempt; give launch_id= or attempt=")
        parts = ["unnamed"]
    return re.sub(r"[^A-Za-z0-9._-]", "-", "-".join(parts))[:128]


def safe_text(value: Any, form: Callable[[Any], str] = str, longest: int = 500) -> str:
    """`value` for a message; never raises, whatever its own __str__ or __repr__ do."""
    try:
        return form(value)[:longest]
    except Exception:  # noqa: BLE001  foreign code, called where an error is being reported
        return f"<{type(value).__name__} that cannot be shown>"


def not_negative(name: str, value: Any) -> int:
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise ConfigError(f"{name} must be an integer of at least 0, got {safe_text(value, repr, 40)}")
    return number


def at_least_one(name: str, value: Any) -> int:
    number = not_negative(name, value)
    if number == 0:
        raise ConfigError(f"{name} must be at least 1")
    return number


def checked_attempt(value: Any) -> int:
    number = not_negative("attempt", value)
    if number > _LARGEST_ATTEMPT:
        raise ConfigError(f"attempt must be at most {_LARGEST_ATTEMPT}, got {safe_text(number, repr, 40)}")
    return number


def seconds(name: str, value: Any, longest: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= longest:
        raise ConfigError(f"{name} must be seconds from 0 to {longest:g}, got {safe_text(value, repr, 40)}")
    return float(value)
