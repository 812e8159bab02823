"""Requests with odd JSON, headers, queries and addresses for every route but the shards' own bodies."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from urllib.parse import quote

RUNS = (
    "fuzz",
    "fuzz",
    "fuzz",
    "nobody",
    "",
    ".hidden",
    "../../etc",
    "a" * 129,
    "%00",
    "%ff%fe",
    "a b",
    "a'b--",
    "\u2603",
)
NUMBERS = (
    "0",
    "1",
    "-1",
    "1e3",
    "nan",
    "inf",
    "9" * 30,
    "9" * 5000,
    "9007199254740993",
    "0x1",
    "",
    " 1",
    "\u0661",
    "1_0",
)
TEXTS = ("", "x", "x" * 9000, "\u2603", "%00", "\x7f", "a=b&c", "<script>", '"', "*", '"1-1"', "window", "\u0131")
PATHS = (
    *("/", "/metrics", "/healthz", "/readyz", "/openapi.json", "/static/app.js", "/static/..%2f..%2fetc/passwd"),
    *("/v1/runs", "/v1/hooks", "/v1/runs/{run}", "/v1/runs/{run}/series", "/v1/runs/{run}/updates"),
    *("/v1/runs/{run}/transitions", "/v1/runs/{run}/worst", "/v1/runs/{run}/params", "/v1/runs/{run}/params/history"),
    *("/v1/runs/{run}/actions", "/v1/runs/{run}/audit", "/v1/runs/{run}/nothing", "/v2", "//", "/v1/runs/{run}/"),
)
POSTS = (
    ("POST", "/v1/runs/{run}/attempts"),
    ("POST", "/v1/runs/{run}/params/ack"),
    ("POST", "/v1/runs/{run}/actions"),
    ("PUT", "/v1/runs/{run}/params"),
    ("POST", "/v1/hooks/alertmanager"),
    ("POST", "/v1/hooks/grafana"),
)
QUERIES = (
    *("name", "scope", "from", "to", "limit", "step", "wait", "after", "shards", "attempt", "side", "x"),
    *("name", "from", "limit"),
)
KINDS = ("gate", "repair", "tis", "fallback", "pause", "stop", "freeze", "release", "clear", "rebaseline", "continue")
NAMES = (
    *("kind", "reason", "version", "step", "refused", "epoch", "issuer", "fenced_by", "launch_id", "from_step"),
    *("alerts", "labels", "status", "gate", "repair", "w_min", "enabled", "lease_updates", "control", "precision"),
    *("k_rep", "combine", "\udc00", "\0", "x" * 3000, "__proto__"),
)
HEADERS = (
    *("If-Match", "If-None-Match", "Idempotency-Key", "Triage-Actor", "Last-Event-ID", "Accept", "Origin"),
    *("Sec-Fetch-Site", "Authorization", "Content-Encoding", "Range", "Triage-Client-Dropped", "X-Odd", "Expect"),
)
RAW = (
    b"", b"{", b"[]", b"null", b"NaN", b'{"version": NaN, "step": 1}', b'{"a": 1e999}', b'{"a": -Infinity}',
    b'{"kind": "\\ud800"}', b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}", b"[" * 100_000, b'{"a":' * 50_000, b"9" * 200_000,
    b'{"version": 1, "version": 2, "step": 0}', b"{}" * 3, b'{"a": 0' + b"0" * 5000 + b"}", b"x" * 300_000,
    b'"' + b"\\" * 9999,
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)


def odd_request(rng: random.Random) -> Request:
    if rng.random() < 0.5:
        method, path = rng.choice(POSTS)
        body: bytes | None = json_body(rng)
    else:
        method, path = (
            rng.choice(("GET",) * 8 + ("HEAD", "DELETE", "OPTIONS", "PATCH", "PUT", "TRACE")),
            rng.choice(PATHS),
        )
        body = b"odd" if rng.random() < 0.1 else None
    path = path.format(run=quote(rng.choice(RUNS), safe="%"))
    query = "&".join(_query(rng) for _ in range(rng.choice((0, 1, 1, 2, 40))))
    return Request(method, f"{path}?{query}" if query else path, body, _headers(rng))


def _query(rng: random.Random) -> str:
    value = rng.choice((rng.choice(NUMBERS), rng.choice(TEXTS)))
    if rng.random() < 0.5:
        value = rng.choice(("rho_asym", "score", "update", "0", "1", "10"))
    return f"{rng.choice(QUERIES)}={quote(value, safe='%=&')}"


def _headers(rng: random.Random) -> dict[str, str]:
    headers = {"Content-Type": rng.choice(("application/json", "application/json", "text/plain", "", "x" * 500))}
    if rng.random() < 0.7:
        headers |= {"If-Match": rng.choice(("*", "*", '"1-1"', "\xb2")), "Idempotency-Key": str(rng.randrange(200))}
    for _ in range(rng.choice((0, 0, 1, 3))):
        value = rng.choice((*TEXTS, *NUMBERS)).replace("\x7f", "?")
        headers[rng.choice(HEADERS)] = value.encode("latin-1", "replace").decode("latin-1")[:8000]
    headers.pop("Sec-Fetch-Site", None) if rng.random() < 0.8 else None
    headers.pop("Expect", None)  # a client that expects 100 waits for it
    return headers


def json_body(rng: random.Random) -> bytes:
    kind = rng.randrange(10)
    if kind < 2:
        return rng.choice(RAW)
    if kind < 5:
        return json.dumps(_near(rng)).encode()
    text = json.dumps({name: value(rng, 0) for name in rng.sample(NAMES, rng.randrange(5))})
    return text.replace('"1e999"', "1e999").encode()


def _near(rng: random.Random) -> object:
    """Nearly what some route takes."""
    odd = value(rng, 1)
    return rng.choice(
        (
            {"kind": rng.choice(KINDS), "reason": odd},
            {"kind": rng.choice(KINDS), rng.choice(NAMES): odd},
            {"version": rng.choice((0, 1, odd)), "step": rng.choice((0, odd)), "refused": rng.choice((None, odd))},
            {"launch_id": rng.choice(("a", "b", odd)), "from_step": rng.choice((0, 2**53, odd))},
            {"gate": {"enabled": True, rng.choice(NAMES): odd}, "reason": "fuzz"},
            {"alerts": [{"labels": {"alertname": "A", "run": rng.choice(RUNS)}, "startsAt": "x"}, odd]},
            {"alerts": [{"labels": {"alertname": "TriageRunTerminal", "run": "fuzz"}}] * rng.choice((1, 300))},
        )
    )


def value(rng: random.Random, depth: int) -> object:
    plain = (
        0,
        1,
        -1,
        0.5,
        2**31,
        2**53,
        2**63,
        10**400,
        -1e308,
        True,
        None,
        "",
        "x",
        "x" * 5000,
        "\ud800",
        "\0",
        "1e999",
    )
    if depth > 3 or rng.random() < 0.7:
        return rng.choice(plain)
    if rng.random() < 0.5:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(NAMES): value(rng, depth + 1) for _ in range(rng.randrange(3))}
