// How one turn looks: what was asked, the answer, its figures, and what can be done with it.

import { copy, el, setText } from "./dom.js";
import { count, duration, plural, rate } from "./format.js";

const ENDS = {
  length: "cut at max tokens",
  content_filter: "withheld",
  tool_calls: "called a tool",
};

export class TurnView {
  #text = el("div", { class: "text" });
  #thoughts = el("div");
  #fold = el(
    "details",
    { class: "thoughts", hidden: "" },
    el("summary", {}, "Thoughts"),
    this.#thoughts,
  );
  #figures = el("div", { class: "figures" });
  #numbers = el("span", { class: "numbers" });
  #answer;

  /** onRetry: called to have the turn answered again. */
  constructor(question, model, onRetry) {
    this.onRetry = onRetry;
    this.#figures.append(this.#numbers);
    this.#answer = el(
      "div",
      { class: "said answer" },
      el("span", { class: "who" }, model || "Answer"),
      this.#fold,
      this.#text,
      this.#figures,
    );
    this.element = el(
      "article",
      { class: "turn" },
      el(
        "div",
        { class: "said user" },
        el("span", { class: "who" }, "You"),
        el("div", { class: "text" }, question),
      ),
      this.#answer,
    );
  }

  /** Show an answer as it is now. */
  show(answer) {
    this.#answer.setAttribute("aria-busy", String(answer.isRunning));
    append(this.#text, answer.text);
    append(this.#thoughts, answer.reasoning);
    this.#fold.hidden = answer.reasoning === "";
    this.#numbers.replaceChildren(...dotted(figures(answer)));
    this.#figures.querySelector(".tools")?.remove();
    this.#answer.querySelector(".failure")?.remove();
    if (answer.isRunning) return;
    this.#text.hidden = answer.text === "";
    this.#figures.append(this.#tools(answer));
    if (answer.error) this.#figures.before(this.#failure(answer.error));
  }

  #tools(answer) {
    const copyIt = (event) => copy(answer.text, event.currentTarget);
    return el(
      "span",
      { class: "tools" },
      answer.text
        ? el("button", { class: "quiet", type: "button", onclick: copyIt }, "Copy")
        : null,
      el("button", { class: "quiet again", type: "button", onclick: this.onRetry }, "Answer again"),
    );
  }

  #failure(error) {
    const wait = error.retryAfter ? ` Try again in ${plural(error.retryAfter, "second")}.` : "";
    const what = [error.status || null, error.code, error.param].filter(Boolean).join(" · ");
    return el(
      "div",
      { class: "failure", role: "alert" },
      el("p", {}, sentence(error.message) + wait),
      what ? el("small", {}, what) : null,
    );
  }
}

/** Only what is new is added, so that a selection in the text survives. */
function append(element, text) {
  const shown = element.firstChild?.data ?? "";
  if (text === shown) return;
  if (element.firstChild && text.startsWith(shown))
    element.firstChild.appendData(text.slice(shown.length));
  else setText(element, text);
}

/** How fast it came and how it ended. */
function figures({ ttft, tokensPerSecond, numTokens, isExact, usage, state, finishReason }) {
  const parts = [];
  const add = (value, unit) => parts.push(el("span", {}, el("b", {}, value), ` ${unit}`));
  if (ttft !== null) add(duration(ttft), "to first token");
  if (tokensPerSecond !== null) add(rate(tokensPerSecond), "tokens/s");
  if (numTokens)
    add((isExact ? "" : "≈ ") + count(numTokens), numTokens === 1 ? "token" : "tokens");
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  if (cached) add(count(cached), `of ${count(usage.prompt_tokens)} prompt tokens cached`);
  const end = state === "stopped" ? "stopped by you" : ENDS[finishReason];
  if (end) parts.push(el("span", {}, end));
  return parts;
}

const dotted = (parts) => parts.flatMap((part, place) => (place ? [" · ", part] : [part]));

function sentence(text) {
  const capital = /^[a-z_.[\]0-9]+:/.test(text) ? text : text[0].toUpperCase() + text.slice(1);
  return /[.!?…]$/.test(capital) ? capital : `${capital}.`;
}
