"""Who gets in: every route under every scope, wrong headers, other sites, other hosts."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from service.access_help import bearer, guarded
from service.live_server import STREAM, LiveServer, masses, serving

Guarded = tuple[LiveServer, dict[str, str]]
RUN = "/v1/runs/run"
# Every call of the product: method, path, which of the tokens trainer-a, grafana-viewer, ops is let in.
CALLS = [
    ("GET", "/v1/runs", {"grafana-viewer"}),
    ("GET", RUN, {"grafana-viewer"}),
    ("GET", f"{RUN}/series?name=rho_asym", {"grafana-viewer"}),
    ("GET", f"{RUN}/updates", {"grafana-viewer"}),
    ("GET", f"{RUN}/transitions", {"grafana-viewer"}),
    ("GET", f"{RUN}/params", {"grafana-viewer", "trainer-a"}),
    ("GET", f"{RUN}/params/history", {"grafana-viewer"}),
    ("GET", f"{RUN}/actions", {"grafana-viewer"}),
    ("GET", f"{RUN}/audit", {"grafana-viewer"}),
    ("GET", "/metrics", {"grafana-viewer"}),
    ("GET", "/openapi.json", {"grafana-viewer"}),
    ("PUT", f"{RUN}/updates/1/shards/0", {"trainer-a"}),
    ("POST", f"{RUN}/attempts", {"trainer-a"}),
    ("POST", f"{RUN}/params/ack", {"trainer-a"}),
    ("PUT", f"{RUN}/params", {"ops"}),
    ("POST", f"{RUN}/actions", {"ops"}),
    ("GET", "/v1/hooks", {"grafana-viewer"}),
    ("POST", "/v1/hooks/alertmanager", {"ops"}),
    ("POST", "/v1/hooks/grafana", {"ops"}),
]
TRICKS = [
    "//v1/runs", "/v1//runs", "/%76%31/runs", "/v1/runs/", "/V1/runs", "/healthz/../v1/runs",
    "/healthz%2f..%2fv1%2fruns", "/static/../v1/runs", "/static/%2e%2e/v1/runs", "/healthz/", "/healthz%0a",
    "/;/v1/runs", "/metrics/", "/metrics%20", "/v1/runs/run%2fparams", "/v1/runs?/healthz", "/v1/runs;x=/healthz",
    "/openapi.json?", "/docs", "/redoc",
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("auth")) as found:
        found[0].put("run", 1, masses(3, 2), headers={**STREAM, **bearer(found[1]["all"])})
        yield found


def bare(server: Guarded, method: str, path: str, headers: Any = None, **more: Any) -> httpx.Response:
    """A request with exactly these headers beside Host."""
    with httpx.Client(base_url=server[0].address, timeout=60, trust_env=False, verify=False) as http:
        return http.request(method, path, headers=headers, **more)


def exchanged(server: Guarded, head: str, body: bytes = b"") -> tuple[int, dict[str, Any]]:
    """Status and problem document of a request written by hand, lines as given."""
    host, port = server[0].address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as wire:
        wire.sendall(head.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body)
        answer = b""
        while chunk := wire.recv(65536):
            answer += chunk
    lines, _, document = answer.partition(b"\r\n\r\n")
    return int(lines.split()[1]), json.loads(document) if document.startswith(b"{") else {}


@pytest.mark.parametrize(("method", "path", "allowed"), CALLS)
def test_call_is_for_tokens_of_its_scope_alone(server: Guarded, method: str, path: str, allowed: set[str]) -> None:
    without = bare(server, method, path)
    assert (without.status_code, without.json()["reason"]) == (401, "no_token")
    assert without.headers["content-type"] == "application/problem+json"
    assert without.headers["www-authenticate"] == 'Bearer realm="triage-monitor"'
    for name in ("trainer-a", "grafana-viewer", "ops"):
        answer = bare(server, method, path, bearer(server[1][name]))
        if name in allowed:
            assert answer.status_code not in (401, 403), name
        else:
            assert (answer.status_code, answer.json()["reason"]) == (403, "scope"), name
            assert 'error="insufficient_scope"' in answer.headers["www-authenticate"]


def test_no_route_of_the_application_answers_without_a_token_but_the_named_ones(server: Guarded) -> None:
    schema = server[0].http.get("/openapi.json").json()
    routes = {(method.upper(), path) for path, item in schema["paths"].items() for method in item}
    public = {("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/"), ("GET", "/static/{name}")}
    changing = {(method, path) for method, path, _ in CALLS if method != "GET"}
    assert len(routes - public) > len(changing)
    for method, path in routes - public:
        answer = bare(server, method, path.replace("{run}", "run"))
        assert answer.status_code == 401, (method, path)
    written = {(method, path.replace("/v1/runs/{run}", RUN)) for method, path in routes if method != "GET"}
    assert {(m, p.replace("{step}/shards/{shard}", "1/shards/0")) for m, p in written} == changing


def test_liveness_and_the_bare_page_need_no_token_and_tell_nothing(server: Guarded) -> None:
    assert bare(server, "GET", "/healthz").json() == {"status": "ok"}
    assert bare(server, "GET", "/readyz").json() == {"status": "ready"}
    full = server[0].http.get("/readyz").json()
    assert full["tokens_file"] == "ok" and "store" in full
    page = bare(server, "GET", "/")
    assert page.status_code == 200 and "/v1/runs/run" not in page.text
    assert "unsafe-inline" not in page.headers["content-security-policy"].partition("script-src")[2]
    assert bare(server, "GET", "/healthz", bearer("x" * 43)).status_code == 200
    assert bare(server, "POST", "/healthz").status_code == 401


@pytest.mark.parametrize("path", TRICKS)
def test_no_spelling_of_a_path_goes_round_the_token(server: Guarded, path: str) -> None:
    for method in ("GET", "HEAD", "OPTIONS", "PUT", "POST", "DELETE", "TRACE", "PATCH"):
        status, problem = exchanged(server, f"{method} {path} HTTP/1.1\nHost: 127.0.0.1\nConnection: close")
        assert status in (400, 401), (method, path, status, problem)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("Authorization: {all}", "malformed_token"),
        ("Authorization: Basic {all}", "malformed_token"),
        ("Authorization: Bearer", "malformed_token"),
        ("Authorization: Bearer ", "malformed_token"),
        ("Authorization: Bearer {all} {all}", "malformed_token"),
        ("Authorization: Bearer {all},x", "malformed_token"),
        ("Authorization: Bearer\xa0{all}", "malformed_token"),
        ("Authorization: Bearer {all}\xff", "malformed_token"),
        ("Authorization: Bearer {all}\nAuthorization: Bearer {all}", "malformed_token"),
        ("Authorization: Bearer {all}\nAuthorization: Basic eA==", "malformed_token"),
        ("Authorization: Bearer {all}x", "unknown_token"),
        ("Authorization: Bearer {upper}", "unknown_token"),
        ("Authorization: Bearer {hash}", "unknown_token"),
        ("Authorization-: Bearer {all}", "no_token"),
        ("X-Authorization: Bearer {all}", "no_token"),
        ("Proxy-Authorization: Bearer {all}", "no_token"),
        ("Cookie: token={all}; Authorization=Bearer {all}", "no_token"),
    ],
)
def test_wrong_header_is_refused_by_reason_and_not_repeated(server: Guarded, lines: str, reason: str) -> None:
    from triage_monitor.service.tokens import hashed

    secret = server[1]["all"]
    written = lines.replace("{all}", secret).replace("{upper}", secret.upper()).replace("{hash}", hashed(secret))
    status, problem = exchanged(server, f"GET /v1/runs HTTP/1.1\nHost: 127.0.0.1\nConnection: close\n{written}")
    assert (status, problem["reason"]) == (401, reason)
    assert secret not in json.dumps(problem)


@pytest.mark.parametrize("line", ["Authorization: bEaReR {all}", "AUTHORIZATION: BEARER   {all}  "])
def test_scheme_and_header_name_may_be_of_any_case(server: Guarded, line: str) -> None:
    written = line.replace("{all}", server[1]["all"])
    status, body = exchanged(server, f"GET /v1/runs HTTP/1.1\nHost: 127.0.0.1\nConnection: close\n{written}")
    assert (status, [run["run"] for run in body["runs"]]) == (200, ["run"])


@pytest.mark.parametrize("name", ["token", "access_token", "Authorization", "authorization", "bearer", "key"])
def test_token_in_the_query_or_as_password_counts_for_nothing(server: Guarded, name: str) -> None:
    secret = server[1]["all"]
    assert bare(server, "GET", "/v1/runs", params={name: secret}).json()["reason"] == "no_token"
    assert bare(server, "GET", "/v1/runs", auth=(name, secret)).json()["reason"] == "malformed_token"


def test_refusals_are_counted_by_reason_and_no_secret_is_on_the_page(server: Guarded) -> None:
    before = server[0].metrics().get('triage_access_refused_total{reason="unknown_token"}', 0)
    bare(server, "GET", "/v1/runs", bearer("tm_" + "a" * 43))
    text = server[0].http.get("/metrics").text
    assert server[0].metrics()['triage_access_refused_total{reason="unknown_token"}'] == before + 1
    assert server[0].metrics()["triage_access_tokens"] == 4
    for name, secret in server[1].items():
        assert secret not in text and (name == "all" or f'"{name}"' not in text)


CROSS = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://localhost"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": ""},
]


@pytest.mark.parametrize("headers", CROSS)
def test_change_from_another_site_is_refused_even_with_a_token(server: Guarded, headers: dict[str, str]) -> None:
    body = {"kind": "pause"}
    sent = {**bearer(server[1]["all"]), **headers, "Idempotency-Key": "cross"}
    answer = bare(server, "POST", f"{RUN}/actions", sent, json=body)
    assert (answer.status_code, answer.json()["reason"]) == (403, "cross_site")
    own = {**bearer(server[1]["all"]), "Origin": server[0].address, "Sec-Fetch-Site": "same-origin"}
    assert bare(server, "POST", f"{RUN}/params/ack", own, json={"version": 1, "step": 1}).status_code == 200


def test_without_tokens_other_sites_and_rebound_names_are_refused_too() -> None:
    with serving() as live:
        open_server = (live, {})
        live.put("run", 1, masses(1, 1))
        body = {"alerts": []}
        assert bare(open_server, "POST", "/v1/hooks/grafana", json=body).status_code == 200
        for headers in CROSS:
            answer = bare(
                open_server, "POST", "/v1/hooks/grafana", {**headers, "Content-Type": "text/plain"}, json=body
            )
            assert (answer.status_code, answer.json()["reason"]) == (403, "cross_site")
        for host in (
            "evil.example",
            "127.0.0.1.evil.example:8750",
            "localhost.evil.example",
            "user@localhost",
            "",
            "a b",
        ):
            status, problem = exchanged(open_server, f"GET /v1/runs HTTP/1.1\nHost: {host}\nConnection: close")
            assert (status, problem["reason"]) == (421, "host"), host
        for lines in ("Host: localhost\nHost: evil.example", "X-Forwarded-Host: localhost"):
            status, _ = exchanged(open_server, f"GET /v1/runs HTTP/1.1\n{lines}\nConnection: close")
            assert status in (400, 421), lines
        for host in ("localhost", "LOCALHOST:8750", "[::1]:8750", "127.0.0.1", "10.0.0.7:80"):
            status, _ = exchanged(open_server, f"GET /v1/runs HTTP/1.1\nHost: {host}\nConnection: close")
            assert status == 200, host
        assert bare(open_server, "GET", "/v1/runs", bearer("whatever")).status_code == 200
        assert bare(open_server, "OPTIONS", RUN, {"Origin": "https://evil.example"}).status_code == 405
        assert "access-control-allow-origin" not in bare(open_server, "GET", RUN, {"Origin": "https://a.b"}).headers


def test_names_in_the_settings_are_served_and_metrics_may_be_left_open(tmp_path: Path) -> None:
    with guarded(tmp_path, auth={"allowed_hosts": ["monitor.lab", "*.example.com"], "open_metrics": True}) as server:
        for host, status in (("Monitor.LAB.", 200), ("a.example.com:1", 200), ("example.com", 421), ("lab", 421)):
            assert exchanged(server, f"GET /metrics HTTP/1.1\nHost: {host}\nConnection: close")[0] == status, host
        assert bare(server, "GET", "/v1/runs").status_code == 401
