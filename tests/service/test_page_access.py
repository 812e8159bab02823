"""The page for everybody: contrast and structure (axe-core), small screens, the keyboard alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from service.browser import chromium, watched
from service.live_server import LiveServer, serving
from service.page_world import RUN, feed

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

AXE = (Path(__file__).parent / "vendor" / "axe-4.14.1.min.js").read_text()
RUN_VIEW = f"#/run/{RUN}"
TABS = 120


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving() as live:
        feed(live, range(40), growth=0.2)
        yield live


def violations(page: Page) -> list[str]:
    """What axe-core finds serious or critical, with the first element of each."""
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{item['id']}: {item['nodes'][0]['html'][:200]}"
        for item in found["violations"]
        if item["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_any_view(browser: Browser, server: LiveServer, scheme: str) -> None:
    with watched(browser, server.address, color_scheme=scheme) as watch:
        page = watch.open()
        page.locator("table.runs").wait_for()
        assert violations(page) == []
        page = watch.open(RUN_VIEW)
        page.locator(".heat").wait_for()
        page.locator("#chart-score .plot canvas").wait_for()
        assert violations(page) == []
        page.click("#do-override")
        page.locator("#field-reason").wait_for()
        assert violations(page) == []


def test_axe_finds_nothing_serious_on_a_first_visit(browser: Browser) -> None:
    with serving() as live, watched(browser, live.address) as watch:
        page = watch.open()
        page.locator(".empty").wait_for()
        assert violations(page) == []


def test_axe_sees_what_is_wrong(browser: Browser, server: LiveServer) -> None:
    with watched(browser, server.address) as watch:
        page = watch.open()
        page.locator("table.runs").wait_for()
        page.evaluate("document.querySelector('main').append(document.createElement('button'))")
        assert [item.partition(":")[0] for item in violations(page)] == ["button-name"]


@pytest.mark.parametrize("view", ["", RUN_VIEW])
def test_phone_scrolls_up_and_down_only(browser: Browser, server: LiveServer, view: str) -> None:
    with watched(browser, server.address, viewport={"width": 380, "height": 760}) as watch:
        page = watch.open(view)
        page.locator(".heat" if view else "table.runs").wait_for()
        page.locator("#chart-score .plot canvas").wait_for() if view else None
        assert page.evaluate("document.documentElement.scrollWidth") == 380
        sizes = page.evaluate("[...document.querySelectorAll('main p, main li, main td')]"
                              ".map((item) => parseFloat(getComputedStyle(item).fontSize))")  # fmt: skip
        assert min(sizes) >= 12


def focused(page: Page) -> str:
    found: str = page.evaluate("document.activeElement.id || document.activeElement.className || 'body'")
    return found


def test_keyboard_alone_reaches_every_control_and_comes_back_from_the_dialog(
    browser: Browser, server: LiveServer
) -> None:
    with watched(browser, server.address) as watch:
        page = watch.open(RUN_VIEW)
        page.locator("#do-freeze").wait_for()
        page.locator(".heat").wait_for()
        reached = []
        for _ in range(TABS):
            page.keyboard.press("Tab")
            reached.append(focused(page))
            if reached[-1] == "do-fallback":
                break
        assert reached[0] == "skip"
        assert {"theme", "token", "plot", "do-freeze", "do-override", "do-fallback"} <= set(reached)
        page.keyboard.press("Enter")
        page.locator("#dialog[open]").wait_for()
        assert page.evaluate("document.querySelector('#dialog').contains(document.activeElement)") is True
        page.keyboard.press("Escape")
        page.locator("#dialog").wait_for(state="hidden")
        assert focused(page) == "do-fallback"
        assert server.run(RUN)["params_version"] == 1


def test_skip_link_leads_past_the_head(browser: Browser, server: LiveServer) -> None:
    with watched(browser, server.address) as watch:
        page = watch.open(RUN_VIEW)
        page.locator("#do-freeze").wait_for()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert focused(page) == "main"
        assert page.url.endswith(RUN_VIEW)


def test_theme_follows_the_system_until_it_is_chosen_and_is_remembered(browser: Browser, server: LiveServer) -> None:
    with watched(browser, server.address, color_scheme="dark") as watch:
        page = watch.open()
        ground = "getComputedStyle(document.body).backgroundColor"
        page.locator("table.runs").wait_for()
        dark = page.evaluate(ground)
        page.click("#theme")
        light = page.evaluate(ground)
        assert dark != light
        page.reload()
        page.locator("table.runs").wait_for()
        assert page.evaluate(ground) == light


def test_stage_is_announced_and_marked_by_more_than_colour(browser: Browser, server: LiveServer) -> None:
    with watched(browser, server.address) as watch:
        page = watch.open(RUN_VIEW)
        page.locator(".banner .stage").wait_for()
        assert page.locator(".banner").get_attribute("aria-live") == "polite"
        assert page.locator(".banner .mark").inner_text() != ""
        dashes = page.evaluate("[...document.querySelectorAll('#chart-masses .legend line')]"
                               ".map((item) => item.getAttribute('stroke-dasharray'))")  # fmt: skip
        assert len(set(dashes)) == 4
