// Live: polls GET /live and passes each snapshot to its listeners.

import { getJson } from "./api.js";
import { byId, setText } from "./dom.js";
import { count, rate } from "./format.js";
import { History } from "./history.js";
import { snapshotOf } from "./snapshot.js";

const QUICK = 500; // ms between two polls while the live view is open
const SLOW = 2000;

export class Live {
  history = new History();
  paused = false;
  #listeners = [];
  #timer = null;
  #isQuick = false;
  #path = "live";

  /** Call listener(snapshot, history) after each poll, or (null, history, error) if it failed. */
  subscribe(listener) {
    this.#listeners.push(listener);
  }

  start() {
    const look = () => this.#soon(0);
    document.addEventListener("visibilitychange", look);
    document.addEventListener("keychange", look);
    look();
  }

  /** Poll often with all details, or seldom with the figures only. */
  setQuick(isQuick) {
    this.#isQuick = isQuick;
    this.#soon(0);
  }

  /** Poll this model's engine; its history starts empty. */
  setModel(name) {
    const path = `live?model=${encodeURIComponent(name)}`;
    if (path === this.#path) return;
    this.#path = path;
    this.history = new History();
    this.#soon(0);
  }

  setPaused(paused) {
    this.paused = paused;
    this.#soon(0);
  }

  #soon(delay) {
    clearTimeout(this.#timer);
    if (!document.hidden && !this.paused) this.#timer = setTimeout(() => this.#look(), delay);
  }

  async #look() {
    const path = this.#path;
    try {
      const snapshot = snapshotOf(await getJson(path, { ask: false }));
      if (path !== this.#path) return; // another model was chosen meanwhile, and is asked for
      this.history.add(snapshot);
      this.#notify(snapshot, null);
    } catch (error) {
      if (path === this.#path) this.#notify(null, error);
    }
    this.#soon(this.#isQuick ? QUICK : SLOW);
  }

  #notify(snapshot, error) {
    if (this.paused) return;
    showPulse(snapshot, this.history, error);
    for (const listener of this.#listeners) listener(snapshot, this.history, error);
  }
}

/** The status line in the top bar, on every view. */
function showPulse(snapshot, history, error) {
  const pulse = byId("pulse");
  setText(byId("pulse-rate"), "");
  if (error) {
    pulse.dataset.state = "lost";
    setText(byId("pulse-text"), error.status === 401 ? "needs a key" : "not reachable");
    return;
  }
  const { running, waiting, isAlive } = snapshot;
  if (!isAlive) {
    pulse.dataset.state = "lost";
    setText(byId("pulse-text"), "the engine has stopped");
    return;
  }
  pulse.dataset.state = running + waiting ? "busy" : "idle";
  const queue = waiting ? `, ${count(waiting)} waiting` : "";
  setText(byId("pulse-text"), running + waiting ? `${count(running)} running${queue}` : "ready");
  const speed = ` · ${rate(history.rate("generation"))} tokens/s`;
  setText(byId("pulse-rate"), running + waiting ? speed : "");
}
