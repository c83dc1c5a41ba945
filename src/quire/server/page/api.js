// HTTP requests to this server: API key, errors, streamed events.

import { askForKey, savedKey } from "./key.js";
import { EventReader } from "./sse.js";

export class ApiError extends Error {
  constructor(message, { status = 0, param = null, code = null, retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { status, param, code, retryAfter });
  }
}

/** Fetch a path below the page's own. ask: open the key dialog where a key is wanted. */
export async function request(path, { body, signal, ask = true } = {}) {
  const key = savedKey();
  const response = await send(path, body, signal, key);
  if (response.ok) return response;
  if (response.status === 401 && ask) {
    if (savedKey() !== key || (await askForKey())) return request(path, { body, signal, ask });
  }
  throw await failure(response);
}

export const getJson = async (path, options) => (await request(path, options)).json();

/** The data of each event of a streamed answer. Throws ApiError, also for one inside the stream. */
export async function* events(path, body, signal) {
  const response = await request(path, { body, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new EventReader();
  for (;;) {
    const { value, done } = await read(reader);
    if (done) throw new ApiError("The answer broke off; send the message again.");
    for (const data of parser.push(value)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw described(chunk.error, 500, null);
      yield chunk;
    }
  }
}

async function send(path, body, signal, key) {
  const headers = { Accept: "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  const options = { method: body ? "POST" : "GET", headers, signal, cache: "no-store" };
  try {
    return await fetch(path, body ? { ...options, body: JSON.stringify(body) } : options);
  } catch (error) {
    throw unreachable(error);
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    throw unreachable(error);
  }
}

function unreachable(error) {
  if (error.name === "AbortError") return error;
  return new ApiError("The server cannot be reached; check that it still runs, then try again.");
}

async function failure(response) {
  const retryAfter = Number(response.headers.get("retry-after")) || null;
  const body = await response.json().catch(() => null);
  if (body?.error?.message) return described(body.error, response.status, retryAfter);
  const text = `The server answered with status ${response.status}; see its log.`;
  return new ApiError(text, { status: response.status, retryAfter });
}

const described = ({ message, param, code }, status, retryAfter) =>
  new ApiError(message, { status, param, code, retryAfter });
