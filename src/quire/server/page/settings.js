// The settings form: sampling params and other fields of a request. Empty fields are not sent.

import { RESPONSE_FORMATS, problemOf, responseFormat } from "./response_format.js";
import { byId, el, setText } from "./dom.js";

const NAME = "quire-settings";
// of a completion where the settings say nothing; the server would stop after 16
export const COMPLETION_TOKENS = 256;
const MODES = [
  ["chat", "Chat"],
  ["completion", "Completion"],
];

const number = (text) => Number(text);
const lines = (text) => text.split("\n").filter((line) => line !== "");

const SCHEMA_NOTE = "The answer cannot leave it";

// name: the request's field, unless there is a param. read: from the field's text to what is sent
const FIELDS = [
  { name: "model", label: "Model", kind: "select" },
  { name: "mode", label: "Mode", kind: "select", options: MODES, value: "chat", note: " " },
  {
    name: "system",
    label: "System prompt",
    kind: "textarea",
    placeholder: "How the model should behave, and what it should know",
  },
  { name: "response_format", label: "Answer as", kind: "select", options: RESPONSE_FORMATS },
  {
    name: "schema",
    label: "JSON schema",
    kind: "textarea",
    rows: 5,
    placeholder: '{"type": "object", "properties": {}}',
    note: SCHEMA_NOTE,
    param: "response_format.json_schema",
  },
  {
    name: "temperature",
    label: "Temperature",
    kind: "range",
    read: number,
    value: "0.7",
    min: 0,
    max: 2,
    step: 0.1,
    note: "0 always takes the most probable token",
  },
  [
    { name: "max_tokens", label: "Max tokens", read: number, min: 1, placeholder: "to the end" },
    { name: "seed", label: "Seed", read: number, placeholder: "random" },
    { name: "top_p", label: "Top p", read: number, min: 0, max: 1, step: 0.05, placeholder: "1" },
    { name: "top_k", label: "Top k", read: number, min: 0, placeholder: "all" },
    { name: "min_p", label: "Min p", read: number, min: 0, max: 1, step: 0.01, placeholder: "0" },
    {
      name: "repetition_penalty",
      label: "Repetition",
      read: number,
      min: 0,
      step: 0.05,
      placeholder: "1",
    },
    {
      name: "presence_penalty",
      label: "Presence",
      read: number,
      min: -2,
      max: 2,
      step: 0.1,
      placeholder: "0",
    },
    {
      name: "frequency_penalty",
      label: "Frequency",
      read: number,
      min: -2,
      max: 2,
      step: 0.1,
      placeholder: "0",
    },
  ],
  {
    name: "stop",
    label: "Stop at",
    kind: "textarea",
    read: lines,
    rows: 2,
    note: "One text a line; the answer ends before it",
  },
];

const ALL = FIELDS.flat();
const input = (name) => byId(`set-${name}`);

let cards = []; // the server's models, as it describes them

const savedValues = () => JSON.parse(sessionStorage.getItem(NAME) ?? "{}");

/** Build the form and fill it with the values that this tab saved. */
export function showSettings() {
  const saved = savedValues();
  const form = byId("settings");
  form.append(
    ...FIELDS.map((f) =>
      Array.isArray(f) ? el("div", { class: "pair" }, ...f.map(field)) : field(f),
    ),
    el("button", { type: "reset", class: "quiet" }, "Back to the defaults"),
  );
  for (const { name, value = "" } of ALL)
    if (name !== "model") input(name).value = saved[name] ?? value;
  form.addEventListener("input", changed);
  form.addEventListener("reset", reset);
  form.addEventListener("submit", (event) => event.preventDefault());
  changed();
  const wide = matchMedia("(min-width: 901px)"); // beside the conversation; else above it
  const unfold = () => (byId("settings-fold").open = wide.matches);
  wide.addEventListener("change", unfold);
  unfold();
}

/** List the server's models for selection. */
export function showModels(modelCards) {
  cards = modelCards;
  const names = cards.map(({ id }) => id);
  const saved = savedValues().model;
  input("model").replaceChildren(...names.map((name) => el("option", {}, name)));
  if (names.includes(saved)) input("model").value = saved;
  changed();
}

export const chosenModel = () => input("model").value;

/** What the chosen model's card says; undefined before the server has answered. */
const chosenCard = () => cards.find(({ id }) => id === chosenModel());

/** "chat" or "completion", the only mode of a model without a chat template. */
export const chosenMode = () => input("mode").value;

/** The request's fields; `messages` begin with the system prompt, where there is one. */
export function fields() {
  const given = {};
  for (const { name, read } of ALL) {
    const text = input(name).value;
    if (read && text.trim() !== "") given[name] = read(text);
  }
  const format = responseFormat(input("response_format").value, input("schema").value.trim());
  return format ? { ...given, response_format: format } : given;
}

export function setSystemPrompt(text) {
  input("system").value = text;
  changed();
}

export function systemMessages() {
  const content = input("system").value;
  return content.trim() ? [{ role: "system", content }] : [];
}

/** Mark the field that the server refused: the one with the longest matching name. */
export function markRefused(refusedParam) {
  for (const { name } of ALL) input(name).toggleAttribute("aria-invalid", false);
  const refused = ALL.findLast(({ name, param = name }) =>
    `${refusedParam}.`.startsWith(`${param}.`),
  );
  if (!refused) return;
  byId("settings-fold").open = true;
  input(refused.name).setAttribute("aria-invalid", "true");
}

function field({ name, label, kind = "number", note, min, max, step, rows, placeholder, options }) {
  const id = `set-${name}`;
  const common = { id, name, placeholder, "aria-describedby": note && `${id}-note` };
  const inputs = {
    select: () => el("select", common, ...(options ?? []).map(option)),
    textarea: () => el("textarea", { ...common, rows }),
    number: () =>
      el("input", { ...common, type: "number", inputmode: "decimal", min, max, step: step ?? 1 }),
    range: () => el("input", { ...common, type: "range", min, max, step }),
  };
  const shown = kind === "range" ? el("output", { for: id, id: `${id}-shown` }) : null;
  return el(
    "div",
    { class: "field" },
    el("label", { for: id }, label, shown),
    inputs[kind](),
    note ? el("small", { id: `${id}-note` }, note) : null,
  );
}

const option = ([value, text]) => el("option", { value }, text);

/** Leave only modes that the model has; one that was chosen before comes back with its model. */
function limitMode() {
  const select = input("mode");
  const canChat = chosenCard()?.has_chat_template !== false;
  if (canChat && select.disabled) select.value = savedValues().mode ?? "chat";
  if (!canChat) select.value = "completion";
  select.disabled = !canChat;
  setText(byId("set-mode-note"), canChat ? "" : "This model has no chat template");
  const isCompletion = select.value === "completion";
  input("system").parentElement.hidden = isCompletion;
  input("max_tokens").placeholder = isCompletion ? String(COMPLETION_TOKENS) : "to the end";
}

function changed() {
  limitMode();
  const shown = byId("set-temperature-shown");
  shown.value = Number(input("temperature").value).toFixed(1);
  const problem = problemOf(input("schema").value.trim());
  setText(byId("set-schema-note"), problem ? `This is not JSON yet: ${problem}` : SCHEMA_NOTE);
  input("schema").parentElement.hidden = input("response_format").value !== "json_schema";
  const values = Object.fromEntries(ALL.map(({ name }) => [name, input(name).value]));
  values.model ||= savedValues().model; // before the models are known there is none to choose
  if (input("mode").disabled) values.mode = savedValues().mode;
  sessionStorage.setItem(NAME, JSON.stringify(values));
}

function reset(event) {
  event.preventDefault();
  for (const { name, value = "" } of ALL) if (name !== "model") input(name).value = value;
  markRefused(null);
  changed();
}
