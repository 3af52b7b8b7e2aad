// Sessions on WebGPU whose graph is captured: onnxruntime records it once and replays it in each run.

// No node may run on the CPU. Inputs and outputs of a captured graph are buffers that stay.
export const OPTIONS = {
  executionProviders: ["webgpu"],
  enableGraphCapture: true,
  preferredOutputLocation: "gpu-buffer",
  extra: { session: { disable_cpu_ep_fallback: "1" } },
};

const CODES = { float32: 1, int32: 6, float16: 10 };
const copies = {};

// A model of one Identity from x to y, of a type.
const identity = (code) =>
  Uint8Array.from([
    ...[8, 8, 58, 43, 10, 16, 10, 1, 120, 18, 1, 121, 34, 8, 73, 100, 101, 110, 116, 105, 116, 121, 18, 1, 103, 90, 9],
    ...[10, 1, 120, 18, 4, 10, 2, 8, code, 98, 9, 10, 1, 121, 18, 4, 10, 2, 8, code, 66, 4, 10, 0, 16, 17],
  ]);

// A tensor in a buffer that onnxruntime has allocated: onnxruntime-web 1.30 releases its handle of any other buffer
// after the first run, and a replay reads whatever is there then.
export async function onGpu(ort, type, numbers, dims) {
  copies[type] ??= ort.InferenceSession.create(identity(CODES[type]), {
    executionProviders: ["webgpu"],
    preferredOutputLocation: "gpu-buffer",
  });
  const session = await copies[type];
  return (await session.run({ x: new ort.Tensor(type, numbers, dims) })).y;
}

// The numbers of a tensor of float32, which stays on the GPU: after `getData` it could not be an output again.
export async function read(device, tensor) {
  const size = 4 * tensor.size;
  const copy = device.createBuffer({ size, usage: GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ });
  const commands = device.createCommandEncoder();
  commands.copyBufferToBuffer(tensor.gpuBuffer, 0, copy, 0, size);
  device.queue.submit([commands.finish()]);
  await copy.mapAsync(GPUMapMode.READ);
  const numbers = new Float32Array(copy.getMappedRange().slice(0));
  copy.destroy();
  return numbers;
}
