// A link that holds the drawing and the settings, after the #: it never leaves the browser on its own.

import { STRAIGHT } from "./turning.js";

const URL_SAFE = [["+", "-"], ["/", "_"], ["=", ""]];

export async function toLink({ network, source, centre, change, parent, iteration }) {
  const parts = new URLSearchParams({ network });
  if (source !== null) {
    const { width, height, channels } = source.picture;
    parts.set("picture", [width, height, channels, source.asIs ? 1 : 0, await packed(source.bytes)].join("."));
  }
  if (!centre) parts.set("centre", 0);
  for (const [name, value] of Object.entries(change)) if (value !== STRAIGHT[name]) parts.set(name, value);
  if (parent !== null) parts.set("capsule", parent);
  if (iteration !== null) parts.set("iteration", iteration + 1);
  return `#${parts}`;
}

// What a link says; what it says wrongly is as if it were not said.
export async function fromLink(fragment) {
  const parts = new URLSearchParams(fragment.replace(/^#/, ""));
  const number = (name, otherwise) => (parts.has(name) && Number.isFinite(Number(parts.get(name))) ? Number(parts.get(name)) : otherwise);
  const change = Object.fromEntries(Object.entries(STRAIGHT).map(([name, value]) => [name, number(name, value)]));
  const settings = { network: parts.get("network"), centre: parts.get("centre") !== "0", change, source: null,
                     parent: number("capsule", null), iteration: parts.has("iteration") ? Math.round(number("iteration", 1)) - 1 : null };
  try {
    if (parts.has("picture")) settings.source = await unpackedSource(parts.get("picture"));
  } catch {
    settings.source = null;
  }
  return settings;
}

async function unpackedSource(text) {
  const [width, height, channels, asIs, data] = text.split(".");
  const size = [width, height, channels].map(Number);
  if (size.some((side) => !Number.isInteger(side) || side < 1 || side > 512)) return null;
  const bytes = await unpacked(data, size.reduce((a, b) => a * b));
  return { bytes, shape: { width: size[0], height: size[1], channels: size[2] }, asIs: asIs === "1" };
}

async function packed(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const small = new Uint8Array(await new Response(stream).arrayBuffer());
  let text = "";
  for (const byte of small) text += String.fromCharCode(byte);
  return URL_SAFE.reduce((safe, [from, to]) => safe.replaceAll(from, to), btoa(text));
}

async function unpacked(text, size) {
  const plain = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  const stream = new Blob([Uint8Array.from(plain, (letter) => letter.charCodeAt(0))]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const reader = stream.getReader();
  const bytes = new Uint8Array(size);
  let filled = 0;
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    if (filled + part.value.length > size) throw new Error("longer than it says");
    bytes.set(part.value, filled);
    filled += part.value.length;
  }
  if (filled !== size) throw new Error("shorter than it says");
  return bytes;
}
