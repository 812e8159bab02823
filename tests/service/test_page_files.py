"""The page's files, the routes it alone needs, and events for a reader who comes back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from service.live_server import LiveServer, arrow, serving
from service.page_world import RUN, feed
from service.served_process import served

from triage_monitor.service.events import EventHub
from triage_monitor.service.page import static_files
from triage_monitor.summary.codec import encode
from triage_monitor.summary.rows import SUMMARY_MIME, decode_stream

VENDORED = "uplot-1.6.32"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving() as live:
        feed(live, range(3))
        yield live


def test_page_and_its_files_come_with_a_policy_that_lets_nothing_else_in(server: LiveServer) -> None:
    for path in ("/", *(f"/static/{name}" for name in static_files())):
        answer = server.http.get(path)
        assert answer.status_code == 200, path
        rules = dict(rule.strip().split(" ", 1) for rule in answer.headers["content-security-policy"].split(";"))
        assert rules["default-src"] == "'none'"
        assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_shell_has_no_inline_script_or_style_and_names_only_files_that_exist(server: LiveServer) -> None:
    shell = server.http.get("/").text
    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*\ssrc=)", shell)
    for name in re.findall(r"(?:src|href)=\"static/([^\"]+)\"", shell):
        assert server.http.get(f"/static/{name}").status_code == 200, name
    assert "http" not in re.sub(r"<meta[^>]+>", "", shell)


def test_our_files_are_asked_for_again_and_vendored_ones_kept(server: LiveServer) -> None:
    ours, theirs = server.http.get("/static/main.js"), server.http.get(f"/static/{VENDORED}.min.js")
    assert ours.headers["cache-control"] == "no-cache"
    assert "immutable" in theirs.headers["cache-control"]
    again = server.http.get("/static/main.js", headers={"If-None-Match": ours.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert server.http.get("/static/main.js", headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("name", ["nothing.js", "..%2fpage.py", "%2e%2e/page.py"])
def test_no_other_file_is_served(server: LiveServer, name: str) -> None:
    assert server.http.get(f"/static/{name}").status_code == 404


def test_vendored_library_comes_with_its_licence() -> None:
    known = static_files()
    assert b"v1.6.32" in known[f"{VENDORED}.min.js"].body[:200]
    assert b"MIT License" in known["uplot-LICENSE.txt"].body


def test_worst_responses_are_those_of_the_update_asked_for(server: LiveServer) -> None:
    newest = server.http.get(f"/v1/runs/{RUN}/worst").json()
    assert (newest["step"], newest["shards"], newest["shards_with_rows"]) == (2, 1, 1)
    assert all(item["response_id"].startswith("2-") for item in newest["responses"])
    older = server.http.get(f"/v1/runs/{RUN}/worst", params={"step": 1}).json()
    assert all(item["response_id"].startswith("1-") for item in older["responses"])
    unknown = server.http.get(f"/v1/runs/{RUN}/worst", params={"step": 99})
    assert (unknown.status_code, unknown.json()["reason"]) == (404, "unknown_step")


def test_worst_responses_are_merged_over_shards_and_summaries_have_none(server: LiveServer) -> None:
    mild, bad = arrow([[-0.2] * 8], [-1.0]), arrow([[-0.9] * 8, [0.1] * 8], [-1.0, 1.0])
    server.put("shards", 1, mild, shard=0, shards=3)
    server.put("shards", 1, bad, shard=1, shards=3)
    summary = encode(decode_stream(bad, max_tokens=1000).summarize())
    server.put("shards", 1, summary, shard=2, shards=3, headers={"Content-Type": SUMMARY_MIME})
    found = server.http.get("/v1/runs/shards/worst").json()
    assert (found["shards"], found["shards_with_rows"]) == (3, 2)
    assert [(item["shard"], item["row"]) for item in found["responses"]] == [(1, 0), (0, 0), (1, 1)]
    assert [item["tail_gap"] for item in found["responses"]] == pytest.approx([7.2, 1.6, 0.8], abs=1e-5)


def test_worst_responses_and_acknowledgements_survive_a_kill(tmp_path: Path) -> None:
    with served(tmp_path) as process:
        process.put("run", 1, arrow([[-0.9] * 8], [-1.0], response_ids=["seven"])).raise_for_status()
        process.http.post("/v1/runs/run/params/ack", json={"version": 1, "step": 2}).raise_for_status()
        process.kill()
    with served(tmp_path) as process:
        (found,) = process.http.get("/v1/runs/run/worst").json()["responses"]
        told = process.http.get("/v1/runs/run/params/history").json()["acknowledgements"]
    assert (found["response_id"], found["tail"]) == ("seven", [8])
    assert [(ack["version"], ack["step"], ack["refused"]) for ack in told] == [(1, 2, None)]


def test_series_of_the_score_is_the_windows_and_unknown_before_it_is_judged(server: LiveServer) -> None:
    query = {"name": "warning_score", "scope": "window"}
    (found,) = server.http.get(f"/v1/runs/{RUN}/series", params=query).json()["series"]
    assert (found["steps"], found["values"]) == ([0, 1, 2], [None, None, None])


def test_run_says_the_levels_it_is_judged_by(server: LiveServer) -> None:
    levels = server.run(RUN)["thresholds"]
    assert levels["score"] == {"drift": 0.5, "pre_terminal": 1.0}
    assert (levels["rho_asym"], levels["window_updates"]) == (1.25, 25)


def test_reader_who_comes_back_gets_the_events_it_missed_of_its_run() -> None:
    async def scene() -> list[list[int]]:
        hub = EventHub()
        first = hub.subscribe("run")
        for number in range(3):
            hub.publish("run", "update", {"step": number})
            hub.publish("other", "update", {"step": 100 + number})
        last_id = str(await first.waiting.get()).split("\n")[0].removeprefix("id: ")
        readers = [hub.subscribe("run", given) for given in (last_id, "", "another-1", f"{last_id}x")]
        waiting = [[str(reader.waiting.get_nowait()) for _ in range(reader.waiting.qsize())] for reader in readers]
        return [[int(step) for text in texts for step in re.findall(r'"step": (\d+)', text)] for texts in waiting]

    assert asyncio.run(scene()) == [[1, 2], [], [], []]
