// The list of runs, the worst stage first, asked for every few seconds while it is shown.

import { get, skew } from "./api.js";
import { el, fill } from "./dom.js";
import { age, count, reading, UNKNOWN } from "./format.js";
import { stageOf } from "./words.js";

const EVERY_MS = 4000;

export class RunsView {
  constructor(node, shell) {
    this.node = node;
    this.shell = shell;
    this.timer = null;
    this.gone = false;
    this.seenAt = null;
    this.list = el("div", {});
    fill(node, el("h1", {}, "Runs"), this.list);
    fill(this.list, el("p", { class: "quiet" }, "Loading…"));
    this.refresh();
  }

  destroy() {
    this.gone = true;
    clearTimeout(this.timer);
  }

  async refresh() {
    try {
      const { runs } = await get("v1/runs");
      if (this.gone) return;
      this.seenAt = Date.now();
      this.shell.reached();
      this.show(runs);
    } catch (error) {
      if (this.gone) return;
      this.shell.failed(error, this.seenAt);
    }
    this.timer = setTimeout(() => this.refresh(), EVERY_MS);
  }

  show(runs) {
    if (runs.length === 0) {
      fill(this.list, firstRun());
      return;
    }
    const order = [...runs].sort((a, b) => a.retired - b.retired || stageOf(a.stage).rank - stageOf(b.stage).rank
      || (b.last_update_at ?? 0) - (a.last_update_at ?? 0) || a.run.localeCompare(b.run));
    const focused = this.list.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const head = ["Run", "Stage", "Score", "rho_asym", "Update", "Last heard", "Parameters"].map((text, i) =>
      el("th", { scope: "col", class: i >= 2 && i <= 4 ? "right" : null }, text));
    fill(this.list, el("div", { class: "panel scroll", tabindex: 0, role: "region", "aria-label": "Runs" },
      el("table", { class: "runs" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...order.map(row)))));
    if (focused !== null) [...this.list.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus();
  }
}

export function stageChip(name) {
  const stage = stageOf(name);
  return el("span", { class: `chip ${stage.tone}` }, el("span", { "aria-hidden": "true" }, stage.mark), ` ${stage.label}`);
}

function row(run) {
  const heard = run.last_update_at === null ? UNKNOWN : age(Date.now() / 1000 + skew.seconds - run.last_update_at);
  const params = `version ${run.params_version}${run.held_by ? `, held by ${run.held_by}` : ""}`;
  return el("tr", { class: run.retired ? "retired" : null },
    el("th", { scope: "row" }, el("a", { href: `#/run/${encodeURIComponent(run.run)}` }, run.run), run.retired ? el("span", { class: "quiet" }, " retired") : null),
    el("td", {}, stageChip(run.stage)), el("td", { class: "num right" }, reading(run.score)), el("td", { class: "num right" }, reading(run.rho_asym)),
    el("td", { class: "num right" }, run.last_step === null ? UNKNOWN : count(run.last_step)), el("td", {}, heard), el("td", {}, params));
}

function firstRun() {
  const code = `from triage_monitor import Monitor\nmonitor = Monitor("${location.origin}", run="my-run")\n`
    + "monitor.submit(step=step, learner_logprobs=new, sampler_logprobs=old, advantages=advantages, mask=mask)";
  const copied = el("span", { role: "status", class: "quiet" });
  const copy = el("button", { type: "button", onclick: async () => {
    try {
      await navigator.clipboard.writeText(code);
      copied.textContent = "Copied.";
    } catch {
      copied.textContent = "This browser does not let a page copy here: select the lines instead.";
    }
  } }, "Copy");
  return el("section", { class: "panel empty", "aria-labelledby": "empty-title" },
    el("h2", { id: "empty-title" }, "No run yet"),
    el("p", {}, "A run appears with its first update. Three lines in the trainer send one:"),
    el("pre", { tabindex: 0 }, el("code", {}, code)),
    el("p", { class: "buttons" }, copy, copied),
    el("p", { class: "quiet" }, "Or send a recorded run: ", el("code", {}, `triage-monitor replay RUN/ --to ${location.origin}`)));
}
