"""The house rules that a machine can check: import directions, what a bare import loads, file length."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "numba", "pyarrow", "fastapi", "polars", "prometheus_client")
LONGEST_FILE_LINES = 400


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def loaded_by(code: str) -> set[str]:
    """Which of the heavy packages are in sys.modules after a fresh interpreter ran the code."""
    done = run(sys.executable, "-c", f"{code}\nimport sys\nprint(*(m for m in {HEAVY!r} if m in sys.modules))")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_imports_point_one_way() -> None:
    lint = Path(sys.executable).parent / ("lint-imports.exe" if os.name == "nt" else "lint-imports")
    done = run(str(lint), "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr


def test_bare_import_loads_nothing_heavy() -> None:
    assert loaded_by("import triage_monitor") == set()


@pytest.mark.parametrize("name", ["Monitor", "summarize", "indicators"])
def test_public_names_load_neither_torch_nor_the_web_stack(name: str) -> None:
    assert not loaded_by(f"from triage_monitor import {name}") & {"torch", "fastapi", "prometheus_client", "polars"}


def test_command_line_help_loads_no_torch() -> None:
    assert "torch" not in loaded_by("import triage_monitor.cli.main")


@pytest.mark.parametrize("folder", ["triage_monitor", "tests"])
def test_no_file_is_longer_than_400_lines(folder: str) -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in (ROOT / folder).rglob("*.py")}
    assert lengths
    assert not {name: n for name, n in lengths.items() if n > LONGEST_FILE_LINES}
