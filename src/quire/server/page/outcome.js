// How an answer went: its figures, and its failure.

import { el } from "./dom.js";
import { count, duration, plural, rate } from "./format.js";

const ENDS = {
  length: "cut at max tokens",
  content_filter: "withheld",
  tool_calls: "called a tool",
};

/** How fast it came and how it ended, as nodes. */
export function figures({ ttft, tokensPerSecond, numTokens, isExact, usage, state, finishReason }) {
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
  return parts.flatMap((part, index) => (index ? [" · ", part] : [part]));
}

/** What went wrong, in the server's words. */
export function failure(error) {
  const wait = error.retryAfter ? ` Try again in ${plural(error.retryAfter, "second")}.` : "";
  const what = [error.status || null, error.code, error.param].filter(Boolean).join(" · ");
  return el(
    "div",
    { class: "failure", role: "alert" },
    el("p", {}, sentence(error.message) + wait),
    what ? el("small", {}, what) : null,
  );
}

function sentence(text) {
  const capital = /^[a-z_.[\]0-9]+:/.test(text) ? text : text[0].toUpperCase() + text.slice(1);
  return /[.!?…]$/.test(capital) ? capital : `${capital}.`;
}
