"""The command tree: fast to start, an example for everyone, one sentence for a wrong input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from triage_monitor.cli.main import COMMANDS

HEAVY = ("numba", "torch", "polars", "pyarrow", "fastapi", "uvicorn", "httpx", "prometheus_client")


def test_building_the_tree_imports_nothing_heavy() -> None:
    code = "import sys; from triage_monitor.cli.main import build_app; build_app(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(HEAVY) & set(done.stdout.split())


def test_help_lists_the_commands(cli) -> None:
    done = cli("--help")
    assert done.code == 0
    assert {"analyze", "replay"} <= set(done.out.split())


@pytest.mark.parametrize("command", ["analyze", "replay"])
def test_every_command_has_an_example(cli, command: str) -> None:
    assert command in COMMANDS
    done = cli(command, "--help")
    assert done.code == 0 and f"Example: triage-monitor {command}" in " ".join(done.out.split())


def test_bad_usage_exits_with_2(cli) -> None:
    assert cli("no-such-command").code == 2
    assert cli("analyze").code == 2
    assert cli("analyze", "x", "--window", "0").code == 2
    assert cli("replay", "x").code == 2


def test_wrong_input_ends_in_one_sentence(tmp_path: Path) -> None:
    """As a process: what reaches the terminal is the sentence and nothing else."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"step": 1, "advantage": 1, "gap": [0.5]}\n{"step": 1, "advantage": 1, "gap": ["x"]}\n')
    done = subprocess.run(
        [sys.executable, "-m", "triage_monitor", "analyze", path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"triage-monitor: {path}, row 1, column 'gap': line 2 holds \"x\", which cannot stand there"
    ]


def test_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f'{{"step": {step}, "advantage": 1, "gap": [0.5]}}\n' for step in range(60)))
    command = f"{sys.executable} -m triage_monitor analyze {path} --json | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ('{"run": "x', "")
