// Votes for one capsule as dots in the plane of its two principal axes, with the capsule's pose among them.

import { colour, drawn } from "./dom.js";

const MOST_DOTS = 900;

// Where vote i for parent j lies: numbers around [-1, 1].
export function project(votes, axes, reach, j) {
  const { data, children, parents, size } = votes;
  return Array.from({ length: children }, (_, i) => {
    const start = (i * parents + j) * size;
    return onto(data.subarray(start, start + size), axes, j, size).map((value) => value / reach[j]);
  });
}

export function onto(vector, axes, j, size) {
  return [0, 1].map((axis) => {
    let dot = 0;
    for (let o = 0; o < size; o++) dot += vector[o] * axes[(2 * j + axis) * size + o];
    return dot;
  });
}

// The ring on which a capsule of length 1 would end, cross hairs and dots; `small` leaves out what cannot be read.
export function dots(svg, points, small = false) {
  const order = points.map((_, i) => i).sort((a, b) => far(points[a]) - far(points[b])).slice(-MOST_DOTS);
  const made = new Map(order.map((i) => {
    const [x, y] = points[i].map((value) => Math.min(Math.max(value, -1.1), 1.1));
    return [i, drawn("circle", { cx: x.toFixed(3), cy: (-y).toFixed(3), r: small ? 0.035 : 0.022, "data-child": i })];
  }));
  const frame = [drawn("circle", { r: 1, class: "ring" })];
  if (!small) frame.push(drawn("path", { d: "M-1.1 0H1.1M0-1.1V1.1", class: "axes" }));
  svg.replaceChildren(...frame, drawn("g", { class: "dots" }, ...made.values()));
  return made;
}

const far = ([x, y]) => x * x + y * y;

// Colours and sizes by coefficient [i] (as parts of the most there is).
export function paintDots(made, coefficients, small = false) {
  for (const [i, dot] of made) {
    const part = coefficients(i);
    dot.setAttribute("fill", colour(part));
    if (!small) dot.setAttribute("r", (0.014 + 0.026 * Math.min(part, 1)).toFixed(4));
  }
}

export function arrow(svg, [x, y], trail = []) {
  svg.querySelector(".arrow")?.remove();
  const [endX, endY] = [x.toFixed(3), (-y).toFixed(3)];
  const path = [[0, 0], ...trail].map(([a, b]) => `${a.toFixed(3)} ${(-b).toFixed(3)}`);
  svg.append(drawn("g", { class: "arrow" },
                   drawn("path", { d: `M${path.join("L")}`, class: "trail" }),
                   ...trail.map(([a, b]) => drawn("circle", { cx: a.toFixed(3), cy: (-b).toFixed(3), r: 0.02, class: "past" })),
                   drawn("path", { d: `M0 0L${endX} ${endY}`, class: "shaft" }),
                   drawn("circle", { cx: endX, cy: endY, r: 0.05, class: "tip" })));
}
