// Spark: a small line chart (sparkline) of the last minute, under a figure.

import { Chart } from "./chart.js";

export class Spark extends Chart {
  #values = [];
  #ages = [];

  constructor() {
    super({ label: "", height: 26 });
    this.canvas.setAttribute("aria-hidden", "true"); // the figure above says what it is now
  }

  /** Show values of the given ages, in shares of the minute: 0 is now. */
  show(values, ages) {
    this.#values = values;
    this.#ages = ages;
    this.redraw();
  }

  draw(context, width, height, colour) {
    const top = Math.max(...this.#values, 0) || 1;
    const x = (index) => width * (1 - this.#ages[index]);
    const y = (value) => height - 2 - (value / top) * (height - 5);
    context.beginPath();
    for (const [index, value] of this.#values.entries()) context.lineTo(x(index), y(value));
    context.strokeStyle = colour("accent");
    context.lineWidth = 1.6;
    context.lineJoin = "round";
    context.stroke();
    context.lineTo(width, height);
    context.lineTo(x(0), height);
    context.globalAlpha = 0.12;
    context.fillStyle = colour("accent");
    context.fill();
  }
}
