// A network that this browser runs itself, from ONNX files, with the onnxruntime that lies beside the page.

let runtime = null;

async function unpacked(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path} cannot be read (${response.status}).`);
  const bytes = new Uint8Array(await response.arrayBuffer());
  // Some file servers unpack what is named .gz on the way.
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return bytes;
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function start() {
  const [ort, binary] = await Promise.all([
    import(new URL("runtime/ort.mjs", document.baseURI).href),
    unpacked("runtime/ort.wasm.gz"),
  ]);
  Object.assign(ort.env.wasm, { wasmBinary: binary.buffer, numThreads: 1, proxy: false });
  ort.env.logLevel = "error";
  return ort;
}

async function load(path) {
  runtime ??= start();
  const [ort, model] = await Promise.all([runtime, unpacked(path)]);
  return ort.InferenceSession.create(model, { executionProviders: ["wasm"] });
}

export class Local {
  constructor(name, about) {
    Object.assign(this, { name, about, queue: Promise.resolve() });
    this.encoder = load(`networks/${name}/encoder.onnx.gz`);
    this.decoder = null;
  }

  // Images (each a Uint8Array of the network's input) -> {output: Float32Array [n, ...]}, the outputs that are wanted.
  async look(images, wanted = Object.keys(this.about.outputs)) {
    const { channels, height, width } = this.about.shape;
    const size = channels * height * width;
    const input = new Float32Array(images.length * size);
    images.forEach((image, at) => image.forEach((byte, pixel) => { input[at * size + pixel] = byte / 255; }));
    const answer = await this.run(this.encoder, input, [images.length, channels, height, width], wanted);
    return Object.fromEntries(wanted.map((name) => [name, answer[name].data]));
  }

  // Class capsules [j,d], all but one zero -> the decoder's picture, numbers in [0,1].
  async paint(capsules) {
    this.decoder ??= load(`networks/${this.name}/decoder.onnx.gz`);
    const answer = await this.run(this.decoder, Float32Array.from(capsules), [1, ...this.about.decoder], ["pictures"]);
    return answer.pictures.data;
  }

  // One after the other: a session answers one question at a time.
  run(session, input, shape, wanted) {
    const answer = this.queue.then(async () => {
      const [ort, loaded] = await Promise.all([runtime, session]);
      return loaded.run({ images: new ort.Tensor("float32", input, shape) }, wanted);
    });
    this.queue = answer.catch(() => {});
    return answer;
  }
}
