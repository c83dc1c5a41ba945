// The API key: requested when the server wants one, stored for this tab only.

import { byId } from "./dom.js";

const NAME = "quire-api-key";

export const savedKey = () => sessionStorage.getItem(NAME);

let pending = null; // one dialog for all who wait

/** Ask for a key. Resolves to whether one was given. */
export function askForKey() {
  pending ??= new Promise((resolve) => open(resolve)).finally(() => (pending = null));
  return pending;
}

function open(resolve) {
  const dialog = byId("key-dialog");
  const input = byId("key");
  if (savedKey()) byId("key-reason").textContent = "The server refused the last key; try another.";
  input.value = "";
  byId("key-cancel").onclick = () => dialog.close();
  byId("key-form").onsubmit = () => {
    sessionStorage.setItem(NAME, input.value.trim());
    dialog.returnValue = "given";
  };
  dialog.returnValue = "";
  dialog.onclose = () => {
    const given = dialog.returnValue === "given";
    if (given) document.dispatchEvent(new Event("keychange"));
    resolve(given);
  };
  dialog.showModal();
}
