// The form that an answer is given: any text, a JSON object, or JSON that keeps to a schema.

export const FORMS = [
  ["", "Any text"],
  ["json_object", "A JSON object"],
  ["json_schema", "JSON that keeps to a schema"],
];

/** The request's response_format, or undefined. What is no JSON is sent as it is. */
export function responseFormat(type, schema) {
  if (type !== "json_schema") return type ? { type } : undefined;
  return { type, json_schema: { name: "answer", schema: parsed(schema) } };
}

/** What keeps a schema's text from being one, or nothing. */
export function problemOf(schema) {
  try {
    JSON.parse(schema || "{}");
  } catch (error) {
    return error.message;
  }
  return "";
}

const parsed = (text) => (problemOf(text) ? text : JSON.parse(text || "{}"));
