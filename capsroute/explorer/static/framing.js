// A picture of any size as a network wants it: as capsroute/models/preprocessing.py does it for `cr.predict`.

import { blank, contrast, cut, inverted, resize } from "./pictures.js";

const INK = 0.05; // brightness that counts as drawn

// Halves go to the even side, as in Python.
const round = (value) => (value - Math.floor(value) === 0.5 ? 2 * Math.round(value / 2) : Math.round(value));

// A picture at the size of a network, drawn as light or dark as it knows it.
export function frame(picture, { shape, centred, polarity, crop }) {
  if (centred) return asMnist(withoutGround(withPolarity(grey(picture), polarity)), shape.height);
  const wide = { ...shape, width: round(shape.width / crop), height: round(shape.height / crop) };
  const fit = toShape(picture, wide);
  const middle = cut(fit, Math.floor((wide.width - shape.width) / 2), Math.floor((wide.height - shape.height) / 2), shape.width, shape.height);
  return shape.channels === 1 ? withPolarity(middle, polarity) : middle;
}

// Light on dark, or dark on light, as the network knows it; the outermost pixels are the ground.
function withPolarity(picture, polarity) {
  if (contrast(picture) === 0) return picture; // flat: nothing is drawn on it
  const light = ground(picture);
  const wrong = (polarity === "light_on_dark" && light > 0.5) || (polarity === "dark_on_light" && light < 0.5);
  return wrong ? inverted(picture) : picture;
}

// The median of the outermost pixels; of an even number, the lower of the two in the middle.
function ground({ width, height, data }) {
  const edges = [];
  for (let column = 0; column < width; column++) edges.push(data[column], data[(height - 1) * width + column]);
  for (let row = 0; row < height; row++) edges.push(data[row * width], data[(row + 1) * width - 1]);
  edges.sort((a, b) => a - b);
  return edges[Math.floor((edges.length - 1) / 2)];
}

// Light drawn on grey, as on a photograph of paper, as light drawn on black.
function withoutGround(picture) {
  const dark = ground(picture);
  const lightest = picture.data.reduce((a, b) => Math.max(a, b), 0);
  if (dark <= INK || lightest - dark <= INK) return picture;
  return { ...picture, data: picture.data.map((value) => Math.min(Math.max((value - dark - INK) / (lightest - dark - INK), 0), 1)) };
}

export function grey(picture) {
  if (picture.channels === 1) return picture;
  const size = picture.width * picture.height;
  const [red, green, blue] = [0, size, 2 * size];
  const made = blank(picture.width, picture.height, 1);
  for (let at = 0; at < size; at++) {
    made.data[at] = 0.299 * picture.data[red + at] + 0.587 * picture.data[green + at] + 0.114 * picture.data[blue + at];
  }
  return made;
}

// Any picture as a network wants it: grey or colour, the middle cut out, scaled.
export function toShape(picture, { width, height, channels }) {
  const toned = channels === 1 ? grey(picture) : coloured(picture, channels);
  const scale = Math.min(toned.width / width, toned.height / height);
  const wide = Math.max(1, round(width * scale));
  const high = Math.max(1, round(height * scale));
  const middle = cut(toned, Math.floor((toned.width - wide) / 2), Math.floor((toned.height - high) / 2), wide, high);
  return resize(middle, width, height);
}

function coloured(picture, channels) {
  if (picture.channels === channels) return picture;
  const one = grey(picture);
  const made = blank(one.width, one.height, channels);
  for (let channel = 0; channel < channels; channel++) made.data.set(one.data, channel * one.data.length);
  return made;
}

// A drawing as MNIST's makers would have it: in a box of 20 pixels of 28, its centre of mass in the middle.
export function asMnist(picture, size) {
  const { width, height, data } = picture;
  let [left, right, top, bottom] = [width, -1, height, -1];
  data.forEach((value, at) => {
    if (value <= INK) return;
    const [row, column] = [Math.floor(at / width), at % width];
    [left, right, top, bottom] = [Math.min(left, column), Math.max(right, column), Math.min(top, row), Math.max(bottom, row)];
  });
  const made = blank(size, size, 1);
  if (right < 0) return made;
  const [wide, high] = [right - left + 1, bottom - top + 1];
  const scale = round((size * 20) / 28) / Math.max(wide, high);
  const digit = resize(cut(picture, left, top, wide, high), Math.max(1, round(wide * scale)), Math.max(1, round(high * scale)));
  let [mass, across, down] = [0, 0, 0];
  digit.data.forEach((value, at) => {
    mass += value;
    across += value * ((at % digit.width) + 0.5);
    down += value * (Math.floor(at / digit.width) + 0.5);
  });
  const corner = (centre, side) => Math.min(Math.max(round(size / 2 - centre / mass), 0), size - side);
  const [x, y] = [corner(across, digit.width), corner(down, digit.height)];
  for (let row = 0; row < digit.height; row++) {
    made.data.set(digit.data.subarray(row * digit.width, (row + 1) * digit.width), (y + row) * size + x);
  }
  return made;
}
