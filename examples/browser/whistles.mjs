// The keyword spotter of this folder's parent in a browser: samples in as they come, whistles out.

import { BINS, FRAME, HOP, magnitudes, spectrum } from "./frames.mjs";
import { loadStream } from "./stream.mjs";

const NAMES = ["nothing", "rise", "fall", "twice"];
const SURE = 0.8; // a whistle is heard once its probability exceeds this, then not again before half of it

export class Spotter {
  static async load(url) {
    const spotter = new Spotter();
    spotter.stream = await loadStream(url);
    spotter.reset();
    return spotter;
  }

  // A new recording.
  reset() {
    this.stream.reset();
    this.waiting = new Float32Array(FRAME - HOP); // silence before the first sample
    this.frames = 0;
    this.armed = true;
  }

  // Give the next samples; returns what each whole frame of them says: probabilities, and the whistle heard, if any.
  async listen(samples) {
    const all = new Float32Array(this.waiting.length + samples.length);
    all.set(this.waiting);
    all.set(samples, this.waiting.length);
    let start = 0;
    const said = [];
    for (; start + FRAME <= all.length; start += HOP) {
      const magnitude = magnitudes(...spectrum(all.subarray(start, start + FRAME)));
      const { probability } = await this.stream.next({ magnitude: [magnitude, [1, 1, BINS]] });
      said.push({ frame: this.frames++, probability, heard: this.hears(probability) });
    }
    this.waiting = all.slice(start);
    return said;
  }

  hears([, ...of]) {
    const most = Math.max(...of);
    const heard = this.armed && most > SURE;
    this.armed = !heard && (this.armed || most < SURE / 2);
    return heard ? NAMES[1 + of.indexOf(most)] : undefined;
  }
}
