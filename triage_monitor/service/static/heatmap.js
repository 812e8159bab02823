// The newest update's worst responses, segment by segment: a table whose cells are shaded by their tail's share.

import { el, section, svg } from "./dom.js";
import { count, number, plural, share } from "./format.js";

const SHADES = [0.02, 0.05, 0.125, 0.25, 0.4, 0.6, 0.8]; // tail tokens over valid tokens
const ROOMY = 16; // columns up to which a cell also shows its number

export function heatPanel(worst) {
  const title = worst?.step === null || worst === null ? "Worst responses" : `Worst responses of update ${count(worst.step)}`;
  return section(title, "worst", ...body(worst));
}

function body(worst) {
  if (worst === null || worst.step === null) return [el("p", { class: "quiet" }, "No update yet.")];
  if (worst.shards_with_rows === 0) {
    return [el("p", { class: "quiet" }, "This trainer sends summaries only, which name no response. Send the update's rows"
      + " (submit with arrays) to see which responses and segments hold the tail.")];
  }
  if (worst.responses.length === 0) {
    return [el("p", { class: "quiet" }, `No token amplifies the gap by ${number(worst.tau_ana)} nats or more in this update.`)];
  }
  const partial = worst.shards_with_rows < worst.shards
    ? el("p", { class: "quiet" }, `From ${worst.shards_with_rows} of ${plural(worst.shards, "shard")}: the others sent summaries only.`) : null;
  return [
    el("p", { class: "help" }, `Share of each segment's tokens in the amplifying tail (|gap| at least ${number(worst.tau_ana)} nats, in`
      + ` the direction of the advantage). A dot marks a tail-heavy cell, ${share(worst.phi)} or more.`),
    partial, key(), table(worst),
  ];
}

function shade(part) {
  let level = 0;
  while (level < SHADES.length && part >= SHADES[level]) level += 1;
  return level;
}

function key() {
  const boxes = [0, ...SHADES].map((from, i) => el("li", {}, swatch(i), share(from)));
  return el("ul", { class: "legend heat-key", "aria-label": "Shades: from this share of tokens on" }, ...boxes);
}

function swatch(level) {
  return svg("svg", { width: 16, height: 12, class: "swatch", "aria-hidden": "true" },
    svg("rect", { width: 16, height: 12, class: `heat-fill-${level}` }));
}

function table(worst) {
  const columns = Math.max(...worst.responses.map((item) => item.tokens.length));
  const folds = Math.max(...worst.responses.map((item) => item.per_cell));
  const head = el("tr", {}, el("th", { scope: "col" }, "response"), el("th", { scope: "col", class: "right" }, "A"),
    el("th", { scope: "col", class: "right" }, "tail"), el("th", { scope: "col", class: "right" }, "heavy"),
    ...Array.from({ length: columns }, (_, i) => el("th", { scope: "col", class: "seg" }, columns <= ROOMY || i % 8 === 0 ? String(i + 1) : "")));
  const rows = worst.responses.map((item) => row(item, worst, columns));
  const unit = folds > 1 ? `up to ${folds} segments` : "one segment";
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Worst responses by segment" },
    el("table", { class: columns <= ROOMY ? "heat roomy" : "heat" },
      el("caption", {}, `${plural(rows.length, "response")}, worst first; a column is ${unit} of ${worst.segment} tokens`),
      el("thead", {}, head), el("tbody", {}, ...rows)));
}

function row(item, worst, columns) {
  const name = item.response_id ?? `row ${item.row}`;
  const where = [worst.shards > 1 ? `shard ${item.shard}` : null, item.engine].filter(Boolean).join(", ");
  const cells = Array.from({ length: columns }, (_, i) => cell(item, i, worst, columns <= ROOMY));
  return el("tr", {},
    el("th", { scope: "row" }, el("span", { class: "response" }, name), where ? el("span", { class: "quiet" }, where) : null),
    el("td", { class: "num right" }, number(item.advantage, 2)),
    el("td", { class: "num right" }, `${count(item.tail_tokens)} of ${count(item.valid_tokens)}`),
    el("td", { class: "num right" }, `${count(item.heavy)} of ${count(item.eligible)}`), ...cells);
}

function cell(item, i, worst, roomy) {
  const tokens = item.tokens[i];
  if (tokens === undefined) return el("td", { class: "none" });
  if (tokens === 0) return el("td", { class: "none" }, el("span", { class: "unseen" }, "no valid token"));
  const part = item.tail[i] / tokens;
  const heavy = part >= worst.phi;
  const text = `${item.tail[i]} of ${tokens} tokens, ${share(part)}${heavy ? ", tail-heavy" : ""}; lowest gap ${number(item.lowest[i])}`;
  return el("td", { class: `cell heat-${shade(part)}`, title: `cell ${i + 1}: ${text}` },
    el("span", { class: "unseen" }, text),
    el("span", { "aria-hidden": "true" }, roomy ? `${heavy ? "• " : ""}${share(part)}` : heavy ? "•" : ""));
}
