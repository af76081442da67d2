// Talks to the server that the page came from; the key stays in this tab.

const KEY = "graph-agent-key";

/** An error response of the server, or a lost connection (`status` 0). */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Return the key of this tab; empty without one. */
export const storedKey = () => sessionStorage.getItem(KEY) || "";

/** Keep a key in this tab. */
export const storeKey = (key) => sessionStorage.setItem(KEY, key);

async function send(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  if (storedKey()) headers.authorization = `Bearer ${storedKey()}`;
  if (options.body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    const body = options.body === undefined ? undefined : JSON.stringify(options.body);
    // Relative, so that a server below a path of a proxy works.
    response = await fetch(`.${path}`, { ...options, headers, body });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer.", 0);
  }
  if (!response.ok) {
    const problem = await response.json().catch(() => ({}));
    const message = problem.error?.message || problem.error || `The server answered ${response.status}.`;
    throw new ApiError(message, response.status);
  }
  return response;
}

/** Return the JSON that a path has. */
export const get = async (path) => (await send(path)).json();

/** Send JSON to a path, and return the JSON of its answer. */
export async function post(path, body = {}, headers = {}) {
  const response = await send(path, { method: "POST", body, headers });
  return response.status === 204 ? null : response.json();
}

/** Delete what a path names. */
export const remove = (path) => send(path, { method: "DELETE" });

/** Return the path of a session. */
export const sessionPath = (id, rest = "") => `/sessions/${encodeURIComponent(id)}${rest}`;

/** Return the path of a session's events. */
export const eventsPath = (id, query = "") => `/memory/sessions/${encodeURIComponent(id)}/events${query}`;

/** Call `take` for each event of a session after `after`, until the stream ends; return its `end` event, if any. */
export async function follow(id, after, take, signal) {
  const response = await send(eventsPath(id, `?follow=true&live=true&after=${after}`), { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The connection was lost.", 0);
    });
    if (done) return null;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      const data = frame.split("\n").find((line) => line.startsWith("data: "));
      if (!data) continue;
      const event = JSON.parse(data.slice(6));
      if (event.type === "end") return event;
      take(event);
    }
  }
}
