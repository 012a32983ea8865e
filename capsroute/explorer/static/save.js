// A drawing of the page as a file of its own: SVG, or PNG at 1200 pixels.

const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "opacity"];
const SIDE = 1200;

export function savable(pngButton, svgButton, svg, name) {
  svgButton.addEventListener("click", () => download(new Blob([text(svg)], { type: "image/svg+xml" }), `${name()}.svg`));
  pngButton.addEventListener("click", async () => download(await png(svg), `${name()}.png`));
}

// With the styles that the page gives it, and its ground.
export function text(svg) {
  const copy = svg.cloneNode(true);
  const originals = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((part, at) => {
    const style = getComputedStyle(originals[at]);
    for (const name of STYLES) if (style.getPropertyValue(name)) part.setAttribute(name, style.getPropertyValue(name));
    part.removeAttribute("class");
  });
  const [x, y, width, height] = svg.getAttribute("viewBox").split(" ");
  const ground = document.createElementNS(svg.namespaceURI, "rect");
  for (const [name, value] of Object.entries({ x, y, width, height, stroke: "none" })) ground.setAttribute(name, value);
  ground.setAttribute("fill", getComputedStyle(svg.closest("section")).backgroundColor);
  copy.prepend(ground);
  copy.setAttribute("width", SIDE);
  copy.setAttribute("height", Math.round((SIDE * height) / width));
  return new XMLSerializer().serializeToString(copy);
}

async function png(svg) {
  const image = new Image();
  const address = URL.createObjectURL(new Blob([text(svg)], { type: "image/svg+xml" }));
  image.src = address;
  await image.decode();
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: image.width, height: image.height });
  canvas.getContext("2d").drawImage(image, 0, 0);
  URL.revokeObjectURL(address);
  return new Promise((done) => { canvas.toBlob(done, "image/png"); });
}

function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
