// An answer's Markdown as elements, while it grows: finished blocks are left alone, and of the last
// ones only what differs is changed, so that a selection survives.

import { copy, el } from "./dom.js";
import { blocksOf } from "./markdown_blocks.js";
import { inlineNodes } from "./markdown_inline.js";

const OPEN_LINES = 3; // at the end of the text, whose meaning the next characters may change

export class MarkdownText {
  element = el("div", { class: "markdown", onclick: copyCode });
  #text = "";
  #line = 0; // the first line of what is not finished
  #finished = 0; // elements before it

  show(text) {
    if (!text.startsWith(this.#text)) this.#line = this.#finished = 0;
    this.#text = text;
    const lines = text.replaceAll("\r", "").split("\n");
    const blocks = blocksOf(lines.slice(this.#line));
    patch(this.element, blocks.map(elementOf), this.#finished);
    this.#finish(blocks, lines.length - this.#line);
  }

  /** What comes before a block that began some lines ago cannot change any more. */
  #finish(blocks, numLines) {
    const last = blocks.findLastIndex(({ line }) => line <= numLines - OPEN_LINES);
    if (last < 1) return;
    this.#finished += last;
    this.#line += blocks[last].line;
  }
}

/** Make an element's children from an index on equal to some nodes, with few changes. */
export function patch(element, nodes, from = 0) {
  let old = element.childNodes[from];
  for (const node of nodes) {
    const next = old?.nextSibling;
    if (!old) element.append(node);
    else if (!isAlike(old, node)) old.replaceWith(node);
    else if (old.nodeType === Node.TEXT_NODE) grow(old, node.data);
    else patch(old, [...node.childNodes]);
    old = next;
  }
  while (old) {
    const next = old.nextSibling;
    old.remove();
    old = next;
  }
}

/** Whether two nodes differ in their content at most. */
function isAlike(old, node) {
  if (old.nodeName !== node.nodeName) return false;
  const attributes = [...(node.attributes ?? [])];
  if (attributes.length !== (old.attributes?.length ?? 0)) return false;
  return attributes.every(({ name, value }) => old.getAttribute(name) === value);
}

function grow(node, text) {
  if (text === node.data) return;
  if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else node.data = text;
}

function elementOf(block) {
  switch (block.type) {
    case "heading": // the page's own headings are above it
      return filled(el(`h${Math.min(6, block.level + 2)}`), inlineNodes(block.text));
    case "code":
      return code(block);
    case "rule":
      return el("hr");
    case "quote":
      return filled(el("blockquote"), block.blocks.map(elementOf));
    case "list":
      return list(block);
    case "table":
      return table(block);
    default:
      return filled(el("p"), inlineNodes(block.text));
  }
}

function code({ language, text }) {
  const button = el("button", { class: "quiet copy-code", type: "button" }, "Copy");
  const head = el("div", { class: "code-head" }, el("span", {}, language), button);
  return el("div", { class: "code" }, head, el("pre", { tabindex: 0 }, el("code", {}, text)));
}

function list({ start, items }) {
  const element = start === null ? el("ul") : el("ol", { start });
  return filled(
    element,
    items.map((blocks) => filled(el("li"), blocks.map(elementOf))),
  );
}

function table({ head, alignments, rows }) {
  const row = (tag) => (cells) =>
    filled(
      el("tr"),
      cells.map((text, index) => filled(el(tag, { class: alignments[index] }), inlineNodes(text))),
    );
  const body = filled(el("tbody"), rows.map(row("td")));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, row("th")(head)), body));
}

/** Append nodes one by one: there may be more than a call can have arguments. */
function filled(element, nodes) {
  for (const node of nodes) element.append(node);
  return element;
}

function copyCode({ target }) {
  const button = target.closest(".copy-code");
  if (button) copy(button.closest(".code").querySelector("code").textContent, button);
}
