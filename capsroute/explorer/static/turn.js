// Turn it: sliders that change the picture, and how the numbers of the winning capsule follow.

import { drawn, element, part } from "./dom.js";
import { Asker } from "./networks.js";
import { toBytes } from "./pictures.js";
import { STRAIGHT } from "./turning.js";

const SLIDERS = {
  turn: ["turn", -90, 90, 1, "°"], across: ["move across", -10, 10, 0.5, " px"], down: ["move down", -10, 10, 0.5, " px"],
  size: ["size", 0.5, 1.5, 0.01, "×"], slant: ["slant", -0.8, 0.8, 0.02, ""], noise: ["noise", 0, 1, 0.01, ""], cover: ["cover the middle", 0, 1, 0.02, ""],
};
const STEPS = 13;
const PAUSE = 200; // milliseconds without a change before the curves are drawn

export class Turn {
  constructor(changed, pictureOf, failed) {
    Object.assign(this, { changed, pictureOf, change: { ...STRAIGHT }, moved: "turn" });
    this.asker = new Asker((question) => this.sweep(question), (curves) => this.drawCurves(curves), failed);
    this.inputs = Object.fromEntries(Object.entries(SLIDERS).map(([name, slider]) => [name, this.makeSlider(name, slider)]));
    part("turn-sliders").replaceChildren(...Object.values(this.inputs).map(({ label }) => label));
    part("second").addEventListener("change", () => this.set({ second: Number(part("second").value) }));
    part("straight").addEventListener("click", () => {
      this.moved = "turn";
      this.set(STRAIGHT);
    });
  }

  makeSlider(name, [words, min, max, step, unit]) {
    const input = element("input", { type: "range", min, max, step, value: STRAIGHT[name], id: `turn-${name}` });
    const output = element("output");
    input.addEventListener("input", () => {
      this.moved = name;
      this.set({ [name]: Number(input.value) });
    });
    // By name: an output can be labelled, too, and comes first.
    const label = element("label", { for: input.id }, element("span", {}, element("span", {}, words), output), input);
    return { input, output, label, unit };
  }

  open(network) {
    Object.assign(this, { network, about: network.about });
    const { samples, shape } = this.about;
    part("turn-text").innerHTML = this.about.outputs.poses
      ? "What is seen should stay, how it is seen should change. Move the picture: the capsule’s numbers follow smoothly (<em>equivariance</em>), for as long as its thick line stays high."
      : "Move the picture, and see how far the answer holds.";
    part("second-row").hidden = samples.length === 0 || shape.channels !== 1;
    part("second").replaceChildren(element("option", { value: -1 }, "none"),
                                   ...samples.map(({ label }, at) => element("option", { value: at }, `sample ${at + 1}: ${label}`)));
    this.take(this.change);
  }

  // Settings from elsewhere, without saying so.
  take(change) {
    this.change = { ...STRAIGHT, ...change };
    if (!(this.change.second < this.about.samples.length)) this.change.second = -1;
    for (const [name, { input, output, unit }] of Object.entries(this.inputs)) {
      input.value = this.change[name];
      output.textContent = `${this.change[name]}${unit}`;
    }
    part("second").value = this.change.second;
  }

  set(change) {
    this.take({ ...this.change, ...change });
    this.changed();
  }

  show(answer) {
    clearTimeout(this.timer);
    part("turn-panel").setAttribute("aria-busy", true);
    this.timer = setTimeout(() => this.asker.ask({ answer, moved: this.moved, network: this.network }), PAUSE);
  }

  // The picture under 13 positions of the slider that was moved last.
  async sweep({ answer, moved, network }) {
    const [, min, max] = SLIDERS[moved];
    const values = Array.from({ length: STEPS }, (_, at) => min + ((max - min) * at) / (STEPS - 1));
    if (answer.empty || network !== this.network) return { values, lines: [], answer, moved };
    const images = values.map((value) => toBytes(this.pictureOf({ ...this.change, [moved]: value })));
    const wanted = ["scores", "poses"].filter((name) => name in network.about.outputs);
    const found = await network.look(images, wanted);
    const { classes, outputs } = network.about;
    const [winner] = answer.ranked;
    const score = (name) => values.map((_, at) => found.scores[at * classes.length + name]);
    if (!found.poses) return { values, moved, answer, lines: answer.ranked.slice(0, 3).map((name) => ({ name: classes[name], numbers: score(name) })) };
    const [, size] = outputs.poses;
    const numbers = Array.from({ length: size }, (_, o) => values.map((_, at) => found.poses[(at * classes.length + winner) * size + o]));
    return { values, moved, answer, lines: numbers.map((line, o) => ({ name: `number ${o + 1}`, numbers: line })), sure: score(winner) };
  }

  drawCurves({ values, lines, moved, answer, sure }) {
    const [words, min, max, , unit] = SLIDERS[moved];
    const most = Math.max(1e-9, ...lines.flatMap(({ numbers }) => numbers.map(Math.abs)));
    const x = (value) => (240 * (value - min)) / (max - min);
    const path = (numbers, scale, zero) => `M${numbers.map((value, at) => `${x(values[at]).toFixed(1)} ${(zero - (value / scale) * 48).toFixed(1)}`).join("L")}`;
    const curves = lines.map(({ name, numbers }, at) => drawn("path", {
      d: path(numbers, most, 50), class: "curve", "stroke-dasharray": ["none", "5 2", "2 2"][at % 3], "data-line": at,
      opacity: (0.45 + 0.55 * (spread(numbers) / Math.max(...lines.map((line) => spread(line.numbers)), 1e-9))).toFixed(2),
    }, drawn("title", {}, name)));
    const extra = sure ? [drawn("path", { d: path(sure, 0.5, 98), class: "sure" })] : [];
    const now = drawn("path", { d: `M${x(this.change[moved])} 0V100`, class: "now" });
    part("curves").replaceChildren(drawn("path", { d: "M0 50H240", class: "axes" }), now, ...curves, ...extra);
    part("curves-text").textContent = lines.length === 0 ? "Draw something first." : this.words(words, min, max, unit, answer, lines, sure);
    part("turn-panel").setAttribute("aria-busy", this.asker.waiting);
  }

  words(words, min, max, unit, answer, lines, sure) {
    const axis = `as “${words}” goes from ${min}${unit} to ${max}${unit}`;
    if (!sure) return `Probabilities of ${lines.map(({ name }) => name).join(", ")} ${axis}.`;
    const name = this.about.classes[answer.ranked[0]];
    const good = sure.filter((value) => value >= 0.5).length;
    const measure = this.about.scores === "length" ? "length" : "probability";
    return `Thin lines: the ${lines.length} numbers of capsule ${name} ${axis}. Thick line: its ${measure} (0 to 1), above 0.5 at ${good} of ${sure.length} positions.`;
  }
}

const spread = (numbers) => Math.max(...numbers) - Math.min(...numbers);
