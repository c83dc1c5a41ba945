// Answer: the state of one streamed answer: text, reasoning, timing, usage, finish reason.

export class Answer {
  text = "";
  reasoning = "";
  state = "waiting"; // waiting, streaming, then done, stopped or failed
  finishReason = null;
  usage = null;
  error = null;
  #begin;
  #first = null;
  #last = null;
  #pieces = 0;

  constructor(now = performance.now()) {
    this.#begin = now;
  }

  /** Take one chunk of the stream. */
  push(chunk, now = performance.now()) {
    this.usage = chunk.usage ?? this.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const { content, reasoning_content: thoughts, reasoning } = choice.delta ?? {
      content: choice.text, // of a completion
    };
    this.text += content ?? "";
    this.reasoning += thoughts ?? reasoning ?? "";
    this.finishReason = choice.finish_reason ?? this.finishReason;
    if (!(content || thoughts || reasoning)) return;
    this.state = "streaming";
    this.#first ??= now;
    this.#last = now;
    this.#pieces += 1;
  }

  end(state, error = null) {
    this.state = state;
    this.error = error;
  }

  get isRunning() {
    return this.state === "waiting" || this.state === "streaming";
  }

  /** Seconds from the request to the first text, or null. */
  get ttft() {
    return this.#first === null ? null : (this.#first - this.#begin) / 1000;
  }

  /** Tokens so far: the server's count once it is known, else the pieces of text that came. */
  get numTokens() {
    return this.usage?.completion_tokens ?? this.#pieces;
  }

  get isExact() {
    return this.usage !== null;
  }

  /** Tokens a second after the first one, or null where there was only one. */
  get tokensPerSecond() {
    const seconds = (this.#last - this.#first) / 1000;
    return this.#pieces > 1 && seconds > 0 ? (this.numTokens - 1) / seconds : null;
  }
}
