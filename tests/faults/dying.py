"""Work that is killed at a chosen place, in a forked process: at the Nth line of the store's code, or at the Nth byte.

A line: SIGKILL from a trace function, so that a sweep over all numbers passes every place between two statements. A
byte: the limit on a file's size, whose signal ends a process inside the write that passes it, the part below the limit
being written: a commit torn at that byte. Neither needs a program that traces from outside.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import triage_monitor.storage

HOME = str(Path(triage_monitor.storage.__file__).parent)
PATIENCE_SECONDS = 100
Work = Callable[[], object]


def killed_at_line(work: Work, number: int) -> bool:
    """False when `work` ended before it came to so many lines."""
    return _forked(lambda: _count_lines(number), work, signal.SIGKILL)


def killed_at_size(work: Work, size: int) -> bool:
    """False when no file became larger."""
    return _forked(lambda: _limit_files(size), work, signal.SIGXFSZ)


def _count_lines(number: int) -> None:
    left = number

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(HOME):
            return None
        left -= event == "line"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    threading.settrace(trace)
    sys.settrace(trace)


def _limit_files(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _forked(arm: Work, work: Work, deadly: signal.Signals) -> bool:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(PATIENCE_SECONDS)
            arm()
            work()
            code = 0
        finally:  # nothing of the test runner may go on in here
            if code:
                traceback.print_exc()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == deadly:
        return True
    assert status == 0, f"the child ended with status {status}"
    return False
