// The capsule explorer: from a drawing to class capsules, into the winning one, and along its routing.

import { bytesOf, imageOf, show } from "./pictures.js";
import { Pad } from "./pad.js";
import { Asker, ask } from "./questions.js";
import { Capsule } from "./capsule.js";
import { Routing } from "./routing.js";

const part = (name) => document.getElementById(name);

class Explorer {
  constructor(model) {
    this.model = model;
    this.pad = new Pad(part("pad"), () => this.drawn());
    this.capsule = new Capsule(model, problem);
    this.routing = new Routing(model, problem);
    this.predictor = new Asker("predict", (answer, question) => this.answered(answer, question), problem);
    this.describe();
    this.makeBars();
    this.makeSamples();
    part("clear").addEventListener("click", () => this.clear());
    part("file").addEventListener("change", (event) => this.upload(event.target));
    part("centre").addEventListener("change", () => this.drawn());
    this.clear();
  }

  describe() {
    const { title, model, parameters, shape, centred, objects } = this.model;
    const size = `${shape.width} x ${shape.height}`;
    part("about").textContent = `${title}: ${model}, ${parameters.toLocaleString("en")} parameters, images of ${size}`;
    part("centre").checked = centred;
    part("centre-row").hidden = !centred;
    if (objects > 1) {
      part("input-title").textContent = "1 \u2002Draw two digits, one over the other";
      part("capsule-title").textContent = "3 \u2002Inside the capsules found";
      part("capsule-text").textContent = "Choose one. Its numbers say how this digit is drawn: move them, and see.";
    }
  }

  makeBars() {
    this.rows = this.model.classes.map((name) => {
      const row = document.createElement("div");
      row.className = "class";
      row.append(element("span", "name", name));
      const bars = ["dynamic", "fast"].map((kind) => {
        const bar = element("div", `bar ${kind}`);
        const track = element("div", "track");
        const value = element("span", "value");
        track.append(bar);
        row.append(track, value);
        return { bar, track, value };
      });
      part("bars").append(row);
      return { row, bars };
    });
  }

  makeSamples() {
    part("sample-part").hidden = this.model.samples.length === 0;
    for (const { label, image } of this.model.samples) {
      const button = element("button", "");
      const canvas = element("canvas", "");
      button.title = `a test image of class ${label}`;
      button.setAttribute("aria-label", button.title);
      show(canvas, image);
      button.append(canvas);
      button.addEventListener("click", () => this.take(image));
      part("samples").append(button);
    }
  }

  clear() {
    problem(null);
    this.pad.clear();
    this.drawn();
  }

  // A picture that is to be seen as it is, not fitted and centred.
  take(image) {
    problem(null);
    const canvas = document.createElement("canvas");
    show(canvas, image);
    this.pad.take(canvas);
    this.question(image, false);
  }

  drawn() {
    const { width, height, channels } = this.model.shape;
    // Four times finer than the network sees, for a smooth fit.
    this.question(imageOf(part("pad"), 4 * width, 4 * height, channels), part("centre").checked);
  }

  question(image, centre) {
    part("lengths").setAttribute("aria-busy", true);
    this.predictor.ask({ image, centre, at: performance.now() });
  }

  async upload(input) {
    const [file] = input.files;
    input.value = "";
    if (!file) return;
    try {
      this.take((await ask("upload", file)).image);
    } catch (error) {
      problem(error);
    }
  }

  answered(answer, question) {
    show(part("seen"), answer.seen);
    const found = new Set(answer.found.map((capsule) => capsule.class));
    this.rows.forEach(({ row, bars }, name) => {
      row.classList.toggle("found", found.has(name));
      [answer.dynamic, answer.fast].forEach((lengths, kind) => {
        const { bar, track, value } = bars[kind];
        track.hidden = value.hidden = lengths === null;
        if (lengths === null) return;
        bar.style.width = `${100 * lengths[name]}%`;
        value.textContent = lengths[name].toFixed(2);
      });
    });
    part("fast-key").hidden = answer.fast === null;
    const names = answer.found.map((capsule) => this.model.classes[capsule.class]);
    const empty = bytesOf(answer.seen).every((value) => value === 0);
    part("verdict").textContent = empty ? "Draw something, or pick an image." : `The network sees: ${names.join(" and ")}`;
    const waited = performance.now() - question.at;
    part("timing").textContent = `answered ${waited.toFixed(0)} ms after the stroke`;
    part("timing").dataset.milliseconds = waited;
    this.capsule.take(answer);
    this.routing.take(answer);
    part("lengths").setAttribute("aria-busy", this.predictor.waiting);
  }
}

function element(kind, className, text = "") {
  const made = document.createElement(kind);
  made.className = className;
  made.textContent = text;
  return made;
}

function problem(error) {
  part("problem").hidden = error === null;
  part("problem").textContent = error === null ? "" : error.message;
}

fetch("api/model").then((response) => response.json()).then((model) => new Explorer(model)).catch(problem);
