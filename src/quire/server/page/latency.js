// The panels of latencies, each a histogram over the last minute and before.

import { count, duration } from "./format.js";
import { Histogram, quantile } from "./histogram.js";
import { Panel } from "./panel.js";

const LATENCIES = {
  ttft: [
    "Time to the first token",
    "From the arrival of a request to the first token of its answer.",
  ],
  itl: ["Time between tokens", "From one token of an answer to the next."],
};

export function latency(name) {
  const [title, about] = LATENCIES[name];
  const panel = new Panel({
    title,
    about,
    width: "",
    legend: [
      ["used", "last minute"],
      ["past", "since the start"],
    ],
  });
  const chart = panel.hold(
    new Histogram({
      label: `${title} as a histogram; the arrow keys go from bar to bar`,
      height: 190,
      empty: "No answer has been measured yet",
      readout: panel.readout,
    }),
  );
  function show(snapshot, history) {
    const { bounds, counts } = snapshot[name];
    const recent = history.gain(name);
    chart.show(bounds, counts, recent);
    panel.setNumber("used", summary(bounds, recent));
    panel.setNumber("past", summary(bounds, counts));
    panel.fill(["Up to", "Last minute", "In all"], () =>
      counts.map((n, index) => [duration(bounds[index]), count(recent[index]), count(n)]),
    );
  }
  return { panel, show };
}

function summary(bounds, counts) {
  const [middle, late] = [quantile(bounds, counts, 0.5), quantile(bounds, counts, 0.99)];
  return middle === null ? "none yet" : `p50 ${duration(middle)}, p99 ${duration(late)}`;
}
