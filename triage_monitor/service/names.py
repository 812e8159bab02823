"""What a run may be called and how numbers in addresses are bounded; checked before anything else looks at them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from triage_monitor.service.problems import Problem
from triage_monitor.storage.records import RUN_NAME

MAX_STEP = 2**53
MAX_ATTEMPT = 1_000_000


def _digits(text: object) -> object:
    """Refuses what `int` would read and an address must not hold: 1_0, +1, spaces, 1.0."""
    if isinstance(text, str) and not (text.isascii() and text.isdigit()):
        raise PydanticCustomError("digits", "must be a whole number of digits only")
    return text


Digits = BeforeValidator(_digits)
Step = Annotated[int, Path(ge=0, le=MAX_STEP), Digits]
Attempt = Annotated[int | None, Query(ge=0, le=MAX_ATTEMPT), Digits]
Run = Annotated[str, Path(max_length=128)]


def checked_run(run: str) -> str:
    """Letters, digits, '.', '_' and '-', 1 to 128 of them, not beginning with a dot."""
    if RUN_NAME.fullmatch(run) is None:
        raise Problem(
            422,
            "run_name",
            "a run's name is 1 to 128 of A-Z a-z 0-9 . _ - and does not begin with a dot",
            column="run",
        )
    return run
