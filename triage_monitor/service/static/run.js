// One run, live: loads what is known, then follows its events. An event only says what to ask for again.

import { get, skew, stream } from "./api.js";
import { Chart } from "./charts.js";
import { controlsPanel } from "./controls.js";
import { el, fill, fillIfChanged, throttled } from "./dom.js";
import { age, count, plural, reading } from "./format.js";
import { heatPanel } from "./heatmap.js";
import { auditPanel, changesOf, findingsPanel, paramsPanel, stagesPanel, whyPanel } from "./lists.js";
import { PANELS } from "./panels.js";
import { Columns, INDICATORS, SCORE } from "./series.js";
import { banner, integrity, stageOf } from "./words.js";

const PART_STEPS = 1000; // the newest are shown at once; older ones follow in parts
const LIVE_MS = 400;
const SLOW_MS = 2500;
const RANGES = [["all", "All"], ["500", "Last 500"], ["100", "Last 100"]];

export class RunView {
  constructor(node, shell, name) {
    Object.assign(this, { node, shell, name, scope: "window", last: null, gone: false, live: false, seenAt: null });
    this.base = `v1/runs/${encodeURIComponent(name)}`;
    this.columns = new Columns();
    this.shared = {
      columns: this.columns, range: null, thresholds: {}, stages: [], changes: [], reasons: {},
      zoom: (range) => this.zoom(range), pointed: (step) => this.pointed(step),
    };
    this.said = new Map();
    this.pending = null; // the first step that has to be read again
    this.charts = PANELS.map((panel) => new Chart(panel, this.shared));
    this.layout();
    this.followUpdates = throttled(() => this.readUpdates(), LIVE_MS);
    this.followRest = throttled(() => this.readRest(), SLOW_MS);
    this.ticker = setInterval(() => this.tick(), 1000);
    this.start();
  }

  layout() {
    const slot = (id, cls = "") => el("div", { id: `slot-${id}`, class: cls });
    this.slots = Object.fromEntries(["why", "controls", "findings", "params", "changes", "audit", "worst"].map((id) => [id, slot(id)]));
    this.banner = el("section", { class: "banner", "aria-label": "Stage", "aria-live": "polite", "aria-atomic": "true" });
    this.facts = el("dl", { class: "facts" });
    this.alerts = el("div", {});
    this.strip = el("div", { class: "strip" });
    this.at = el("span", { class: "quiet num" });
    this.scopes = choice("Values", [["window", "25-update window"], ["update", "Each update"]], this.scope, (value) => this.rescope(value));
    this.ranges = choice("Range", RANGES, "all", (value) => this.lastOnly(value));
    fill(this.node,
      el("h1", { class: "unseen" }, `Run ${this.name}`), this.banner, this.facts, this.alerts,
      el("div", { class: "columns" },
        el("div", { class: "wide" },
          el("div", { class: "chart-tools" }, this.scopes, this.ranges, this.at), this.strip,
          el("section", { class: "charts", "aria-label": "Charts" }, ...this.charts.map((chart) => chart.node)), this.slots.worst),
        el("aside", { class: "side", "aria-label": "Why, findings and control" },
          ...["why", "controls", "findings", "params", "changes", "audit"].map((id) => this.slots[id]))));
  }

  async start() {
    try {
      await this.readDetail();
      const newest = this.detail.last_update?.step ?? -1;
      if (newest >= 0) {
        const first = Math.max(0, newest - PART_STEPS + 1);
        this.columns.replaceFrom(first, await this.series(first, null));
        this.redraw();
      }
      await this.readRest();
      await this.readOlder();
    } catch (error) {
      if (this.gone) return;
      this.shell.failed(error, this.seenAt);
      if (error.status === 404 || error.status === 422) { // 422: what no run can be called
        fill(this.node, el("section", { class: "panel empty" }, el("h1", {}, "No such run"), el("p", {}, error.message), el("p", {}, el("a", { href: "#/" }, "All runs"))));
        return;
      }
      if (error.status === 401 || error.status === 403) return;
      this.retry = setTimeout(() => this.start(), 2000);
      return;
    }
    if (!this.gone) this.unfollow = stream(`${this.base}/events`, (event, data) => this.heard(event, data), (state) => this.connection(state));
  }

  // Backwards from what is shown; past a gap in the steps the rest is asked for at once.
  async readOlder() {
    let part = PART_STEPS;
    while (!this.gone && this.columns.length > 0) {
      const before = this.columns.steps[0];
      if (before === 0) return;
      const from = Math.max(0, before - part);
      const answer = await this.series(from, before - 1);
      if (this.gone) return;
      this.columns.putBefore(answer);
      this.redraw();
      if (this.columns.steps[0] === before) {
        if (from === 0) return;
        part = before;
      }
    }
  }

  destroy() {
    this.gone = true;
    this.unfollow?.();
    clearTimeout(this.retry);
    clearInterval(this.ticker);
    for (const chart of this.charts) chart.destroy();
  }

  retheme() {
    for (const chart of this.charts) chart.retheme();
  }

  heard(event, data) {
    if (event === "update") this.again(data.step);
    this.followUpdates();
    if (event === "params" || event === "action" || event === "stage") this.followRest();
  }

  // Everything from this step on has to be read again; a late update lies before the newest.
  again(step) {
    this.pending = this.pending === null ? step : Math.min(this.pending, step);
  }

  connection({ live, error }) {
    this.live = live;
    if (live) {
      this.again(this.columns.lastStep + 1); // what was missed meanwhile
      this.followUpdates();
      this.followRest();
    } else if (error !== null) {
      this.shell.failed(error, this.seenAt);
    }
    this.tick();
  }

  async readUpdates() {
    const from = this.pending;
    this.pending = null;
    try {
      const [, answer] = await Promise.all([this.readDetail(), from === null ? null : this.series(from, null)]);
      if (answer !== null && !this.gone) {
        this.columns.replaceFrom(from, answer);
        if (this.lastWanted) this.lastOnly(this.lastWanted);
        this.redraw();
        this.followRest();
      }
    } catch (error) {
      if (from !== null) this.again(from);
      if (!this.gone) this.shell.failed(error, this.seenAt);
    }
  }

  async series(from, to) {
    const names = [...INDICATORS, SCORE];
    const path = (wanted, scope) => `${this.base}/series?scope=${scope}&from=${from}${to === null ? "" : `&to=${to}`}&${wanted.map((name) => `name=${name}`).join("&")}`;
    if (this.scope === "window") return (await get(path(names, "window"))).series;
    const [values, score] = await Promise.all([get(path(INDICATORS, "update")), get(path([SCORE], "window"))]);
    return [...values.series, ...score.series];
  }

  async readDetail() {
    const detail = await get(this.base);
    if (this.gone) return;
    this.detail = detail;
    this.seenAt = Date.now();
    this.shell.reached();
    this.shared.thresholds = detail.thresholds ?? {};
    this.shared.reasons = detail.window?.reasons ?? {};
    this.show();
  }

  async readRest() {
    try {
      const [transitions, history, actions, worst] = await Promise.all([
        get(`${this.base}/transitions?limit=1000`), get(`${this.base}/params/history`), get(`${this.base}/actions`), get(`${this.base}/worst`)]);
      if (this.gone) return;
      this.shared.stages = spans(transitions.transitions, this.detail.stage);
      this.shared.changes = changesOf(history);
      this.put("params", paramsPanel(this.detail, history));
      this.put("audit", auditPanel(actions.actions));
      this.put("changes", stagesPanel(transitions.transitions));
      this.put("worst", heatPanel(worst));
      const marks = JSON.stringify([this.shared.stages, this.shared.changes]);
      if (marks !== this.marks) {
        this.marks = marks;
        this.redraw();
      }
    } catch (error) {
      if (!this.gone) this.shell.failed(error, this.seenAt);
    }
  }

  // Only when it says something new, so that no button is swapped under a click; keeps what the reader had opened and
  // where the keyboard was: on the same button, or where that has gone (Freeze becomes Release) on the panel's first.
  put(id, panel) {
    const slot = this.slots[id];
    if (this.said.get(id) === panel.outerHTML) return;
    this.said.set(id, panel.outerHTML);
    const open = [...slot.querySelectorAll("details")].map((item) => item.open);
    const focused = slot.contains(document.activeElement) ? document.activeElement.id : "";
    fill(slot, panel);
    [...slot.querySelectorAll("details")].forEach((item, i) => { item.open = open[i] ?? false; });
    if (focused !== "") (document.getElementById(focused) ?? slot.querySelector("button"))?.focus();
  }

  show() {
    const { detail } = this;
    const said = banner(detail);
    this.banner.className = `banner ${said.tone}`;
    fillIfChanged(this.banner,
      el("p", { class: "stage" }, el("span", { class: "mark", "aria-hidden": "true" }, said.mark), el("b", {}, said.label)),
      el("p", { class: "headline" }, said.headline), ...said.sentences.map((text) => el("p", {}, text)),
      said.todo ? el("p", { class: "todo" }, el("b", {}, "What to do: "), said.todo) : null);
    const fact = (name, value) => el("div", {}, el("dt", {}, name), el("dd", { class: "num" }, value));
    const window = detail.window ?? {};
    fill(this.facts, fact("Update", detail.last_update ? count(detail.last_update.step) : "none"), fact("Attempt", String(detail.attempt)),
      fact("Window", plural(window.updates ?? 0, "update")), fact("Tokens in it", count(window.counts?.valid_tokens ?? 0)),
      fact("Reward", reading(window.indicators?.reward_mean)), fact("Pushed", `version ${detail.params_version}`),
      fact("In force", detail.params_applied ? `version ${detail.params_applied.version}` : "unconfirmed"), fact("Precision pushed", detail.params.precision));
    this.showAlerts();
    this.put("why", whyPanel(detail));
    this.put("controls", controlsPanel(this.name, detail, (error) => (error ? this.shell.failed(error, this.seenAt) : this.acted())));
    this.put("findings", findingsPanel(detail));
  }

  showAlerts() {
    const notices = (this.detail.notices ?? []).map((item) => el("li", { class: item.severity },
      el("b", {}, item.severity === "alarm" ? "▲ Alarm: " : "Notice: "), item.text, el("span", { class: "quiet" }, ` (since update ${item.since_step})`)));
    const flaws = integrity(this.detail).map((text) => el("li", { class: "flaw" }, el("b", {}, "Data: "), text));
    fillIfChanged(this.alerts, notices.length + flaws.length ? el("ul", { class: "notices", "aria-label": "Notices" }, ...notices, ...flaws) : null);
  }

  acted() {
    this.readUpdates();
    this.readRest();
  }

  redraw() {
    drawStrip(this.strip, this.shared, this.columns);
    for (const chart of this.charts) chart.changed();
  }

  zoom(range) {
    this.lastWanted = null;
    this.shared.range = range;
    this.ranges.choose(range === null ? "all" : "");
    this.redraw();
  }

  lastOnly(value) {
    this.lastWanted = value === "all" ? null : value;
    const { steps, length } = this.columns;
    this.shared.range = value === "all" || length === 0 ? null : [steps[Math.max(0, length - Number(value))], steps[length - 1]];
    this.redraw();
  }

  async rescope(value) {
    this.scope = value;
    this.again(0);
    await this.readUpdates();
  }

  pointed(step) {
    this.at.textContent = `update ${count(step)}`;
  }

  tick() {
    if (this.gone || !this.live) return;
    const at = this.detail?.last_update?.closed_at;
    this.shell.link(at === undefined ? "live" : `live, last update ${age(Date.now() / 1000 + skew.seconds - at)}`, "ok");
  }
}

function choice(label, options, chosen, changed) {
  const buttons = options.map(([value, text]) => el("button", { type: "button", "aria-pressed": String(value === chosen), "data-value": value,
    onclick: () => { group.choose(value); changed(value); } }, text));
  const group = el("div", { class: "choice", role: "group", "aria-label": label }, ...buttons);
  group.choose = (value) => { for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.value === value)); };
  return group;
}

// Stages as spans of steps; the last one is open.
function spans(transitions, stage) {
  const found = transitions.map((item, i) => ({ from: item.step, to: transitions[i + 1]?.step ?? null, stage: item.to_stage }));
  const first = { from: 0, to: found[0]?.from ?? null, stage: transitions[0]?.from_stage ?? stage };
  return [first, ...found].filter((span) => span.to === null || span.to > span.from);
}

function drawStrip(node, shared, columns) {
  if (columns.length === 0) {
    fill(node);
    return;
  }
  const [low, high] = shared.range ?? [columns.steps[0], columns.lastStep];
  const width = Math.max(1, high - low);
  const parts = shared.stages.map(({ from, to, stage }) => {
    const [left, right] = [Math.max(low, from), Math.min(high, to ?? high)];
    if (right < left || (right === left && to !== null)) return null;
    const found = stageOf(stage);
    const part = el("li", { class: `span ${found.tone}`, title: `${found.label} from update ${from}` },
      el("span", { "aria-hidden": "true" }, found.mark), el("span", { class: "span-label" }, found.label), el("span", { class: "unseen" }, ` from update ${from}`));
    part.style.flexGrow = String(Math.max(0.004, (right - left) / width));
    return part;
  });
  fill(node, el("ol", { "aria-label": "Stages over time" }, ...parts.filter(Boolean)));
}
