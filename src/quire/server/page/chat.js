// The conversation: what was said, sending, stopping, answering again.

import { Answer } from "./answer.js";
import { ApiError, events } from "./api.js";
import { announce, byId, copy, el } from "./dom.js";
import { examplesFor } from "./examples.js";
import { savedKey } from "./key.js";
import { chosenModel, fields, markRefused, setSystemPrompt, systemMessages } from "./settings.js";
import { TurnView } from "./turn.js";

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

/** Offer a beginning that suits the model. */
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

/** Ask a turn's question once more; what followed it is dropped. */
async function answerAgain(turn) {
  if (running) return;
  const place = turns.indexOf(turn) + 1;
  for (const later of turns.splice(place)) later.view.element.remove();
  await answer(turn);
}

async function answer(turn) {
  const answer = (turn.answer = new Answer());
  const show = onceAFrame(() => follow(() => turn.view.show(answer)));
  setRunning(new AbortController());
  markRefused(null);
  show();
  try {
    for await (const chunk of events(PATH, body(true), running.signal)) {
      answer.push(chunk);
      show();
    }
    answer.end("done");
  } catch (error) {
    end(answer, error);
  }
  setRunning(null);
  follow(() => turn.view.show(answer));
  announce(answer.error ? "The request failed." : `Answer: ${answer.text}`);
}

function end(answer, error) {
  if (error.name === "AbortError") return answer.end("stopped");
  if (!(error instanceof ApiError)) console.error(error);
  answer.end("failed", error);
  markRefused(error.param);
}

/** The request for the conversation so far; its last turn is the one to be answered. */
function body(stream) {
  const said = turns.flatMap(({ question, answer }, place) => {
    const user = { role: "user", content: question };
    const isLast = place === turns.length - 1;
    return !isLast && answer?.text
      ? [user, { role: "assistant", content: answer.text }]
      : isLast
        ? [user]
        : [];
  });
  const model = chosenModel();
  const streamed = stream ? { stream, stream_options: { include_usage: true } } : {};
  return {
    ...(model && { model }),
    messages: [...systemMessages(), ...said],
    ...fields(),
    ...streamed,
  };
}

/** The same request for a terminal. The key is named, never shown. */
function curl() {
  const next = body(false);
  const draft = byId("prompt").value.trim();
  if (draft || turns.length === 0) next.messages.push({ role: "user", content: draft || "hello" });
  const text = JSON.stringify(next, null, 2).replaceAll("'", String.raw`'\''`);
  const key = savedKey() ? ` -H "Authorization: Bearer $QUIRE_API_KEY"` : "";
  const url = new URL(PATH, document.baseURI);
  return `curl ${url}${key} -H 'Content-Type: application/json' -d '${text}'`;
}

function clear() {
  running?.abort();
  for (const { view } of turns) view.element.remove();
  turns = [];
  byId("blank").hidden = false;
  showExamples();
  byId("prompt").focus();
}

/** Send and Stop take turns; the focus goes along. */
function setRunning(controller) {
  running = controller;
  const [send, stop] = [byId("send"), byId("stop")];
  const focused = document.activeElement;
  send.hidden = controller !== null;
  stop.hidden = controller === null;
  if (focused === send) stop.focus();
  if (focused === stop) byId("prompt").focus();
}

/** Change the conversation, and keep its end in sight if it was. */
function follow(change) {
  const box = byId("turns");
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 80;
  change();
  if (atEnd) box.scrollTop = box.scrollHeight;
}

/** Many chunks may come between two frames; one look at them is enough. */
function onceAFrame(show) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      show();
    });
  };
}

function fit() {
  const prompt = byId("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}
