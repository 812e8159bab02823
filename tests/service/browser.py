"""Debian's chromium under playwright, and pages that fail on what no test asked for: console errors, foreign hosts.

Nothing is downloaded: the browser is the system's. Without one the tests skip with a reason; under CI=true they fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from programs import program

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


@contextmanager
def chromium() -> Iterator[Browser]:
    path = program("chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Watch:
    """What a page did beside what it was asked to."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.origin = origin
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        page.on("console", lambda message: self._said(message.type, message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.errors.append(text)

    def open(self, fragment: str = "") -> Page:
        self.page.goto(f"{self.origin}/{fragment}")
        return self.page


@contextmanager
def watched(browser: Browser, origin: str, *, clean: bool = True, **context: Any) -> Iterator[Watch]:
    """A fresh page; with `clean` it must have spoken to this origin only and left no error on the console."""
    opened = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
    watch = Watch(opened.new_page(), origin)
    watch.page.set_default_timeout(90_000)
    try:
        yield watch
        if clean:
            assert watch.errors == []
        assert watch.hosts == {urlsplit(origin).netloc}
    finally:
        opened.close()
