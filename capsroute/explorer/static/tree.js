// The parse tree of a capsule: the children that give most of it, with the patch of the picture that each sees.

import { drawn, element, part } from "./dom.js";
import { cut, show } from "./pictures.js";

const BRANCHES = 6;

export function showTree(about, { seen, empty }, shares, parent, pick) {
  const { places } = about.routing;
  const strongest = [...shares.keys()].sort((a, b) => shares[b] - shares[a]).slice(0, empty ? 0 : BRANCHES);
  const most = Math.max(...strongest.map((child) => shares[child]), 1e-9);
  const lines = strongest.map((child, at) => drawn("path", {
    d: `M${BRANCHES / 2} 0C${BRANCHES / 2} .6 ${at + 0.5} .4 ${at + 0.5} 1`, class: "branch",
    "stroke-width": (1 + 7 * Math.max(shares[child] / most, 0)).toFixed(1),
  }));
  part("branches").setAttribute("viewBox", `0 0 ${BRANCHES} 1`);
  part("branches").replaceChildren(...lines);
  part("root").textContent = empty ? "" : `capsule ${about.classes[parent]}`;
  part("tree").replaceChildren(...strongest.map((child) => {
    const canvas = element("canvas", { "aria-hidden": true });
    show(canvas, places === null ? seen : patch(seen, places, child));
    const percent = `${(100 * shares[child]).toFixed(1)} %`;
    const button = element("button", { type: "button", "data-child": child, "aria-pressed": false,
                                       "aria-label": `child ${child + 1}, ${percent} of the capsule` }, canvas, percent);
    button.addEventListener("click", () => pick(child));
    return button;
  }));
  const sum = strongest.reduce((total, child) => total + shares[child], 0);
  part("tree-text").textContent = empty ? "" :
    `The ${strongest.length} strongest of ${shares.length} children, and what each sees. Together they give ${(100 * sum).toFixed(0)} % of the capsule.`;
}

function patch(seen, { rows, columns, field: [high, wide] }, child) {
  const at = child % (rows.length * columns.length);
  const [row, column] = [rows[Math.floor(at / columns.length)], columns[at % columns.length]];
  const [tall, broad] = [Math.min(Math.round(high), seen.height), Math.min(Math.round(wide), seen.width)];
  const top = Math.min(Math.max(Math.round(row + 0.5 - high / 2), 0), seen.height - tall);
  const left = Math.min(Math.max(Math.round(column + 0.5 - wide / 2), 0), seen.width - broad);
  return cut(seen, left, top, broad, tall);
}
