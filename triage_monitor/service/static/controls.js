// What an operator may do to a run: every action behind a dialog that says what it will do, with a reason for the trail.

import { getWithTag, key, send } from "./api.js";
import { ask, field, refusal } from "./dialogs.js";
import { el, section } from "./dom.js";
import { flat } from "./lists.js";

const CHOICES = { "gate.quadrant": ["a_neg"], precision: ["nvfp4", "fp8", "bf16"], control: ["run", "pause", "stop"] };
const HIDDEN = ["version", "issued_at_step", "reason", "epoch", "issuer"];

const ACTIONS = {
  freeze: {
    label: "Freeze", title: "Freeze the parameters?", confirm: "Freeze",
    text: "The policy keeps its hands off until you release it. The trainer goes on with what it has.",
  },
  release: {
    label: "Release", title: "Release the parameters?", confirm: "Release",
    text: "The policy may change parameters again from the next update on.",
  },
  fallback: {
    label: "Fall back to bf16", title: "Fall back to bf16?", confirm: "Fall back", danger: true, body: { precision: "bf16" },
    text: "Learner and sampler run in bf16 from the trainer's next update boundary on. The policy is held until release.",
  },
  clear: {
    label: "Clear the terminal stage", title: "Clear the terminal stage?", confirm: "Clear",
    text: "The latched stage ends and judging starts counting anew. Parameters stay as they are.",
  },
};

export function controlsPanel(run, detail, refreshed) {
  const held = detail.held_by !== null;
  const names = [held ? "release" : "freeze", "fallback", ...(detail.stage === "terminal" ? ["clear"] : [])];
  const buttons = names.map((name) => el("button", { type: "button", id: `do-${name}`, class: ACTIONS[name].danger ? "danger" : null,
    onclick: () => confirmAction(run, name, refreshed) }, ACTIONS[name].label));
  buttons.splice(1, 0, el("button", { type: "button", id: "do-override", onclick: () => override(run, refreshed) }, "Override…"));
  return section("Controls", "controls",
    el("p", {}, held ? `Held by ${detail.held_by}: the policy changes nothing until release.` : "The policy may act as configured."),
    el("div", { class: "buttons" }, ...buttons));
}

const about = () => [
  field("reason", "Reason", { maxlength: 400, required: true, placeholder: "for the audit trail" }),
  field("actor", "Your name", { pattern: "[A-Za-z0-9@._:+\\-]{1,64}", placeholder: "operator" }, "A token with a name overrules it."),
];

function headersOf(form) {
  const actor = String(form.get("actor")).trim();
  return actor === "" ? {} : { "Triage-Actor": actor };
}

function confirmAction(run, kind, refreshed) {
  const action = ACTIONS[kind];
  const once = key(); // one dialog is one action, however often it is sent
  ask({
    title: action.title, confirm: action.confirm, danger: action.danger ?? false,
    lines: [`Run ${run}.`, action.text], fields: about(),
    submit: async (form) => {
      const body = { kind, reason: String(form.get("reason")), ...action.body };
      await send("POST", `v1/runs/${run}/actions`, body, { "Idempotency-Key": once, ...headersOf(form) });
      refreshed();
    },
  });
}

async function override(run, refreshed) {
  const path = `v1/runs/${run}/params`;
  let seen = null;
  try {
    seen = await getWithTag(path);
  } catch (error) {
    refreshed(error);
    if (error.status !== 401) unread(run, error, refreshed);
    return;
  }
  const values = flat(seen.body).filter(([name]) => !HIDDEN.includes(name));
  const inputs = values.map(([name, value]) => {
    if (typeof value === "boolean") return field(name, name, { type: "checkbox", checked: value });
    if (CHOICES[name]) return field(name, name, { options: CHOICES[name], value });
    return field(name, name, { type: "number", step: "any", value, required: true });
  });
  ask({
    title: "Override parameters", confirm: "Push", danger: true,
    lines: [`Run ${run}, version ${seen.body.version}. Only what you change is pushed, as a new version; the policy is held until release.`,
      el("div", { class: "grid-fields" }, ...inputs)],
    fields: about(),
    submit: async (form) => {
      const changes = changed(values, form);
      if (Object.keys(changes).length === 0) throw Object.assign(new Error("Nothing is changed."), { status: 422 });
      const body = { ...changes, reason: String(form.get("reason")) };
      await send("PUT", path, body, { "If-Match": seen.etag, ...headersOf(form) });
      refreshed();
    },
  });
}

// The answer is given where the operator looks, not only at the head of the page.
function unread(run, error, refreshed) {
  ask({
    title: "Override parameters", confirm: "Try again", lines: [refusal(error)],
    submit: async () => {
      await getWithTag(`v1/runs/${run}/params`);
      setTimeout(() => override(run, refreshed)); // once this dialog is closed
    },
  });
}

function changed(values, form) {
  const found = {};
  for (const [name, before] of values) {
    const given = form.get(name);
    const now = typeof before === "boolean" ? given !== null : typeof before === "number" ? Number(given) : given;
    if (now === before) continue;
    const [part, leaf] = name.split(".");
    if (leaf === undefined) found[name] = now;
    else found[part] = { ...found[part], [leaf]: now };
  }
  return found;
}
