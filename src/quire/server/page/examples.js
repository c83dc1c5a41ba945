// First messages. The bundled model has three tasks and can do little else.

const SHOP = `You are the voice assistant of Orchard Pharmacy.
Address: 14 Mill Lane, Pinecrest.
Delivery: free.
The phone number is 032 700 583.
Returns: within 60 days.
We are open Monday to Friday from 9:30 am to 6 pm, Saturday and Sunday closed.
Parking: there is no parking here, but the tram stops at the door.
Payment: cards only, no cash.`;

// system: the system prompt that the example needs
const BUNDLED = [
  { text: "red runing shoes for wimen", note: "a misspelt query, rewritten" },
  { text: "hello, who are you?", note: "small talk" },
  { text: "what are your opening hours?", note: "a caller's question to a shop", system: SHOP },
  { text: "can you tell me a joke?", note: "more small talk" },
];

const GENERAL = [
  { text: "Explain a KV cache to a librarian.", note: "an analogy" },
  { text: "Write a regular expression for ISO dates.", note: "code" },
  { text: "Name five books about the sea, one line each.", note: "a list" },
  { text: "What should I ask to find out what you are good at?", note: "a beginning" },
];

export const examplesFor = (model) => (model.startsWith("quire-tiny") ? BUNDLED : GENERAL);
