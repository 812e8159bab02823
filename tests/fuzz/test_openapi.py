"""schemathesis against the served OpenAPI document: every route, by data that fits the document and by data that does
not. What it sends is judged by the same pass mark as every other input (fuzz/driver.py)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
import schemathesis
from fuzz.arrow_bodies import arrow_body
from fuzz.driver import Fuzz
from fuzz.summary_bodies import summary_body
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from service.live_server import masses
from service.served_process import ServedProcess, served

from triage_monitor.summary.rows import STREAM_MIME, SUMMARY_MIME

WAITING = "/v1/runs/{run}/events"  # an answer without an end, of which only refusals can be asked for
EXAMPLES = 4
_QUICK = settings(
    max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip

_SEEDS = st.integers(0, 1 << 32).map(random.Random)
schemathesis.openapi.media_type(STREAM_MIME, _SEEDS.map(arrow_body))
schemathesis.openapi.media_type(SUMMARY_MIME, _SEEDS.map(summary_body))
schemathesis.serializer.alias([STREAM_MIME, SUMMARY_MIME], "application/octet-stream")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProcess]:
    with served(Path(tmp_path_factory.mktemp("openapi"))) as process:
        yield process


def test_every_route_of_the_document_stands_what_schemathesis_sends(server: ServedProcess) -> None:
    schema = schemathesis.openapi.from_dict(server.http.get("/openapi.json").json())
    fuzz = Fuzz(server)
    assert fuzz.put("sound", "fuzz", 1, masses(2, 1), STREAM_MIME) == 201
    operations = [found.ok() for found in schema.get_all_operations()]
    for operation in operations:
        _send_some(fuzz, operation, GenerationMode.POSITIVE, None)
        if "{run}" in operation.path:
            _send_some(fuzz, operation, GenerationMode.POSITIVE, {"run": "fuzz"})
        if len(operation.query) or len(operation.body):
            _send_some(fuzz, operation, GenerationMode.NEGATIVE, {"run": "fuzz"})
    fuzz.close()
    assert fuzz.found.wrong == []
    assert {operation.path for operation in operations} >= {"/v1/runs/{run}/params", "/metrics", "/v1/hooks/grafana"}
    assert fuzz.found.sent > 4 * len(operations)
    assert server.http.get("/readyz").json()["status"] == "ready"


def _send_some(fuzz: Fuzz, operation: Any, mode: GenerationMode, path: dict[str, str] | None) -> None:
    if operation.path == WAITING:
        path = {"run": "nobody"}
    label = f"{mode.value} {operation.method} {operation.path}"

    @_QUICK
    @given(operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        case.path_parameters.update(path or {})
        if isinstance(case.query.get("wait"), float | int):
            case.query["wait"] = min(case.query["wait"], 0.1)
        fuzz.send(label, *_on_the_wire(case.as_transport_kwargs(base_url="http://server")))

    send()


def _on_the_wire(arguments: dict[str, Any]) -> tuple[str, str, bytes | None, dict[str, str]]:
    """What the requests library would have put on the wire."""
    arguments.pop("cookies", None)
    known = {
        name: arguments[name] for name in ("method", "url", "params", "data", "json", "headers") if name in arguments
    }
    made = requests.Request(**known).prepare()
    parts = urlsplit(made.url or "")
    body = made.body.encode() if isinstance(made.body, str) else made.body
    headers = {name: value for name, value in made.headers.items() if name.lower() != "content-length"}
    return made.method or "", f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/", body, headers
