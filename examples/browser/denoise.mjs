// The denoiser of this folder's parent in a browser: Fourier frames in, the share to keep of each bin out.

import { BINS, COS, FRAME, HOP, magnitudes, RATE, SIN, spectrum, WINDOW } from "./frames.mjs";

export { samples } from "./frames.mjs";
export { loadStream as loadDenoiser } from "./stream.mjs";

// Each frame is cleaned before the next one is looked at, as it would be while the sound comes in.
export async function denoise(stream, noisy) {
  stream.reset();
  const frames = Math.ceil(noisy.length / HOP) + 1;
  const cleaned = new Float32Array((frames + 1) * HOP);
  const padded = new Float32Array(cleaned.length);
  padded.set(noisy, HOP);
  for (let start = 0; start < frames * HOP; start += HOP) {
    const [real, imaginary] = spectrum(padded.subarray(start, start + FRAME));
    const { mask } = await stream.next({ magnitude: [magnitudes(real, imaginary), [1, 1, BINS]] });
    addSignal(real, imaginary, mask, cleaned.subarray(start, start + FRAME));
  }
  return { cleaned: cleaned.subarray(HOP, HOP + noisy.length), frames };
}

function addSignal(real, imaginary, mask, signal) {
  for (let n = 0; n < FRAME; n++) {
    let sum = 0;
    for (let k = 0; k < BINS; k++) {
      const angle = (k * n) % FRAME;
      const twice = k === 0 || k === FRAME / 2 ? 1 : 2; // the bins above are these, mirrored
      sum += twice * mask[k] * (real[k] * COS[angle] - imaginary[k] * SIN[angle]);
    }
    signal[n] += (WINDOW[n] * sum) / FRAME;
  }
}

// The URL of a WAV file of float32 samples.
export function wav(signal) {
  const bytes = new DataView(new ArrayBuffer(44 + 4 * signal.length));
  const text = (at, word) => [...word].forEach((letter, n) => bytes.setUint8(at + n, letter.charCodeAt(0)));
  text(0, "RIFF");
  bytes.setUint32(4, 36 + 4 * signal.length, true);
  text(8, "WAVEfmt ");
  bytes.setUint32(16, 16, true);
  bytes.setUint16(20, 3, true); // IEEE float
  bytes.setUint16(22, 1, true);
  bytes.setUint32(24, RATE, true);
  bytes.setUint32(28, 4 * RATE, true);
  bytes.setUint16(32, 4, true);
  bytes.setUint16(34, 32, true);
  text(36, "data");
  bytes.setUint32(40, 4 * signal.length, true);
  signal.forEach((sample, n) => bytes.setFloat32(44 + 4 * n, sample, true));
  let letters = "";
  for (let n = 0; n < bytes.byteLength; n++) letters += String.fromCharCode(bytes.getUint8(n));
  return `data:audio/wav;base64,${btoa(letters)}`;
}
