"""`runs` and `params` against a live server."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
import typer
from click.testing import Result
from service.live_server import LiveServer, masses, serving
from trainer.fault_server import FaultServer
from typer.testing import CliRunner

from triage_monitor.cli import operator
from triage_monitor.errors import InputError, TriageError


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving() as live:
        live.put("run-a", 1, masses(3, 2))
        yield live


def command(url: str, *words: str) -> Result:
    app = typer.Typer()
    operator.register(app)
    return CliRunner().invoke(app, [*words, "--url", url], env={"HTTP_PROXY": "http://127.0.0.1:9", "COLUMNS": "200"})


def test_runs_are_listed_as_a_table_and_as_json(server: LiveServer) -> None:
    table = command(server.address, "runs")
    assert table.exit_code == 0
    assert table.output.splitlines()[1].split()[:4] == ["run-a", "warming_up", "0", "1"]
    assert json.loads(command(server.address, "runs", "--json").output)["runs"][0]["run"] == "run-a"


def test_parameters_are_shown_changed_and_given_back(server: LiveServer) -> None:
    assert json.loads(command(server.address, "params", "run-a").output)["version"] == 1
    done = command(
        server.address, "params", "run-a", "--set", "gate.enabled=true", "--set", "gate.w_min=0.4", "--reason", "tail"
    )
    after = json.loads(done.output)
    assert (after["version"], after["gate"]["enabled"], after["gate"]["w_min"]) == (2, True, 0.4)
    assert after["reason"] == "tail"
    assert server.run("run-a")["held_by"] == "operator"
    released = command(server.address, "params", "run-a", "--release")
    assert json.loads(released.output)["outcome"] == "applied"
    assert server.run("run-a")["held_by"] is None


def test_policy_is_frozen_and_let_go_by_one_command_each(server: LiveServer) -> None:
    before = server.run("run-a")["params_version"]
    assert json.loads(command(server.address, "params", "run-a", "--freeze", "--reason", "weekend").output)["id"]
    run = server.run("run-a")
    assert (run["held_by"], run["params_version"]) == ("operator", before)
    assert command(server.address, "params", "run-a", "--freeze", "--release").exit_code != 0
    assert command(server.address, "params", "run-a", "--release").exit_code == 0
    assert server.run("run-a")["held_by"] is None


def test_action_is_asked_for_again_under_its_key_until_the_answer_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "RETRY_SECONDS", (0.05,) * 400)
    with FaultServer("503") as server:
        server.stop()
        results: list[Result] = []
        asking = threading.Thread(target=lambda: results.append(command(server.url, "params", "run-a", "--freeze")))
        asking.start()
        server.start()
        assert server.wait(lambda: server.calls["POST actions"] >= 2)
        server.behave("404")
        asking.join(30.0)
        assert isinstance(results[0].exception, InputError)
        assert len({headers["idempotency-key"] for headers in server.headers}) == 1
        asked = len(server.headers)
        assert isinstance(command(server.url, "params", "run-a", "--freeze").exception, InputError)
        assert len(server.headers) == asked + 1, "a final refusal is not repeated"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("run-a", "--set", "gate.w_min=4"), "gate.w_min"),
        (("run-a", "--set", "gate.colour=1"), "gate.colour"),
        (("run-a", "--set", "gate.w_min"), "name=value"),
        (("run-b",), "run-b"),
    ],
)
def test_wrong_change_is_refused_by_name(server: LiveServer, words: tuple[str, ...], named: str) -> None:
    result = command(server.address, "params", *words)
    assert isinstance(result.exception, InputError)
    assert named in str(result.exception)


def test_server_that_is_not_there_is_said_so() -> None:
    result = command("http://127.0.0.1:1", "runs")
    assert isinstance(result.exception, TriageError)
    assert "no answer from http://127.0.0.1:1" in str(result.exception)


NOT_OURS = [
    (b"302 Found\r\nLocation: http://127.0.0.1:1/login", b""),
    (b"200 OK\r\nContent-Type: text/html", b"<html>sign in</html>"),
    (b"200 OK", b"[]"),
    (b"200 OK", b'{"status": "ok"}'),
    (b"200 OK", b"\xff\xfe{}["),
    (b"200 OK", b"[" * 100_000),
]


@pytest.mark.parametrize(("status", "body"), NOT_OURS)
def test_address_that_answers_and_is_no_monitor_is_said_so(status: bytes, body: bytes) -> None:
    """What stands in front of a monitor, or where it was: a proxy that wants a login, another program."""
    answer = b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answers() -> None:
            while True:
                try:
                    caller, _ = listening.accept()
                except OSError:
                    return
                with caller, suppress(OSError):
                    caller.recv(65536)
                    caller.sendall(answer)

        answering = threading.Thread(target=answers)
        answering.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        for words in (("runs",), ("params", "run-a"), ("params", "run-a", "--set", "gate.w_min=0.4")):
            result = command(url, *words)
            assert type(result.exception) is TriageError, (words, result.exception)
            assert "not as a monitor" in str(result.exception)
        listening.shutdown(socket.SHUT_RDWR)
        answering.join(10)
