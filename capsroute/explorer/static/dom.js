// Small things that every panel needs: parts of the page, new elements, colours.

export const part = (name) => document.getElementById(name);

export function element(kind, attributes = {}, ...children) {
  return filled(document.createElement(kind), attributes, children);
}

export function drawn(kind, attributes = {}, ...children) {
  // The page holds an empty drawing: its namespace is that of all drawings.
  const { namespaceURI } = document.querySelector("svg");
  return filled(document.createElementNS(namespaceURI, kind), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("aria-")) made.setAttribute(name, value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

// Cividis, a scale that colour-blind eyes read as others do.
const SCALE = [[0, 32, 77], [0, 49, 111], [57, 72, 107], [87, 93, 109], [112, 113, 115],
               [138, 134, 120], [166, 156, 117], [196, 181, 108], [228, 207, 91], [255, 234, 70]];

export function colour(part) {
  const at = Math.min(Math.max(part || 0, 0), 1) * (SCALE.length - 1);
  const low = Math.min(Math.floor(at), SCALE.length - 2);
  const mixed = SCALE[low].map((value, channel) => Math.round(value + (at - low) * (SCALE[low + 1][channel] - value)));
  return `rgb(${mixed.join()})`;
}

export const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

export function floatsOf(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

// A group of buttons of which one is chosen: arrow keys move the choice, as radio buttons do.
export function chips(box, names, chosen) {
  const made = names.map((name, at) => {
    const chip = element("button", { class: "chip", role: "radio", type: "button" }, name);
    chip.addEventListener("click", () => chosen(at));
    return chip;
  });
  box.replaceChildren(...made);
  box.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const now = Math.max(made.indexOf(document.activeElement), 0);
    const next = (now + step + made.length) % made.length;
    made[next].focus();
    chosen(next);
  };
  return (at) => made.forEach((chip, index) => {
    chip.setAttribute("aria-checked", index === at);
    chip.tabIndex = index === at ? 0 : -1;
  });
}
