// Models in onnxruntime-web: node onnxruntime_web.mjs LIBRARY
//
// Each line of stdin is a job as JSON: the path of a model, its inputs (name -> type, dims and base64) and the names
// of the outputs; each is answered by a line: {outputs: ...} of the same form, or {error: ...}.

import { readFile } from "node:fs/promises";
import { createInterface } from "node:readline";

const ort = await import(process.argv[2]);
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";

function tensor({ type, dims, data }) {
  const { buffer } = Uint8Array.from(Buffer.from(data, "base64"));
  const arrays = { float32: Float32Array, float64: Float64Array, int32: Int32Array, int64: BigInt64Array };
  return new ort.Tensor(type, new arrays[type](buffer), dims);
}

function written({ type, dims, data }) {
  return { type, dims, data: Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("base64") };
}

async function run({ model, inputs, outputs }) {
  const session = await ort.InferenceSession.create(await readFile(model), { executionProviders: ["wasm"] });
  const feeds = Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, tensor(input)]));
  const results = await session.run(feeds, outputs);
  await session.release();
  return Object.fromEntries(outputs.map((name) => [name, written(results[name])]));
}

for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = { outputs: await run(JSON.parse(line)) };
  } catch (error) {
    answer = { error: String(error?.message ?? error) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
