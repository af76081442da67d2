// Shows where the arguments of a call come from.
import { html, visible } from "./html.js";

// Author of an argument → words; the other authors are the calls of tools and delegates.
const AUTHORS = {
  user: "from the user",
  system: "from the system prompt",
  memory: "from the memory",
  task: "from untrusted text in the task",
  context: "from the conversation of the delegating agent",
  model: "written by the model",
  unknown: "unknown, because there is too much text to search",
};
const HOW = { reference: "by reference", prose: "in prose" };

function originText({ kind, name, call, field, how, part, untrusted }) {
  const author = AUTHORS[kind] || `from ${name}, call ${call}`;
  return [author, field, HOW[how], part && `only the part ${part}`, untrusted && "untrusted"].filter(Boolean).join(", ");
}

/** Where the arguments of a call come from, one line each; nothing for a call whose origins are not traced. */
export function Origins({ origins }) {
  const known = Object.entries(origins || {});
  if (!known.length) return null;
  return html`<ul class="origins" aria-label="Where the arguments come from">
    ${known.map(([path, origin]) => html`<li class=${origin.untrusted ? "untrusted" : ""}><code>${visible(path)}</code> ${visible(originText(origin))}</li>`)}
  </ul>`;
}
