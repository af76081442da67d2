// Reads and writes JSON in which every number stays as it was sent: a script's own numbers are exact up to 2^53 only.

// A value cannot hold it by chance, so that no text is taken for a number.
const MARK = crypto.randomUUID?.() || `${Math.random()}${Math.random()}`;
const MARKED = new RegExp(`"${MARK}([^"]*)"`, "g");
const NUMBER = /-?\d+(\.\d+)?([eE][+-]?\d+)?/y;

/** A number whose text a script would change; it computes with the nearest number. */
export class ExactNumber extends Number {
  constructor(text) {
    super(text);
    this.text = text;
  }

  toString() {
    return this.text;
  }

  toJSON() {
    return MARK + this.text;
  }
}

function endOfString(text, start) {
  for (let end = text.indexOf('"', start + 1); ; end = text.indexOf('"', end + 1)) {
    if (end < 0) return text.length;
    let at = end;
    while (text[at - 1] === "\\") at -= 1;
    if ((end - at) % 2 === 0) return end + 1;
  }
}

/** Return JSON in which each number that a script would change is a marked text. */
function marked(text) {
  const parts = [];
  let kept = 0;
  for (let at = 0; at < text.length; ) {
    if (text[at] === '"') {
      at = endOfString(text, at);
      continue;
    }
    NUMBER.lastIndex = at;
    const number = NUMBER.exec(text)?.[0];
    if (number && String(Number(number)) !== number) {
      parts.push(text.slice(kept, at), `"${MARK}${number}"`);
      kept = at + number.length;
    }
    at += number?.length || 1;
  }
  return parts.length ? parts.join("") + text.slice(kept) : text;
}

/** Return the value of JSON; a number that a script would change is an `ExactNumber`. Throws a `SyntaxError` for other text. */
export function parseJson(text) {
  const replaced = marked(text);
  if (replaced === text) return JSON.parse(text);
  JSON.parse(text);
  return JSON.parse(replaced, (key, value) => (typeof value === "string" && value.startsWith(MARK) ? new ExactNumber(value.slice(MARK.length)) : value));
}

/** Return a value as JSON, each `ExactNumber` as its text. */
export const toJson = (value, indent) => JSON.stringify(value, null, indent)?.replace(MARKED, "$1");

/** Return the number that a field of a form holds. */
export const givenNumber = (text) => (/^-?\d+$/.test(text) ? parseJson(String(BigInt(text))) : Number(text));
