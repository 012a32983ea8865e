// Inside a capsule: a slider for each of its numbers, and the picture that the decoder makes of them.

import { element, part } from "./dom.js";
import { Asker } from "./networks.js";
import { inTwoColours, show } from "./pictures.js";

const FARTHEST = 0.5; // that a number can be moved, either way

export class Capsule {
  constructor(failed) {
    Object.assign(this, { found: [], chosen: 0, sliders: [], pictures: [] });
    this.painter = new Asker((capsules) => this.paint(capsules), (picture) => show(part("moved"), picture), failed);
    this.finder = new Asker((answer) => this.paintFound(answer), (pictures) => this.showFound(pictures), failed);
    part("reset").addEventListener("click", () => this.reset());
  }

  open(network) {
    Object.assign(this, { network, about: network.about, found: [], chosen: 0 });
    this.painter.forget();
    this.finder.forget();
    part("capsule-panel").hidden = this.about.decoder === null;
    part("separated-part").hidden = this.about.objects === 1;
    const many = this.about.objects > 1;
    part("capsule-title").textContent = many ? "Inside the capsules found" : "Inside the winning capsule";
  }

  show(answer) {
    if (this.about.decoder === null) return;
    part("capsule-panel").setAttribute("aria-busy", true);
    this.finder.ask(answer);
  }

  async paint(capsules) {
    const data = await this.network.paint(capsules);
    return { ...this.about.shape, data };
  }

  // [j,d], all but one capsule zero.
  masked(name, pose) {
    const [, classes, size] = this.about.decoder;
    const capsules = new Float32Array(classes * size);
    capsules.set(pose, name * size);
    return capsules;
  }

  async paintFound(answer) {
    const size = this.about.decoder[2];
    const found = answer.found.map((name) => ({ name, pose: Array.from(answer.poses.subarray(name * size, (name + 1) * size)) }));
    const pictures = [];
    for (const { name, pose } of found) pictures.push(await this.paint(this.masked(name, pose)));
    return { found, pictures };
  }

  showFound({ found, pictures }) {
    const before = this.found.map(({ name }) => name).join();
    Object.assign(this, { found, pictures });
    if (before !== found.map(({ name }) => name).join()) this.chosen = 0;
    this.makeTabs();
    this.reset();
    if (this.about.objects > 1) {
      show(part("separated"), inTwoColours(pictures[0], pictures[1] ?? { ...pictures[0], data: pictures[0].data.map(() => 0) }));
      const names = found.map(({ name }) => this.about.classes[name]);
      part("separated-text").textContent = names.length > 1 ? `${names[0]} in blue, ${names[1]} in orange` : `only ${names[0]} is found`;
    }
    part("capsule-panel").setAttribute("aria-busy", this.finder.waiting);
  }

  makeTabs() {
    part("found").replaceChildren(...this.found.map(({ name }, at) => {
      const canvas = element("canvas", { class: "picture", "aria-hidden": true });
      show(canvas, this.pictures[at]);
      const tab = element("button", { role: "radio", type: "button", "aria-checked": at === this.chosen }, canvas,
                          element("span", {}, `drawn by capsule ${this.about.classes[name]}`));
      tab.addEventListener("click", () => {
        this.chosen = at;
        this.makeTabs();
        this.reset();
      });
      return tab;
    }));
  }

  reset() {
    if (this.found.length === 0) return;
    this.painter.forget();
    const { pose } = this.found[this.chosen];
    if (this.sliders.length !== pose.length) this.makeSliders(pose.length);
    for (const { input } of this.sliders) input.value = 0;
    this.showNumbers();
    show(part("moved"), this.pictures[this.chosen]);
  }

  makeSliders(count) {
    this.sliders = Array.from({ length: count }, (_, at) => {
      const input = element("input", { type: "range", min: -FARTHEST, max: FARTHEST, step: 0.01, value: 0, id: `dimension-${at + 1}` });
      const number = element("output");
      const label = element("label", { for: input.id }, element("span", {}, element("span", {}, `number ${at + 1}`), number), input);
      input.addEventListener("input", () => this.moved());
      return { input, number, label };
    });
    part("sliders").replaceChildren(...this.sliders.map(({ label }) => label));
  }

  pose() {
    return this.found[this.chosen].pose.map((number, at) => number + Number(this.sliders[at].input.value));
  }

  showNumbers() {
    this.pose().forEach((number, at) => { this.sliders[at].number.textContent = number.toFixed(2); });
  }

  moved() {
    this.showNumbers();
    this.painter.ask(this.masked(this.found[this.chosen].name, this.pose()));
  }
}
