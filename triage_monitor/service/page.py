"""The page at `/`: what this server is, its runs, and where to look. No script, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from triage_monitor.service.live import Snapshot

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:.2em 1em .2em 0;text-align:left}code{background:#8882;padding:0 .2em}"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


def page(runs: Iterable[Snapshot], version: str) -> str:
    rows = "".join(_row(run) for run in sorted(runs, key=lambda item: item.run))
    table = (
        f"<table><tr><th>run<th>stage<th>step<th>rho_asym (window)<th>parameters</tr>{rows}</table>"
        if rows
        else "<p>No run yet. A trainer's <code>Monitor</code> makes one with its first update.</p>"
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>triage-monitor</title>"
        f"<style>{_STYLE}</style><h1>triage-monitor {escape(version)}</h1>{table}"
        "<p><a href=/metrics>/metrics</a> for Prometheus, <a href=/v1/runs>/v1/runs</a> for runs,"
        " <a href=/openapi.json>/openapi.json</a> for every call, <a href=/readyz>/readyz</a> for the state of the"
        " store.</p></html>"
    )


def _row(run: Snapshot) -> str:
    name = escape(run.run)
    step, rho = "-", "-"
    if run.newest is not None:
        step = str(run.newest.step)
        value = run.newest.report["window"]["indicators"].get("rho_asym")
        rho = "undefined" if value is None else f"{value:.3f}"
    link = f'<a href="/v1/runs/{name}">{name}</a>'
    return f"<tr><td>{link}<td>{escape(run.stage)}<td>{step}<td>{rho}<td>version {run.params.version}</tr>"
