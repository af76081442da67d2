// Shows what an answer rests on: the sources that it cites, and the facts of the memory that it was made with.
import { get } from "./api.js";
import { Component, counted, html, prose } from "./html.js";
import { safeHref } from "./markdown.js";

const QUOTE_CHARS = 200;
const SHOWN_AT_ONCE = 6;

/** Return each cited source once, in the order of the answer: its name, its address if it has a safe one, and a quote. */
export function sourcesOf(citations) {
  const found = new Map();
  for (const { url, title, cited_text: quote = "" } of citations) {
    const key = url || title;
    if (key && !found.has(key)) found.set(key, { name: title || url, url, href: safeHref(url), quote: quote.trim() });
  }
  return [...found.values()];
}

function Source({ name, url, href, quote }) {
  const host = href && new URL(href).host;
  // Another address is a text, so that nothing leads to it.
  return html`<li>${href ? html`<a href=${href} title=${href} target="_blank" rel="noopener noreferrer nofollow">${prose(name)}</a>` : prose(name)}
    ${(host || url) !== name && html` <small>${prose(host || url || "")}</small>`}
    ${quote && html`<q>${prose(quote.length > QUOTE_CHARS ? `${quote.slice(0, QUOTE_CHARS)}…` : quote)}</q>`}</li>`;
}

/** The sources that an answer cites. */
export function Sources({ citations }) {
  const sources = sourcesOf(citations);
  return sources.length > 0 && html`<details class="sources" open=${sources.length <= SHOWN_AT_ONCE}><summary>${counted(sources.length, "source")}</summary>
    <ol>${sources.map((one) => html`<${Source} ...${one} />`)}</ol></details>`;
}

/** The facts that were added to the requests of an input, or extracted from it, folded; their texts are read from the memory when it is opened. */
export class Recalled extends Component {
  async open(event) {
    if (!event.target.open) return;
    const ids = this.props.ids.map((id) => `id=${encodeURIComponent(id)}`).join("&");
    await this.props.attempt(async () => this.setState({ facts: (await get(`/memory/facts?${ids}`)).facts }));
  }

  render({ ids, title, attempt, manage }, { facts }) {
    if (!attempt) return html`<p class="recalled">${title}</p>`;
    const missing = facts ? ids.length - facts.length : 0;
    return html`<details class="recalled" onToggle=${(event) => this.open(event)}><summary>${title}</summary>
      ${facts ? html`<ul>${facts.map(({ content, forgotten }) => html`<li>${forgotten ? html`<i>forgotten since</i>` : prose(content)}</li>`)}
        ${missing > 0 && html`<li><i>${counted(missing, "fact")} no longer in the memory</i></li>`}</ul>` : html`<p>…</p>`}
      ${manage && html`<button class="quiet" onClick=${manage}>Edit or forget</button>`}</details>`;
  }
}
