"""One page of `/metrics` is made at a time; who asks meanwhile shares the next one, never the one under way."""

from __future__ import annotations

import asyncio
import threading

import pytest

from triage_monitor.service.exposition_text import SharedPage


def test_those_who_ask_while_a_page_is_made_share_the_next_one() -> None:
    begun, go_on, made = threading.Event(), threading.Event(), list[bytes]()

    def render() -> bytes:
        made.append(b"%d" % len(made))
        begun.set()
        assert go_on.wait(60)
        return made[-1]

    async def scrape() -> list[bytes]:
        page = SharedPage(render)
        first = asyncio.create_task(page.made())
        assert await asyncio.to_thread(begun.wait, 60)
        others = [asyncio.create_task(page.made()) for _ in range(20)]
        await asyncio.sleep(0)
        go_on.set()
        return list(await asyncio.gather(first, *others))

    assert asyncio.run(scrape()) == [b"0", *[b"1"] * 20]
    assert len(made) == 2


def test_scraper_that_leaves_takes_the_page_from_nobody_and_a_failure_is_not_kept() -> None:
    failing = [True]

    def render() -> bytes:
        if failing.pop():
            raise OSError("no")
        return b"page"

    async def scrape() -> bytes:
        page = SharedPage(render)
        with pytest.raises(OSError, match="no"):
            await page.made()
        failing.append(False)
        leaving, staying = asyncio.create_task(page.made()), asyncio.create_task(page.made())
        await asyncio.sleep(0)
        leaving.cancel()
        return await staying

    assert asyncio.run(scrape()) == b"page"
