// Binds htm to preact, and holds the small pieces of text that every view shows.
import { Component, createElement, Fragment, render } from "./vendor/preact.js";
import htm from "./vendor/htm.js";
import { parseJson, toJson } from "./json.js";

export { Component, Fragment, render };
export const html = htm.bind(createElement);

/** A component that is drawn again only if one of its properties, or its state, is another one. */
export class Still extends Component {
  shouldComponentUpdate(props, state) {
    return state !== this.state || Object.keys(props).some((name) => props[name] !== this.props[name]);
  }
}

const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;

const REORDERING = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]/gu;

/** Return a message's text as nodes in which controls, such as those that reorder text, are marked; joiners stay. */
export const prose = (text) => visible(text, REORDERING);

/** Return a value's text as nodes in which characters that a screen does not show are marked with their code points. */
export function visible(value, hidden = HIDDEN) {
  const text = String(value);
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(hidden)) {
    const code = `U+${match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    nodes.push(text.slice(end, match.index), html`<mark class="hidden-char">${code}</mark>`);
    end = match.index + match[0].length;
  }
  return nodes.length ? [...nodes, text.slice(end)] : text;
}

/** Return a value as text: itself, the texts of content blocks, or indented JSON. */
export function asText(value) {
  if (typeof value === "string") return value;
  const isBlocks = Array.isArray(value) && value.length && value.every((one) => typeof one?.text === "string");
  return isBlocks ? value.map((one) => one.text).join("\n") : toJson(value, 2);
}

/** Return the text of a message's content, without what is attached to it. */
export function textIn(content) {
  if (!Array.isArray(content)) return asText(content ?? "");
  return content.map((one) => (typeof one === "string" ? one : one?.type === "text" ? one.text : "")).filter(Boolean).join("\n");
}

/** Return the text of an answer, without the provider's calls in it; JSON if it has no text. */
export const answerText = (content) => textIn(content) || asText(content);

/** Return a text as indented JSON if it is JSON; the text itself otherwise. */
export function pretty(value) {
  const text = asText(value);
  if (!/^\s*[[{]/.test(text)) return text;
  try {
    return toJson(parseJson(text), 2);
  } catch {
    return text;
  }
}

/** Return a duration of milliseconds as text with its unit. */
export function duration(ms) {
  if (!(ms >= 0)) return "";
  if (ms < 1) return "<1 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  const minutes = Math.round(ms / 60_000);
  if (minutes < 60) return `${minutes} min`;
  return minutes < 2880 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.round(minutes / 1440)} d`;
}

const STATES = {
  planned: ["○", "planned"],
  waiting: ["◔", "waits for a person"],
  running: ["▸", "running"],
  success: ["✓", "succeeded"],
  answered: ["✓", "answered"],
  error: ["✕", "failed"],
  invalid: ["✕", "invalid"],
  denied: ["⊘", "denied"],
  skipped: ["–", "skipped"],
  unknown: ["?", "outcome unknown"],
  interrupted: ["?", "interrupted"],
};

/** Return the sign of a call's state. */
export const signOf = (state) => (STATES[state] || STATES.unknown)[0];

/** Return a call's state in words. */
export const wordOf = (state) => (STATES[state] || [state, state])[1];

/** Return a name of the code as words. */
export const words = (name) => name.toLowerCase().replaceAll("_", " ");

/** Return a text of at most a number of characters, ending in `…` if it was cut. */
export const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** Return a number of things in words. */
export const counted = (number, thing) => `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;

/** A session's activity, or its status when nothing runs. */
export function Status({ status, activity }) {
  const shown = activity && activity !== "idle" ? activity : status;
  return html`<b class=${shown.toLowerCase()}>${words(shown)}</b>`;
}
