// Finds and makes elements. Text always enters as text, never as markup.

export const byId = (id) => document.getElementById(id);

/** Make an element. Attributes that start with "on" are listeners; false and null are left out. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** Set an element's text, but leave the document alone where nothing changes. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Announce a text to screen readers. */
export function announce(text) {
  byId("announcer").textContent = text;
}

/** Copy a text to the clipboard; the button says so for a moment. */
export async function copy(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = copyBySelection(text) ? "Copied" : "Cannot copy here";
  }
  announce(button.textContent);
  setTimeout(() => (button.textContent = label), 1500);
}

/** Copy by selecting text, which also works without TLS. */
function copyBySelection(text) {
  const field = el("textarea", { class: "hidden", "aria-hidden": "true" });
  field.value = text;
  const focused = document.activeElement;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return done;
}
