// The KV cache as a map: one cell for each block, or for several where there are very many (the
// server decides how many share a cell).

import { Chart } from "./chart.js";
import { count } from "./format.js";

export const STATES = ["free", "cached", "used", "shared"]; // by the number the server gives
const NAMES = ["free", "cached, not in use", "in use", "in use by several requests"];

const GATHERING = 8; // cells per group; groups have wider gaps between them
const MAX_SIDE = 20;
const GAP = 4;

export class BlockMap extends Chart {
  #blocks = { cells: [], perCell: 1, total: 0 };
  #side = MAX_SIDE;

  show(blocks) {
    this.#blocks = blocks;
    this.size = blocks.cells.length;
    this.redraw();
  }

  draw(context, width, height, colour) {
    this.#layOut(width, height);
    const colours = STATES.map(colour);
    const eyes = { cached: colour("free"), shared: colour("surface") };
    for (let cell = 0; cell < this.size; cell++) {
      const [x, y] = this.#corner(cell);
      paint(
        context,
        x,
        y,
        this.#side - Math.min(1.5, this.#side / 4),
        this.#blocks.cells[cell],
        colours,
        eyes,
      );
    }
    if (this.cursor === null || this.cursor >= this.size) return;
    const [x, y] = this.#corner(this.cursor);
    context.strokeStyle = colour("ink");
    context.lineWidth = 2;
    context.strokeRect(x - 1.5, y - 1.5, this.#side + 1.5, this.#side + 1.5);
  }

  indexAt(x, y) {
    const group = GATHERING * this.#side + GAP;
    const within = Math.min(Math.floor((x % group) / this.#side), GATHERING - 1);
    const column = Math.floor(x / group) * GATHERING + within;
    const cell = Math.floor(y / this.#side) * this.columns + column;
    return column < this.columns && cell < this.size ? cell : null;
  }

  describe(cell) {
    const { cells, perCell, total } = this.#blocks;
    const first = cell * perCell;
    const last = Math.min(first + perCell, total) - 1;
    const name = NAMES[cells[cell]];
    return first === last
      ? `Block ${count(first)}: ${name}`
      : `Blocks ${count(first)} to ${count(last)}: ${name}`;
  }

  /** Choose the largest cells with which all fit, in as many groups side by side as fit. */
  #layOut(width, height) {
    for (let groups = 1; ; groups++) {
      const side = (width - (groups - 1) * GAP) / (groups * GATHERING);
      this.columns = groups * GATHERING;
      this.#side = Math.min(side, MAX_SIDE);
      const rows = Math.ceil(this.size / this.columns);
      if (side <= MAX_SIDE && rows * this.#side <= height) return;
    }
  }

  #corner(cell) {
    const column = cell % this.columns;
    const x = column * this.#side + Math.floor(column / GATHERING) * GAP;
    return [x + 1, Math.floor(cell / this.columns) * this.#side + 1];
  }
}

/** Each state has a shape as well as a colour: flat, hollow, full, full with an eye. */
function paint(context, x, y, side, state, colours, eyes) {
  context.fillStyle = colours[state];
  context.fillRect(x, y, side, side);
  const eye = eyes[STATES[state]];
  if (!eye) return;
  const inner = STATES[state] === "cached" ? side * 0.6 : Math.max(side * 0.3, 2);
  const offset = (side - inner) / 2;
  context.fillStyle = eye;
  context.fillRect(x + offset, y + offset, inner, inner);
}
