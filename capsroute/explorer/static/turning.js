// What the sliders do to a picture: turn, move, scale, slant, noise, a patch that covers, a second picture over it.

import { blank } from "./pictures.js";

export const STRAIGHT = { turn: 0, across: 0, down: 0, size: 1, slant: 0, noise: 0, cover: 0, second: -1 };

export function turned(picture, change, second = null) {
  const moved = warped(picture, change);
  const both = second ? over(moved, second) : moved;
  return noisy(covered(both, change.cover), change.noise);
}

// Every pixel of the result is looked up where it came from, linearly between pixels; outside is black, or the mean colour.
function warped(picture, { turn, across, down, size, slant }) {
  if (!turn && !across && !down && size === 1 && !slant) return picture;
  const { width, height, channels, data } = picture;
  const [cos, sin] = [Math.cos((turn * Math.PI) / 180), Math.sin((turn * Math.PI) / 180)];
  const made = blank(width, height, channels);
  const [middleX, middleY] = [(width - 1) / 2, (height - 1) / 2];
  for (let channel = 0; channel < channels; channel++) {
    const start = channel * width * height;
    const outside = channels === 1 ? 0 : mean(data.subarray(start, start + width * height));
    const at = (row, column) =>
      (row < 0 || column < 0 || row >= height || column >= width ? outside : data[start + row * width + column]);
    for (let row = 0; row < height; row++) {
      for (let column = 0; column < width; column++) {
        const [x, y] = [column - middleX - across, row - middleY - down];
        const [turnedX, turnedY] = [(cos * x + sin * y) / size, (-sin * x + cos * y) / size];
        const [fromX, fromY] = [turnedX + slant * turnedY + middleX, turnedY + middleY];
        const [left, top] = [Math.floor(fromX), Math.floor(fromY)];
        const [partX, partY] = [fromX - left, fromY - top];
        made.data[start + row * width + column] =
          (1 - partY) * ((1 - partX) * at(top, left) + partX * at(top, left + 1)) +
          partY * ((1 - partX) * at(top + 1, left) + partX * at(top + 1, left + 1));
      }
    }
  }
  return made;
}

function mean(values) {
  return values.reduce((a, b) => a + b, 0) / values.length;
}

function over(picture, second) {
  return { ...picture, data: picture.data.map((value, at) => Math.max(value, second.data[at])) };
}

// A square in the middle, `cover` of the side long: black on drawings, grey on photographs.
function covered(picture, cover) {
  if (!cover) return picture;
  const { width, height, channels } = picture;
  const made = { ...picture, data: Float32Array.from(picture.data) };
  const [high, wide] = [Math.round(height * cover), Math.round(width * cover)];
  const [top, left] = [Math.round((height - high) / 2), Math.round((width - wide) / 2)];
  for (let channel = 0; channel < channels; channel++) {
    for (let row = top; row < top + high; row++) {
      const start = (channel * height + row) * width + left;
      made.data.fill(channels === 1 ? 0 : 0.5, start, start + wide);
    }
  }
  return made;
}

// Always the same noise, so that a link shows what its sender saw.
function noisy(picture, amount) {
  if (!amount) return picture;
  let seed = 1;
  const random = () => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return seed / 2 ** 32;
  };
  return { ...picture, data: picture.data.map((value) => Math.min(Math.max(value + amount * (2 * random() - 1), 0), 1)) };
}
