// The capsule explorer: from a picture to votes, from votes to capsules, and back from capsules to pictures.

import { Capsule } from "./capsule.js";
import { Classes } from "./classes.js";
import { Compare, trained } from "./compare.js";
import { element, part } from "./dom.js";
import { readPicture } from "./files.js";
import { asMnist, frame, toShape } from "./framing.js";
import { fromLink, toLink } from "./link.js";
import { Asker, listNetworks, openNetwork } from "./networks.js";
import { Pad } from "./pad.js";
import { blank, contrast, fromBytes, fromMessage, inverted, show, toBytes } from "./pictures.js";
import { recorded, route, Votes } from "./routing.js";
import { Turn } from "./turn.js";
import { turned } from "./turning.js";
import { VotesPanel } from "./votes.js";

const FOUND = 0.5; // a second object counts as found from this length or probability

class Explorer {
  constructor({ form, networks }) {
    Object.assign(this, { form, networks, network: null, source: null });
    this.classes = new Classes();
    this.votes = new VotesPanel(() => this.remember());
    this.compare = new Compare();
    this.turn = new Turn(() => this.ask(), (change) => this.seen(change), problem);
    this.capsule = new Capsule(problem);
    this.pad = new Pad(part("pad"), part("pen"), part("pen-text"), () => this.drawn());
    this.looker = new Asker((question) => question.network.look([question.bytes]), (found, question) => this.answered(found, question), problem);
    part("network").replaceChildren(...networks.map(({ name, title }) => element("option", { value: name }, title)));
    part("network").addEventListener("change", () => this.open(part("network").value));
    part("clear").addEventListener("click", () => this.clear());
    part("file").addEventListener("change", (event) => this.read(event.target));
    part("centre").addEventListener("change", () => this.ask());
    part("copy").addEventListener("click", () => this.copy());
    part("input-panel").addEventListener("dragover", (event) => event.preventDefault());
    part("input-panel").addEventListener("drop", (event) => { event.preventDefault(); this.take(event.dataTransfer.files); });
    document.addEventListener("paste", (event) => this.take(event.clipboardData.files));
    addEventListener("hashchange", () => { if (location.hash !== this.written) this.follow(); });
  }

  async follow() {
    const settings = await fromLink(location.hash);
    const known = this.networks.some(({ name }) => name === settings.network);
    await this.open(known ? settings.network : this.networks[0].name, settings);
  }

  async open(name, settings = null) {
    document.body.setAttribute("aria-busy", true);
    part("network").value = name;
    this.looker.forget();
    const network = await openNetwork(this.form, name);
    if (part("network").value !== name) return; // another was chosen meanwhile
    this.network = network;
    const { about } = network;
    for (const panel of [this.classes, this.votes, this.compare]) panel.open(about);
    for (const panel of [this.turn, this.capsule]) panel.open(network);
    this.describe(about);
    this.makeSamples(about);
    this.pad.resize(about.shape.width, about.shape.height);
    this.source = null;
    if (settings) this.restore(settings, about);
    this.ask();
  }

  restore({ source, centre, change, parent, iteration }, about) {
    part("centre").checked = centre && about.centred;
    this.turn.take(change);
    this.votes.chosen = parent !== null && parent >= 0 && parent < about.classes.length ? Math.floor(parent) : null;
    this.votes.iteration = iteration;
    if (source === null || (source.shape.channels !== about.shape.channels && source.asIs)) return;
    const picture = fromBytes(source.bytes, source.shape);
    this.pad.take(picture);
    this.source = { picture, bytes: source.bytes, asIs: source.asIs };
  }

  describe({ model, parameters, shape, centred, digits, objects, routing }) {
    const parts = [model, `${parameters.toLocaleString("en")} parameters`, `pictures of ${shape.width} × ${shape.height}`];
    if (routing !== null && !routing.in_browser) parts.push(`${routing.layers} routed layers; shown is the last`);
    if (routing === null) parts.push("nothing is routed to its classes, so there are no votes to show");
    part("about").textContent = `${parts.join(", ")}.`;
    const draws = shape.channels === 1;
    const what = objects > 1 ? "Draw two digits, one over the other" : digits ? "Draw a digit" : draws ? "Draw something" : "Choose a photo";
    part("input-title").textContent = what;
    part("input-text").textContent = draws
      ? "With mouse, finger or arrow keys (space puts the pen down and lifts it). Or open a picture."
      : "Open, paste or drop one; its middle is cut out and scaled. You can paint over it, too.";
    part("file-label").textContent = draws ? "Open a picture" : "Choose a photo";
    part("seen-text").textContent = `What the network sees: ${shape.width} × ${shape.height} pixels.`;
    part("centre").checked = centred;
    part("centre-row").hidden = !centred;
  }

  makeSamples({ samples }) {
    part("sample-part").hidden = samples.length === 0;
    part("samples").replaceChildren(...samples.map(({ label, image }) => {
      const picture = fromMessage(image);
      const canvas = element("canvas", { "aria-hidden": true });
      show(canvas, picture);
      const button = element("button", { type: "button", title: `a test image: ${label}`, "aria-label": `a test image: ${label}` }, canvas);
      button.addEventListener("click", () => this.put(picture, true));
      return button;
    }));
  }

  clear() {
    problem(null);
    this.pad.clear();
    this.source = null;
    this.ask();
  }

  // A picture on the pad; `asIs`: it is what the network is to see, not to be fitted and centred.
  put(picture, asIs) {
    problem(null);
    this.pad.take(picture);
    this.source = { picture, bytes: toBytes(picture), asIs };
    this.ask();
  }

  drawn() {
    const picture = this.pad.picture(this.network.about.shape.channels);
    this.source = { picture, bytes: toBytes(picture), asIs: false };
    this.ask();
  }

  read(input) {
    const files = [...input.files];
    input.value = "";
    return this.take(files);
  }

  async take([file]) {
    if (!file) return;
    try {
      this.put(frame(await readPicture(file), this.network.about), true);
    } catch (error) {
      problem(error);
    }
  }

  // What the network gets to see of the source under a change.
  seen(change) {
    const { shape, samples } = this.network.about;
    if (this.source === null && change.second < 0 && change.noise === 0) return blank(shape.width, shape.height, shape.channels);
    const second = change.second >= 0 ? fromMessage(samples[change.second].image) : null;
    return turned(this.fitted(), change, second);
  }

  fitted() {
    const { shape, polarity } = this.network.about;
    if (this.source === null) return blank(shape.width, shape.height, shape.channels);
    const { picture, asIs } = this.source;
    if (!asIs && part("centre").checked) return asMnist(picture, shape.height);
    if (!asIs && polarity === "dark_on_light") return inverted(toShape(picture, shape));
    return picture.width === shape.width && picture.height === shape.height && picture.channels === shape.channels ? picture : toShape(picture, shape);
  }

  ask() {
    const { network } = this;
    if (network === null) return;
    const bytes = toBytes(this.seen(this.turn.change));
    document.body.setAttribute("aria-busy", true);
    this.looker.ask({ network, bytes, at: performance.now() });
    this.remember();
  }

  answered(found, { network, bytes, at }) {
    if (network !== this.network) return;
    const answer = this.complete(found, network.about, fromBytes(bytes, network.about.shape));
    show(part("seen"), answer.seen);
    answer.url = part("seen").toDataURL();
    this.classes.show(answer);
    const milliseconds = performance.now() - at;
    part("timing").textContent = `answered ${milliseconds.toFixed(0)} ms after the stroke, ${this.form === "static" ? "by this browser" : "by the server"}`;
    part("timing").dataset.milliseconds = milliseconds;
    for (const panel of [this.votes, this.compare, this.turn, this.capsule]) panel.show(answer);
    this.answer = answer;
    document.body.setAttribute("aria-busy", this.looker.waiting);
  }

  // All that panels want to know about an answer.
  complete({ scores, poses = null, votes, coefficients, capsules }, { outputs, routing, objects }, seen) {
    const answer = { scores: Array.from(scores), poses, seen, empty: contrast(seen) === 0, votes: null, steps: null, plain: null };
    answer.ranked = answer.scores.map((_, name) => name).sort((a, b) => scores[b] - scores[a]);
    answer.found = answer.ranked.slice(0, objects).filter((name, rank) => rank === 0 || scores[name] >= FOUND);
    if (routing === null) return answer;
    answer.votes = new Votes(votes, outputs.votes);
    const [children, parents, size] = outputs.votes;
    if (routing.in_browser) {
      answer.steps = route(answer.votes, trained(routing));
      answer.plain = route(answer.votes, { coefficients: new Float32Array(children * parents).fill(routing.uniform) })[0].lengths;
    } else {
      answer.steps = Array.from({ length: outputs.capsules[0] }, (_, t) => recorded(
        coefficients.subarray(t * children * parents, (t + 1) * children * parents),
        capsules.subarray(t * parents * size, (t + 1) * parents * size), parents, size));
    }
    return answer;
  }

  settings() {
    const { chosen: parent, iteration } = this.votes;
    return { network: this.network.name, source: this.source, centre: part("centre").checked || part("centre-row").hidden, change: this.turn.change, parent, iteration };
  }

  // The address follows what is shown, a moment later.
  remember() {
    clearTimeout(this.remembering);
    this.remembering = setTimeout(() => this.write(), 300);
  }

  async write() {
    this.written = await toLink(this.settings());
    history.replaceState(null, "", this.written);
  }

  async copy() {
    await this.write();
    const done = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
    part("copied").textContent = done ? "Copied: the link holds your drawing and settings." : "The address above holds your drawing and settings.";
  }
}

function problem(error) {
  part("problem").hidden = error === null;
  part("problem").textContent = error === null ? "" : error.message;
  if (error !== null) document.body.setAttribute("aria-busy", false);
}

listNetworks().then(async (listed) => {
  const explorer = new Explorer(listed);
  globalThis.explorer = explorer;
  await explorer.follow();
}).catch(problem);
