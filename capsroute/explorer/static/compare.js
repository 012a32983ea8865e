// Routings side by side: the same votes under other coefficients. Answer, bars, votes and time of each.

import { drawn, element, floatsOf, part } from "./dom.js";
import { dots, paintDots, project } from "./plane.js";
import { route } from "./routing.js";

const PAUSE = 150; // milliseconds without a stroke before the others are run
const WORDS = { dynamic: "dynamic (softmax)", max_min: "max-min", fast: "given coefficients" };

export class Compare {
  open(about) {
    clearTimeout(this.timer);
    Object.assign(this, { about, routing: about.routing });
    const shown = about.routing !== null && about.routing.in_browser;
    part("compare-panel").hidden = !shown;
    if (!shown) return;
    this.axes = floatsOf(about.routing.axes);
    this.reach = floatsOf(about.routing.reach);
    this.rows = this.ways();
    part("ways").replaceChildren(...this.rows.map((row) => this.makeRow(row)));
  }

  // What applies to these weights.
  ways() {
    const { algorithm, master, uniform } = this.routing;
    const count = this.about.outputs.votes[0] * this.about.outputs.votes[1];
    const rows = [{ name: `as trained: ${WORDS[algorithm.name]}, ${algorithm.iterations ?? 1}`, way: trained(this.routing) }];
    if (algorithm.name !== "fast") {
      for (const iterations of [1, 2, 3, 4, 5]) {
        if (iterations === algorithm.iterations) continue;
        rows.push({ name: `${WORDS[algorithm.name]}, ${iterations} iteration${iterations > 1 ? "s" : ""}`, way: { ...algorithm, iterations } });
      }
      const other = algorithm.name === "dynamic" ? "max_min" : "dynamic";
      rows.push({ name: `${WORDS[other]}, 3 iterations`, way: { name: other, iterations: 3 } });
    }
    rows.push({ name: "equal coefficients: no routing", way: { coefficients: new Float32Array(count).fill(uniform) } });
    if (master !== null) rows.push({ name: "master coefficients: no routing", way: { coefficients: floatsOf(master) } });
    return rows;
  }

  makeRow(row) {
    row.bars = drawn("svg", { class: "mini-bars", viewBox: `0 0 ${this.about.classes.length * 10} 40`, preserveAspectRatio: "none", "aria-hidden": true });
    row.plane = drawn("svg", { class: "mini-plane", viewBox: "-1.16 -1.16 2.32 2.32", "aria-hidden": true });
    row.says = element("strong");
    row.time = element("span", { class: "small" });
    return element("tr", {}, element("th", { scope: "row" }, row.name), element("td", {}, row.says), element("td", {}, row.bars),
                   element("td", {}, row.plane), element("td", {}, row.time));
  }

  show(answer) {
    if (part("compare-panel").hidden) return;
    clearTimeout(this.timer);
    part("compare-panel").setAttribute("aria-busy", true);
    this.timer = setTimeout(() => this.run(answer), PAUSE);
  }

  run(answer) {
    const winner = answer.ranked[0];
    const points = project(answer.votes, this.axes, this.reach, winner);
    const { parents } = answer.votes;
    for (const row of this.rows) {
      const { step, spent } = quickest(() => route(answer.votes, row.way).at(-1));
      const best = step.lengths.indexOf(Math.max(...step.lengths));
      row.says.textContent = answer.empty ? "–" : `${this.about.classes[best]}, ${step.lengths[best].toFixed(2)}`;
      row.says.className = !answer.empty && best !== winner ? "differs" : "";
      row.time.textContent = spent < 0.1 ? "< 0.1 ms" : `${spent.toFixed(1)} ms`;
      row.bars.replaceChildren(...step.lengths.map((length, name) => drawn("rect", {
        x: name * 10 + 1, width: 8, y: (40 - 40 * length).toFixed(2), height: (40 * length).toFixed(2), class: name === best ? "routed" : "other",
      })));
      const column = points.map((_, i) => step.coefficients[i * parents + winner]);
      const most = Math.max(...column, 1e-9);
      paintDots(dots(row.plane, points, true), (i) => column[i] / most, true);
    }
    part("compare-panel").setAttribute("aria-busy", false);
  }
}

// The best of three: what else the browser does meanwhile is not the routing's.
function quickest(work) {
  let [step, spent] = [null, Infinity];
  for (let time = 0; time < 3; time++) {
    const start = performance.now();
    step = work();
    spent = Math.min(spent, performance.now() - start);
  }
  return { step, spent };
}

// The network's own routing, as the browser runs it.
export function trained({ algorithm, given }) {
  return algorithm.name === "fast" ? { coefficients: floatsOf(given) } : algorithm;
}
