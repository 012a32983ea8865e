// Routing, iteration by iteration: where in the image the votes for a class come from.

import { showHeat, showScale } from "./pictures.js";
import { Asker } from "./questions.js";

const PAUSE = 120; // milliseconds without a stroke before the routing is looked at
const part = (name) => document.getElementById(name);

export class Routing {
  constructor(model, failed) {
    this.model = model;
    this.name = null; // the class that was chosen by hand; null follows the winner
    this.winner = 0;
    this.asker = new Asker("route", (answer, question) => this.answered(answer, question.image), failed);
    part("routing-part").hidden = !model.routing;
    showScale(part("scale"));
    this.makeChips();
    part("iteration").addEventListener("input", () => this.draw());
    for (const choice of document.getElementsByName("kind")) choice.addEventListener("change", () => this.draw());
  }

  makeChips() {
    this.chips = this.model.classes.map((name, at) => {
      const chip = document.createElement("button");
      chip.className = "chip";
      chip.textContent = name;
      chip.setAttribute("role", "radio");
      chip.addEventListener("click", () => {
        this.name = this.name === at ? null : at;
        this.draw();
      });
      return chip;
    });
    part("class-chips").append(...this.chips);
  }

  take(answer) {
    if (!this.model.routing) return;
    this.winner = answer.found[0].class;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.asker.ask({ image: answer.seen }), PAUSE);
  }

  answered(answer, image) {
    Object.assign(this, { answer, image });
    const slider = part("iteration");
    const atEnd = slider.value === slider.max;
    slider.max = answer.lengths.length;
    if (atEnd) slider.value = slider.max;
    part("kind-row").hidden = answer.coefficients === null;
    this.draw();
  }

  draw() {
    if (!this.answer) return;
    const name = this.name ?? this.winner;
    const iteration = Number(part("iteration").value);
    const wanted = document.querySelector("input[name=kind]:checked").value;
    const steps = this.answer[wanted] ?? this.answer.shares;
    // One scale for all iterations of a class, so that they can be compared.
    const most = Math.max(...steps.map((heat) => heat.most[name]));
    showHeat(part("heat"), this.image, steps[iteration - 1], name, most);
    this.chips.forEach((chip, at) => chip.setAttribute("aria-checked", at === name));
    part("most").textContent = most.toPrecision(2);
    part("iteration-value").textContent = `${iteration} of ${steps.length}`;
    const length = this.answer.lengths[iteration - 1][name].toFixed(2);
    part("routing-text").textContent = `After this iteration capsule ${this.model.classes[name]} is ${length} long.`;
  }
}
