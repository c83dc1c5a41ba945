// Where the page begins: which view is shown, and what the server has.

import { getJson } from "./api.js";
import { showExamples, startChat } from "./chat.js";
import { byId } from "./dom.js";
import { showLiveModels, startEngine } from "./engine.js";
import { Live } from "./live.js";
import { showModels, showSettings } from "./settings.js";

const VIEWS = ["chat", "engine"];
const live = new Live();

function showView() {
  const asked = location.hash.slice(1);
  if (asked && !VIEWS.includes(asked)) return; // a place in the page, not a view
  const shown = asked || VIEWS[0];
  for (const name of VIEWS) {
    byId(`${name}-view`).hidden = name !== shown;
    if (name === shown) byId(`${name}-link`).setAttribute("aria-current", "page");
    else byId(`${name}-link`).removeAttribute("aria-current");
  }
  live.setQuick(shown === "engine");
  document.title = shown === "chat" ? "Quire" : "Engine · Quire";
  if (shown === "chat") byId("prompt").focus({ preventScroll: true });
}

async function loadModels() {
  try {
    const { data } = await getJson("v1/models");
    const names = data.map(({ id }) => id);
    showModels(names);
    showLiveModels(names, live);
  } catch {
    showModels([]); // the first message will say what is wrong
  }
  showExamples();
}

addEventListener("hashchange", showView);
showSettings();
startChat();
startEngine(live);
live.start();
showView();
byId("settings").addEventListener(
  "input",
  (event) => event.target.name === "model" && showExamples(),
);
loadModels();
