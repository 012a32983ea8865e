// Inside the winning capsule: a slider for each of its numbers, and the picture that the decoder makes of them.

import { show } from "./pictures.js";
import { Asker } from "./questions.js";

const FARTHEST = 0.5; // that a number can be moved, either way
const part = (name) => document.getElementById(name);

export class Capsule {
  constructor(model, failed) {
    this.model = model;
    this.chosen = 0; // which of the objects that were found
    this.found = [];
    this.sliders = [];
    this.decoder = new Asker("reconstruct", (answer) => show(part("moved"), answer.picture), failed);
    part("capsule-part").hidden = !model.decoder;
    part("reset").addEventListener("click", () => this.reset());
  }

  take(answer) {
    if (!this.model.decoder) return;
    const before = this.found.map((capsule) => capsule.class).join();
    this.found = answer.found;
    if (before !== this.found.map((capsule) => capsule.class).join()) this.chosen = 0;
    this.makeTabs();
    this.reset();
  }

  get capsule() {
    return this.found[this.chosen];
  }

  makeTabs() {
    part("found").replaceChildren(...this.found.map((capsule, at) => {
      const tab = document.createElement("button");
      const canvas = document.createElement("canvas");
      const name = document.createElement("span");
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-selected", at === this.chosen);
      canvas.className = "picture";
      name.textContent = `reconstructed ${this.model.classes[capsule.class]}`;
      show(canvas, capsule.picture);
      tab.append(canvas, name);
      tab.addEventListener("click", () => {
        this.chosen = at;
        this.makeTabs();
        this.reset();
      });
      return tab;
    }));
  }

  reset() {
    const { pose, picture } = this.capsule;
    this.decoder.forget();
    if (this.sliders.length !== pose.length) this.makeSliders(pose.length);
    for (const slider of this.sliders) slider.input.value = 0;
    this.showNumbers();
    show(part("moved"), picture);
  }

  makeSliders(count) {
    this.sliders = Array.from({ length: count }, (_, at) => {
      const label = document.createElement("label");
      const line = document.createElement("span");
      const name = document.createElement("span");
      const number = document.createElement("output");
      const input = document.createElement("input");
      Object.assign(input, { type: "range", min: -FARTHEST, max: FARTHEST, step: 0.01, value: 0 });
      input.id = `dimension-${at + 1}`;
      name.textContent = `number ${at + 1}`;
      line.append(name, number);
      label.append(line, input);
      input.addEventListener("input", () => this.moved());
      part("sliders").append(label);
      return { input, number, label };
    });
    part("sliders").replaceChildren(...this.sliders.map((slider) => slider.label));
  }

  pose() {
    return this.capsule.pose.map((number, at) => number + Number(this.sliders[at].input.value));
  }

  showNumbers() {
    this.pose().forEach((number, at) => { this.sliders[at].number.textContent = number.toFixed(2); });
  }

  moved() {
    this.showNumbers();
    this.decoder.ask({ class: this.capsule.class, pose: this.pose() });
  }
}
