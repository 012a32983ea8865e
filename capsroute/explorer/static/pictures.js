// Pictures: bytes from the server onto a canvas, heat over an image, and a canvas as bytes for the server.

// Cividis, a scale that colour-blind eyes read as others do.
const HEAT = [[0, 32, 77], [0, 49, 111], [57, 72, 107], [87, 93, 109], [112, 113, 115],
              [138, 134, 120], [166, 156, 117], [196, 181, 108], [228, 207, 91], [255, 234, 70]];

export function bytesOf(image) {
  return Uint8Array.from(atob(image.data), (letter) => letter.charCodeAt(0));
}

export function heatColour(part) {
  const at = Math.min(Math.max(part, 0), 1) * (HEAT.length - 1);
  const low = Math.min(Math.floor(at), HEAT.length - 2);
  return HEAT[low].map((value, channel) => value + (at - low) * (HEAT[low + 1][channel] - value));
}

function rgbOf(image) {
  const bytes = bytesOf(image);
  const size = image.width * image.height;
  const blue = image.channels === 3 ? 2 : 0;
  const green = image.channels === 3 ? 1 : 0;
  return (pixel) => [bytes[pixel], bytes[green * size + pixel], bytes[blue * size + pixel]];
}

function fill(canvas, width, height, colourAt) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(width, height);
  for (let pixel = 0; pixel < width * height; pixel++) {
    pixels.data.set([...colourAt(pixel), 255], 4 * pixel);
  }
  context.putImageData(pixels, 0, 0);
}

// An image at its own size; CSS makes it large.
export function show(canvas, image) {
  fill(canvas, image.width, image.height, rgbOf(image));
}

// Heat where there are values, the image itself, dimmed, everywhere; its outline stays visible through the heat.
export function showHeat(canvas, image, heat, name, most) {
  const seen = rgbOf(image);
  const [top, left, bottom, right] = heat.box;
  const values = bytesOf(heat.maps[name]);
  fill(canvas, image.width, image.height, (pixel) => {
    const row = Math.floor(pixel / image.width);
    const column = pixel % image.width;
    const grey = seen(pixel);
    if (row < top || row >= bottom || column < left || column >= right) return grey.map((value) => value * 0.45);
    const value = values[(row - top) * (right - left) + column - left] / 255 * heat.most[name] / most;
    return heatColour(value).map((colour, channel) => 0.72 * colour + 0.28 * grey[channel]);
  });
}

export function showScale(canvas) {
  fill(canvas, canvas.width, canvas.height, (pixel) => heatColour((pixel % canvas.width) / canvas.width));
}

// What is on a canvas, made smaller by the browser, as the server takes it.
export function imageOf(canvas, width, height, channels) {
  const small = document.createElement("canvas");
  small.width = width;
  small.height = height;
  const context = small.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(canvas, 0, 0, width, height);
  const rgba = context.getImageData(0, 0, width, height).data;
  const size = width * height;
  const kept = channels === 3 ? 3 : 1;
  let text = "";
  for (let channel = 0; channel < kept; channel++) {
    for (let pixel = 0; pixel < size; pixel++) text += String.fromCharCode(rgba[4 * pixel + channel]);
  }
  return { width, height, channels: kept, data: btoa(text) };
}
