"""The command tree: fast to start, an example for everyone, one sentence for a wrong input."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from triage_monitor.cli.main import COMMANDS
from triage_monitor.storage.records import RunRow
from triage_monitor.storage.sqlite import SqliteStore

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


NO_TEXT = os.fsdecode(b"r\xff")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("params", NO_TEXT, "--url", "http://127.0.0.1:1"), 2, "an argument is no text"),
        (("export", NO_TEXT, "x.triage"), 2, "holds no store"),
        (("runs", "--url", "http://xn--:1"), 2, "names no host"),
        (("runs", "--url", "ftp://127.0.0.1"), 2, "--url ftp://127.0.0.1"),
        (("params", "run", "--url", "http://127.0.0.1:1", "--set", "gate.w_min"), 2, "name=value"),
        (("token", "add", "a", "--scope", "re\nad\x1b[2J", "--file", "tokens.json"), 2, "'re?ad?[2J' is not one of"),
        (("runs", "--url", "http://127.0.0.1:1"), 1, "no answer"),
    ],
)
def test_argument_that_makes_no_sense_ends_in_one_line(
    tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "triage_monitor", *words], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (code, "", 1), done.stderr
    assert done.stderr.startswith("triage-monitor: ") and said in done.stderr


def test_file_whose_name_is_no_text_is_written_and_named(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "data")
    store.write(RunRow("run", 1.0)).result()
    store.close()
    words = ("export", "run", NO_TEXT, "--data-dir", "data")
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    command = [sys.executable, "-m", "triage_monitor", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=strict, check=False)
    assert (done.returncode, done.stdout) == (0, "run: 1 rows, 0 updates, in r\\udcff\n"), done.stderr
    assert (tmp_path / NO_TEXT).read_bytes()[:2] == b"\x1f\x8b"
