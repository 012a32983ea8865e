// Votes and agreement, moving: the votes for one capsule, iteration by iteration, and where in the picture they come from.

import { chips, colour, drawn, floatsOf, part, still } from "./dom.js";
import { arrow, dots, onto, paintDots, project } from "./plane.js";
import { agreements, shares } from "./routing.js";
import { showAgreement } from "./agreement.js";
import { showTree } from "./tree.js";
import { savable } from "./save.js";

const STEP = 900; // milliseconds from one iteration to the next while playing

export class VotesPanel {
  constructor(changed) {
    Object.assign(this, { changed, chosen: null, iteration: null, picked: new Set(), timer: null });
    part("play").addEventListener("click", () => (this.timer === null ? this.play() : this.pause()));
    part("back").addEventListener("click", () => this.stepTo(this.at - 1));
    part("forward").addEventListener("click", () => this.stepTo(this.at + 1));
    part("iteration").addEventListener("input", () => this.stepTo(Number(part("iteration").value) - 1));
    part("plane").addEventListener("click", (event) => this.clicked(event));
    part("plane").addEventListener("keydown", (event) => this.keyOnPlane(event));
    part("places").addEventListener("click", (event) => this.clickedPlace(event));
    part("places").addEventListener("keydown", (event) => this.keyOnPlaces(event));
    savable(part("save-png"), part("save-svg"), part("plane"), () => `votes-for-${this.about.classes[this.parent]}-iteration-${this.at + 1}`);
  }

  open(about) {
    this.pause();
    Object.assign(this, { about, routing: about.routing, answer: null, chosen: null, iteration: null, picked: new Set() });
    part("votes-panel").hidden = about.routing === null;
    if (about.routing === null) return;
    this.axes = floatsOf(about.routing.axes);
    this.reach = floatsOf(about.routing.reach);
    this.mark = chips(part("parents"), about.classes, (at) => this.choose(at));
    part("ring-text").textContent = about.scores === "length" ? "Ring: an arrow of length 1." : "Ring: as long as the longest capsule.";
    part("places-part").hidden = about.routing.places === null;
    this.makePlaces();
  }

  get steps() { return this.answer.steps; }
  get parent() { return this.chosen ?? this.answer?.ranked[0] ?? 0; }
  get at() { return Math.max(0, Math.min(this.iteration ?? Infinity, this.steps.length - 1)); }

  show(answer) {
    if (this.routing === null) return;
    this.answer = answer;
    part("votes-panel").classList.toggle("nothing", answer.empty);
    part("iteration").max = this.steps.length;
    this.lay();
  }

  choose(at) {
    this.chosen = this.chosen === at ? null : at;
    this.picked = new Set();
    this.lay();
    this.changed();
  }

  // A new picture, or another capsule: the dots move.
  lay() {
    if (!this.answer) return;
    const { votes } = this.answer;
    const j = this.parent;
    this.mark(j);
    this.points = project(votes, this.axes, this.reach, j);
    this.made = dots(part("plane"), this.points);
    this.most = Math.max(1e-9, ...this.steps.flatMap((step) => this.column(step.coefficients, j)));
    part("places-image").setAttribute("href", this.answer.url);
    this.draw();
  }

  column(coefficients, j) {
    const { children, parents } = this.answer.votes;
    return Array.from({ length: children }, (_, i) => coefficients[i * parents + j]);
  }

  // This iteration, or the way (part of one) from the one before it.
  draw(way = 1) {
    const { votes, empty } = this.answer;
    const [j, at] = [this.parent, this.at];
    const step = this.steps[at];
    const before = this.steps[Math.max(at - 1, 0)];
    const { parents, size } = votes;
    const mixed = (i) => {
      const index = i * parents + j;
      return (before.coefficients[index] + way * (step.coefficients[index] - before.coefficients[index])) / this.most;
    };
    paintDots(this.made, mixed);
    const ends = this.steps.slice(0, at + 1).map(({ poses }) => this.end(poses.subarray(j * size, (j + 1) * size), j, size));
    const [from, to] = [ends[Math.max(at - 1, 0)], ends[at]];
    arrow(part("plane"), from.map((value, axis) => value + way * (to[axis] - value)), ends.slice(0, -1));
    part("iteration").value = at + 1;
    part("iteration-value").textContent = `${at + 1} of ${this.steps.length}`;
    part("most").textContent = this.most.toPrecision(2);
    if (way < 1) return;
    this.shares = shares(votes, step, j);
    part("votes-now").textContent = empty ? "Nothing drawn: every vote comes from an empty picture." : this.sentence(step, before, at, j);
    this.drawPlaces();
    this.drawPicked();
    const rival = this.answer.ranked.find((name) => name !== j);
    showAgreement(this.about, votes, step, j, rival);
    showTree(this.about, this.answer, this.shares, j, (child) => this.pick([child]), this.types);
  }

  // Where the capsule's arrow ends: squashed poses as they are; others by length against the largest.
  end(pose, j, size) {
    const [x, y] = onto(pose, this.axes, j, size);
    return this.about.scores === "length" ? [x, y] : [x, y].map((value) => value / this.longest());
  }

  longest() {
    return Math.max(1e-9, ...this.steps.flatMap(({ lengths }) => lengths));
  }

  sentence(step, before, at, j) {
    const name = this.about.classes[j];
    const length = step.lengths[j].toFixed(2);
    const mean = weightedMean(agreements(this.answer.votes, step, j)).toFixed(2);
    const column = this.column(step.coefficients, j);
    const [least, most] = [Math.min(...column), Math.max(...column)];
    if (at > 0 && most - least < 0.05 * most) {
      return `Iteration ${at + 1}: the coefficients stayed nearly equal (${least.toFixed(3)} to ${most.toFixed(3)}), so routing changed next to nothing. The votes for ${name} agree with it by ${mean}.`;
    }
    if (at === 0) return `Iteration 1: every vote counts the same. Capsule ${name} is ${length} long; its votes agree with it by ${mean}.`;
    return `Iteration ${at + 1}: votes that agreed count more. Capsule ${name} went from ${before.lengths[j].toFixed(2)} to ${length}; its votes agree with it by ${mean}.`;
  }

  // Iterations.

  play() {
    if (!this.answer) return;
    this.iteration = 0;
    this.draw();
    part("play").textContent = "Pause";
    part("play").setAttribute("aria-pressed", true);
    this.timer = setInterval(() => this.tick(), STEP);
  }

  tick() {
    if (this.at >= this.steps.length - 1) this.pause();
    else this.stepTo(this.at + 1, true);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    part("play").textContent = "Play";
    part("play").setAttribute("aria-pressed", false);
  }

  stepTo(iteration, playing = false) {
    if (!this.answer) return;
    if (!playing) this.pause();
    const forward = iteration > this.at;
    this.iteration = Math.min(Math.max(iteration, 0), this.steps.length - 1);
    if (forward && !still()) this.glide();
    else this.draw();
    this.changed();
  }

  glide() {
    const start = performance.now();
    const { at, answer } = this;
    const frame = (now) => {
      if (this.answer !== answer || this.at !== at) return;
      const way = Math.min((now - start) / 450, 1);
      this.draw(way < 1 ? way * way * (3 - 2 * way) : 1);
      if (way < 1) requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  // Picking: a dot lights up its place, a place its dots.

  get types() {
    const { places } = this.routing;
    return places === null ? 1 : this.answer.votes.children / (places.rows.length * places.columns.length);
  }

  pick(children) {
    this.picked = new Set(children);
    this.drawPicked();
  }

  clicked(event) {
    const child = event.target.dataset?.child;
    this.pick(child === undefined ? [] : [Number(child)]);
  }

  keyOnPlane(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step || !this.answer) return;
    event.preventDefault();
    const order = [...this.shares.keys()].sort((a, b) => this.shares[b] - this.shares[a]);
    const now = this.picked.size === 1 ? order.indexOf([...this.picked][0]) : -step;
    this.pick([order[(Math.max(now, -1) + step + order.length) % order.length]]);
  }

  clickedPlace(event) {
    const place = event.target.dataset?.place;
    if (place !== undefined) this.pickPlace(Number(place));
  }

  keyOnPlaces(event) {
    const { rows, columns } = this.routing.places;
    const step = { ArrowRight: 1, ArrowDown: columns.length, ArrowLeft: -1, ArrowUp: -columns.length }[event.key];
    if (!step || !this.answer) return;
    event.preventDefault();
    const count = rows.length * columns.length;
    const [first] = this.picked;
    this.pickPlace(first === undefined ? 0 : ((first % count) + step + count) % count);
  }

  pickPlace(place) {
    const { rows, columns } = this.routing.places;
    const count = rows.length * columns.length;
    this.pick(Array.from({ length: this.types }, (_, type) => type * count + place));
  }

  makePlaces() {
    const { places } = this.routing;
    if (places === null) return;
    const { width, height } = this.about.shape;
    const [high, wide] = [gap(places.rows, height), gap(places.columns, width)];
    this.squares = places.rows.flatMap((row, r) => places.columns.map((column, c) => drawn("rect", {
      x: column + 0.5 - wide / 2, y: row + 0.5 - high / 2, width: wide, height: high, class: "place",
      "data-place": r * places.columns.length + c,
    })));
    this.field = drawn("rect", { class: "field", visibility: "hidden" });
    part("places").setAttribute("viewBox", `0 0 ${width} ${height}`);
    part("places").replaceChildren(drawn("image", { id: "places-image", width, height }), ...this.squares, this.field);
  }

  drawPlaces() {
    const { places } = this.routing;
    if (places === null) return;
    const count = this.squares.length;
    const sums = this.squares.map((_, place) => {
      let sum = 0;
      for (let i = place; i < this.shares.length; i += count) sum += Math.max(this.shares[i], 0);
      return sum;
    });
    const most = Math.max(...sums, 1e-9);
    this.squares.forEach((square, place) => {
      square.setAttribute("fill", colour(sums[place] / most));
      square.setAttribute("fill-opacity", this.answer.empty ? 0 : (0.15 + 0.55 * (sums[place] / most)).toFixed(2));
    });
  }

  drawPicked() {
    for (const [i, dot] of this.made) dot.classList.toggle("picked", this.picked.has(i));
    for (const i of this.picked) if (this.made.has(i)) this.made.get(i).parentNode.append(this.made.get(i));
    const { places } = this.routing;
    const [child] = this.picked;
    document.querySelectorAll("#tree button").forEach((button) =>
      button.setAttribute("aria-pressed", this.picked.has(Number(button.dataset.child))));
    if (places !== null) {
      this.field.setAttribute("visibility", child === undefined ? "hidden" : "visible");
      if (child !== undefined) place(this.field, places, child % this.squares.length);
    }
    part("picked").textContent = child === undefined
      ? "Pick a dot, a place of the picture or a branch of the tree."
      : this.words([...this.picked]);
  }

  words(children) {
    const { places } = this.routing;
    const { parents } = this.answer.votes;
    const step = this.steps[this.at];
    const sum = children.reduce((total, i) => total + this.shares[i], 0);
    const where = places === null ? "" :
      ` at row ${Math.floor((children[0] % this.squares.length) / places.columns.length) + 1}, column ${(children[0] % places.columns.length) + 1}`;
    const gives = `${(100 * sum).toFixed(1)} % of capsule ${this.about.classes[this.parent]}`;
    if (children.length > 1) return `The ${children.length} children${where} give ${gives}.`;
    const agreement = agreements(this.answer.votes, step, this.parent)[children[0]].cosine.toFixed(2);
    const c = step.coefficients[children[0] * parents + this.parent].toFixed(2);
    return `Child ${Math.floor(children[0] / (this.squares?.length ?? 1)) + 1}${where}: coefficient ${c}, agreement ${agreement}; gives ${gives}.`;
  }
}

function gap(at, side) {
  return at.length > 1 ? at[1] - at[0] : side;
}

function place(field, { rows, columns, field: [high, wide] }, at) {
  const [row, column] = [rows[Math.floor(at / columns.length)], columns[at % columns.length]];
  const box = { x: column + 0.5 - wide / 2, y: row + 0.5 - high / 2, width: wide, height: high };
  for (const [name, value] of Object.entries(box)) field.setAttribute(name, value);
}

export function weightedMean(found) {
  const total = found.reduce((sum, { weight }) => sum + weight, 0);
  return total > 0 ? found.reduce((sum, { cosine, weight }) => sum + cosine * weight, 0) / total : 0;
}
