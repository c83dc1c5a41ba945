// A histogram of seconds in the server's buckets: the last minute before all that came earlier.

import { Chart } from "./chart.js";
import { count, duration, percent } from "./format.js";

const BOTTOM = 20;
const TOP = 16;

/** The value that a share of a histogram's values do not exceed, interpolated; null if empty. */
export function quantile(bounds, counts, share) {
  const total = sum(counts);
  if (total === 0) return null;
  let below = 0;
  for (const [index, number] of counts.entries()) {
    if (number > 0 && below + number >= share * total) {
      const low = index === 0 ? 0 : bounds[index - 1];
      const high = bounds[index] ?? low;
      return low + ((share * total - below) / number) * (high - low);
    }
    below += number;
  }
  return bounds.at(-1);
}

export class Histogram extends Chart {
  #bounds = [];
  #all = [];
  #recent = [];
  #first = 0; // the first bucket that is shown

  show(bounds, all, recent) {
    this.#bounds = bounds;
    this.#all = all;
    this.#recent = recent;
    const filled = all.flatMap((number, index) => (number ? [index] : []));
    this.#first = Math.max(0, (filled[0] ?? 0) - 1);
    this.size = filled.length ? Math.min(filled.at(-1) + 2, all.length) - this.#first : 0;
    this.redraw();
  }

  draw(context, width, height, colour) {
    const base = height - BOTTOM;
    context.fillStyle = colour("edge");
    context.fillRect(0, base, width, 1);
    if (this.size === 0) return;
    this.pitch = width / this.size;
    const [all, recent] = [shares(this.#all), shares(this.#recent)];
    const unit = (base - TOP) / Math.max(...all, ...recent);
    for (let index = 0; index < this.size; index++) {
      const bucket = index + this.#first;
      const x = index * this.pitch;
      if (index === this.cursor) box(context, colour("line"), x, base, this.pitch, base - TOP);
      box(context, colour("cached"), x + 1, base, this.pitch - 2, all[bucket] * unit);
      const inset = this.pitch * 0.25;
      box(context, colour("used"), x + inset, base, this.pitch - 2 * inset, recent[bucket] * unit);
    }
    this.#label(context, height, colour);
  }

  indexAt(x) {
    return this.size ? Math.min(Math.floor(x / this.pitch), this.size - 1) : null;
  }

  describe(index) {
    const bucket = index + this.#first;
    const low = bucket === 0 ? 0 : this.#bounds[bucket - 1];
    const high = this.#bounds[bucket];
    const range =
      high === undefined ? `over ${duration(low)}` : `${duration(low)} to ${duration(high)}`;
    const share = percent(shares(this.#all)[bucket]);
    return `${range}: ${count(this.#recent[bucket])} in the last minute, ${count(this.#all[bucket])} (${share}) in all`;
  }

  /** Bounds stand under the edges between bars, as many as have room. */
  #label(context, height, colour) {
    context.fillStyle = colour("muted");
    context.textAlign = "center";
    let free = 0;
    for (let index = 1; index < this.size; index++) {
      const text = duration(this.#bounds[index + this.#first - 1]);
      const half = context.measureText(text).width / 2;
      const x = index * this.pitch;
      if (x - half < free) continue;
      context.fillText(text, x, height - 4);
      free = x + half + 12;
    }
  }
}

function box(context, fill, x, base, width, height) {
  context.fillStyle = fill;
  context.fillRect(x, base - height, width, height);
}

const sum = (values) => values.reduce((a, b) => a + b, 0);

function shares(counts) {
  const total = sum(counts) || 1;
  return counts.map((number) => number / total);
}
