// Markdown cut into blocks, as plain data. Only what models write; HTML is text like any other.
//
// Each line is looked at a bounded number of times, and nesting is bounded, so that the time is
// linear in the text whatever a model writes.

const MAX_DEPTH = 8; // of quotes and lists; what is deeper stays text
const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])(?:[ \t](.*))?$/;
const INDENTED = /^(?: {4}|\t)/;
const DELIMITER = /^:?-+:?$/; // a cell of the line below a table's head

const isBlank = (line) => line.trim() === "";

/** The blocks of some lines, each with the number of its first line as `line`. */
export function blocksOf(lines, depth = 0) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const [block, end] = blockAt(lines, at, depth);
    blocks.push({ ...block, line: at });
    at = end;
  }
  return blocks;
}

/** The block that begins at a line, and the number of the line after it. */
function blockAt(lines, at, depth) {
  const read = depth < MAX_DEPTH ? readerOf(lines, at) : null;
  if (read) return read(lines, at, depth);
  if (depth === 0 && INDENTED.test(lines[at])) return indentedCode(lines, at);
  return paragraph(lines, at, depth);
}

/** What reads the block that a line begins, if that can also end a paragraph. */
function readerOf(lines, at) {
  const line = lines[at];
  if (fenceOf(line)) return fenced;
  if (HEADING.test(line)) return heading;
  if (RULE.test(line)) return (_, index) => [{ type: "rule" }, index + 1];
  if (QUOTE.test(line)) return quote;
  if (ITEM.test(line)) return list;
  if (tableHead(lines, at)) return table;
  return null;
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end])) {
    if (depth < MAX_DEPTH && readerOf(lines, end)) break;
    end += 1;
  }
  return [{ type: "paragraph", text: lines.slice(at, end).join("\n").trim() }, end];
}

function heading(lines, at) {
  const [, marks, text = ""] = HEADING.exec(lines[at]);
  return [{ type: "heading", level: marks.length, text: withoutMarks(text.trim()) }, at + 1];
}

/** A heading's text without the #s that may close it. */
function withoutMarks(text) {
  let end = text.length;
  while (text[end - 1] === "#") end -= 1;
  return end === 0 || text[end - 1] === " " ? text.slice(0, end).trimEnd() : text;
}

/** The mark and the language of a line that opens a fence, or null. */
function fenceOf(line) {
  const [, mark, rest] = FENCE.exec(line) ?? [];
  if (!mark || (mark[0] === "`" && rest.includes("`"))) return null;
  return { mark, language: rest.trim().split(/\s/)[0] };
}

function fenced(lines, at) {
  const { mark, language } = fenceOf(lines[at]);
  const indent = lines[at].indexOf(mark[0]);
  let end = at + 1;
  while (end < lines.length && !closes(lines[end].trim(), mark)) end += 1;
  const code = lines.slice(at + 1, end).map((line) => unindent(line, indent));
  return [{ type: "code", language, text: code.join("\n") }, end + 1];
}

function closes(text, mark) {
  if (text.length < mark.length || text[0] !== mark[0]) return false;
  return text === mark[0].repeat(text.length);
}

function indentedCode(lines, at) {
  let end = at;
  let last = at;
  for (; end < lines.length && (isBlank(lines[end]) || INDENTED.test(lines[end])); end++)
    if (!isBlank(lines[end])) last = end;
  const code = lines.slice(at, last + 1).map((line) => line.replace(INDENTED, ""));
  return [{ type: "code", language: "", text: code.join("\n") }, end];
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [{ type: "quote", blocks: blocksOf(inner, depth + 1) }, end];
}

const isOrdered = (mark) => mark.length > 1;

/** A list. What is indented by two or more belongs to the item above it. */
function list(lines, at, depth) {
  const [, { length: base }, firstMark] = ITEM.exec(lines[at]);
  const ordered = isOrdered(firstMark);
  const items = [];
  const isNext = (item) =>
    item && item[1].length < base + 2 && isOrdered(item[2]) === ordered;
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    const isInner = indentOf(lines[end]) >= base + 2;
    if (isBlank(lines[end])) {
      const next = nextFilled(lines, end);
      if (next === lines.length) break;
      if (indentOf(lines[next]) < base + 2 && !isNext(ITEM.exec(lines[next]))) break;
      for (; end < next; end++) items.at(-1).push("");
      continue;
    }
    if (isNext(item) && !RULE.test(lines[end])) items.push([item[3] ?? ""]);
    else if (isInner) items.at(-1).push(unindent(lines[end], base + firstMark.length + 1));
    else if (isBlank(lines[end - 1] ?? "") || readerOf(lines, end)) break;
    else items.at(-1).push(lines[end]);
    end += 1;
  }
  const start = ordered ? Number.parseInt(firstMark, 10) : null;
  const read = ([first, ...rest]) => blocksOf([withBox(first), ...rest], depth + 1);
  return [{ type: "list", start, items: items.map(read) }, end];
}

/** An item of a list of tasks with its box as a character. */
const withBox = (line) => line.replace(/^\[ \] /, "☐ ").replace(/^\[[xX]\] /, "☑ ");

function nextFilled(lines, at) {
  let next = at;
  while (next < lines.length && isBlank(lines[next])) next += 1;
  return next;
}

const indentOf = (line) => line.length - line.trimStart().length;

const unindent = (line, most) => line.slice(Math.min(indentOf(line), most));

/** The cells of a table's head and their alignments, where two lines begin a table. */
function tableHead(lines, at) {
  if (!lines[at].includes("|") || !lines[at + 1]?.includes("-")) return null;
  const delimiters = cellsOf(lines[at + 1]);
  if (!delimiters.every((cell) => DELIMITER.test(cell))) return null;
  const head = cellsOf(lines[at]);
  return head.length === delimiters.length ? { head, alignments: delimiters.map(alignment) } : null;
}

function table(lines, at) {
  const { head, alignments } = tableHead(lines, at);
  let end = at + 2;
  const rows = [];
  for (; end < lines.length && lines[end].includes("|"); end++) {
    const cells = cellsOf(lines[end]);
    rows.push(head.map((_, index) => cells[index] ?? ""));
  }
  return [{ type: "table", head, alignments, rows }, end];
}

function alignment(delimiter) {
  if (!delimiter.endsWith(":")) return "left";
  return delimiter.startsWith(":") ? "centre" : "right";
}

/** The cells of a line; `\|` is a bar inside one. */
function cellsOf(line) {
  const cells = line.trim().replaceAll("\\|", "\0").split("|");
  if (cells.length > 1 && cells[0] === "") cells.shift();
  if (cells.length > 1 && cells.at(-1).trim() === "") cells.pop();
  return cells.map((cell) => cell.trim().replaceAll("\0", "|"));
}
