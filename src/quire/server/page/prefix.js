// The panel of the prefix cache: hit rate, and the reasons for misses.

import { el } from "./dom.js";
import { percent, plural } from "./format.js";
import { Panel } from "./panel.js";

const REASONS = {
  cold: "cold: not seen before",
  evicted: "evicted: no room to keep it",
  bypassed: "bypassed: every position wanted",
};

export function prefixCache() {
  const panel = new Panel({
    title: "Prefix cache",
    about: "Prompt tokens that were looked up in full blocks: found, or missed and why.",
    width: "full",
  });
  const list = el("dl", { class: "shares" });
  const nothing = el("p", { class: "nothing" }, "No prompt has been looked up yet.");
  panel.element.append(list, nothing);
  function show({ counters: { hits, queries }, misses: reasons }) {
    nothing.hidden = queries > 0;
    const rows = [["found", hits], ...Object.entries(reasons).sort(([, a], [, b]) => b - a)];
    list.replaceChildren(
      ...(queries ? rows : []).flatMap(([name, tokens]) => share(name, tokens, queries)),
    );
  }
  return { panel, show };
}

function share(name, tokens, all) {
  const bar = el("span", {
    class: name === "found" ? "bar-fill found" : "bar-fill",
    "aria-hidden": "true",
  });
  bar.style.width = `${(100 * tokens) / all}%`;
  return [
    el("dt", {}, REASONS[name] ?? name.replaceAll("_", " ")),
    el(
      "dd",
      {},
      el("span", { class: "bar-track", "aria-hidden": "true" }, bar),
      el("span", {}, `${percent(tokens / all)} · ${plural(tokens, "token")}`),
    ),
  ];
}
