// Holds what a person attaches to a message: reads files within bounds, and shows them.
import { asText, counted, html, textIn, visible } from "./html.js";

/** The media types that a message may have attached. */
export const TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"];
const OTHER_BYTES = 100_000;

const sizeOf = (bytes) => (bytes < 1e6 ? `${Math.ceil(bytes / 1000)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);
const read = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });

/** Return files as content blocks; throw an `Error` for another type, or for more bytes than a request may have. */
export async function attached(files, before, maxBytes) {
  for (const { name, type } of files) {
    if (!TYPES.includes(type)) throw new Error(`${name} is no PNG, JPEG, GIF, WebP or PDF, so that it cannot be attached.`);
  }
  // Base64 has four characters for three bytes.
  const bytes = files.reduce((sum, { size }) => sum + size, before.reduce((sum, { base64 }) => sum + (base64.length * 3) / 4, 0));
  const most = Math.floor(((maxBytes - OTHER_BYTES) * 3) / 4);
  if (bytes > most) throw new Error(`The attachments have ${sizeOf(bytes)}; a message may have ${sizeOf(most)} of them.`);
  return Promise.all(
    [...files].map(async (file) => {
      const data = { base64: await read(file), mime_type: file.type, filename: file.name };
      return file.type.startsWith("image/") ? { type: "image", ...data } : { type: "file", ...data };
    }),
  );
}

/** Return the content of a message: its text, or blocks if something is attached. */
export const contentOf = (text, blocks) => (blocks.length ? [...(text ? [{ type: "text", text }] : []), ...blocks] : text);

/** Return the blocks of a content that are attached to its text. */
export const attachmentsIn = (content) => (Array.isArray(content) ? content.filter((one) => one?.type !== "text" && typeof one !== "string") : []);

const DATA_URL = /^data:([^;,]*)[^,]*;base64,/;
const BASE64 = /^[A-Za-z0-9+/_-]{100,}={0,2}$/;
// A recorded request has no long parts that could be secrets, so that the size of a file is not known.
const MASKED = /^[A-Za-z0-9+/_-]*\*{3}[A-Za-z0-9+/_*-]*={0,2}$/;

/** Return the kind and the size of a file in base64 as text; a text that is none, or short, is returned unchanged. */
function fileText(text, kind) {
  const url = DATA_URL.exec(text);
  const known = url?.[1] || kind;
  if (known && MASKED.test(text.slice(url?.[0].length || 0))) return `(${known})`;
  if (!url && !BASE64.test(text)) return text;
  return `(${known || "file"}, ${sizeOf(((text.length - (url?.[0].length || 0)) * 3) / 4)})`;
}

/** Return content blocks with the kind and the size of each file in place of its bytes; text stays. */
export function withoutFiles(content) {
  if (Array.isArray(content)) return content.map((one) => (typeof one === "string" ? one : withoutFiles(one)));
  if (content === null || typeof content !== "object" || Object.getPrototypeOf(content) !== Object.prototype) return content;
  const kind = content.mime_type || content.media_type || content.mimeType;
  return Object.fromEntries(
    Object.entries(content).map(([name, value]) => [name, typeof value === "string" && name !== "text" ? fileText(value, kind) : withoutFiles(value)]),
  );
}

/** Return a content in the form in which the chat API receives it. */
export function asRequest(content) {
  if (!Array.isArray(content)) return content;
  const files = attachmentsIn(content).map(({ type, base64, mime_type: kind, filename }) => {
    const url = `data:${kind};base64,${base64}`;
    return type === "image" ? { type: "image_url", image_url: { url } } : { type: "file", file: { filename, file_data: url } };
  });
  return [...(textIn(content) ? [{ type: "text", text: textIn(content) }] : []), ...files];
}

function Attachment({ block, drop }) {
  const { type, base64, mime_type: kind, filename, url } = block;
  const name = filename || (type === "image" ? "Image" : asText(type || "Attachment"));
  const isShown = type === "image" && base64 && TYPES.includes(kind);
  // No address is loaded, and only a known type is drawn.
  return html`<li class="attachment">
    ${isShown ? html`<img src=${`data:${kind};base64,${base64}`} alt=${name} />` : html`<span class="file" aria-hidden="true">${kind === "application/pdf" ? "PDF" : "▤"}</span>`}
    <span>${visible(name)}${base64 && html` <small>${sizeOf((base64.length * 3) / 4)}</small>`}${url && html` <small>${visible(url)}</small>`}</span>
    ${drop && html`<button type="button" class="quiet" onClick=${drop} aria-label=${`Remove ${name}`}>✕</button>`}
  </li>`;
}

/** The attachments of a message; with `drop`, each has a button that removes it. */
export function Attachments({ blocks, drop }) {
  return blocks.length > 0 && html`<ul class="attachments" aria-label=${counted(blocks.length, "attachment")}>
    ${blocks.map((block, n) => html`<${Attachment} block=${block} drop=${drop && (() => drop(n))} />`)}</ul>`;
}
