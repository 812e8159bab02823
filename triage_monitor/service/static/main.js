// Which view is shown, what the page says about its connection, theme and token.

import { askToken } from "./dialogs.js";
import { el, fill } from "./dom.js";
import { age } from "./format.js";
import { RunView } from "./run.js";
import { RunsView } from "./runs.js";

const node = (id) => document.getElementById(id);
let view = null;

// What the views tell the page: that the server answered, or why it did not.
const shell = {
  asking: false,
  reached() {
    if (node("trouble").childNodes.length) fill(node("trouble"));
    if (!view?.live) shell.link("connected", "ok");
  },
  link(text, tone) {
    const mark = { ok: "●", wait: "○", bad: "▲" }[tone];
    const said = `${mark} ${text}`;
    if (node("link").textContent !== said) fill(node("link"), el("span", { class: `link-${tone}` }, said));
  },
  failed(error, seenAt) {
    if (error.status === 401) {
      shell.trouble("This sidecar asks for a token.", true);
      shell.askOnce("This sidecar asks for a token.");
    } else if (error.status === 403) {
      const lacking = error.scope ? `the scope '${error.scope}'` : `a permission: ${error.message}`;
      shell.trouble(`The token lacks ${lacking}.`, true);
    } else if (error.status) {
      shell.trouble(error.message, false);
    } else {
      const what = seenAt === null ? "Nothing was loaded yet." : `What is shown was true ${age((Date.now() - seenAt) / 1000)}.`;
      shell.trouble(`The sidecar cannot be reached. ${what} Trying again by itself; training is not affected.`, false);
      shell.link("not connected", "bad");
    }
  },
  trouble(text, tokenButton) {
    if (node("trouble").firstChild?.dataset?.said === text) return;
    fill(node("trouble"), el("div", { class: "trouble", "data-said": text }, el("span", {}, text),
      tokenButton ? el("button", { type: "button", onclick: () => shell.askToken("Paste the token that the sidecar's operator gave you.") }, "Set token") : null));
  },
  askOnce(why) {
    if (!shell.asking && !node("dialog").open) {
      shell.asking = true;
      shell.askToken(why);
    }
  },
  askToken(why) {
    askToken(why, () => {
      shell.asking = false;
      fill(node("trouble"));
      route();
    });
  },
};

function route() {
  if (!location.hash.startsWith("#/") && location.hash !== "") return;
  view?.destroy();
  const match = /^#\/run\/(.+)$/.exec(location.hash);
  if (match === null) {
    document.title = "triage-monitor";
    fill(node("crumbs"));
    view = new RunsView(node("main"), shell);
    return;
  }
  const name = decoded(match[1]);
  document.title = `${name}: triage-monitor`;
  fill(node("crumbs"), el("a", { href: "#/" }, "Runs"), el("span", { "aria-hidden": "true" }, " / "), el("span", { "aria-current": "page" }, name));
  view = new RunView(node("main"), shell, name);
}

// As it stands where it is no valid encoding: the view then says that there is no such run.
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function theme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("triage-theme", root.dataset.theme);
  } catch {
    // then it holds until the page is closed
  }
  themed();
}

function themed() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  node("theme").textContent = dark ? "Light" : "Dark";
  node("theme").setAttribute("aria-label", dark ? "Use light colours" : "Use dark colours");
  view?.retheme?.();
}

node("theme").addEventListener("click", theme);
node("token").addEventListener("click", () => shell.askToken("Sent with every request of this page."));
node("dialog").addEventListener("close", () => fill(node("dialog")));
node("skip").addEventListener("click", (event) => {
  event.preventDefault();
  node("main").focus();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);
addEventListener("hashchange", route);
route();
themed();
