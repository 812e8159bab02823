"""What a run may be called and how numbers in addresses are bounded; checked before anything else looks at them."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Path, Query

from triage_monitor.service.problems import Problem

RUN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
MAX_STEP = 2**53
MAX_ATTEMPT = 1_000_000

Step = Annotated[int, Path(ge=0, le=MAX_STEP)]
Attempt = Annotated[int | None, Query(ge=0, le=MAX_ATTEMPT)]
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
