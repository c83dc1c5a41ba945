// Chart: base class of the charts: a canvas that follows its size and the theme, whose items can be
// read one by one with the pointer or the arrow keys.

import { el } from "./dom.js";

const dark = matchMedia("(prefers-color-scheme: dark)");

export class Chart {
  /** label: for screen readers. empty: the text while there is nothing to draw. */
  constructor({ label, height, readout = null, empty = "" }) {
    this.readout = readout;
    this.empty = empty;
    this.height = height;
    this.cursor = null; // the item under the pointer or reached by keys
    this.canvas = el("canvas", {
      role: readout ? "application" : "img",
      "aria-roledescription": readout && "chart",
      "aria-label": label,
      tabindex: readout && "0",
    });
    this.canvas.style.height = `${height}px`;
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
    dark.addEventListener("change", () => this.redraw());
    if (readout) this.#listen();
  }

  // A subclass defines draw(context, width, height, colour), size, indexAt(x, y), describe(index),
  // and, if items are in rows, columns.
  size = 0;
  columns = 1;

  get isEmpty() {
    return this.size === 0;
  }

  redraw() {
    const { canvas } = this;
    const width = canvas.clientWidth;
    if (width === 0) return; // not shown
    const scale = devicePixelRatio;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(this.height * scale);
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    context.font = `11px ${style.fontFamily}`;
    this.draw(context, width, this.height, colour);
    if (this.isEmpty) this.#sayEmpty(context, width, colour);
    this.#notify();
  }

  #sayEmpty(context, width, colour) {
    context.font = `17px ${colour("serif")}`;
    context.fillStyle = colour("muted");
    context.textAlign = "center";
    context.fillText(this.empty, width / 2, this.height / 2, width - 16);
  }

  #listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", ({ offsetX, offsetY }) =>
      this.#goTo(this.indexAt(offsetX, offsetY)),
    );
    canvas.addEventListener("pointerleave", () => this.#goTo(null));
    canvas.addEventListener("blur", () => this.#goTo(null));
    canvas.addEventListener("keydown", (event) => {
      const step = {
        ArrowRight: 1,
        ArrowLeft: -1,
        ArrowDown: this.columns,
        ArrowUp: -this.columns,
      }[event.key];
      const index =
        { Home: 0, End: this.size - 1 }[event.key] ?? (step && (this.cursor ?? -1) + step);
      if (index === undefined || this.size === 0) return;
      event.preventDefault();
      this.readout.setAttribute("aria-live", "polite"); // pointer moves are not read out
      this.#goTo(Math.min(Math.max(index, 0), this.size - 1));
    });
  }

  #goTo(index) {
    if (index === this.cursor) return;
    this.cursor = index;
    if (index === null) this.readout.removeAttribute("aria-live");
    this.redraw();
  }

  #notify() {
    if (!this.readout) return;
    const known = this.cursor !== null && this.cursor < this.size;
    const text = known ? this.describe(this.cursor) : "";
    if (this.readout.textContent !== text) this.readout.textContent = text;
  }
}

/** A round number at or above a value, for the end of an axis. */
export function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 3, 4, 5, 6, 8, 10].map((digit) => digit * power).find((end) => end >= value);
}
