// Pictures from files, read by the browser itself: nothing is sent anywhere to be decoded.

import { blank } from "./pictures.js";

const LARGEST = 20e6; // bytes
const LONGEST = 512; // side that is kept

export async function readPicture(file) {
  if (file.size > LARGEST) throw new Error(`This is too large: files of at most ${LARGEST / 1e6} MB are read.`);
  const head = new Uint8Array(await file.slice(0, 32).arrayBuffer());
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    const known = isImage(head);
    throw new Error(known ? "This image file is damaged, cut off or too large to be read."
                          : "This is not an image file that can be read (PNG, JPEG, GIF, WebP, BMP, AVIF).");
  }
  const scale = Math.min(1, LONGEST / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  return onGround(data, canvas.width, canvas.height);
}

function isImage(head) {
  const text = String.fromCharCode(...head.slice(0, 12));
  return text.startsWith("\x89PNG") || text.startsWith("\xff\xd8") || text.startsWith("GIF8") || text.startsWith("BM") || text.slice(8) === "WEBP";
}

// Transparent pixels lie on a ground that the opaque ones stand out from: dark ink on white, light ink on black.
export function onGround(rgba, width, height) {
  const size = width * height;
  let [light, opaque] = [0, 0];
  for (let at = 0; at < size; at++) {
    const alpha = rgba[4 * at + 3] / 255;
    light += alpha * (0.299 * rgba[4 * at] + 0.587 * rgba[4 * at + 1] + 0.114 * rgba[4 * at + 2]) / 255;
    opaque += alpha;
  }
  const ground = opaque > 0 && light / opaque < 0.5 ? 1 : 0;
  const picture = blank(width, height, 3);
  for (let at = 0; at < size; at++) {
    const alpha = rgba[4 * at + 3] / 255;
    for (let channel = 0; channel < 3; channel++) {
      picture.data[channel * size + at] = alpha * (rgba[4 * at + channel] / 255) + (1 - alpha) * ground;
    }
  }
  return picture;
}
