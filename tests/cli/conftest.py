"""The command line, run in this process as `triage-monitor` runs it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from triage_monitor.cli.main import run


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def call(*words: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["triage-monitor", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            run()
        code = ended.value.code
        assert code is None or isinstance(code, int)
        text = capsys.readouterr()
        return Outcome(code or 0, text.out, text.err)

    return call
