// Asks the server how the engine is, again and again, and tells those who show it.

import { getJson } from "./api.js";
import { byId, setText } from "./dom.js";
import { count, rate } from "./format.js";
import { History } from "./history.js";
import { snapshotOf } from "./snapshot.js";

const QUICK = 500; // ms between two looks while the live view is open
const SLOW = 2000;

export class Live {
  history = new History();
  paused = false;
  #listeners = [];
  #timer = null;
  #isQuick = false;
  #path = "live";

  /** Call listener(snapshot, history) after each look, or (null, history, error) where it failed. */
  subscribe(listener) {
    this.#listeners.push(listener);
  }

  start() {
    const look = () => this.#soon(0);
    document.addEventListener("visibilitychange", look);
    document.addEventListener("keychange", look);
    look();
  }

  /** Look often, with all details, or now and then at the figures only. */
  setQuick(isQuick) {
    this.#isQuick = isQuick;
    this.#soon(0);
  }

  /** Look at this model from now on; its history begins anew. */
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
      this.#tell(snapshot, null);
    } catch (error) {
      if (path === this.#path) this.#tell(null, error);
    }
    this.#soon(this.#isQuick ? QUICK : SLOW);
  }

  #tell(snapshot, error) {
    if (this.paused) return;
    showPulse(snapshot, this.history, error);
    for (const listener of this.#listeners) listener(snapshot, this.history, error);
  }
}

/** The line in the bar: how the engine is, on every view. */
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
