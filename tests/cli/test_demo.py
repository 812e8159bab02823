"""The demo's parts with real processes: a sidecar, a trainer, and parameters that reach the loss of that very run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from triage_monitor.cli.demo import Plan, _said_where, run_demo, sidecar
from triage_monitor.cli.demo_report import _rewards
from triage_monitor.cli.main import build_app
from triage_monitor.cli.operator import call
from triage_monitor.errors import ConfigError, TriageError

UPDATES = 30


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    home = tmp_path_factory.mktemp("demo")
    os.environ.setdefault("TRIAGE_CACHE_DIR", str(tmp_path_factory.mktemp("warmups")))
    return run_demo(Plan(home, updates=UPDATES, warmup_updates=60), port=0)


@pytest.mark.timeout(600)
def test_demo_trains_three_runs_and_reports_each(report: dict[str, object]) -> None:
    runs = report["runs"]
    assert isinstance(runs, dict)
    assert {name: run["updates"] for name, run in runs.items()} == dict.fromkeys(
        ("unguarded", "guarded", "matched"), 30
    )
    assert runs["unguarded"]["mismatch_energy"] > 100 * runs["matched"]["mismatch_energy"]
    home = Path(str(report["directory"]))
    assert json.loads((home / "report.json").read_text())["runs"].keys() == runs.keys()
    lines = {name: _updates(home / name) for name in runs}
    assert [len(updates) for updates in lines.values()] == [UPDATES] * 3
    # Same weights, prompts and sampling noise: the first rollouts are the same.
    assert len({updates[0]["reward_mean"] for updates in lines.values()}) == 1


def test_parameters_pushed_by_the_sidecar_change_the_loss_of_the_running_trainer(tmp_path: Path) -> None:
    """Paper mode with a gate that fires on everything: version and changed weights show in the trainer's own record."""
    config = tmp_path / "config.toml"
    config.write_text(
        '[judge.policy]\nmode = "paper"\n'
        "base = { gate = { segment = 32, mean_hi = -1e-9, mean_lo = -1e-8, w_min = 0.1 } }\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "triage_monitor", "serve", "--port", "0", "--config", str(config)]
    with subprocess.Popen(
        [*command, "--data-dir", str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip().rpartition(" ")[2]
            guarded, free = (_train(tmp_path / name, url, guarded=name == "guarded") for name in ("guarded", "free"))
        finally:
            server.terminate()
    assert {update["params_version"] for update in free} == {0}
    versions = [update["params_version"] for update in guarded]
    assert versions == sorted(versions)
    assert versions[-1] >= 1
    moved = [update for update in guarded if update["params_version"] >= 1]
    assert all(update["objective_gated_token_fraction"] > 0.05 for update in moved)
    assert all(update["objective_gate_mass_removed"] > 0.01 for update in moved)
    first = moved[0]["step"]
    assert [u["reward_mean"] for u in guarded[: first + 1]] == [u["reward_mean"] for u in free[: first + 1]]
    assert guarded[first]["grad_norm"] != free[first]["grad_norm"]


def test_collapse_is_called_at_the_first_of_twenty_updates_below_half_of_the_best() -> None:
    rewards = [0.8] * 60 + [0.0] * 60
    # The 25-update mean is 0.8 until update 59 and falls below 0.4 with the 13th zero, at update 72.
    assert _rewards(rewards)["collapsed_at"] == 72
    assert _rewards([0.8] * 60 + [0.5] * 60)["collapsed_at"] is None


def _train(directory: Path, url: str, *, guarded: bool) -> list[dict[str, float]]:
    job = {
        "run": directory.name,
        "arm": "nvfp4",
        "url": url,
        "directory": str(directory),
        "updates": 16,
        "rl_seed": 0,
        "warmup_seed": 0,
        "guarded": guarded,
        "warmup_updates": 60,
    }
    subprocess.run([sys.executable, "-m", "triage_monitor.cli.demo_worker", json.dumps(job)], check=True, timeout=200)
    return _updates(directory)


def _updates(directory: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (directory / "updates.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_framework_without_a_demo_and_too_few_updates_are_wrong_options(tmp_path: Path) -> None:
    for options, words in ((["--framework", "torchforge"], "knows trl"), (["--updates", "12"], "at least 30")):
        told = CliRunner().invoke(build_app(), ["demo", "--directory", str(tmp_path), *options])
        assert isinstance(told.exception, ConfigError)
        assert words in str(told.exception)


def test_a_sidecar_that_is_killed_during_the_demo_is_named_with_its_log(tmp_path: Path) -> None:
    own = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children")
    before = set(own.read_text().split())
    with (
        pytest.raises(TriageError, match=r"ended before the training did \(exit code -9\).*sidecar\.log"),
        sidecar(tmp_path, 0, "") as address,
    ):
        (started,) = set(own.read_text().split()) - before
        os.kill(int(started), signal.SIGKILL)
        os.waitid(os.P_PID, int(started), os.WEXITED | os.WNOWAIT)
        call("GET", address, "/v1/runs")


def test_a_taken_port_ends_the_demo_with_a_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TriageError, match=f"cannot listen on 127.0.0.1:{port}"), sidecar(tmp_path, port, ""):
            pass


def test_an_interrupted_demo_says_where_what_it_made_lies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt), _said_where(tmp_path):
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(10)
    finally:
        signal.signal(signal.SIGINT, before)
    assert str(tmp_path) in capsys.readouterr().err
