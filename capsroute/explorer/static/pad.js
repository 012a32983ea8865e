// The drawing area: a white pen on black, by mouse, finger or stylus.

export class Pad {
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    this.context = canvas.getContext("2d", { willReadFrequently: true });
    this.last = null;
    this.clear();
    canvas.addEventListener("pointerdown", (event) => this.start(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { this.last = null; });
  }

  clear() {
    this.context.fillStyle = "black";
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
  }

  // Puts a picture onto the pad, to be drawn over.
  take(picture) {
    this.clear();
    this.context.imageSmoothingEnabled = true;
    this.context.drawImage(picture, 0, 0, this.canvas.width, this.canvas.height);
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
}
