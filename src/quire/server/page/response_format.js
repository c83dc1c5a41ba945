// Structured output: the field response_format, and the choices that the settings offer.

export const RESPONSE_FORMATS = [
  ["", "Any text"],
  ["json_object", "A JSON object"],
  ["json_schema", "JSON that matches a schema"],
];

/** The request's response_format, or undefined. Text that is not JSON is sent unchanged. */
export function responseFormat(type, schema) {
  if (type !== "json_schema") return type ? { type } : undefined;
  return { type, json_schema: { name: "answer", schema: parsed(schema) } };
}

/** Why a schema's text is not valid JSON; empty if it is. */
export function problemOf(schema) {
  try {
    JSON.parse(schema || "{}");
  } catch (error) {
    return error.message;
  }
  return "";
}

const parsed = (text) => (problemOf(text) ? text : JSON.parse(text || "{}"));
