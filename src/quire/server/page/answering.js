// What chat and completion share: streaming an answer, and the same request for a terminal.

import { ApiError, events } from "./api.js";
import { announce } from "./dom.js";
import { savedKey } from "./key.js";
import { markRefused } from "./settings.js";

/** Stream an answer until it ends, however that is. show: called after each change. */
export async function streamAnswer(answer, path, body, signal, show) {
  markRefused(null);
  const showSoon = onceAFrame(show);
  showSoon();
  try {
    for await (const chunk of events(path, body, signal)) {
      answer.push(chunk);
      showSoon();
    }
    answer.end("done");
  } catch (error) {
    end(answer, error);
  }
  show();
  announce(answer.error ? "The request failed." : `Answer: ${answer.text}`);
}

export const streamOptions = { stream: true, stream_options: { include_usage: true } };

/** A request as a curl command. The key is named, never shown. */
export function curlFor(path, body) {
  const text = JSON.stringify(body, null, 2).replaceAll("'", String.raw`'\''`);
  const key = savedKey() ? ` -H "Authorization: Bearer $QUIRE_API_KEY"` : "";
  const url = new URL(path, document.baseURI);
  return `curl ${url}${key} -H 'Content-Type: application/json' -d '${text}'`;
}

/** Give way to the button that can be pressed now; the focus goes along. */
export function swapButtons(start, stop, isRunning, rest) {
  const focused = document.activeElement;
  start.hidden = isRunning;
  stop.hidden = !isRunning;
  if (focused === start) stop.focus();
  if (focused === stop) rest.focus();
}

function end(answer, error) {
  if (error.name === "AbortError") return answer.end("stopped");
  if (!(error instanceof ApiError)) console.error(error);
  answer.end("failed", error);
  markRefused(error.param);
  // a model that was loaded for this request may turn out to have no chat template
  if (error.param === "messages") document.dispatchEvent(new Event("modelrefused"));
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
