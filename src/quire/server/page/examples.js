// First messages. The bundled model has three tasks and can do little else.

const BUNDLED = [
  { text: "red runing shoes for wimen", note: "a misspelt query, rewritten" },
  { text: "hello, who are you?", note: "small talk" },
  { text: "megenta microphone", note: "another query" },
  { text: "can you tell me a joke?", note: "more small talk" },
];

const GENERAL = [
  { text: "Explain a KV cache to a librarian.", note: "an analogy" },
  { text: "Write a regular expression for ISO dates.", note: "code" },
  { text: "Name five books about the sea, one line each.", note: "a list" },
  { text: "What should I ask to find out what you are good at?", note: "a beginning" },
];

export const examplesFor = (model) => (model.startsWith("quire-tiny") ? BUNDLED : GENERAL);
