"""5,000 updates in the charts against blank charts in the same browser, and thinning that loses no spike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from service.browser import chromium, watched
from service.live_server import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Every chart of the run's view on columns of `count` updates; median milliseconds of one more update in all of them.
MEASURE = """async (count) => {
  const [{ Chart }, { PANELS }, { Columns, INDICATORS, SCORE }] = await Promise.all(
    ["charts", "panels", "series"].map((name) => import(`/static/${name}.js`)));
  const columns = new Columns();
  const names = [...INDICATORS, SCORE];
  const wave = (step, i) => 0.5 + 0.4 * Math.sin(step / (7 + i)) + 0.05 * Math.sin(step * 12.9898);
  const answer = (steps) => names.map((name, i) => ({ name, steps, values: steps.map((step) => wave(step, i)) }));
  columns.replaceFrom(0, answer(Array.from({ length: count }, (_, i) => i)));
  const shared = { columns, range: null, thresholds: {}, stages: [], changes: [], reasons: {},
    zoom() {}, pointed() {} };
  const charts = PANELS.map((panel) => new Chart(panel, shared));
  const main = document.getElementById("main");
  main.replaceChildren(...charts.map((chart) => chart.node));
  for (const chart of charts) { chart.observer.disconnect(); chart.visible = true; chart.draw(); }
  await new Promise((resolve) => setTimeout(resolve, 300));
  const took = [];
  for (let i = 0; i < 20; i += 1) {
    await new Promise((resolve) => requestAnimationFrame(resolve));
    const started = performance.now();
    columns.replaceFrom(columns.lastStep + 1, answer([columns.lastStep + 1]));
    for (const chart of charts) chart.draw();
    await Promise.resolve().then(() => {});
    took.push(performance.now() - started);
  }
  const drawn = charts.filter((chart) => chart.plot !== null).length;
  for (const chart of charts) chart.destroy();
  took.sort((a, b) => a - b);
  return { drawn, panels: PANELS.length, milliseconds: took[10] };
}"""

THINNED = """async () => {
  const { thinned } = await import("/static/series.js");
  const xs = Array.from({ length: 50_000 }, (_, i) => i);
  const flat = xs.map(() => 1);
  flat[31_415] = 99; flat[31_416] = -99; flat[7] = null;
  const gone = xs.map(() => null);
  const data = thinned([xs, flat, gone], 400);
  const few = thinned([[1, 2, 3], [4, null, 6]], 400);
  return { lengths: data.map((column) => column.length), high: Math.max(...data[1]), low: Math.min(...data[1]),
    order: data[0].every((x, i) => i === 0 || x > data[0][i - 1]), ends: [data[0][0], data[0].at(-1)],
    empty: data[2].every((value) => value === null), few };
}"""

COLUMNS = """async () => {
  const { Columns } = await import("/static/series.js");
  const columns = new Columns(["a"]);
  const put = (first, steps, values) => columns.replaceFrom(first, [{ name: "a", steps, values }]);
  put(0, [10, 20, 30], [1, 2, 3]);
  put(20, [20, 25, 30], [5, null, 6]);
  columns.putBefore([{ name: "a", steps: [1, 2, 10], values: [7, 8, 9] }]);
  return [columns.steps, columns.column("a"), columns.nearest(22), columns.nearest(1000), columns.placeOf(25)];
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.mark.perf
def test_one_more_update_on_five_thousand_costs_a_few_times_a_blank_chart(browser: Browser) -> None:
    with serving() as live, watched(browser, live.address) as watch:
        page = watch.open()
        page.locator(".empty").wait_for()
        blank = page.evaluate(MEASURE, 2)
        full = page.evaluate(MEASURE, 5000)
    assert blank["drawn"] == full["drawn"] == full["panels"]
    print(f"blank {blank['milliseconds']:.1f} ms, 5,000 updates {full['milliseconds']:.1f} ms")
    assert full["milliseconds"] < 8 * max(blank["milliseconds"], 1.0)


def test_thinning_keeps_every_extreme_the_order_and_the_ends(browser: Browser) -> None:
    with serving() as live, watched(browser, live.address) as watch:
        found = watch.open().evaluate(THINNED)
    assert found["lengths"] == [800, 800, 800]
    assert (found["high"], found["low"]) == (99, -99)
    assert found["order"] and found["ends"] == [0, 49_999] and found["empty"]
    assert found["few"] == [[1, 2, 3], [4, None, 6]]


def test_columns_take_a_late_update_in_its_place_and_older_history_in_front(browser: Browser) -> None:
    with serving() as live, watched(browser, live.address) as watch:
        found = watch.open().evaluate(COLUMNS)
    assert found == [[1, 2, 10, 20, 25, 30], [7, 8, 1, 5, None, 6], 3, 5, 4]
