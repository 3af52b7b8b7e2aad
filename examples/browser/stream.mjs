// A model made with `rnn-lower --stream AXIS=1`, called one frame at a time; its states are kept here.

import { OPTIONS, onGpu, read } from "./gpu.mjs";

const LIBRARY = "./node_modules/onnxruntime-web/dist";

// The stream of a model: on WebGPU where the browser has it, else in WebAssembly.
export async function loadStream(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.statusText}`);
  const model = new Uint8Array(await response.arrayBuffer());
  const onWebGpu = await navigator.gpu?.requestAdapter();
  const ort = await import(`${LIBRARY}/ort.${onWebGpu ? "webgpu" : "wasm"}.bundle.min.mjs`);
  ort.env.wasm.numThreads = 1; // a frame is too little for more
  const kind = onWebGpu ? GpuStream : WasmStream;
  const stream = new kind(ort, await ort.InferenceSession.create(model, kind.OPTIONS));
  await stream.start();
  return stream;
}

class Stream {
  // onnxruntime-web does not show the metadata of a model; the states are known by the names that rnn-lower gives.
  constructor(ort, session) {
    this.ort = ort;
    this.session = session;
    this.past = session.inputMetadata.filter(({ name }) => name.startsWith("past_"));
  }
}

const present = (name) => name.replace("past_", "present_");

const ARRAYS = { float32: Float32Array, int32: Int32Array, int64: BigInt64Array };

// Zeros for an input; sizes that the model leaves open are 1.
function zeros({ type, shape }) {
  const sizes = shape.map((size) => (typeof size === "number" ? size : 1));
  return [new ARRAYS[type](sizes.reduce((a, b) => a * b, 1)), sizes];
}

class WasmStream extends Stream {
  static OPTIONS = { executionProviders: ["wasm"] };
  device = "WebAssembly";

  async start() {
    this.reset();
  }

  // A new sequence: all states are zero.
  reset() {
    this.states = {};
    for (const state of this.past) this.states[state.name] = new this.ort.Tensor(state.type, ...zeros(state));
  }

  // The outputs of the next frame, by name; `frame` has the inputs: name -> [numbers, shape].
  async next(frame) {
    const inputs = {};
    for (const [name, [numbers, shape]] of Object.entries(frame))
      inputs[name] = new this.ort.Tensor("float32", numbers, shape);
    const outputs = await this.session.run({ ...inputs, ...this.states });
    for (const { name } of this.past) this.states[name] = outputs[present(name)];
    return Object.fromEntries(Object.entries(outputs).map(([name, { data }]) => [name, data]));
  }
}

// The states stay on the GPU, in buffers that never change, since every run replays one captured graph.
class GpuStream extends Stream {
  static OPTIONS = OPTIONS;
  device = "WebGPU";

  async start() {
    this.inputs = {};
    for (const input of this.session.inputMetadata)
      this.inputs[input.name] = await onGpu(this.ort, input.type, ...zeros(input));
    this.outputs = await this.session.run(this.inputs);
    this.gpu = await this.ort.env.webgpu.device;
  }

  reset() {
    for (const state of this.past) this.write(state.name, zeros(state)[0]);
  }

  write(name, numbers) {
    this.gpu.queue.writeBuffer(this.inputs[name].gpuBuffer, 0, numbers);
  }

  async next(frame) {
    for (const [name, [numbers]] of Object.entries(frame)) this.write(name, numbers);
    await this.session.run(this.inputs, this.outputs);
    const commands = this.gpu.createCommandEncoder();
    for (const { name } of this.past) {
      const [from, to] = [this.outputs[present(name)], this.inputs[name]];
      commands.copyBufferToBuffer(from.gpuBuffer, 0, to.gpuBuffer, 0, 4 * to.size);
    }
    this.gpu.queue.submit([commands.finish()]);
    const states = new Set(this.past.map(({ name }) => present(name)));
    const names = this.session.outputNames.filter((name) => !states.has(name));
    const arrays = await Promise.all(names.map((name) => read(this.gpu, this.outputs[name])));
    return Object.fromEntries(names.map((name, n) => [name, arrays[n]]));
  }
}
