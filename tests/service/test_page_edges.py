"""The page where things are not as usual: odd addresses, the keyboard alone, the sidecar gone under an open dialog."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from service.browser import chromium, watched
from service.live_server import serving
from service.page_world import RUN, feed

from triage_monitor.config import Settings
from triage_monitor.storage.memory import MemoryStore

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

RUN_VIEW = f"#/run/{RUN}"
OBSERVING = Settings.from_dict({"server": {"port": 0}, "judge": {"policy": {"mode": "observe"}}})


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def press_to(page: Page, name: str) -> None:
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == name:
            return
    raise AssertionError(f"no Tab leads to {name}")


def test_first_set_that_anyone_pushed_is_told_from_what_the_run_began_with(browser: Browser) -> None:
    with serving(OBSERVING) as live, watched(browser, live.address) as watch:
        feed(live, range(3))
        page = watch.open(RUN_VIEW)
        page.locator("#params:has-text('Nothing was pushed yet')").wait_for()
        body = {"kind": "fallback", "reason": "numerics"}
        live.http.post(f"/v1/runs/{RUN}/actions", json=body, headers={"Idempotency-Key": "one"}).raise_for_status()
        history = live.http.get(f"/v1/runs/{RUN}/params/history").json()
        assert (history["initial"]["precision"], len(history["versions"])) == ("nvfp4", 1)
        page.locator("#params li:has-text('Version 1') .what:text-is('precision nvfp4 → bf16')").wait_for()


def test_keyboard_stays_on_the_controls_when_freeze_becomes_release(browser: Browser) -> None:
    with serving() as live, watched(browser, live.address) as watch:
        feed(live, range(3))
        page = watch.open(RUN_VIEW)
        page.locator("#do-freeze").wait_for()
        for button, other in (("do-freeze", "do-release"), ("do-release", "do-freeze")):
            press_to(page, button)
            page.keyboard.press("Enter")
            page.locator("#dialog[open]").wait_for()
            page.keyboard.type("by keyboard")
            page.keyboard.press("Enter")
            page.locator("#dialog").wait_for(state="hidden")
            page.wait_for_function("(id) => document.activeElement.id === id", arg=other)
        assert [item["kind"] for item in live.http.get(f"/v1/runs/{RUN}/actions").json()["actions"]] == [
            "freeze", "release",
        ]  # fmt: skip


def test_charts_drawn_before_their_series_came_are_drawn_again_with_it(browser: Browser) -> None:
    with serving() as live, watched(browser, live.address) as watch:
        feed(live, range(3))
        held: list[Route] = []
        watch.page.route("**/v1/runs/*/series*", lambda route: held.append(route))
        page = watch.open(RUN_VIEW)
        page.locator("#chart-rho .nothing:text-is('No update yet.')").wait_for()
        held[0].continue_()  # and no other: a later answer would draw the charts once more
        page.locator("#chart-rho .plot canvas").wait_for()


@pytest.mark.parametrize("name", ["%zz", "a%2Fb", ".."])
def test_address_that_can_be_no_run_says_so_instead_of_showing_the_last_one(browser: Browser, name: str) -> None:
    with serving() as live, watched(browser, live.address, clean=False) as watch:
        feed(live, range(2))
        page = watch.open(RUN_VIEW)
        page.locator("#do-freeze").wait_for()
        page.goto(f"{live.address}/#/run/{name}")
        page.locator("h1:text-is('No such run')").wait_for()
        assert not [error for error in watch.errors if not error.startswith("Failed to load resource")]


def test_override_without_the_sidecar_says_so_at_once_and_goes_on_when_it_is_back(browser: Browser) -> None:
    store = MemoryStore()
    with serving(store=store) as live:
        feed(live, range(3))
        port = int(live.address.rpartition(":")[2])
    again = Settings.from_dict({"server": {"port": port}})
    with watched(browser, f"http://127.0.0.1:{port}", clean=False) as watch:
        with serving(again, store):
            page = watch.open(RUN_VIEW)
            page.locator("#link:has-text('live')").wait_for()
        page.locator(".trouble:has-text('cannot be reached')").wait_for()
        page.click("#do-override")
        page.locator("#dialog:has-text('could not be reached; nothing was changed')").wait_for()
        page.click("#dialog button[type=submit]")
        page.locator(".failed:has-text('could not be reached')").wait_for()
        with serving(again, store):
            page.click("#dialog button[type=submit]")
            page.locator("[name='gate.w_min']").wait_for()
