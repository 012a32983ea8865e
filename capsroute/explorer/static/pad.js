// The drawing area: a white pen on black, by mouse, finger, stylus or arrow keys.

import { fromCanvas, show } from "./pictures.js";

const CELLS = 28; // steps of the arrow keys from side to side

export class Pad {
  constructor(canvas, pen, status, changed) {
    Object.assign(this, { canvas, pen, status, changed, last: null, down: false, at: [CELLS / 2, CELLS / 2] });
    this.context = canvas.getContext("2d", { willReadFrequently: true });
    this.clear();
    canvas.addEventListener("pointerdown", (event) => this.start(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { this.last = null; });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.showPen());
    canvas.addEventListener("blur", () => { this.pen.hidden = true; });
  }

  // Four pixels for each of the network's, so that fitting stays smooth.
  resize(width, height) {
    Object.assign(this.canvas, { width: 4 * width, height: 4 * height });
    this.clear();
  }

  clear() {
    this.context.fillStyle = "black";
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
  }

  // Puts a picture onto the pad, to be drawn over.
  take(picture) {
    const canvas = document.createElement("canvas");
    show(canvas, picture);
    this.clear();
    const scale = Math.max(this.canvas.width / canvas.width, this.canvas.height / canvas.height);
    const [wide, high] = [canvas.width * scale, canvas.height * scale];
    this.context.imageSmoothingQuality = "high";
    this.context.drawImage(canvas, (this.canvas.width - wide) / 2, (this.canvas.height - high) / 2, wide, high);
  }

  picture(channels) {
    return fromCanvas(this.canvas, channels);
  }

  start(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.last = this.place(event);
    this.line(this.last, this.last);
  }

  move(event) {
    if (this.last === null) return;
    const here = this.place(event);
    this.line(this.last, here);
    this.last = here;
  }

  line(from, to) {
    Object.assign(this.context, { strokeStyle: "white", lineWidth: this.canvas.width / 13, lineCap: "round" });
    this.context.beginPath();
    this.context.moveTo(...from);
    this.context.lineTo(...to);
    this.context.stroke();
    this.changed();
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    const across = (event.clientX - box.left) / box.width;
    const down = (event.clientY - box.top) / box.height;
    return [across * this.canvas.width, down * this.canvas.height];
  }

  key(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (step) {
      const before = this.at;
      this.at = before.map((value, axis) => Math.min(Math.max(value + step[axis], 0), CELLS));
      if (this.down) this.line(this.pixels(before), this.pixels(this.at));
    } else if (event.key === " " || event.key === "Enter") {
      this.down = !this.down;
      if (this.down) this.line(this.pixels(this.at), this.pixels(this.at));
    } else if (event.key === "Escape") {
      this.down = false;
    } else {
      return;
    }
    event.preventDefault();
    this.showPen();
  }

  pixels([x, y]) {
    return [(x * this.canvas.width) / CELLS, (y * this.canvas.height) / CELLS];
  }

  showPen() {
    const [x, y] = this.at;
    this.pen.hidden = false;
    this.pen.classList.toggle("down", this.down);
    this.pen.style.left = `${(100 * x) / CELLS}%`;
    this.pen.style.top = `${(100 * y) / CELLS}%`;
    this.status.textContent = `pen ${this.down ? "down" : "up"}, column ${x}, row ${y} of ${CELLS}`;
  }
}
