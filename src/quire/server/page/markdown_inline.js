// What stands inside a line of Markdown: emphasis, code, links. Text enters the page as text nodes;
// links lead to http, https and mailto only, and pictures are links, since nothing is loaded.

import { el } from "./dom.js";

const SPECIAL = /[\\`*_~[!h]/g;
const LINK = /\[([^[\]\n]{0,500})\]\(<?((?:[^()\s<>]|\([^()\s<>]{0,200}\)){1,2000})>?(?: "[^"\n]{0,200}")?\)/y;
const ADDRESS = /https?:\/\/[^\s<>"'`|\\]{1,2000}/y;
const PROTOCOLS = new Set(["http:", "https:", "mailto:"]);
const ESCAPED = /[!-/:-@[-`{-~]/; // ASCII punctuation
const WORD = /[\p{L}\p{N}]/u;
const TAGS = { 1: "em", 2: "strong", "~": "del" };

/** The nodes of a text, with line ends saved as they are. */
export function inlineNodes(text, { links = true } = {}) {
  return new InlineReader(text, links).read();
}

class InlineReader {
  #nodes = []; // finished nodes, and openers { mark, size } that may still find their end
  #open = new Map(); // mark and size of an opener → its index in the nodes
  #missing = new Set(); // lengths of runs of backticks that no later run has
  #plain = ""; // text that is not in a node yet

  constructor(text, links) {
    this.text = text;
    this.links = links;
  }

  read() {
    let at = 0;
    while (at < this.text.length) {
      SPECIAL.lastIndex = at;
      const next = SPECIAL.exec(this.text)?.index ?? this.text.length;
      this.#plain += this.text.slice(at, next);
      at = next < this.text.length ? this.#special(next) : next;
    }
    this.#flush();
    return this.#nodes.map(asNode);
  }

  /** Read what begins with a special character; returns the index after it. */
  #special(at) {
    const char = this.text[at];
    if (char === "\\") return this.#escape(at);
    if (char === "`") return this.#code(at);
    if (char === "[" || char === "!") return this.#link(at, char === "!");
    if (char === "h") return this.#address(at);
    return this.#emphasis(at, char);
  }

  #literal(from, to) {
    this.#plain += this.text.slice(from, to);
    return to;
  }

  #escape(at) {
    const next = this.text[at + 1] ?? "";
    if (!ESCAPED.test(next)) return this.#literal(at, at + 1);
    return this.#literal(at + 1, at + 2);
  }

  #code(at) {
    const size = runLength(this.text, at);
    const end = this.#missing.has(size) ? -1 : this.#closingTicks(at + size, size);
    if (end < 0) {
      this.#missing.add(size);
      return this.#literal(at, at + size);
    }
    const code = this.text.slice(at + size, end).replaceAll("\n", " ");
    const isPadded = code.startsWith(" ") && code.endsWith(" ") && code.trim() !== "";
    this.#push(el("code", {}, isPadded ? code.slice(1, -1) : code));
    return end + size;
  }

  #closingTicks(from, size) {
    for (let at = this.text.indexOf("`", from); at >= 0; ) {
      const length = runLength(this.text, at);
      if (length === size) return at;
      at = this.text.indexOf("`", at + length);
    }
    return -1;
  }

  #link(at, isImage) {
    LINK.lastIndex = at + (isImage ? 1 : 0);
    const found = this.links ? LINK.exec(this.text) : null;
    const address = found && safeAddress(found[2]);
    if (!address) return this.#literal(at, at + 1);
    const label = isImage ? [`image: ${found[1]}`] : inlineNodes(found[1], { links: false });
    this.#push(link(address, label));
    return LINK.lastIndex;
  }

  #address(at) {
    ADDRESS.lastIndex = at;
    const isInWord = WORD.test(this.text[at - 1] ?? "");
    const found = this.links && !isInWord ? ADDRESS.exec(this.text) : null;
    const shown = found && withoutTail(found[0]);
    const address = shown && safeAddress(shown);
    if (!address) return this.#literal(at, at + 1);
    this.#push(link(address, [shown]));
    return at + shown.length;
  }

  /** A run of *, _ or ~: closes what it can, then opens what it can, and is text otherwise. */
  #emphasis(at, mark) {
    const run = runLength(this.text, at);
    const [before, after] = [this.text[at - 1] ?? " ", this.text[at + run] ?? " "];
    const inWord = mark === "_";
    const canClose = /\S/.test(before) && !(inWord && WORD.test(after));
    const canOpen = /\S/.test(after) && !(inWord && WORD.test(before));
    let left = run;
    for (let size; canClose && (size = this.#lastOpen(mark, left)); left -= size)
      this.#close(mark, size);
    for (let size; canOpen && (size = this.#notOpen(mark, left)); left -= size)
      this.#begin(mark, size);
    return this.#literal(at + run - left, at + run);
  }

  /** The size of the latest opener that this many marks can close. */
  #lastOpen(mark, left) {
    const open = sizesOf(mark, left).filter((size) => this.#open.has(mark + size));
    return open.sort((a, b) => this.#open.get(mark + b) - this.#open.get(mark + a))[0];
  }

  #notOpen = (mark, left) => sizesOf(mark, left).find((size) => !this.#open.has(mark + size));

  #begin(mark, size) {
    this.#flush();
    this.#open.set(mark + size, this.#nodes.length);
    this.#nodes.push({ mark, size });
  }

  /** Put everything since the opener into an element; openers in between become text. */
  #close(mark, size) {
    this.#flush();
    const index = this.#open.get(mark + size);
    const element = el(TAGS[mark] ?? TAGS[size]);
    for (const node of this.#nodes.splice(index).slice(1)) element.append(asNode(node));
    for (const [key, other] of this.#open) if (other >= index) this.#open.delete(key);
    this.#nodes.push(element);
  }

  #push(node) {
    this.#flush();
    this.#nodes.push(node);
  }

  #flush() {
    if (this.#plain) this.#nodes.push(this.#plain);
    this.#plain = "";
  }
}

/** Sizes of openers that a run of marks can be, the greater first. One ~ is a tilde. */
const sizesOf = (mark, left) => (mark === "~" ? [2] : [2, 1]).filter((size) => size <= left);

const asNode = (node) => (node.mark ? node.mark.repeat(node.size) : node);

const link = (address, label) =>
  el("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" }, ...label);

function runLength(text, at) {
  let end = at;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

/** An address with a protocol that is allowed, or null. */
function safeAddress(text) {
  if (!URL.canParse(text)) return null;
  const url = new URL(text);
  return PROTOCOLS.has(url.protocol) ? url.href : null;
}

/** An address in running text without the punctuation after it. */
function withoutTail(text) {
  let end = text.length;
  while (/[.,;:!?*_~)\]]/.test(text[end - 1] ?? "")) {
    if (text[end - 1] === ")" && text.slice(0, end).includes("(")) break;
    end -= 1;
  }
  return text.slice(0, end);
}
