// One chart: a card with title, legend, and a uPlot canvas that is redrawn only while it can be seen.

import { el, svg } from "./dom.js";
import { number, plural, reading, words } from "./format.js";
import { namesOf } from "./panels.js";
import { thinned } from "./series.js";
import { stageOf } from "./words.js";

const HEIGHT = 168;
const FONT = "11px system-ui, sans-serif";
const TINTS = { watch: "--tint-watch", alarm: "--tint-alarm", dead: "--tint-dead", blind: "--tint-blind" };

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// One chart a frame: a page of a dozen stays answerable while they are drawn, and a hidden page draws none.
const waiting = new Set();

function drawSoon(chart) {
  if (waiting.size === 0) requestAnimationFrame(drawNext);
  waiting.add(chart);
}

function drawNext() {
  const [next] = waiting;
  if (next === undefined) return;
  waiting.delete(next);
  next.draw();
  if (waiting.size > 0) requestAnimationFrame(drawNext);
}

export class Chart {
  // `shared` is what all charts of a run share: columns, range, thresholds, stages, changes, reasons, and `zoom`.
  constructor(panel, shared) {
    this.panel = panel;
    this.shared = shared;
    this.plot = null;
    this.stale = true;
    this.visible = false;
    this.values = panel.lines.filter((item) => item.label).map((item) => ({ item, node: el("b", { class: "num" }) }));
    this.canvas = el("div", { class: "plot", tabindex: 0, role: "img", "aria-label": `${panel.title}, ${panel.unit}`, onkeydown: (event) => this.key(event) });
    this.note = el("p", { class: "quiet nothing", hidden: true });
    this.node = el("article", { class: "panel chart", id: `chart-${panel.id}`, "aria-labelledby": `chart-${panel.id}-title` },
      el("header", {}, el("h3", { id: `chart-${panel.id}-title` }, panel.title), el("span", { class: "unit" }, panel.unit)),
      el("p", { class: "help" }, panel.help), this.legend(), this.canvas, this.note);
    this.observer = new IntersectionObserver((seen) => {
      this.visible = seen.at(-1).isIntersecting;  // the newest of those that were queued
      if (this.visible && this.stale) drawSoon(this);
    }, { rootMargin: "200px" });
    this.observer.observe(this.node);
    this.resizer = new ResizeObserver(() => this.fit());
    this.resizer.observe(this.canvas);
  }

  legend() {
    const bands = (this.panel.bands ?? []).map((band) => el("li", {},
      svg("svg", { width: 18, height: 10, class: "swatch", "aria-hidden": "true" },
        svg("rect", { width: 18, height: 10, class: `fill${band.colour}`, "fill-opacity": parseInt(band.opacity, 16) / 255 })),
      band.label));
    const lines = this.values.map(({ item, node }) => el("li", {},
      svg("svg", { width: 22, height: 10, class: "swatch", "aria-hidden": "true" },
        svg("line", { x1: 0, y1: 5, x2: 22, y2: 5, class: `stroke${item.colour}`, "stroke-width": 2.5, "stroke-dasharray": item.dash.join(" ") })),
      item.label, node));
    return el("ul", { class: "legend", "aria-label": `Legend of ${this.panel.title}` }, ...lines, ...bands);
  }

  changed() {
    this.stale = true;
    if (this.visible) drawSoon(this);
  }

  retheme() {
    this.plot?.destroy();
    this.plot = null;
    this.changed();
  }

  destroy() {
    waiting.delete(this);
    this.observer.disconnect();
    this.resizer.disconnect();
    this.plot?.destroy();
  }

  fit() {
    const width = this.canvas.clientWidth;
    if (width === 0) return;
    if (this.plot === null) {
      if (this.visible && this.stale) drawSoon(this);
    } else if (Math.abs(this.plot.width - width) > 1) {
      this.plot.setSize({ width, height: HEIGHT });
      this.changed();
    }
  }

  draw() {
    this.stale = false;
    const { columns, range } = this.shared;
    const names = namesOf(this.panel);
    const empty = columns.length === 0 || names.every((name) => columns.column(name).every((value) => value === null));
    this.canvas.hidden = empty;
    this.note.hidden = !empty;
    if (empty) {
      this.note.textContent = this.missing();
      this.read(null);
      return;
    }
    const width = this.canvas.clientWidth;  // of a canvas that is shown: a hidden one has none
    if (width === 0) {
      this.stale = true;
      return;
    }
    const from = range === null ? 0 : columns.placeOf(range[0]);
    const to = range === null ? columns.length : columns.placeOf(range[1] + 1e-9);
    const data = thinned(columns.slice(names, from, to), Math.max(50, Math.round((width - 60) / 2)));
    if (this.panel.scale === "log") for (const column of data.slice(1)) noneBelow(column);
    if (this.plot === null) this.plot = new uPlot(this.options(width), data, this.canvas);
    else this.plot.setData(data);
    this.read(null);
    this.canvas.setAttribute("aria-label", this.summary());
  }

  missing() {
    if (this.shared.columns.length === 0) return "No update yet.";
    if (this.panel.unsent) return this.panel.unsent;
    const reason = namesOf(this.panel).map((name) => this.shared.reasons[name]).find(Boolean);
    return reason ? `No value: ${words(reason)}.` : "No value yet.";
  }

  summary() {
    const { columns } = this.shared;
    const now = this.values.map(({ item }) => `${item.label} ${reading(columns.newest(item.name))}`).join(", ");
    return `${this.panel.title}, ${this.panel.unit}. ${plural(columns.length, "update")}, at ${columns.lastStep}: ${now}. Arrow keys read other updates.`;
  }

  // Shows the values at a place of the full columns, or the newest.
  read(place) {
    const { columns } = this.shared;
    const at = place ?? columns.length - 1;
    for (const { item, node } of this.values) node.textContent = reading(columns.column(item.name)[at] ?? null);
    if (place !== null) this.shared.pointed(columns.steps[at]);
  }

  key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (move === undefined || this.plot === null) return;
    event.preventDefault();
    const { columns } = this.shared;
    const now = this.plot.cursor.left >= 0 ? columns.nearest(this.plot.posToVal(this.plot.cursor.left, "x")) : columns.length - 1;
    const next = Math.max(0, Math.min(columns.length - 1, now + move));
    this.plot.setCursor({ left: this.plot.valToPos(columns.steps[next], "x"), top: 10 }, true, true);
    this.canvas.setAttribute("aria-label", this.values.reduce(
      (text, { item }) => `${text}, ${item.label} ${reading(columns.column(item.name)[next])}`, `Update ${columns.steps[next]}`));
  }

  options(width) {
    const { panel, shared } = this;
    const axis = { stroke: colour("--soft"), font: FONT, grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), width: 1, size: 4 } };
    const names = namesOf(panel);
    return {
      width, height: HEIGHT, padding: [8, 10, 0, 0], legend: { show: false }, pxAlign: true,
      cursor: { sync: { key: "run" }, drag: { x: true, y: false, setScale: false }, points: { size: 6 }, focus: { prox: -1 } },
      scales: { x: { time: false, range: (_, low, high) => xRange(low, high) }, y: yScale(panel) },
      axes: [
        { ...axis, size: 26, space: 60, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick.toLocaleString("en") : "")) },
        { ...axis, size: 50, space: 26, splits: splitsOf(panel), values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) },
      ],
      series: [{}, ...panel.lines.map((item) => ({
        label: item.label ?? item.name, stroke: item.width ? colour(item.colour) : "transparent", width: item.width || 0,
        dash: item.dash.length ? item.dash : undefined, points: { size: 4, show: item.width ? undefined : false },
      }))],
      bands: (panel.bands ?? []).map((band) => ({
        series: band.between.map((name) => names.indexOf(name) + 1), fill: colour(band.colour) + band.opacity,
      })),
      hooks: {
        drawClear: [(plot) => tint(plot, shared.stages)],
        draw: [(plot) => mark(plot, panel, shared)],
        setCursor: [(plot) => this.read(plot.cursor.left >= 0 ? shared.columns.nearest(plot.posToVal(plot.cursor.left, "x")) : null)],
        setSelect: [(plot) => {
          if (plot.select.width < 4) return;
          shared.zoom([plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")]);
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        }],
      },
    };
  }
}

function noneBelow(column) {
  for (let i = 0; i < column.length; i += 1) if (!(column[i] > 0)) column[i] = null;
}

function xRange(low, high) {
  return low === null ? [0, 1] : low === high ? [low - 1, high + 1] : [low, high];
}

function yScale(panel) {
  if (panel.scale === "log") return { distr: 3, range: (_, low, high) => around(panel, low, high, true) };
  if (panel.scale === "asinh") return { distr: 4, asinh: 0.02, range: (_, low, high) => around(panel, low, high, false) };
  if (panel.scale === "share") return { range: () => [0, 1] };
  if (panel.scale === "share0") return { range: (_, low, high) => [0, Math.min(1, Math.max(0.2, (high ?? 0) * 1.2))] };
  return { range: (_, low, high) => around(panel, low, high, false) };
}

// Decades on either side of 0, or 1-2-5 steps: what people read off such an axis; uPlot's own where that is linear.
function splitsOf(panel) {
  if (panel.scale === "asinh") return (_, __, low, high) => [-100, -10, -1, -0.1, 0, 0.1, 1, 10, 100].filter((tick) => tick >= low && tick <= high);
  if (panel.scale !== "log") return undefined;
  return (_, __, low, high) => {
    const found = [];
    const wide = high / low > 200;
    const steps = wide ? [1] : high / low > 8 ? [1, 2, 5] : [1, 1.25, 1.5, 2, 3, 4, 5, 6, 8];
    for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(high); decade += 1) {
      for (const step of steps) found.push(step * 10 ** decade);
    }
    return found.filter((tick) => tick >= low && tick <= high);
  };
}

// A little air, and never closer than `floor`, so that noise does not fill the chart.
function around(panel, low, high, log) {
  const [under, over] = panel.floor ?? [low ?? 0, high ?? 1];
  let [bottom, top] = [Math.min(low ?? under, under), Math.max(high ?? over, over)];
  if (bottom === top) [bottom, top] = log ? [bottom / 2, top * 2] : [bottom - 0.5, top + 0.5];
  if (log) return [bottom / 1.08, top * 1.08];
  const air = (top - bottom) * 0.06;
  return [panel.floor && bottom === panel.floor[0] ? bottom : bottom - air, top + air];
}

// The run's stages as tinted background; the strip above the charts names them.
function tint(plot, stages) {
  const { ctx, bbox } = plot;
  for (const { from, to, stage } of stages) {
    const name = TINTS[stageOf(stage).tone];
    if (name === undefined) continue;
    const left = Math.max(bbox.left, plot.valToPos(from, "x", true));
    const right = Math.min(bbox.left + bbox.width, to === null ? Infinity : plot.valToPos(to, "x", true));
    if (right <= left) continue;
    ctx.fillStyle = colour(name);
    ctx.fillRect(left, bbox.top, right - left, bbox.height);
  }
}

function mark(plot, panel, shared) {
  const { ctx, bbox } = plot;
  const dpr = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.lineWidth = dpr;
  ctx.font = `${10.5 * dpr}px system-ui, sans-serif`;
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  let before = null; // the label drawn last: one at its height stands behind it, not over it
  for (const { at, label, colour: name } of panel.levels ? panel.levels(shared.thresholds) : []) {
    const y = Math.round(plot.valToPos(at, "y", true)) + 0.5;
    ctx.strokeStyle = colour(name);
    ctx.setLineDash([5 * dpr, 4 * dpr]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.fillStyle = colour("--soft");
    const text = `${label} ${number(at)}`;
    const left = before !== null && Math.abs(y - before.y) < 12 * dpr ? before.end + 10 * dpr : bbox.left + 5 * dpr;
    ctx.fillText(text, left, y - 4 * dpr);
    before = { y, end: left + ctx.measureText(text).width };
  }
  ctx.strokeStyle = colour("--ink");
  ctx.setLineDash([1 * dpr, 3 * dpr]);
  for (const step of shared.changes) {
    const x = Math.round(plot.valToPos(step, "x", true)) + 0.5;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}
