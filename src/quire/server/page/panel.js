// Panel: a panel of the live view: heading, explanation, legend, chart, and its data as a table.

import { el, setText } from "./dom.js";

export class Panel {
  readout = el("p", { class: "readout" });
  #table = el("table");
  #fold = el("details", {}, el("summary", {}, "As a table"), el("div", {}, this.#table));
  #legend = el("ul", { class: "legend" });
  #numbers = new Map();

  /** legend: [class of the key, text] for each colour. */
  constructor({ title, about, width, legend = [] }) {
    this.title = title;
    this.about = el("p", { class: "about" }, about);
    for (const [key, text] of legend) {
      const number = el("b");
      this.#numbers.set(key, number);
      this.#legend.append(
        el(
          "li",
          {},
          el("span", { class: `key ${key}`, "aria-hidden": "true" }),
          el("span", {}, text, " ", number),
        ),
      );
    }
    this.element = el(
      "section",
      { class: `panel ${width}`, "aria-label": title },
      el("h2", {}, title),
      this.about,
    );
    if (legend.length) this.element.append(this.#legend);
  }

  /** Add the chart; below it the value under the pointer, and the table. */
  hold(chart) {
    this.element.append(chart.canvas, el("div", { class: "foot" }, this.#fold, this.readout));
    return chart;
  }

  setNumber(key, text) {
    setText(this.#numbers.get(key), text);
  }

  /** Fill the table, if it is open. rows: called for its cells. */
  fill(head, rows) {
    if (!this.#fold.open) return;
    const line = (cells, kind) =>
      el(
        "tr",
        {},
        ...cells.map((cell) => el(kind, kind === "th" ? { scope: "col" } : {}, String(cell))),
      );
    this.#table.replaceChildren(
      el("thead", {}, line(head, "th")),
      el("tbody", {}, ...rows().map((row) => line(row, "td"))),
    );
  }
}
