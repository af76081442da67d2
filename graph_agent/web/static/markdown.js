// Renders Markdown as elements and text nodes: a text is split into blocks, and nothing of it is ever markup.
import { Lexer } from "./vendor/marked.js";
import { Component, html, prose } from "./html.js";

// The lexer's time grows with the square of some paragraphs, and its stack with the nesting.
const INLINE_CHARS = 5000;
const DEPTH = 16;
// An open block is read again when it has grown by this part, so that all readings together are linear in its length.
const GROWTH = 1 / 16;
const OPTIONS = { gfm: true, breaks: true };

/** marked's lexer with bounds: beyond them, a text stays as it is written. */
class BoundedLexer extends Lexer {
  depth = 0;

  blockTokens(source, tokens = [], isLastParagraph) {
    if (this.depth >= DEPTH) return [...tokens, { type: "text", raw: source, text: source }];
    this.depth += 1;
    try {
      return super.blockTokens(source, tokens, isLastParagraph);
    } finally {
      this.depth -= 1;
    }
  }

  inlineTokens(source, tokens = []) {
    if (source.length <= INLINE_CHARS) return super.inlineTokens(source, tokens);
    tokens.push({ type: "text", raw: source, text: source });
    return tokens;
  }
}

/** Return the blocks of a Markdown text: the whole text as one block if the lexer fails. */
export function blocksOf(text) {
  try {
    return new BoundedLexer(OPTIONS).lex(text);
  } catch {
    return [{ type: "text", raw: text, text }];
  }
}

/** A text that grows: its blocks that have ended, the open ones, and what was added since these were read. */
export class GrowingText {
  pieces = [];
  ended = [];
  open = [];
  added = "";
  #source = "";

  /** The whole text. */
  get text() {
    return this.pieces.join("");
  }

  append(piece) {
    this.pieces.push(piece);
    this.added += piece.replaceAll("\r", "");
  }

  /** Read what was added, if it is enough in proportion to the open blocks. */
  read() {
    if (this.added.length <= this.#source.length * GROWTH) return;
    this.#source += this.added;
    this.added = "";
    const blocks = blocksOf(this.#source);
    // A later line may continue the last block, or a list before it.
    const shown = blocks.flatMap(({ type }, n) => (type === "space" ? [] : n));
    const count = Math.max(0, shown.at(-2) ?? 0);
    const end = blocks.slice(0, count).reduce((sum, { raw }) => sum + raw.length, 0);
    this.ended.push(...blocks.slice(0, count));
    this.open = blocks.slice(count);
    this.#source = this.#source.slice(end);
  }
}

const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

/** Return a text with the entities that Markdown has in common with HTML replaced by their characters. */
const decoded = (text) =>
  text.replace(/&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|(amp|lt|gt|quot|apos|nbsp));/g, (whole, decimal, hex, name) => {
    if (name) return ENTITIES[name];
    const code = decimal ? Number(decimal) : parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : whole;
  });

/** Return an address if a link may lead to it; undefined for any scheme but http and https. */
export function safeHref(href) {
  try {
    const url = new URL(href);
    return /^https?:$/.test(url.protocol) ? url.href : undefined;
  } catch {
    return undefined;
  }
}

function Link({ token }) {
  const href = safeHref(token.href);
  // An image is not loaded: its server would learn who reads the answer.
  const label = token.type === "image" ? decoded(token.text) || token.href : null;
  if (!href) return prose(token.raw);
  return html`<a href=${href} title=${href} target="_blank" rel="noopener noreferrer nofollow">${label ? prose(label) : inline(token.tokens)}</a>`;
}

const INLINE = {
  strong: ({ tokens }) => html`<strong>${inline(tokens)}</strong>`,
  em: ({ tokens }) => html`<em>${inline(tokens)}</em>`,
  del: ({ tokens }) => html`<del>${inline(tokens)}</del>`,
  codespan: ({ text }) => html`<code>${prose(text)}</code>`,
  br: () => html`<br />`,
  checkbox: ({ checked }) => html`<input type="checkbox" disabled checked=${checked} aria-label=${checked ? "done" : "to do"} /> `,
  link: (token) => html`<${Link} token=${token} />`,
  image: (token) => html`<${Link} token=${token} />`,
  escape: ({ text }) => prose(text),
  text: ({ text, tokens }) => (tokens ? inline(tokens) : prose(decoded(text))),
};

/** Return the nodes of inline tokens; a token of HTML or of an unknown kind is shown as it is written. */
const inline = (tokens = []) => tokens.map((token) => (INLINE[token.type] || (({ raw }) => prose(raw)))(token));

function Code({ token, more, copy }) {
  const text = token.text + more;
  return html`<div class="code"><header><span>${prose((token.lang || "").split(/\s/)[0])}</span>
    ${copy && html`<button type="button" class="quiet" onClick=${() => copy(text)} aria-label="Copy code">Copy</button>`}</header>
    <pre tabindex="0"><code>${prose(text)}</code></pre></div>`;
}

function Table({ token }) {
  const cell = (tag) => ({ tokens, align }) => html`<${tag} class=${align ? `to-${align}` : ""}>${inline(tokens)}</${tag}>`;
  return html`<div class="table" tabindex="0" role="group" aria-label="Table"><table>
    <thead><tr>${token.header.map(cell("th"))}</tr></thead>
    <tbody>${token.rows.map((row) => html`<tr>${row.map(cell("td"))}</tr>`)}</tbody></table></div>`;
}

const BLOCKS = {
  // The page's own headings are of the levels 1 to 3.
  heading: ({ depth, tokens }, more) => html`<${`h${Math.min(6, depth + 3)}`} class=${`h${depth}`}>${inline(tokens)}${more}</>`,
  paragraph: ({ tokens }, more) => html`<p>${inline(tokens)}${more}</p>`,
  blockquote: ({ tokens }, more, copy) => html`<blockquote>${blocks(tokens, copy)}${more}</blockquote>`,
  list: ({ ordered, start, items }, more, copy) => {
    const shown = items.map(({ tokens, task }, n) => html`<li class=${task ? "task" : ""}>${blocks(tokens, copy)}${n === items.length - 1 && more}</li>`);
    return ordered ? html`<ol start=${start}>${shown}</ol>` : html`<ul>${shown}</ul>`;
  },
  code: (token, more, copy) => html`<${Code} token=${token} more=${more} copy=${copy} />`,
  table: (token) => html`<${Table} token=${token} />`,
  hr: () => html`<hr />`,
  text: ({ text, tokens }, more) => (tokens ? inline(tokens).concat(more) : prose(text + more)),
  html: ({ raw }, more) => html`<p>${prose(raw.trimEnd() + more)}</p>`,
  checkbox: INLINE.checkbox,
  space: () => null,
  def: () => null,
};

const block = (token, more, copy) => (BLOCKS[token.type] || (({ raw }) => html`<p>${prose(raw)}</p>`))(token, more, copy);
const blocks = (tokens, copy) => tokens.map((token) => block(token, "", copy));

/** One block; drawn again only if it was read again, or its text goes on. */
class Block extends Component {
  shouldComponentUpdate({ token, more }) {
    return token !== this.props.token || more !== this.props.more;
  }

  render({ token, more, copy }) {
    return block(token, more, copy);
  }
}

/** A Markdown text, which is a string or a `GrowingText`. */
export class Markdown extends Component {
  render({ text, copy }) {
    if (text instanceof GrowingText) text.read();
    else if (text !== this.text) this.blocks = blocksOf(text);
    this.text = text;
    const all = text instanceof GrowingText ? [...text.ended, ...text.open] : this.blocks;
    const last = all.findLastIndex(({ type }) => type !== "space");
    const more = text instanceof GrowingText ? text.added : "";
    return html`<div class="markdown">${all.map((token, n) => html`<${Block} key=${n} token=${token} more=${n === last ? more : ""} copy=${copy} />`)}
      ${last < 0 && more}</div>`;
  }
}
