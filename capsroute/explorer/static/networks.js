// The networks on show, in either form: asked over the wire, or run by this browser. Both answer with plain arrays.

import { Local } from "./local.js";

export async function listNetworks() {
  return json("networks.json");
}

export async function openNetwork(form, name) {
  const about = await json(`networks/${name}/about.json`);
  return form === "static" ? new Local(name, about) : new Remote(name, about);
}

class Remote {
  constructor(name, about) {
    Object.assign(this, { name, about });
  }

  // Images (each a Uint8Array of the network's input) -> {output: Float32Array [n, ...]}, the outputs that are wanted.
  async look(images, wanted = Object.keys(this.about.outputs)) {
    const numbers = await this.post(`look?want=${wanted.join()}`, joined(images));
    return split(numbers, wanted, this.about.outputs, images.length);
  }

  // Class capsules [j,d], all but one zero -> the decoder's picture, numbers in [0,1].
  async paint(capsules) {
    return this.post("paint", Float32Array.from(capsules));
  }

  async post(path, body) {
    const response = await fetch(`networks/${this.name}/${path}`, { method: "POST", body }).catch(() => {
      throw new Error("The explorer does not answer. Is it still running?");
    });
    if (response.ok) return new Float32Array(await response.arrayBuffer());
    const answer = await response.json().catch(() => ({}));
    throw new Error(answer.error ?? `The server answered ${response.status}.`);
  }
}

async function json(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path} cannot be read (${response.status}).`);
  return response.json();
}

function joined(images) {
  const all = new Uint8Array(images.length * images[0].length);
  images.forEach((image, at) => all.set(image, at * image.length));
  return all;
}

function split(numbers, wanted, shapes, count) {
  let start = 0;
  return Object.fromEntries(wanted.map((name) => {
    const size = count * shapes[name].reduce((a, b) => a * b, 1);
    start += size;
    return [name, numbers.subarray(start - size, start)];
  }));
}

// Questions of one kind. While one is on its way, only the newest of those that follow is kept.
export class Asker {
  constructor(ask, answered, failed) {
    Object.assign(this, { question: ask, answered, failed, busy: false, next: null, round: 0 });
  }

  // Answers that are still to come are nobody's any more.
  forget() {
    this.round += 1;
    this.next = null;
  }

  get waiting() {
    return this.next !== null;
  }

  async ask(given) {
    if (this.busy) {
      this.next = { given };
      return;
    }
    this.busy = true;
    const { round } = this;
    try {
      const answer = await this.question(given);
      if (round === this.round) this.answered(answer, given);
    } catch (error) {
      this.failed(error);
    }
    this.busy = false;
    if (this.next === null) return;
    const { given: newest } = this.next;
    this.next = null;
    this.ask(newest);
  }
}
