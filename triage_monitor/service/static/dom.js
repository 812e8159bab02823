// Elements from values. Text is only ever set as text: whatever a trainer sends stays text.

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

export function fill(node, ...children) {
  node.replaceChildren(...children.filter((child) => child !== null && child !== undefined && child !== false));
}

// Replaces the content only when it says something else, so that a live region is not read out again for nothing.
export function fillIfChanged(node, ...children) {
  const next = el("div", {}, ...children);
  if (node.innerHTML !== next.innerHTML) node.replaceChildren(...next.childNodes);
}

export function section(title, id, ...children) {
  return el("section", { class: "panel", "aria-labelledby": `${id}-title`, id },
    el("h2", { id: `${id}-title` }, title), ...children);
}

// At most one call in `pause` ms, the last one never lost.
export function throttled(call, pause) {
  let timer = null;
  let last = -Infinity;
  return () => {
    if (timer !== null) return;
    const wait = Math.max(0, last + pause - performance.now());
    timer = setTimeout(() => {
      timer = null;
      last = performance.now();
      call();
    }, wait);
  };
}
