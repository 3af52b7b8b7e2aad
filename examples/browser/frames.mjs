// Fourier frames of signals at 8 kHz, as ../signals.py has them.

export const RATE = 8000;
export const FRAME = 256;
export const HOP = FRAME / 2;
export const BINS = FRAME / 2 + 1;
// The square root of a periodic Hann window: its square overlap-adds to one at half a frame.
export const WINDOW = Float64Array.from({ length: FRAME }, (_, n) => Math.sin((Math.PI * n) / FRAME));
export const COS = Float64Array.from({ length: FRAME }, (_, n) => Math.cos((2 * Math.PI * n) / FRAME));
export const SIN = Float64Array.from({ length: FRAME }, (_, n) => Math.sin((2 * Math.PI * n) / FRAME));

// The samples of a recording of any format that the browser plays, one channel at 8 kHz.
export async function samples(recording) {
  const decoded = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(recording);
  return decoded.getChannelData(0);
}

// The real and imaginary parts of the spectrum of one frame.
export function spectrum(frame) {
  const real = new Float64Array(BINS);
  const imaginary = new Float64Array(BINS);
  for (let k = 0; k < BINS; k++) {
    for (let n = 0; n < FRAME; n++) {
      const angle = (k * n) % FRAME;
      real[k] += frame[n] * WINDOW[n] * COS[angle];
      imaginary[k] -= frame[n] * WINDOW[n] * SIN[angle];
    }
  }
  return [real, imaginary];
}

// The magnitudes of a spectrum.
export const magnitudes = (real, imaginary) => Float32Array.from(real, (x, k) => Math.hypot(x, imaginary[k]));
