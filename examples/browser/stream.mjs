// A model made with `rnn-lower --stream AXIS=1`, called one frame at a time; its states are kept here.

import * as ort from "./node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs";

ort.env.wasm.numThreads = 1; // a frame is too little for more

export class Stream {
  // onnxruntime-web does not show the metadata of a model; the states are known by the names that rnn-lower gives.
  constructor(session) {
    this.session = session;
    this.past = session.inputMetadata.filter(({ name }) => name.startsWith("past_"));
    this.reset();
  }

  static async load(url) {
    return new Stream(await ort.InferenceSession.create(url, { executionProviders: ["wasm"] }));
  }

  // A new sequence: all states are zero. Sizes that the model leaves open are 1.
  reset() {
    this.states = Object.fromEntries(
      this.past.map(({ name, type, shape }) => {
        const sizes = shape.map((size) => (typeof size === "number" ? size : 1));
        return [name, new ort.Tensor(type, new Float32Array(sizes.reduce((a, b) => a * b, 1)), sizes)];
      }),
    );
  }

  // The outputs of the next frame, by name; `frame` has the inputs: name -> [numbers, shape].
  async next(frame) {
    const inputs = Object.entries(frame).map(([name, [numbers, shape]]) => [
      name,
      new ort.Tensor("float32", numbers, shape),
    ]);
    const outputs = await this.session.run({ ...Object.fromEntries(inputs), ...this.states });
    for (const { name } of this.past) this.states[name] = outputs[name.replace("past_", "present_")];
    return outputs;
  }
}
