// Entry point of the page: which view is shown, and which models the server has.

import { getJson } from "./api.js";
import { showExamples, startChat } from "./chat.js";
import { startCompletion } from "./completion.js";
import { byId } from "./dom.js";
import { followModel, showLiveModels, startEngine } from "./engine.js";
import { Live } from "./live.js";
import { chosenMode, chosenModel, showModels, showSettings } from "./settings.js";

const VIEWS = ["chat", "engine"];
const live = new Live();

function showView() {
  const asked = location.hash.slice(1);
  if (asked && !VIEWS.includes(asked)) return; // an anchor in the page, not a view
  const shown = asked || VIEWS[0];
  for (const name of VIEWS) {
    byId(`${name}-view`).hidden = name !== shown;
    if (name === shown) byId(`${name}-link`).setAttribute("aria-current", "page");
    else byId(`${name}-link`).removeAttribute("aria-current");
  }
  live.setQuick(shown === "engine");
  document.title = shown === "chat" ? "Quire" : "Engine · Quire";
  if (shown === "chat") focusInput();
}

const focusInput = () =>
  byId(chosenMode() === "chat" ? "prompt" : "text").focus({ preventScroll: true });

async function loadModels() {
  try {
    const { data } = await getJson("v1/models");
    showModels(data);
    showLiveModels(data.map(({ id }) => id));
  } catch {
    showModels([]); // the first message will say what is wrong
  }
  modelChosen();
}

/** The playground and the live view go along with the model and the mode. */
function modelChosen() {
  const isChat = chosenMode() === "chat";
  for (const id of ["turns", "composer"]) byId(id).hidden = !isChat;
  byId("writing").hidden = isChat;
  showExamples();
  followModel(chosenModel(), live);
}

addEventListener("hashchange", showView);
document.addEventListener("modelrefused", loadModels);
showSettings();
startChat();
startCompletion();
startEngine(live);
live.start();
showView();
byId("settings").addEventListener(
  "input",
  ({ target }) => ["model", "mode"].includes(target.name) && modelChosen(),
);
loadModels();
