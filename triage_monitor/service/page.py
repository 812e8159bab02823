"""The page at `/` and what it loads: files of this package, read once at start, served as they are.

The page is plain HTML, CSS and ES modules; it asks the same routes that everyone asks, so it knows nothing that the
API does not say, and the shell itself holds no data: it is served without a token. Its policy lets nothing be loaded
or sent anywhere but here, and runs no inline script or style. Vendored files carry their version in their name and may
be kept for ever; all others are asked for again each time and answered 304 when unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import Response

from triage_monitor.service.problems import Problem

MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
SHELL = "index.html"
VENDORED = "uplot-1.6.32"
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    body: bytes
    media: str
    etag: str
    caching: str


def static_files() -> Mapping[str, StaticFile]:
    """Name -> file, of everything in `static/`."""
    found = {}
    for item in files("triage_monitor.service").joinpath("static").iterdir():
        media = MEDIA.get(f".{item.name.rpartition('.')[2]}")
        if media is not None:
            body = item.read_bytes()
            caching = "public, max-age=31536000, immutable" if item.name.startswith(VENDORED) else "no-cache"
            found[item.name] = StaticFile(body, media, f'"{sha256(body).hexdigest()[:16]}"', caching)
    return found


def routes() -> APIRouter:
    router = APIRouter(tags=["service"])
    known = static_files()

    @router.get("/")
    async def page(if_none_match: Annotated[str, Header()] = "") -> Response:
        """The live page."""
        return _answer(known[SHELL], if_none_match)

    @router.get("/static/{name}")
    async def static(name: str, if_none_match: Annotated[str, Header()] = "") -> Response:
        """A file of the live page."""
        if name not in known:
            raise Problem(404, "not_found", f"the page has no file '{name[:100]}'")
        return _answer(known[name], if_none_match)

    return router


def _answer(file: StaticFile, if_none_match: str) -> Response:
    headers = {**SECURITY_HEADERS, "ETag": file.etag, "Cache-Control": file.caching}
    if file.etag in (item.strip().removeprefix("W/") for item in if_none_match.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=file.media, headers=headers)
