// The live view of an engine: its panels, the facts above them, and notices.

import { askForKey } from "./key.js";
import { byId, el, setText } from "./dom.js";
import { bytes, count } from "./format.js";
import { latency } from "./latency.js";
import { blocks, requests, steps } from "./panels.js";
import { prefixCache } from "./prefix.js";
import { Tiles } from "./tiles.js";

export function startEngine(live) {
  const tiles = new Tiles();
  const panels = [blocks(), requests(), steps(), latency("ttft"), latency("itl"), prefixCache()];
  byId("panels").append(...panels.map(({ panel }) => panel.element));
  byId("pause").addEventListener("click", ({ currentTarget: button }) => {
    live.setPaused(!live.paused);
    button.setAttribute("aria-pressed", String(live.paused));
    setText(button, live.paused ? "Go on" : "Pause");
  });
  const select = byId("live-model");
  select.addEventListener("change", () => live.setModel(select.value));
  live.subscribe((snapshot, history, error) => {
    showNotice(error);
    if (!snapshot || byId("engine-view").hidden) return;
    showFacts(snapshot);
    tiles.show(snapshot, history);
    for (const { show } of panels) show(snapshot, history);
  });
}

/** List the models whose engines can be shown, if there are several. */
export function showLiveModels(names) {
  const select = byId("live-model");
  byId("live-model-label").hidden = names.length < 2;
  select.replaceChildren(...names.map((name) => el("option", {}, name)));
}

/** Look at the engine of the model that is talked to. */
export function followModel(name, live) {
  const select = byId("live-model");
  if (select.length < 2 || !name) return;
  select.value = name;
  live.setModel(name);
}

function showFacts({ model, blocks }) {
  const facts = [
    model,
    `${bytes(blocks.bytes)} of KV cache`,
    `room for ${count(blocks.total * blocks.size)} tokens`,
  ];
  setText(byId("engine-facts"), facts.join(" · "));
}

/** Show a notice with what to do when there is nothing to show. */
function showNotice(error) {
  const notice = byId("engine-notice");
  notice.hidden = !error;
  if (!error) return;
  const locked = error.status === 401;
  const text = locked ? "The live view needs the server's API key." : error.message;
  if (notice.dataset.shown === text) return;
  notice.dataset.shown = text;
  const ask = el("button", { type: "button", onclick: askForKey }, "Enter the key");
  notice.replaceChildren(text, locked ? " " : "", locked ? ask : "");
}
