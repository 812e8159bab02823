// What stands beside the charts: why the score is what it is, findings, parameters over time, the audit trail.

import { el, section } from "./dom.js";
import { capital, clock, number, reading, UNKNOWN, words } from "./format.js";
import { TERMS } from "./words.js";

const SHOWN = 12;

export function whyPanel(detail) {
  const score = detail.window?.score;
  if (!score) {
    return section("Why", "why", el("p", { class: "quiet" }, "No score yet: it needs a baseline of this run's own."));
  }
  const shares = Object.entries(score.shares).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  const telling = shares.filter(([, value]) => Math.abs(value) >= 0.005);
  const largest = Math.max(1, ...shares.map(([, value]) => Math.abs(value)));
  const bars = telling.map(([name, value]) => {
    const bar = el("span", { class: value < 0 ? "bar-fill below" : "bar-fill" });
    bar.style.width = `${Math.max(1, (100 * Math.abs(value)) / largest)}%`;
    return el("li", {}, el("span", {}, TERMS[name] ?? words(name)),
      el("b", { class: "num" }, value >= 0 ? `+${reading(value, 2)}` : reading(value, 2)), el("span", { class: "bar-track" }, bar));
  });
  return section("Why the score is what it is", "why",
    el("p", { class: "figure" }, el("b", {}, reading(score.value)), el("span", {}, score.value >= 1 ? "at or above the alarm (1)" : "alarm at 1")),
    telling.length ? el("ul", { class: "bars" }, ...bars) : el("p", { class: "quiet" }, "Nothing stands out."),
    el("p", { class: "quiet" }, `The shares add up to the score. The gaps alone come to ${reading(score.mismatch)}.`));
}

export function findingsPanel(detail) {
  const findings = detail.findings ?? [];
  const rows = findings.map((item) => el("li", { class: `finding ${item.kind}` },
    el("p", {}, el("b", {}, capital(words(item.cause))), " ",
      el("span", { class: "tag" }, item.kind === "fault" ? "fault" : "note"), " ",
      el("span", { class: "quiet" }, `since update ${item.step}, confidence ${item.confidence}`)),
    el("p", {}, `${capital(item.text)}.`),
    el("p", { class: "remedy" }, el("b", {}, "What to do: "), item.remedy),
    evidence(item.evidence)));
  return section("Findings", "findings", findings.length
    ? el("ul", { class: "plain" }, ...rows)
    : el("p", { class: "quiet" }, "No cause is named. Nothing in the columns sent points at one."));
}

function evidence(found) {
  const items = Object.entries(found ?? {});
  if (items.length === 0) return null;
  return el("details", {}, el("summary", {}, "Evidence"),
    el("dl", { class: "pairs" }, ...items.flatMap(([name, value]) => [
      el("dt", {}, words(name)),
      el("dd", {}, Array.isArray(value) ? value.join(", ") : typeof value === "number" ? number(value) : String(value))])));
}

export function flat(params, prefix = "") {
  return Object.entries(params ?? {}).flatMap(([name, value]) =>
    value !== null && typeof value === "object" ? flat(value, `${prefix}${name}.`) : [[`${prefix}${name}`, value]]);
}

const BOOKKEEPING = ["version", "issued_at_step", "reason", "epoch", "issuer"];

export function differences(before, after) {
  const old = new Map(flat(before));
  return flat(after).filter(([name, value]) => !BOOKKEEPING.includes(name) && old.get(name) !== value)
    .map(([name, value]) => `${name} ${old.get(name) ?? UNKNOWN} → ${value}`);
}

export function paramsPanel(detail, history) {
  const acks = new Map();
  for (const ack of history.acknowledgements ?? []) {
    if (!acks.has(ack.version)) acks.set(ack.version, []);
    acks.get(ack.version).push(ack);
  }
  const rows = history.versions.map((row, i) => version(row, setBefore(history, i), acks.get(row.params.version) ?? []));
  const applied = detail.params_applied;
  const state = applied === null && detail.params_version === 0
    ? "Nothing was pushed yet: the trainer runs on the set it began with."
    : applied === null
    ? `Version ${detail.params_version} is pushed; no trainer has acknowledged one yet.`
    : applied.version === detail.params_version
      ? `Version ${applied.version} is in force in the trainer since update ${applied.step}.`
      : `Version ${detail.params_version} is pushed; the trainer still runs on ${applied.version}.`;
  return section("Parameters", "params", el("p", {}, state),
    detail.policy_note ? el("p", { class: "quiet" }, `Policy: ${detail.policy_note}.`) : null,
    folded(rows.reverse(), "version"), inForce(detail.params));
}

// What a version replaced: the one before it, the set the run began with, or null where that is too far back.
function setBefore(history, i) {
  if (i > 0) return history.versions[i - 1].params;
  return history.versions[0].params.version === 1 ? history.initial : null;
}

// The updates at which a version changed something; a first one that only repeats the run's own start did not.
export function changesOf(history) {
  return history.versions.filter((row, i) => i > 0 || setBefore(history, 0) === null || differences(history.initial, row.params).length > 0)
    .map((row) => row.params.issued_at_step);
}

function version(row, before, acks) {
  const what = before === null ? ["follows a version too old to be listed"] : differences(before, row.params);
  const said = acks.map((ack) => ack.refused
    ? el("span", { class: "tag bad" }, `refused at update ${ack.step}: ${ack.refused}`)
    : el("span", { class: "tag good" }, `✓ in force from update ${ack.step}`));
  return el("li", {},
    el("p", {}, el("b", {}, `Version ${row.params.version}`), el("span", { class: "quiet" },
      ` pushed at update ${row.params.issued_at_step} by ${row.actor}, ${clock(row.at)}`)),
    el("p", { class: "what" }, what.join(", ") || (row.params.version === 1 ? "the set the run began with" : "nothing changed")),
    el("p", {}, ...(said.length ? said : [el("span", { class: "tag" }, "not acknowledged")])),
    row.reason ? el("details", {}, el("summary", {}, "Reason"), el("p", {}, row.reason)) : null);
}

function inForce(params) {
  const items = flat(params).filter(([name]) => !BOOKKEEPING.includes(name));
  return el("details", {}, el("summary", {}, "All values of the newest set"),
    el("dl", { class: "pairs" }, ...items.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))])));
}

export function auditPanel(actions) {
  const rows = actions.map((item) => el("li", {},
    el("p", {}, el("b", {}, words(item.kind)), " ",
      el("span", { class: item.outcome === "refused" ? "tag bad" : "tag" }, item.outcome),
      el("span", { class: "quiet" }, ` by ${item.actor}, ${clock(item.at)}, version ${item.params_version}`)),
    item.reason ?? item.request?.reason ? el("p", { class: "reason" }, item.reason ?? item.request.reason) : null)).reverse();
  return section("Audit trail", "audit", rows.length
    ? folded(rows, "entry", "entries")
    : el("p", { class: "quiet" }, "Nothing was asked for or done yet."));
}

export function stagesPanel(transitions) {
  const rows = transitions.map((item) => el("li", {},
    el("p", {}, el("b", {}, `${words(item.from_stage)} → ${words(item.to_stage)}`),
      el("span", { class: "quiet" }, ` at update ${item.step}, ${clock(item.at)}`)),
    el("p", { class: "reason" }, item.text))).reverse();
  return section("Changes of stage", "changes", rows.length
    ? folded(rows, "change")
    : el("p", { class: "quiet" }, "The stage has not changed yet."));
}

function folded(rows, one, many = `${one}s`) {
  const list = (items) => el("ol", { class: "plain trail" }, ...items);
  if (rows.length <= SHOWN) return list(rows);
  const rest = rows.slice(SHOWN);
  return el("div", {}, list(rows.slice(0, SHOWN)),
    el("details", {}, el("summary", {}, `${rest.length} earlier ${rest.length === 1 ? one : many}`), list(rest)));
}
