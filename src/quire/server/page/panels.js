// The panels of blocks, requests and steps. Each returns { panel, show(snapshot, history) }.

import { StackedBars } from "./bars.js";
import { BlockMap, STATES } from "./blocks.js";
import { el, setText } from "./dom.js";
import { count, duration, percent, plural } from "./format.js";
import { Panel } from "./panel.js";

const STEPS = 100;
const MOMENTS = 120; // bars of a minute

export function blocks() {
  const panel = new Panel({
    title: "KV cache",
    about: "",
    width: "wide",
    legend: [
      ["free", "free"],
      ["cached", "cached"],
      ["used", "in use"],
      ["shared", "shared"],
    ],
  });
  const label = "Map of the KV cache's blocks; the arrow keys go from cell to cell";
  const chart = panel.hold(new BlockMap({ label, height: 300, readout: panel.readout }));
  function show({ blocks }) {
    const { total, counts, perCell, size } = blocks;
    chart.show(blocks);
    const cell =
      perCell === 1
        ? "Each cell is a block"
        : `Each cell stands for ${perCell} blocks and shows the busiest`;
    setText(panel.about, `${cell}; a block holds the keys and values of ${size} tokens.`);
    for (const [index, name] of STATES.entries()) panel.setNumber(name, count(counts[index]));
    panel.fill(["State", "Blocks", "Share"], () =>
      STATES.map((name, index) => [name, count(counts[index]), percent(counts[index] / total)]),
    );
  }
  return { panel, show };
}

export function requests() {
  const panel = new Panel({
    title: "Requests",
    about: "Running in the batch, and waiting for room in it, over the last minute.",
    width: "slim",
    legend: [
      ["used", "running"],
      ["shared", "waiting"],
    ],
  });
  const chart = panel.hold(
    new StackedBars({
      label:
        "Running and waiting requests over the last minute; the arrow keys go from moment to moment",
      height: 300,
      empty: "Nothing ran in the last minute",
      readout: panel.readout,
      parts: ["used", "shared"],
      slots: MOMENTS,
      describe: ([running, waiting]) => `${count(running)} running, ${count(waiting)} waiting`,
    }),
  );
  function show({ running, waiting }, history) {
    chart.show(
      history.slots(MOMENTS).map((sample) => [sample.running, sample.waiting]),
      ["a minute ago", "now"],
    );
    panel.setNumber("used", count(running));
    panel.setNumber("shared", count(waiting));
    panel.fill(["Seconds ago", "Running", "Waiting"], () =>
      history.samples
        .toReversed()
        .map((s) => [(history.samples.at(-1).time - s.time).toFixed(1), s.running, s.waiting]),
    );
  }
  return { panel, show };
}

export function steps() {
  const panel = new Panel({
    title: "Batches",
    about: `What each of the last ${STEPS} steps computed: one token for each answer under way, and chunks of prompts beside them.`,
    width: "full",
    legend: [
      ["decode", "decode tokens"],
      ["prefill", "prefill tokens"],
    ],
  });
  let shown = [];
  const chart = panel.hold(
    new StackedBars({
      label: "Tokens of each step; the arrow keys go from step to step",
      height: 210,
      empty: "No step has run yet",
      readout: panel.readout,
      parts: ["decode", "prefill"],
      slots: STEPS,
      describe: (_, back) => {
        const { id, decode, prefill, requests: number, seconds: spent } = shown.at(back - 1);
        return `Step ${count(id)}: ${count(decode)} decode + ${count(prefill)} prefill tokens of ${plural(number, "request")} in ${duration(spent)}`;
      },
    }),
  );
  const alone = new StackedBars({ label: "", height: 64, parts: ["decode"], slots: STEPS });
  alone.canvas.setAttribute("aria-hidden", "true"); // the chart above says the same
  chart.canvas.after(
    el("p", { class: "about" }, "The decode tokens alone, on a scale of their own:"),
    alone.canvas,
  );
  function show({ steps: latest }) {
    shown = latest.slice(-STEPS);
    const last = shown.at(-1);
    chart.show(
      shown.map(({ decode, prefill }) => [decode, prefill]),
      last ? ["", `step ${count(last.id)}`] : ["", ""],
    );
    alone.show(
      shown.map(({ decode }) => [decode]),
      ["", ""],
    );
    panel.setNumber("decode", last ? count(last.decode) : "");
    panel.setNumber("prefill", last ? count(last.prefill) : "");
    panel.fill(["Step", "Decode", "Prefill", "Requests", "Time"], () =>
      shown
        .toReversed()
        .map((s) => [count(s.id), s.decode, s.prefill, s.requests, duration(s.seconds)]),
    );
  }
  return { panel, show };
}
