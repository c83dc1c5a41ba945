// Stacked bars, one for each step or moment, the latest at the right.

import { Chart, roundUp } from "./chart.js";
import { count } from "./format.js";

const LEFT = 40; // width of the axis
const TOP = 8;
const BOTTOM = 18;

export class StackedBars extends Chart {
  #bars = [];

  /** parts: names of colours from the bottom up. slots: bars that fit. ends: texts of the axis. */
  constructor({ parts, slots, describe, ...options }) {
    super(options);
    Object.assign(this, { parts, slots, describeBar: describe, ends: ["", ""] });
  }

  /** Show bars, each a list of one number for each part; the oldest first. */
  show(bars, ends) {
    this.#bars = bars.slice(-this.slots);
    this.ends = ends;
    this.size = this.#bars.length;
    this.redraw();
  }

  draw(context, width, height, colour) {
    const top = roundUp(Math.max(1, ...this.#bars.map(sum)));
    const base = height - BOTTOM;
    const unit = (base - TOP) / top;
    this.pitch = (width - LEFT) / this.slots;
    drawAxis(context, width, base, top, unit, colour);
    context.fillStyle = colour("muted");
    context.fillText(this.ends[0], LEFT, height - 4);
    context.textAlign = "right";
    context.fillText(this.ends[1], width, height - 4);
    const colours = this.parts.map(colour);
    for (const [index, bar] of this.#bars.entries()) {
      const x = this.#x(index);
      if (index === this.cursor) {
        context.fillStyle = colour("line");
        context.fillRect(x - 1, TOP, this.pitch, base - TOP);
      }
      this.#stack(context, bar, x, base, unit, colours);
    }
  }

  get isEmpty() {
    return this.#bars.every((bar) => sum(bar) === 0);
  }

  indexAt(x) {
    const index = Math.floor((x - LEFT) / this.pitch) - (this.slots - this.size);
    return index >= 0 && index < this.size ? index : null;
  }

  describe = (index) => this.describeBar(this.#bars[index], index - this.size + 1);

  #x(index) {
    return LEFT + (this.slots - this.size + index) * this.pitch;
  }

  /** Height of a part: at least two pixels unless it is 0, so that a few decodes are visible. */
  #stack(context, bar, x, base, unit, colours) {
    let y = base;
    const thickness = Math.max(1, this.pitch - (this.pitch > 3 ? 1.5 : 0));
    for (const [part, value] of bar.entries()) {
      if (value === 0) continue;
      const tall = Math.max(2, value * unit);
      context.fillStyle = colours[part];
      context.fillRect(x, y - tall, thickness, tall);
      y -= tall + (part < bar.length - 1 ? 1 : 0);
    }
  }
}

function drawAxis(context, width, base, top, unit, colour) {
  context.textAlign = "right";
  context.textBaseline = "alphabetic";
  for (const value of top >= 4 ? [0, top / 2, top] : [0, top]) {
    const y = Math.round(base - value * unit) + 0.5;
    context.strokeStyle = colour(value === 0 ? "edge" : "line");
    context.beginPath();
    context.moveTo(LEFT, y);
    context.lineTo(width, y);
    context.stroke();
    context.fillStyle = colour("muted");
    context.fillText(count(value), LEFT - 7, y + 4);
  }
  context.textAlign = "left";
}

const sum = (values) => values.reduce((a, b) => a + b, 0);
