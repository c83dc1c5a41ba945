// The conversation: its turns, sending a message, stopping and regenerating an answer.

import { Answer } from "./answer.js";
import { curlFor, streamAnswer, streamOptions, swapButtons } from "./answering.js";
import { byId, copy, el } from "./dom.js";
import { examplesFor } from "./examples.js";
import { chosenModel, fields, setSystemPrompt, systemMessages } from "./settings.js";
import { TurnView } from "./turn_view.js";

const PATH = "v1/chat/completions";

let turns = []; // { question, answer, view }
let running = null; // the AbortController of the answer on its way

export function startChat() {
  const prompt = byId("prompt");
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    ask(prompt.value);
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    ask(prompt.value);
  });
  prompt.addEventListener("input", fit);
  byId("chat-view").addEventListener(
    "keydown",
    (event) => event.key === "Escape" && running?.abort(),
  );
  byId("stop").addEventListener("click", () => running?.abort());
  byId("clear").addEventListener("click", clear);
  byId("copy-curl").addEventListener("click", (event) => copy(curl(), event.currentTarget));
}

/** Show example messages that suit the model. */
export function showExamples() {
  byId("blank-model").textContent = chosenModel() || "the model";
  const take = ({ text, system }) => {
    if (system) setSystemPrompt(system);
    ask(text);
  };
  const offer = (example) => {
    const words = [example.text, el("small", {}, example.note)];
    return el("li", {}, el("button", { type: "button", onclick: () => take(example) }, ...words));
  };
  byId("examples").replaceChildren(...examplesFor(chosenModel()).map(offer));
}

async function ask(question) {
  if (running || !question.trim()) return;
  byId("blank").hidden = true;
  byId("prompt").value = "";
  fit();
  const turn = { question, answer: null, view: null };
  turn.view = new TurnView(question, chosenModel(), () => answerAgain(turn));
  turns.push(turn);
  byId("turns").append(turn.view.element);
  turn.view.element.scrollIntoView({ block: "end" });
  await answer(turn);
}

/** Regenerate the answer of a turn; later turns are removed. */
async function answerAgain(turn) {
  if (running) return;
  const index = turns.indexOf(turn) + 1;
  for (const later of turns.splice(index)) later.view.element.remove();
  await answer(turn);
}

async function answer(turn) {
  const answer = (turn.answer = new Answer());
  const request = { ...body(), ...streamOptions };
  const isPlain = "response_format" in request; // JSON, not Markdown
  const show = () => follow(() => turn.view.show(answer, isPlain));
  setRunning(new AbortController());
  await streamAnswer(answer, PATH, request, running.signal, show);
  setRunning(null);
}

/** The request body for the conversation so far; its last turn has no answer yet. */
function body() {
  const messages = turns.flatMap(({ question, answer }, index) => {
    const user = { role: "user", content: question };
    const isLast = index === turns.length - 1;
    return !isLast && answer?.text
      ? [user, { role: "assistant", content: answer.text }]
      : isLast
        ? [user]
        : [];
  });
  const model = chosenModel();
  return { ...(model && { model }), messages: [...systemMessages(), ...messages], ...fields() };
}

/** The request that would be sent next, for a terminal. */
function curl() {
  const next = body();
  const draft = byId("prompt").value.trim();
  if (draft || turns.length === 0) next.messages.push({ role: "user", content: draft || "hello" });
  return curlFor(PATH, next);
}

function clear() {
  running?.abort();
  for (const { view } of turns) view.element.remove();
  turns = [];
  byId("blank").hidden = false;
  showExamples();
  byId("prompt").focus();
}

function setRunning(controller) {
  running = controller;
  swapButtons(byId("send"), byId("stop"), controller !== null, byId("prompt"));
}

/** Change the conversation and stay scrolled to its end if it was in view. */
function follow(change) {
  const box = byId("turns");
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 80;
  change();
  if (atEnd) box.scrollTop = box.scrollHeight;
}

function fit() {
  const prompt = byId("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}
