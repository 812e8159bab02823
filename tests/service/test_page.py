"""The page in a real browser: live, in control, and on its own when something is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from service.browser import chromium, watched
from service.live_server import LiveServer, serving
from service.page_world import RUN, feed, update

from triage_monitor.config import Settings
from triage_monitor.storage.memory import MemoryStore
from triage_monitor.summary.codec import encode
from triage_monitor.summary.rows import SUMMARY_MIME, decode_stream

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

RUN_VIEW = f"#/run/{RUN}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving() as live:
        feed(live, range(30))
        yield live


def fact(page: Page, name: str) -> str:
    """What stands under this name in the row of facts."""
    return page.locator(f".facts div:has(dt:text-is('{name}')) dd").inner_text()


def wait_for_fact(page: Page, name: str, value: str) -> None:
    page.locator(f".facts div:has(dt:text-is('{name}')) dd:text-is('{value}')").wait_for()


def confirm(page: Page, button: str, reason: str) -> None:
    page.click(button)
    page.fill("#field-reason", reason)
    page.click("#dialog button[type=submit]")
    page.locator("#dialog").wait_for(state="hidden")


def test_update_that_arrives_while_the_page_is_open_is_shown_without_a_reload(
    browser: Browser, server: LiveServer
) -> None:
    with watched(browser, server.address) as watch:
        page = watch.open(RUN_VIEW)
        page.locator("#link:has-text('live')").wait_for()
        before = int(fact(page, "Update"))
        page.evaluate("window.kept = true")
        assert server.put(RUN, before + 1, update(before + 1)).status_code == 201
        wait_for_fact(page, "Update", str(before + 1))
        page.locator(f"#worst-title:has-text('update {before + 1}')").wait_for()
        assert page.locator("#chart-rho .legend b").first.inner_text() == f"{_rho(server):.3g}".ljust(4, "0")
        assert page.evaluate("window.kept") is True


def _rho(server: LiveServer) -> float:
    value: float = server.run(RUN)["window"]["indicators"]["rho_asym"]
    return value


def test_late_update_takes_its_own_place_in_the_charts(browser: Browser) -> None:
    with serving() as live, watched(browser, live.address) as watch:
        feed(live, range(0, 20, 2))
        page = watch.open(RUN_VIEW)
        page.locator("#link:has-text('live')").wait_for()
        feed(live, range(5, 6))
        page.locator("#chart-rho .plot[aria-label*='11 updates, at 18']").wait_for()
        page.locator("#chart-rho .plot").focus()
        for key in ("Home", "ArrowRight", "ArrowRight", "ArrowRight"):
            page.keyboard.press(key)
        page.locator(".chart-tools .num:text-is('update 5')").wait_for()


def test_controls_change_what_the_trainer_gets_and_stand_in_the_trail(browser: Browser) -> None:
    with serving() as live, watched(browser, live.address) as watch:
        feed(live, range(3))
        page = watch.open(RUN_VIEW)
        confirm(page, "#do-freeze", "look first")
        page.locator("#controls:has-text('Held by operator')").wait_for()
        assert live.run(RUN)["held_by"] == "operator"
        page.click("#do-override")
        page.fill("[name='gate.w_min']", "0.4")
        page.check("[name='gate.enabled']")
        page.fill("#field-reason", "gate by hand")
        page.fill("#field-actor", "ada")
        page.click("#dialog button[type=submit]")
        page.locator("#params:has-text('gate.w_min 0.5 → 0.4')").wait_for()
        params = live.http.get(f"/v1/runs/{RUN}/params").json()
        assert (params["gate"]["enabled"], params["gate"]["w_min"], params["reason"]) == (True, 0.4, "gate by hand")
        assert params["repair"]["enabled"] is False
        confirm(page, "#do-fallback", "numerics")
        page.locator(".facts:has-text('bf16')").wait_for()
        live.http.post(f"/v1/runs/{RUN}/params/ack", json={"version": 3, "step": 4}).raise_for_status()
        page.locator("#params:has-text('in force from update 4')").wait_for()
        confirm(page, "#do-release", "done")
        page.locator("#do-freeze").wait_for()
        page.locator("#audit li:has-text('release')").wait_for()
        trail = live.http.get(f"/v1/runs/{RUN}/actions").json()["actions"]
        assert [(item["kind"], item["actor"]) for item in trail] == [
            ("freeze", "operator"), ("override", "ada"), ("fallback", "operator"), ("release", "operator"),
        ]  # fmt: skip
        assert live.run(RUN)["held_by"] is None


def test_override_over_a_set_that_moved_on_is_refused_and_says_so(browser: Browser, server: LiveServer) -> None:
    with watched(browser, server.address, clean=False) as watch:
        page = watch.open(RUN_VIEW)
        page.click("#do-override")
        page.locator("#field-reason").wait_for()
        body = {"kind": "gate", "reason": "somebody else"}
        server.http.post(f"/v1/runs/{RUN}/actions", json=body, headers={"Idempotency-Key": "else"}).raise_for_status()
        page.fill("[name='gate.w_min']", "0.3")
        page.fill("#field-reason", "too late")
        page.click("#dialog button[type=submit]")
        page.locator(".failed:has-text('not')").wait_for()
        assert server.http.get(f"/v1/runs/{RUN}/params").json()["gate"]["w_min"] == 0.5


def test_first_visit_shows_the_lines_that_make_a_run_and_the_run_then_appears(browser: Browser) -> None:
    with serving() as live, watched(browser, live.address) as watch:
        page = watch.open()
        lines = page.locator(".empty code").first
        lines.wait_for()
        assert live.address in lines.inner_text()
        assert len(lines.inner_text().splitlines()) == 3
        feed(live, range(2))
        page.click(f"a:text-is('{RUN}')")
        wait_for_fact(page, "Update", "1")
        page.locator(".banner:has-text('Warming up')").wait_for()


def test_lost_server_is_said_with_the_age_of_the_data_and_its_return_is_followed(browser: Browser) -> None:
    store = MemoryStore()
    with serving(store=store) as live:
        feed(live, range(4))
        port = int(live.address.rpartition(":")[2])
    again = Settings.from_dict({"server": {"port": port}})
    with chromium_page(browser, f"http://127.0.0.1:{port}") as watch:
        with serving(again, store) as live:
            page = watch.open(RUN_VIEW)
            page.locator("#link:has-text('live')").wait_for()
        page.locator(".trouble:has-text('cannot be reached')").wait_for()
        assert "was true" in page.locator(".trouble").inner_text()
        assert fact(page, "Update") == "3"
        with serving(again, store) as live:
            feed(live, range(4, 6))
            wait_for_fact(page, "Update", "5")
            page.locator(".trouble").wait_for(state="detached")


def chromium_page(browser: Browser, origin: str) -> Any:
    return watched(browser, origin, clean=False)


def test_unknown_run_says_so_and_leads_back(browser: Browser, server: LiveServer) -> None:
    with watched(browser, server.address, clean=False) as watch:
        page = watch.open("#/run/nobody")
        page.click("main a:text-is('All runs')")
        page.locator(f"a:text-is('{RUN}')").wait_for()


def test_trainer_that_sends_summaries_is_told_why_no_response_is_shown(browser: Browser) -> None:
    with serving() as live, watched(browser, live.address) as watch:
        summary = encode(decode_stream(update(1), max_tokens=1 << 20).summarize())
        live.put(RUN, 1, summary, headers={"Content-Type": SUMMARY_MIME}).raise_for_status()
        page = watch.open(RUN_VIEW)
        page.locator("#worst:has-text('sends summaries only')").wait_for()


def test_what_a_trainer_sends_is_shown_as_text_and_never_runs(browser: Browser) -> None:
    attack = "<img src=x onerror='window.pwned=1'><script>window.pwned=1</script>"
    with serving() as live, watched(browser, live.address) as watch:
        for step in range(2):
            names = [f"{attack}{step}-{number}" for number in range(16)]
            body = update(step, response_ids=names, engines=[attack] * 16)
            live.put(RUN, step, body).raise_for_status()
        action = {"kind": "gate", "reason": attack}
        live.http.post(f"/v1/runs/{RUN}/actions", json=action, headers={"Idempotency-Key": "x"}).raise_for_status()
        refused = {"version": 1, "step": 1, "refused": attack}
        live.http.post(f"/v1/runs/{RUN}/params/ack", json=refused).raise_for_status()
        page = watch.open(RUN_VIEW)
        page.locator(f"#worst .response:has-text({attack!r})").first.wait_for()
        assert attack in page.locator("#audit").inner_text()
        assert attack in page.locator("#params").inner_text()
        assert page.evaluate("window.pwned") is None
        assert page.locator("main img").count() == 0
