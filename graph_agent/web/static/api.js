// Talks to the server that the page came from; the key stays in this tab.

import { parseJson, toJson } from "./json.js";

const KEY = "graph-agent-key";
const PERSON = "graph-agent-person";
const SILENT_MS = 60_000;

/** An error response of the server, or a lost connection (`status` 0). */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Return the key of this tab; empty without one. */
export const storedKey = () => sessionStorage.getItem(KEY) || "";

/** Keep a key in this tab, and forget the name that the one before has. */
export function storeKey(key) {
  sessionStorage.setItem(KEY, key);
  sessionStorage.removeItem(PERSON);
}

/** Return the name under which the server records what this tab does, as far as it has answered with it. */
export const storedPerson = () => sessionStorage.getItem(PERSON) || "user";

/** Keep the name under which the server records what this tab does. */
export const storePerson = (name) => sessionStorage.setItem(PERSON, name);

async function send(path, read, options = {}) {
  const headers = { ...options.headers };
  if (storedKey()) headers.authorization = `Bearer ${storedKey()}`;
  if (options.body) headers["content-type"] = "application/json";
  try {
    // Relative, so that a server below a path of a proxy works.
    const response = await fetch(`.${path}`, { ...options, headers });
    if (response.ok) return await read(response);
    const problem = await response.json().catch(() => ({}));
    const message = problem.error?.message || problem.error || `The server answered ${response.status}.`;
    throw new ApiError(message, response.status);
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
    throw new ApiError("The server does not answer.", 0);
  }
}

const asJson = async (response) => parseJson(await response.text());

/** Return the JSON that a path has. */
export const get = (path) => send(path, asJson);

/** Send JSON to a path, and return what `read` returns of the answer: its JSON by default. */
export const post = (path, body = {}, headers = {}, read = asJson) => send(path, read, { method: "POST", body: toJson(body), headers });

/** Change what a path names, and return the JSON of the answer. */
export const patch = (path, body) => send(path, asJson, { method: "PATCH", body: toJson(body) });

/** Delete what a path names; return the JSON of the answer, or null. */
export const remove = (path) => send(path, async (response) => parseJson((await response.text()) || "null"), { method: "DELETE" });

/** Return the path of a session. */
export const sessionPath = (id, rest = "") => `/sessions/${encodeURIComponent(id)}${rest}`;

/** Return the path of a session's events. */
export const eventsPath = (id, query = "") => `/memory/sessions/${encodeURIComponent(id)}/events${query}`;

/** Call `take` for each event of a session after `after`, until the stream ends; return its `end` event, if any. */
export async function follow(id, after, take, signal) {
  const body = await send(eventsPath(id, `?follow=true&live=true&after=${after}`), (response) => response.body, { signal });
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    // The server sends something every 15 s; a connection that is lost during a computer's sleep stays silent.
    const silent = setTimeout(() => reader.cancel().catch(() => {}), SILENT_MS);
    const { value, done } = await reader
      .read()
      .catch((error) => {
        throw error.name === "AbortError" ? error : new ApiError("The connection was lost.", 0);
      })
      .finally(() => clearTimeout(silent));
    if (done) return null;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      const data = frame.split("\n").find((line) => line.startsWith("data: "));
      if (!data) continue;
      const event = parseJson(data.slice(6));
      if (event.type === "end") return event;
      take(event);
    }
  }
}
