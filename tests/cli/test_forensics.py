"""`watch`, `show` and `diff`, on a live server and on recordings. All runs here are synthetic."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from service.live_server import LiveServer, arrow, serving

from triage_monitor.cli.forensics_diff import compared
from triage_monitor.cli.forensics_sides import Side

ESCAPE = "\x1b[31mred[bold]"


def body(step: int, tail: float, **more: object) -> bytes:
    """Two responses of 128 tokens; the second, advantage -1, has its amplifying tail at 64 to 67."""
    deep = [0.01] * 64 + [-tail] * 4 + [0.01] * 60
    return arrow([[0.01] * 128, deep], [1.0, -1.0], response_ids=[f"good-{step}", ESCAPE], **more)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving() as live:
        for step in range(6):
            live.put("run-a", step, body(step, 0.5))
            live.put("run-b", step, body(step, 0.5 if step < 3 else 0.9))
            live.put("cooler", step, body(step, 0.5, settings={"temperature": 0.7, "precision": "nvfp4"}))
        yield live


def test_watch_once_prints_the_run_and_exits(cli, server: LiveServer) -> None:
    done = cli("watch", "run-a", "--url", server.address, "--once")
    assert done.code == 0, done.err
    assert done.out.splitlines()[0].startswith("run-a  warming up  update 5")
    detail = json.loads(cli("watch", "run-a", "--url", server.address, "--once", "--json").out)
    assert (detail["run"], detail["last_update"]["step"]) == ("run-a", 5)


def step_said(process: subprocess.Popen[str], beyond: int = -1) -> int:
    """The next step that `watch` tells; it may tell the last one again when something else of the run has changed."""
    assert process.stdout is not None
    for line in process.stdout:
        step: int = json.loads(line)["last_update"]["step"]
        if step > beyond:
            return step
    raise AssertionError("watch ended by itself")


def test_watch_follows_until_ctrl_c_and_leaves_quietly(server: LiveServer) -> None:
    command = [sys.executable, "-m", "triage_monitor", "watch", "run-b", "--url", server.address, "--json"]
    with subprocess.Popen(
        [*command, "--every", "0.1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert step_said(process) == 5
        server.put("run-b", 6, body(6, 0.9))
        assert step_said(process, beyond=5) == 6
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


def test_watch_hears_of_an_update_long_before_its_next_look(server: LiveServer) -> None:
    command = [sys.executable, "-m", "triage_monitor", "watch", "cooler", "--url", server.address, "--json"]
    with subprocess.Popen(
        [*command, "--every", "3600"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert step_said(process) == 5
        server.put("cooler", 6, body(6, 0.5, settings={"temperature": 0.7, "precision": "nvfp4"}))
        assert step_said(process, beyond=5) == 6
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


def test_show_names_the_worst_response_and_where_its_tail_is(cli, server: LiveServer) -> None:
    found = json.loads(cli("show", "run-a", "--step", "2", "--url", server.address, "--json").out)
    assert (found["step"], found["update"]["counts"]["valid_tokens"]) == (2, 256)
    (worst,) = found["responses"]
    assert (worst["response_id"], worst["tail_gap"], worst["tail_tokens"]) == (ESCAPE, 2.0, 4)
    assert worst["cells"] == [{"first_position": 64, "last_position": 127, "tail": 4, "tokens": 64, "lowest": -0.5}]
    text = cli("show", "run-a", "--step", "2", "--url", server.address).out
    assert "?[31mred[bold] (shard 0 row 1) advantage -1: 2 nats in 4 of 128 tokens" in " ".join(text.split())
    assert "positions 64-127: 4 of 64 in the tail" in text
    assert "\x1b" not in text


def test_show_of_a_recording_gives_positions_and_its_tokens(cli, tmp_path: Path) -> None:
    path = tmp_path / "synthetic.jsonl"
    rows = [
        {"step": 4, "advantage": 1, "gap": [0.0, 0.3], "tokens": ["no", "yes"]},
        {"step": 4, "advantage": 1, "gap": [9.0], "padding": True, "tokens": ["pad"]},
        {"step": 4, "advantage": -1, "gap": [0.2, -0.5, -0.7], "tokens": ["a", "b", "c"], "response_id": "r"},
        {"step": 5, "advantage": 1, "gap": [0.1], "tokens": ["late"]},
    ]
    path.write_text("".join(json.dumps({"padding": False, **row}) + "\n" for row in rows))
    found = json.loads(cli("show", path, "--step", "4", "--json").out)
    worst, other = found["responses"]
    assert (worst["response_id"], found["update"]["step"]) == ("r", 4)
    assert worst["worst_tokens"] == [
        {"position": 2, "gap": -0.7, "token": "c"},
        {"position": 1, "gap": -0.5, "token": "b"},
    ]
    assert other["worst_tokens"] == [{"position": 1, "gap": 0.3, "token": "yes"}]
    assert "at 2: gap -0.7  'c'" in cli("show", path, "--step", "4").out


def test_diff_of_two_runs_says_where_they_part(cli, server: LiveServer) -> None:
    done = cli("diff", "run-a", "run-b", "--url", server.address, "--json", "--check")
    assert done.code == 1, done.err
    found = json.loads(done.out)
    parts = {item["indicator"]: item["step"] for item in found["partings"]}
    assert (parts["delta_min"], parts["near_zero_fraction"]) == (3, None)
    assert found["settings"] == []
    assert "delta_min" in cli("diff", "run-a", "run-b", "--url", server.address).out
    same = cli("diff", "run-a", "run-a", "--url", server.address, "--check")
    assert (same.code, "no indicator parts" in same.out) == (0, True)


def test_diff_of_served_runs_shows_sampling_settings_that_differ(cli, server: LiveServer) -> None:
    assert server.run("cooler")["settings"] == {"precision": ["nvfp4"], "temperature": ["0.7"]}
    assert server.run("run-a")["settings"] == {}
    found = json.loads(cli("diff", "run-a", "cooler", "--url", server.address, "--json").out)
    assert {item["name"]: item["values"] for item in found["settings"]} == {
        "precision": [None, "nvfp4"],
        "temperature": [None, "0.7"],
    }
    text = cli("diff", "run-a", "cooler", "--url", server.address).out
    assert "temperature" in text and "None" not in text


def test_diff_leaves_out_settings_that_one_side_cannot_hold_and_tells_equal_names_apart() -> None:
    rows: list[dict[str, float | None]] = [{"x": 1.0}]
    served = side("run", {"temperature": "1.0", "params.gate.w_min": 0.5, "judge.rho_asym": 1.25}, rows)
    found = compared(served, side("run", {"temperature": "0.7"}, rows))
    assert found["runs"] == ["run (A)", "run (B)"]
    assert [item["name"] for item in found["settings"]] == ["temperature"]


def side(name: str, settings: dict[str, object], rows: list[dict[str, float | None]]) -> Side:
    return Side(name, settings, {step: {"indicators": row} for step, row in enumerate(rows)}, [])


def test_noise_and_one_odd_update_part_nothing_and_intervals_decide_for_rho() -> None:
    calm = [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]  # neighbours differ by 1: noise 1.048, of two runs 1.48
    other = [1.0, 0.0, 99.0, 0.0, 1.0, 0.0, 7.0, 8.0, 7.0, 8.0]  # 7 apart from step 6 on: beyond 4 noises
    narrow = {"rho_asym": 1.0, "rho_asym_low": 0.9, "rho_asym_high": 1.1}
    wide = {"rho_asym": 1.6, "rho_asym_low": 1.05, "rho_asym_high": 2.0}
    apart = {"rho_asym": 1.6, "rho_asym_low": 1.2, "rho_asym_high": 2.0}
    first = side("a", {"temperature": "1.0"}, [{"x": value, **narrow} for value in calm])
    rows = [{"x": value, **(wide if step < 5 else apart)} for step, value in enumerate(other)]
    found = compared(first, side("b", {"temperature": "0.7"}, rows))
    parts = {item["indicator"]: item["step"] for item in found["partings"]}
    assert parts == {"x": 6, "rho_asym": 5}
    assert found["settings"] == [{"name": "temperature", "values": ["1.0", "0.7"]}]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["watch", "nobody", "--once"], 2, "nobody"),
        (["watch", "runs/a", "--once"], 2, "is a path"),
        (["show", "run-a", "--step", "99"], 2, "99"),
        (["diff", "run-a", "./nowhere"], 2, "nowhere"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(cli, server: LiveServer, words: list[str], code: int, said: str) -> None:
    done = cli(*words, "--url", server.address)
    assert (done.code, done.out) == (code, "")
    assert said in done.err and len(done.err.splitlines()) == 1


def test_server_that_is_not_there_ends_with_1(cli) -> None:
    done = cli("watch", "run-a", "--once", "--url", "http://127.0.0.1:1")
    assert done.code == 1
    assert "no answer from" in done.err
