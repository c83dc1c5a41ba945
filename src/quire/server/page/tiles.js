// The row of figures at the top of the live view, each with its last minute.

import { byId, el, setText } from "./dom.js";
import { count, percent, plural, rate } from "./format.js";
import { Spark } from "./spark.js";

// value and note: texts of the latest snapshot; line: the numbers under them
const TILES = [
  {
    name: "Answer tokens/s",
    value: (_, history) => rate(history.rate("generation")),
    note: ({ counters }) => `${count(counters.generation)} in all`,
    line: (history) => history.rates("generation"),
  },
  {
    name: "Prompt tokens/s",
    value: (_, history) => rate(history.rate("prompt")),
    note: ({ counters }) => `${count(counters.prompt)} in all`,
    line: (history) => history.rates("prompt"),
  },
  {
    name: "Running",
    value: ({ running }) => count(running),
    note: (_, history) => `${rate(history.rate("steps"))} steps/s`,
    line: (history) => history.gauge("running"),
  },
  {
    name: "Waiting",
    value: ({ waiting }) => count(waiting),
    note: ({ counters }) => plural(counters.preemptions, "preemption"),
    line: (history) => history.gauge("waiting"),
  },
  {
    name: "KV cache in use",
    value: ({ share }) => percent(share),
    note: ({ blocks }) =>
      `${count(blocks.counts[2] + blocks.counts[3])} of ${plural(blocks.total, "block")}`,
    line: (history) => history.gauge("share"),
  },
  {
    name: "Prefix hits",
    value: (_, history) => hitRate(history.growth("hits"), history.growth("queries")),
    note: ({ counters }) =>
      counters.queries
        ? `${hitRate(counters.hits, counters.queries)} since the start`
        : "no lookup yet",
    line: (history) =>
      history.samples.map(({ counters }) => counters.hits / Math.max(1, counters.queries)),
  },
];

export class Tiles {
  #shown = TILES.map((tile) => {
    const [value, note] = [el("span", { class: "value" }, "–"), el("span", { class: "note" })];
    return { ...tile, valueText: value, noteText: note, spark: new Spark() };
  });

  constructor() {
    const boxes = this.#shown.map(({ name, valueText, noteText, spark }) =>
      el(
        "div",
        { class: "tile" },
        el("dt", {}, name),
        el("dd", {}, valueText),
        el("dd", {}, noteText, spark.canvas),
      ),
    );
    byId("tiles").append(...boxes);
  }

  show(snapshot, history) {
    for (const { value, note, line, valueText, noteText, spark } of this.#shown) {
      setText(valueText, value(snapshot, history));
      setText(noteText, note(snapshot, history));
      spark.show(line(history), history.ages());
    }
  }
}

const hitRate = (hits, queries) => (queries ? percent(hits / queries) : "–");
