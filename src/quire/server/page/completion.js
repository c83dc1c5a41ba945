// Completion: a text that the model continues where it ends, for models without a chat template.

import { Answer } from "./answer.js";
import { curlFor, streamAnswer, streamOptions, swapButtons } from "./answering.js";
import { byId, copy } from "./dom.js";
import { failure, figures } from "./outcome.js";
import { chosenModel, COMPLETION_TOKENS, fields } from "./settings.js";

const PATH = "v1/completions";

let running = null; // the AbortController of the continuation on its way
let before = []; // the text before each continuation

export function startCompletion() {
  const text = byId("text");
  const stop = () => running?.abort();
  byId("writing").addEventListener("submit", (event) => {
    event.preventDefault();
    proceed();
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) proceed();
  });
  byId("writing").addEventListener("keydown", ({ key }) => key === "Escape" && stop());
  byId("halt").addEventListener("click", stop);
  byId("undo").addEventListener("click", undo);
  byId("text-clear").addEventListener("click", clear);
  byId("text-curl").addEventListener("click", ({ currentTarget }) =>
    copy(curlFor(PATH, body()), currentTarget),
  );
}

async function proceed() {
  const text = byId("text");
  if (running || !text.value) return text.focus();
  before.push(text.value);
  const [answer, start] = [new Answer(), text.value.length];
  setRunning(new AbortController());
  const show = () => {
    grow(text, start, answer.text);
    showOutcome(answer);
  };
  await streamAnswer(answer, PATH, { ...body(), ...streamOptions }, running.signal, show);
  if (!answer.text) before.pop();
  setRunning(null);
}

/** Write the answer behind the text it continues; a selection in it survives. */
function grow(text, start, answer) {
  const atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 80;
  const shown = text.value.length - start;
  text.setRangeText(answer.slice(shown), start + shown, start + shown, "preserve");
  if (atEnd) text.scrollTop = text.scrollHeight;
}

function showOutcome(answer) {
  byId("text-figures").replaceChildren(...figures(answer));
  byId("text-failure").replaceChildren(...(answer.error ? [failure(answer.error)] : []));
}

const body = () => ({
  ...(chosenModel() && { model: chosenModel() }),
  prompt: byId("text").value,
  max_tokens: COMPLETION_TOKENS,
  ...fields(),
});

function undo() {
  if (running || before.length === 0) return;
  byId("text").value = before.pop();
  showOutcome(new Answer());
  setRunning(null);
}

function clear() {
  running?.abort();
  before = [];
  byId("text").value = "";
  showOutcome(new Answer());
  setRunning(running);
  byId("text").focus();
}

function setRunning(controller) {
  running = controller;
  byId("text").readOnly = controller !== null;
  byId("undo").disabled = controller !== null || before.length === 0;
  byId("text-clear").disabled = controller !== null;
  swapButtons(byId("continue"), byId("halt"), controller !== null, byId("text"));
}
