// History: the snapshots of the last minute, and rates from their differences.

export const SECONDS = 60;
const RATE_SECONDS = 2; // over which a rate is taken

export class History {
  samples = []; // snapshots, the oldest first; times are the server's
  #rates = new Map(); // counter → a value for each sample

  add(snapshot) {
    const last = this.samples.at(-1);
    const steps = snapshot.counters.steps;
    // another start of the engine counts anew; a little less is what another process knew before
    if (last && steps < last.counters.steps / 2) this.samples = [];
    else if (last && (steps < last.counters.steps || snapshot.time <= last.time)) return;
    this.samples.push(snapshot);
    while (this.samples[0].time < snapshot.time - SECONDS) this.samples.shift();
    this.#rates.clear();
  }

  /** A counter's current rate per second. */
  rate(name) {
    return this.rates(name).at(-1) ?? 0;
  }

  /** A counter's rate per second at each sample. */
  rates(name) {
    if (!this.#rates.has(name)) {
      let from = 0;
      const values = this.samples.map((sample, index) => {
        while (from < index - 1 && this.samples[from].time < sample.time - RATE_SECONDS) from += 1;
        const before = this.samples[from];
        const seconds = sample.time - before.time;
        return seconds > 0 ? (sample.counters[name] - before.counters[name]) / seconds : 0;
      });
      this.#rates.set(name, values);
    }
    return this.#rates.get(name);
  }

  /** Age of each sample as a fraction of the minute. */
  ages() {
    const now = this.samples.at(-1).time;
    return this.samples.map(({ time }) => (now - time) / SECONDS);
  }

  /** The minute in equal slots, each with the latest sample that was known in it. */
  slots(number) {
    const now = this.samples.at(-1).time;
    const found = [];
    let index = this.samples.length - 1;
    for (let slot = 0; slot < number && index >= 0; slot++) {
      const end = now - (slot * SECONDS) / number;
      while (index >= 0 && this.samples[index].time > end + 1e-3) index -= 1;
      if (index >= 0) found.push(this.samples[index]);
    }
    return found.reverse();
  }

  gauge = (name) => this.samples.map((sample) => sample[name]);

  /** Increase of a counter over the whole minute. */
  growth(name) {
    if (this.samples.length < 2) return 0;
    return this.samples.at(-1).counters[name] - this.samples[0].counters[name];
  }

  /** Increase of each bucket of a histogram over the whole minute. */
  gain(name) {
    const [first, last] = [this.samples[0][name], this.samples.at(-1)[name]];
    return last.counts.map((number, index) => Math.max(0, number - (first.counts[index] ?? 0)));
  }
}
