"""The page before a sidecar that asks for tokens: it asks for one, sends it everywhere, and names a missing scope."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from service.access_help import guarded
from service.browser import chromium, watched
from service.page_world import RUN, feed, update

if TYPE_CHECKING:
    from playwright.sync_api import Page


def use(page: Page, token: str) -> None:
    page.fill("#field-token", token)
    page.click("#dialog button[type=submit]")
    page.locator("#dialog").wait_for(state="hidden")


def freeze(page: Page) -> None:
    page.click("#do-freeze")
    page.fill("#field-reason", "look first")
    page.click("#dialog button[type=submit]")


def test_page_asks_for_a_token_sends_it_with_its_stream_and_names_the_missing_scope(tmp_path: Path) -> None:
    with guarded(tmp_path) as (live, secrets), chromium() as browser:
        feed(live, range(3))
        with watched(browser, live.address, clean=False) as watch:
            addresses: list[str] = []
            watch.page.on("request", lambda request: addresses.append(request.url))
            page = watch.open(f"#/run/{RUN}")
            page.locator("#field-token").wait_for()
            use(page, secrets["grafana-viewer"])
            page.locator("#link:has-text('live')").wait_for()
            assert live.put(RUN, 3, update(3)).status_code == 201
            page.locator(".facts dd:text-is('3')").wait_for()
            freeze(page)
            page.locator(".failed:has-text(\"lacks the scope 'control'\")").wait_for()
            assert live.run(RUN)["held_by"] is None
            page.keyboard.press("Escape")
            page.click("#token")
            use(page, secrets["all"])
            page.locator("#link:has-text('live')").wait_for()
            freeze(page)
            page.locator("#do-release").wait_for()
            assert live.run(RUN)["held_by"] is not None
            kept = page.evaluate("[Object.values(sessionStorage), Object.values(localStorage), document.cookie]")
            assert kept == [[secrets["all"]], [], ""]
            assert not [url for url in addresses if any(secret in url for secret in secrets.values())]
