"""`tail` against a real server: a framework's dumps arrive as its trainer would have sent them, once each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from service.live_server import LiveServer, serving
from storage.dump_writers import (
    Series,
    miles_payloads,
    nemo_lines,
    synthetic,
    write_miles,
    write_nemo,
    write_plain,
    write_prime,
    write_prime_step,
    write_slime,
)

from triage_monitor.storage.dumps_follow import Follower

WRITERS = {"nemo": write_nemo, "prime": write_prime, "slime": write_slime, "miles": write_miles}
NAMES = ("rho_asym", "mismatch_energy", "tail_token_fraction", "heavy_segment_fraction", "delta_min", "prob_pearson")


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving() as live:
        yield live


def series_of(server: LiveServer, run: str) -> dict[str, dict[int, float]]:
    found = {}
    for name in NAMES:
        answer = server.http.get(f"/v1/runs/{run}/series", params={"name": name, "scope": "update"}).json()
        (one,) = answer["series"]
        found[name] = dict(zip(one["steps"], one["values"], strict=True))
    return found


def analysed(cli: Any, path: Path) -> dict[str, dict[int, float]]:
    done = cli("analyze", path, "--json")
    assert done.code == 0, done.err
    updates = json.loads(done.out)["updates"]
    return {name: {update["step"]: update["indicators"][name] for update in updates} for name in NAMES}


def only_trained(series: Series) -> Series:
    return {step: [answer for answer in answers if answer.trained] for step, answers in series.items()}


@pytest.mark.parametrize("form", WRITERS)
def test_what_tail_sends_is_what_analyze_says_of_the_plain_form(
    cli: Any, server: LiveServer, tmp_path: Path, form: str
) -> None:
    series = synthetic(seed=21, longest=200)
    run = f"same-{form}"
    done = cli("tail", WRITERS[form](tmp_path / run, series), "--to", server.address, "--once")
    assert done.code == 0, done.err
    assert done.out == "3 updates, 3 shards (0 known before)\n"
    plain = analysed(cli, write_plain(tmp_path / "plain.jsonl", series if form != "prime" else only_trained(series)))
    told = series_of(server, run)
    for name in NAMES:
        assert told[name] == pytest.approx(plain[name], rel=1e-12)


@pytest.mark.parametrize("form", ["prime", "miles"])
def test_replay_sends_a_dump_too(cli: Any, server: LiveServer, tmp_path: Path, form: str) -> None:
    run = f"replayed-{form}"
    series = only_trained(synthetic(seed=20))
    done = cli("replay", WRITERS[form](tmp_path / run, series), "--to", server.address)
    assert done.code == 0 and done.out.startswith(f"{run}: 3 updates"), done.err
    plain = analysed(cli, write_plain(tmp_path / "plain.jsonl", series))
    for name, values in series_of(server, run).items():
        assert values == pytest.approx(plain[name], rel=1e-9)


def test_only_what_is_new_is_sent_after_a_restart(cli: Any, server: LiveServer, tmp_path: Path) -> None:
    series = synthetic(seed=22, steps=(1, 2, 3))
    write_nemo(tmp_path, {step: series[step] for step in (1, 2)})
    command = ("tail", tmp_path, "--to", server.address, "--run", "restarted", "--once")
    assert cli(*command).out == "2 updates, 2 shards (0 known before)\n"
    write_nemo(tmp_path, {3: series[3]})
    assert cli(*command).out == "1 updates, 1 shards (0 known before)\n"
    (tmp_path / ".triage-tail.json").unlink()
    assert cli(*command).out == "3 updates, 3 shards (3 known before)\n"
    assert server.run("restarted")["last_update"]["attempt"] == 1


def test_a_step_that_was_written_again_begins_a_new_attempt(cli: Any, server: LiveServer, tmp_path: Path) -> None:
    write_nemo(tmp_path, synthetic(seed=23, steps=(1, 2, 3)))
    command = ("tail", tmp_path, "--to", server.address, "--run", "resumed", "--once")
    assert cli(*command).code == 0
    write_nemo(tmp_path, synthetic(seed=24, steps=(2,)))
    done = cli(*command)
    assert done.code == 0 and "step 2 was written again" in done.err
    last = server.run("resumed")["last_update"]
    assert (last["attempt"], last["step"]) == (2, 2)
    assert server.run("resumed")["integrity"]["conflicting_shards"] == 1
    (tmp_path / ".triage-tail.json").unlink()
    again = cli(*command)  # step 3 is a file of the first attempt, and is not taken for one of the second
    assert again.out == "2 updates, 2 shards (2 known before)\n"
    assert server.run("resumed")["last_update"]["step"] == 2


def test_a_dump_that_cannot_be_read_is_told_and_passed_over(cli: Any, server: LiveServer, tmp_path: Path) -> None:
    write_nemo(tmp_path, synthetic(seed=25, steps=(1, 2, 3)))
    lines = [json.loads(line) for line in (tmp_path / "train_data_step2.jsonl").read_text().splitlines()]
    del lines[3]["advantages"]
    (tmp_path / "train_data_step2.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ("tail", tmp_path, "--to", server.address, "--run", "broken", "--once")
    done = cli(*command)
    assert done.code == 2 and done.out == "2 updates, 2 shards (0 known before), 1 refused\n"
    assert "train_data_step2.jsonl" in done.err and "line 4" in done.err and "'advantages'" in done.err
    assert cli(*command).code == 0  # it is not told again


def test_a_file_without_sense_is_told_and_the_others_are_sent(cli: Any, server: LiveServer, tmp_path: Path) -> None:
    write_slime(tmp_path, synthetic(seed=26, steps=(1, 2, 3)))
    first, second, _ = sorted((tmp_path / "train_data").glob("*.pt"))
    torch.save({"rollout_id": 7, "samples": [], "loss_masks": torch.nn.Linear(1, 1)}, second)
    damaged = bytearray(first.read_bytes())
    at = damaged.index(b"rollout_id")
    damaged[at : at + 10] = b"\xff" * 10  # neither a text nor what the zip's checksum says
    first.write_bytes(damaged)
    command = ("tail", tmp_path, "--to", server.address, "--run", "senseless", "--once")
    done = cli(*command)
    assert done.code == 2 and done.out == "1 updates, 1 shards (0 known before), 2 refused\n"
    assert first.name in done.err and second.name in done.err and "torch.nn" in done.err
    again = cli(*command)
    assert again.code == 0 and again.err == ""


def test_a_number_that_is_no_step_in_a_name_stops_nothing(tmp_path: Path) -> None:
    write_nemo(tmp_path, synthetic(seed=29, steps=(1,)))
    for number in ("9" * 200, "\u0663"):  # the second: an Arabic three, which is a digit to Python
        (tmp_path / f"train_data_step{number}.jsonl").write_text("{}\n")
    assert [step.step for step in Follower(tmp_path, settle=10).whole(0.0, is_last_look=True)] == [1]


def test_a_file_without_sense_is_waited_for_while_it_changes(tmp_path: Path) -> None:
    write_slime(tmp_path, synthetic(seed=27, steps=(1, 2)))
    last = sorted((tmp_path / "train_data").glob("*.pt"))[-1]
    whole = last.read_bytes()
    follower = Follower(tmp_path, settle=10)
    assert [step.step for step in follower.whole(0.0)] == [1, 2]
    last.write_bytes(whole.replace(b"rollout_id", b"\xff" * 10))
    assert [step.step for step in follower.whole(1.0)] == [1] and not follower.unreadable
    follower.whole(10.9)
    assert not follower.unreadable
    follower.whole(11.1)
    assert [file.path for file in follower.unreadable] == [last]
    last.write_bytes(whole)
    assert [step.step for step in follower.whole(12.0)] == [1, 2] and not follower.unreadable


@pytest.mark.parametrize(
    "entry", ["[]", '{"/x": 1}', '{"DIR": {"resumes": "many"}}', '{"DIR": {"steps": [1]}}', "null"]
)
def test_a_state_file_without_sense_counts_as_lost(cli: Any, server: LiveServer, tmp_path: Path, entry: str) -> None:
    write_nemo(tmp_path, synthetic(seed=28, steps=(1,)))
    sent = f'"{server.address} lost": {entry.replace("DIR", str(tmp_path))}'
    (tmp_path / ".triage-tail.json").write_text(f'{{"version": 1, "sent": {{{sent}}}}}')
    done = cli("tail", tmp_path, "--to", server.address, "--run", "lost", "--once")
    assert done.code == 0 and done.out.startswith("1 updates, 1 shards"), done.err


def test_no_server_and_no_directory_end_with_a_sentence(cli: Any, tmp_path: Path) -> None:
    write_nemo(tmp_path, synthetic(seed=25, steps=(1,)))
    done = cli("tail", tmp_path, "--to", "http://127.0.0.1:9", "--once", "--patience", "0.05")
    assert done.code == 1 and "attempts" in done.err
    assert not (tmp_path / ".triage-tail.json").exists()  # nothing was sent
    assert cli("tail", tmp_path / "nowhere", "--to", "http://127.0.0.1:9", "--once").code == 2
    assert cli("tail", tmp_path, "--to", "http://127.0.0.1:9", "--run", "no name").code == 2


def test_a_directory_is_followed_while_it_is_written(server: LiveServer, tmp_path: Path) -> None:
    series = synthetic(seed=26, steps=(1, 2, 3))
    command = ["tail", str(tmp_path), "--to", server.address, "--run", "followed", "--poll", "0.02"]
    process = subprocess.Popen([sys.executable, "-m", "triage_monitor", *command], stdout=subprocess.PIPE, text=True)
    try:
        for step in series:
            exports = write_prime_step(tmp_path / "token_exports", step, series[step], stable=False)
            (exports / "STABLE").touch()
            until = time.monotonic() + 60
            while not _has(server, "followed", step):
                assert process.poll() is None and time.monotonic() < until
    finally:
        process.terminate()
        process.communicate(timeout=20)


def _has(server: LiveServer, run: str, step: int) -> bool:
    answer = server.http.get(f"/v1/runs/{run}")
    return answer.status_code == 200 and (answer.json()["last_update"] or {}).get("step") == step


def steps(follower: Follower, now: float) -> list[int]:
    return [step.step for step in follower.whole(now)]


def test_a_nemo_file_is_whole_when_it_is_quiet_or_overtaken(tmp_path: Path) -> None:
    lines = nemo_lines(synthetic(seed=27, steps=(1,))[1])
    path = tmp_path / "train_data_step7.jsonl"
    follower = Follower(tmp_path, settle=10)
    path.write_text(lines[0] + "\n" + lines[1][:40])
    assert steps(follower, 0.0) == [] and steps(follower, 50.0) == []  # cut in a line, however quiet
    path.write_text("\n".join(lines[:2]) + "\n")
    assert steps(follower, 60.0) == [] and steps(follower, 69.0) == []
    path.write_text("\n".join(lines) + "\n")
    assert steps(follower, 69.5) == [] and steps(follower, 79.0) == []  # it grew: quiet from then on
    assert steps(follower, 79.6) == [7]
    (tmp_path / "train_data_step8.jsonl").write_text(lines[0][:10])
    assert steps(Follower(tmp_path, settle=10), 0.0) == [7]


def test_a_rollout_of_miles_is_whole_when_every_known_rank_wrote_it(tmp_path: Path) -> None:
    series = synthetic(seed=28, steps=(1, 2))
    ranks = {step: miles_payloads(step, series[step], dp=2, cp=1, tp=1) for step in series}
    follower = Follower(tmp_path, settle=10)
    for number, payload in enumerate(ranks[1]):
        torch.save(payload, tmp_path / f"1_{payload['rank']}.pt")
        assert steps(follower, float(number)) == []
    assert steps(follower, 2.0 + 10) == [1]
    for payload in ranks[2][:-1]:
        torch.save(payload, tmp_path / f"2_{payload['rank']}.pt")
        assert steps(follower, 13.0) == [1]
    torch.save(ranks[2][-1], tmp_path / f"2_{ranks[2][-1]['rank']}.pt")
    assert steps(follower, 13.0) == [1, 2]


def test_a_torch_file_is_whole_with_its_end_and_other_files_are_no_steps(tmp_path: Path) -> None:
    write_slime(tmp_path, synthetic(seed=29, steps=(1, 2)))
    torch.save({"model": torch.zeros(3)}, tmp_path / "train_data" / "checkpoint.pt")
    content = (tmp_path / "train_data" / "2.pt").read_bytes()
    (tmp_path / "train_data" / "2.pt").write_bytes(content[:-30])
    follower = Follower(tmp_path, settle=10)
    assert steps(follower, 0.0) == [1]
    (tmp_path / "train_data" / "2.pt").write_bytes(content)
    assert steps(follower, 0.0) == [1, 2]


def test_a_marker_of_the_writing_before_does_not_make_a_step_whole(tmp_path: Path) -> None:
    answers = synthetic(seed=30, steps=(1,))[1]
    exports = write_prime_step(tmp_path / "token_exports", 1, answers)
    follower = Follower(tmp_path, settle=10)
    assert steps(follower, 0.0) == [1]
    late = (exports / "STABLE").stat().st_mtime_ns + 1
    os.utime(exports / "rank_0.jsonl", ns=(late, late))
    assert steps(follower, 0.0) == [] and steps(follower, 59.0) == []
    assert steps(follower, 60.0) == [1]  # nobody writes here
    os.utime(exports / "rank_0.jsonl", ns=(late + 1, late + 1))
    assert steps(follower, 61.0) == []
    os.utime(exports / "STABLE", ns=(late + 1, late + 1))
    assert steps(follower, 61.0) == [1]
