// Pictures as plain arrays {width, height, channels, data: Float32Array in [0,1], channel by channel}, and what is done to them.

export function blank(width, height, channels, value = 0) {
  return { width, height, channels, data: new Float32Array(width * height * channels).fill(value) };
}

export function fromMessage({ width, height, channels, data }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  return { width, height, channels, data: Float32Array.from(bytes, (byte) => byte / 255) };
}

export const toBytes = (picture) => Uint8Array.from(picture.data, (value) => Math.round(255 * Math.min(Math.max(value, 0), 1)));

export function fromBytes(bytes, { width, height, channels }) {
  return { width, height, channels, data: Float32Array.from(bytes, (byte) => byte / 255) };
}

export function fromCanvas(canvas, channels) {
  const { width, height } = canvas;
  const rgba = canvas.getContext("2d", { willReadFrequently: true }).getImageData(0, 0, width, height).data;
  const picture = blank(width, height, channels);
  const size = width * height;
  for (let channel = 0; channel < channels; channel++) {
    for (let pixel = 0; pixel < size; pixel++) picture.data[channel * size + pixel] = rgba[4 * pixel + Math.min(channel, 2)] / 255;
  }
  return picture;
}

// A picture at its own size; CSS makes it large.
export function show(canvas, { width, height, channels, data }) {
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const pixels = context.createImageData(width, height);
  const size = width * height;
  for (let pixel = 0; pixel < size; pixel++) {
    for (let channel = 0; channel < 3; channel++) {
      pixels.data[4 * pixel + channel] = 255 * data[(channels === 3 ? channel : 0) * size + pixel];
    }
    pixels.data[4 * pixel + 3] = 255;
  }
  context.putImageData(pixels, 0, 0);
}

// Two pictures of one channel in two colours: blue, orange, and white where both are.
export function inTwoColours(first, second) {
  const { width, height } = first;
  const size = width * height;
  const mixed = blank(width, height, 3);
  const colours = [[0.1, 0.55, 1], [1, 0.55, 0.1]];
  for (let channel = 0; channel < 3; channel++) {
    for (let at = 0; at < size; at++) {
      mixed.data[channel * size + at] = Math.min(1, first.data[at] * colours[0][channel] + second.data[at] * colours[1][channel]);
    }
  }
  return mixed;
}

// Smooth scaling: a triangle filter as wide as the pixels it makes, so that nothing is missed in between.
export function resize(picture, width, height) {
  return along(along(picture, width, true), height, false);
}

function along(picture, length, across) {
  const from = across ? picture.width : picture.height;
  const made = across ? blank(length, picture.height, picture.channels) : blank(picture.width, length, picture.channels);
  const scale = from / length;
  const reach = Math.max(scale, 1);
  const others = picture.channels * (across ? picture.height : picture.width);
  for (let at = 0; at < length; at++) {
    const middle = (at + 0.5) * scale;
    const first = Math.max(Math.floor(middle - reach + 0.5), 0);
    const last = Math.min(Math.floor(middle + reach + 0.5), from);
    const weights = Array.from({ length: last - first }, (_, k) => Math.max(0, 1 - Math.abs((first + k + 0.5 - middle) / reach)));
    const sum = weights.reduce((a, b) => a + b, 0);
    for (let other = 0; other < others; other++) {
      let value = 0;
      weights.forEach((weight, k) => { value += weight * picture.data[place(picture, other, first + k, across)]; });
      made.data[place(made, other, at, across)] = value / sum;
    }
  }
  return made;
}

function place({ width, height }, other, at, across) {
  if (across) return other * width + at;
  const channel = Math.floor(other / width);
  return (channel * height + at) * width + (other % width);
}

export const inverted = (picture) => ({ ...picture, data: picture.data.map((value) => 1 - value) });

export function cut({ width, height, channels, data }, left, top, wide, high) {
  const made = blank(wide, high, channels);
  for (let channel = 0; channel < channels; channel++) {
    for (let row = 0; row < high; row++) {
      const start = (channel * height + top + row) * width + left;
      made.data.set(data.subarray(start, start + wide), (channel * high + row) * wide);
    }
  }
  return made;
}

// How evenly light a picture is: nothing is drawn where this is zero.
export function contrast({ data }) {
  let [least, most] = [Infinity, -Infinity];
  for (const value of data) [least, most] = [Math.min(least, value), Math.max(most, value)];
  return most - least;
}
