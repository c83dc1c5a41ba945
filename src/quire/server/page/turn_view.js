// TurnView: one turn of the conversation: question, answer, its figures and its buttons.

import { copy, el, setText } from "./dom.js";
import { MarkdownText } from "./markdown.js";
import { failure, figures } from "./outcome.js";

export class TurnView {
  #markdown = new MarkdownText();
  #text = el("div", { class: "text" }, this.#markdown.element);
  #isPlain = false;
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

  /** Show an answer as it is now. plain: its text as it was written, not as Markdown. */
  show(answer, plain = false) {
    this.#answer.setAttribute("aria-busy", String(answer.isRunning));
    this.#showText(answer.text, plain);
    append(this.#thoughts, answer.reasoning);
    this.#fold.hidden = answer.reasoning === "";
    this.#numbers.replaceChildren(...figures(answer));
    this.#figures.querySelector(".tools")?.remove();
    this.#answer.querySelector(".failure")?.remove();
    if (answer.isRunning) return;
    this.#text.hidden = answer.text === "";
    this.#figures.append(this.#tools(answer));
    if (answer.error) this.#figures.before(failure(answer.error));
  }

  #showText(text, plain) {
    if (plain !== this.#isPlain) this.#text.replaceChildren(plain ? "" : this.#markdown.element);
    this.#isPlain = plain;
    if (plain) append(this.#text, text);
    else this.#markdown.show(text);
  }

  #tools(answer) {
    const copyIt = (event) => copy(answer.text, event.currentTarget);
    const other = this.#isPlain ? "Formatted" : "Plain text";
    const change = () => this.show(answer, !this.#isPlain);
    const buttons = answer.text ? [tool(other, change), tool("Copy", copyIt)] : [];
    return el("span", { class: "tools" }, ...buttons, tool("Answer again", this.onRetry, "again"));
  }
}

const tool = (label, onclick, name = "") =>
  el("button", { class: `quiet ${name}`, type: "button", onclick }, label);

/** Only what is new is added, so that a selection in the text survives. */
function append(element, text) {
  const shown = element.firstChild?.data ?? "";
  if (text === shown) return;
  if (element.firstChild && text.startsWith(shown))
    element.firstChild.appendData(text.slice(shown.length));
  else setText(element, text);
}
