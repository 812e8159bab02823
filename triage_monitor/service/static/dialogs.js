// The one dialog of the page, and the two uses of it that are not about a run: the token, and a plain message.

import { setToken, token } from "./api.js";
import { el, fill } from "./dom.js";

const dialog = () => document.getElementById("dialog");

// `submit` is called with the form's values; the dialog stays open with the error's text when it rejects.
export function ask({ title, lines = [], fields = [], confirm, danger = false, submit }) {
  const node = dialog();
  if (node.open) node.close();
  const opener = document.activeElement;
  const failed = el("p", { class: "failed", role: "alert" });
  const send = el("button", { type: "submit", class: danger ? "primary danger" : "primary" }, confirm);
  const form = el("form", { method: "dialog" },
    el("h2", { id: "dialog-title" }, title), ...lines.map((line) => (typeof line === "string" ? el("p", {}, line) : line)),
    ...fields, failed,
    el("div", { class: "buttons" }, el("button", { type: "button", onclick: () => node.close() }, "Cancel"), send));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    failed.textContent = "";
    try {
      await submit(new FormData(form));
      node.close();
    } catch (error) {
      failed.textContent = refusal(error);
    } finally {
      send.disabled = false;
    }
  });
  fill(node, form);
  node.addEventListener("close", () => backTo(opener), { once: true });
  node.showModal();
}

// The browser gives the focus back by itself, unless what opened the dialog was drawn anew behind it.
function backTo(opener) {
  if (opener === null || opener.isConnected || dialog().open) return;
  (document.getElementById(opener.id) ?? document.querySelector("#controls button"))?.focus();
}

export function field(name, label, attributes = {}, hint = null) {
  const input = attributes.options
    ? el("select", { name, id: `field-${name}` }, ...attributes.options.map((option) =>
      el("option", { value: option, selected: option === attributes.value }, option)))
    : el("input", { name, id: `field-${name}`, autocomplete: "off", ...attributes });
  return el("p", { class: attributes.type === "checkbox" ? "field check" : "field" },
    el("label", { for: `field-${name}` }, label), input, hint ? el("span", { class: "quiet" }, hint) : null);
}

export function refusal(error) {
  if (error.status === 401) return "The server asks for a token, or does not know this one. Set it under Token.";
  if (error.status === 403) {
    return error.scope ? `This token lacks the scope '${error.scope}'.` : `This token may not do that: ${error.message}`;
  }
  return error.status ? error.message : "The sidecar could not be reached; nothing was changed.";
}

export function askToken(why, done) {
  ask({
    title: "Access token",
    lines: [why, "It is kept in this tab only, until the tab is closed."],
    fields: [field("token", "Bearer token", { type: "password", value: token() ?? "" }, "Leave empty to forget it.")],
    confirm: "Use token",
    submit: async (form) => {
      setToken(String(form.get("token")).trim());
      done();
    },
  });
}
