// EventReader: a parser of server-sent events that arrive in arbitrary pieces; data fields only.

export class EventReader {
  #rest = "";

  /** Take the next part of the stream; returns the data of the events that it completes. */
  push(text) {
    const events = (this.#rest + text).split("\n\n");
    this.#rest = events.pop();
    return events.map(dataOf).filter((data) => data !== null);
  }
}

function dataOf(event) {
  const lines = event.split("\n").filter((line) => line.startsWith("data:"));
  if (lines.length === 0) return null; // a comment that keeps the connection open
  return lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
}
