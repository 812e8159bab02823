"""Pictures of the page, from a served process that was fed over HTTP.

By default of a short synthetic run, into a temporary folder. The README's are of a recorded testbed run:

    TRIAGE_PAGE_RUN=path/to/run/updates TRIAGE_PAGE_LAST=150 pytest tests/service/test_page_pictures.py

writes `dashboards/images/page-{run,dark,phone}.png` from that recording up to that step. A recording does not react:
the parameters that the policy pushes are not acknowledged, and the page says so.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from service.browser import chromium, watched
from service.page_world import RUN, update
from service.served_process import ServedProcess, served

from triage_monitor.storage.recordings_order import index_updates, iter_ordered
from triage_monitor.summary.rows import encode_stream

IMAGES = Path(__file__).parents[2] / "dashboards" / "images"
RECORDED = os.environ.get("TRIAGE_PAGE_RUN")
LAST = int(os.environ.get("TRIAGE_PAGE_LAST", "1000000"))
MOST_BYTES = 250_000
COLOURS = 256
VIEWS: dict[str, dict[str, Any]] = {
    "page-run": {"viewport": {"width": 1320, "height": 1180}, "color_scheme": "light"},
    "page-dark": {"viewport": {"width": 1320, "height": 860}, "color_scheme": "dark"},
    "page-phone": {"viewport": {"width": 380, "height": 800}, "color_scheme": "light", "device_scale_factor": 2},
}


def filled(server: ServedProcess) -> str:
    """Sends the run; returns its name there."""
    if RECORDED is None:
        for step in range(40):
            assert server.put(RUN, step, update(step, growth=0.2)).status_code == 201
        return RUN
    index = index_updates([RECORDED])
    for found in iter_ordered(index):
        if found.step <= LAST:
            assert server.put(index.run, found.step, encode_stream(found.rows)).status_code == 201
    return index.run


def small(png: bytes) -> bytes:
    """The same picture in few colours: a page has not many."""
    out = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        picture.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            out, "PNG", optimize=True
        )
    return out.getvalue()


@pytest.mark.timeout(600)
def test_pictures_show_the_run_with_its_charts_drawn(tmp_path: Path) -> None:
    folder = tmp_path if RECORDED is None else IMAGES
    with chromium() as browser, served(tmp_path / "store") as server:
        run = filled(server)
        for name, view in VIEWS.items():
            with watched(browser, server.address, **view) as watch:
                page = watch.open(f"#/run/{run}")
                page.locator("#worst .heat").wait_for()
                page.locator("#link:has-text('live')").wait_for()
                for chart in ("#chart-score", "#chart-rho"):  # a chart below the fold waits to be seen
                    page.locator(chart).scroll_into_view_if_needed()
                    page.locator(f"{chart} canvas").wait_for()
                page.wait_for_function(DRAWN)
                page.evaluate("scrollTo(0, 0)")
                (folder / f"{name}.png").write_bytes(small(page.screenshot()))
    for name, view in VIEWS.items():
        picture = folder / f"{name}.png"
        assert picture.stat().st_size < MOST_BYTES
        with Image.open(picture) as found:
            scale = view.get("device_scale_factor", 1)
            assert found.size == (view["viewport"]["width"] * scale, view["viewport"]["height"] * scale)


# The first chart's canvas holds more than its ground: some of its pixels are not transparent.
DRAWN = """() => {
  const canvas = document.querySelector("#chart-rho canvas");
  const pixels = canvas?.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return pixels !== undefined && pixels.some((value, i) => i % 4 === 3 && value > 0);
}"""
