// Computes the geometry of an input's time axis: columns of steps, lanes of calls, and the lines of their needs.
import { signOf } from "./html.js";

export const LANE = 26;
const HEAD = 40;
const NARROWEST = 144;
const GAP = 10;

// A shorter gap is not shown, unless it ends with a resume.
const IDLE_MS = 2000;

// A bar that is wide has a part of its name at least.
const WIDE = 90;

/** Return the name of a bar. */
export function nameOf(bar) {
  if (bar.call) return bar.call.name.replace(/^delegate_to_/, "→ ");
  return bar.open ? "working" : bar.model?.record.purpose === "plan" ? "model" : bar.model?.record.purpose || "model";
}

/** Return the name that stands on a bar, of several model calls if they are close. */
export const shownName = (bar) => (bar.count > 1 ? `${nameOf(bar)} ×${bar.count}` : nameOf(bar));

const lengths = new Map();
let ruler;

/** Return the pixels that a text is wide on a bar; the number of characters tells it to a third only. */
export function lengthOfText(text, pixels = 12) {
  const key = `${pixels} ${text}`;
  if (!lengths.has(key)) {
    ruler ??= document.createElement("canvas").getContext("2d");
    ruler.font = `${pixels}px ${getComputedStyle(document.body).fontFamily}`;
    if (lengths.size > 5000) lengths.clear();
    lengths.set(key, ruler.measureText(text).width);
  }
  return lengths.get(key);
}

/** Return the pixels that the name of a bar needs, with the sign of a call's state. */
export const nameLength = (bar) => Math.ceil(lengthOfText(shownName(bar)) + (bar.call ? lengthOfText(signOf(bar.call.state)) + 4 : 0)) + 1;

/** Return the pixels for a name inside a bar. */
export const innerLength = (width) => Math.max(0, width - 8);

/** Return from where to where a bar and its name reach, in pixels; a name stands beside a bar that is too short for it. */
function extentOf(bar, at, begin, end) {
  const x = at(bar.from);
  const right = x + Math.max(6, at(bar.to) - x);
  const length = nameLength(bar) + 8;
  const isWide = right - x >= WIDE;
  if (right - x >= length || (isWide && x - length < begin)) return [x, right];
  return !isWide && right + length <= end ? [x, right + length] : [x - length, right];
}

const durationOf = (waits) => waits.reduce((sum, [from, to]) => sum + to - from, 0);

/** Return the intervals of a step in which it waited for a person. */
const waitsOf = (step, now) => joined(step.calls.flatMap((call) => call.waits.map((wait) => [wait.from, wait.to ?? now])));

/** Return the intervals of a log's inputs from a crash to the resume. */
const deadOf = (inputs) =>
  inputs.flatMap(({ dead, steps }) => [...dead, ...steps.flatMap(({ calls }) => calls.flatMap(({ nested }) => (nested ? deadOf(nested.inputs) : [])))]);

/** Return the intervals from a crash to the resume within a column. */
function deadWithin(input, begin, end) {
  const within = deadOf([input]).map(({ from, to }) => [Math.max(begin, from), Math.min(end, to)]);
  return joined(within.filter(([from, to]) => from < to));
}

// The rule is that of `gaps_of` in `session/time_axis.py`: one table of cases tests both.
/** Return the gaps of a column with their kinds: until a run resumed the input, after a failed request, or of two seconds or more without a record. */
function gapsWithin(step, begin, end, known) {
  const models = modelBars(step, 0, 0);
  const failed = new Set(models.filter(({ model }) => model?.record.error && model.record.error !== "cancelled").map(({ to }) => to));
  const resumes = step.input.resumes.toSorted((left, right) => left - right);
  const work = [...models.map(({ from, to }) => [from, to]), ...step.calls.map((call) => timesOf(call, end)), ...known, [end, end]];
  const gaps = [];
  let last = begin;
  for (const [from, to] of work.sort((left, right) => left[0] - right[0])) {
    const resumed = resumes.find((at) => last < at && at <= from);
    if (resumed) {
      gaps.push([last, resumed, "interrupted"]);
      last = resumed;
    }
    if (from - last >= IDLE_MS) gaps.push([last, from, failed.has(last) ? "retry" : "idle"]);
    last = Math.max(last, to);
  }
  return gaps;
}

/** Return intervals as intervals that do not overlap, in order. */
function joined(waits) {
  waits.sort((left, right) => left[0] - right[0]);
  const joined = [];
  for (const [from, to] of waits) {
    if (joined.length && from <= joined.at(-1)[1]) joined.at(-1)[1] = Math.max(joined.at(-1)[1], to);
    else joined.push([from, to]);
  }
  return joined;
}

/** Return the function from a time in a column to a position from 0 to 1: linear, with waits shortened. */
function scaleOf(begin, end, waits) {
  const waited = durationOf(waits);
  const active = Math.max(end - begin - waited, 0.001);
  const shortened = waits.length ? Math.min(waited, active) / waited || 0 : 1;
  const length = active + (waits.length ? waited * shortened : 0);
  return (time) => {
    let at = Math.min(Math.max(time, begin), end) - begin;
    for (const [from, to] of waits) at -= (Math.max(0, Math.min(time, to) - from) || 0) * (1 - shortened);
    return Math.min(1, Math.max(0, at / length));
  };
}

/** Return when a call began and ended; one that runs ends with its column. */
function timesOf(call, end) {
  const from = call.again ?? call.begun ?? call.start ?? call.waits[0]?.from ?? call.step.planned;
  return [from, call.end ?? (call.state === "planned" ? from : end)];
}

// A delegation's own calls stand below it; `extent` returns from where to where a bar reaches.
/** Return the bars of a step's calls in rows, in which no bar covers the name of another. */
function rowsOf(calls, end, depth, extent) {
  const bars = [];
  const taken = [];
  for (const call of calls) {
    const [from, to] = timesOf(call, end);
    const bar = { call, kind: call.kind, from, to, row: 0, depth, isCut: call.isCut };
    const inner = call.nested && depth < 4 ? nestedBars(call.nested, depth + 1, extent) : [];
    const height = 1 + inner.reduce((most, one) => Math.max(most, one.row + 1), 0);
    const extents = [bar, ...inner].map(extent);
    const left = Math.min(...extents.map(([start]) => start));
    const right = Math.max(...extents.map(([, last]) => last));
    const isTaken = (at) => taken[at]?.some(([start, last]) => start < right && left < last);
    let row = 0;
    while (Array.from({ length: height }, (_, n) => row + n).some(isTaken)) row += 1;
    for (let n = 0; n < height; n += 1) (taken[row + n] ??= []).push([left, right]);
    bar.row = row;
    bars.push(bar, ...inner.map((one) => ({ ...one, row: one.row + row + 1 })));
  }
  return bars;
}

function nestedBars(log, depth, extent) {
  const bars = [];
  let rows = 0;
  for (const input of log.inputs) {
    for (const step of input.steps) {
      bars.push(...modelBars(step, 0, depth));
      for (const bar of rowsOf(step.calls, step.end, depth, extent)) {
        bars.push({ ...bar, row: bar.row + 1 });
        rows = Math.max(rows, bar.row + 1);
      }
    }
  }
  return bars;
}

/** Return the bars of a step's model calls; one bar up to the plan if the events have no records of them. */
export function modelBars(step, row, depth) {
  const bar = { step, kind: "model", row, depth };
  if (!step.models.length) return [{ ...bar, from: step.begin, to: step.planned }];
  return step.models.map((model) => ({ ...bar, model, from: model.from, to: model.to }));
}

/** Return a bar with its key, which is stable while its session grows. */
export function keyed(bar) {
  const { call, step, depth, from } = bar;
  return { ...bar, key: call ? `${call.step.number}/${call.id}/${depth}` : `${step.number}/model/${depth}/${from}` };
}

/** Return the drawing of an input: width, height, columns, bars, lines and marks, in pixels; nothing runs without `now`. */
export function layout(input, viewport, zoom, now) {
  const steps = input.steps.map((step, index) => {
    const isLast = index === input.steps.length - 1;
    const running = isLast && !input.done;
    const open = step.calls.some((call) => !["planned"].includes(call.state) && call.end === undefined);
    const end = isLast && (input.done || !open) ? Math.max(input.answered ?? step.end, step.end) : step.end;
    const before = input.steps[index - 1]?.end ?? input.start;
    const isGap = step.begin - before >= IDLE_MS || input.resumes.some((at) => before < at && at <= step.begin);
    return { step, begin: isGap ? before : step.begin, end: running && open ? Math.max(now, end) : end };
  });
  const tail = now && !input.done && !steps.at(-1)?.step.calls.some((call) => call.end === undefined);
  if (tail) {
    const begin = Math.max(steps.at(-1)?.end ?? input.start, ...input.dead.map(({ to }) => to));
    steps.push({ step: null, begin, end: Math.max(now, begin) });
  }
  const asked = steps.map(({ step, end }) => (step ? waitsOf(step, end) : []));
  const dead = steps.map(({ begin, end }) => deadWithin(input, begin, end));
  const gaps = steps.map(({ step, begin, end }, n) => {
    const found = step ? gapsWithin(step, begin, end, [...asked[n], ...dead[n]]) : [];
    return [...dead[n].map(([from, to]) => [from, to, "interrupted"]), ...found];
  });
  const waits = steps.map((step, n) => joined([...asked[n], ...gaps[n]].map(([from, to]) => [from, to])));
  const weights = steps.map(({ begin, end }, n) => {
    const waited = durationOf(waits[n]);
    return Math.max(end - begin - waited, 0.001) * (waited ? 2 : 1);
  });
  const total = weights.reduce((sum, one) => sum + one, 0) || 1;
  const spare = Math.max(0, viewport - 32 - steps.length * (NARROWEST + GAP)) * zoom + (zoom - 1) * viewport;
  const columns = [];
  const bars = [];
  const lines = [];
  const places = new Map();
  // A name may reach to the left of the first column.
  let x = 24;
  let rows = 1;
  steps.forEach(({ step, begin, end }, n) => {
    const width = NARROWEST + (spare * weights[n]) / total;
    const scale = scaleOf(begin, end, waits[n]);
    const at = (time) => x + scale(time) * width;
    const stripes = (intervals) => intervals.map(([from, to, kind]) => ({ kind, x: at(from), width: Math.max(3, at(to) - at(from)), ms: to - from }));
    const column = { key: step ? step.number : "next", step, x, width, begin, end, waits: stripes(asked[n]), gaps: stripes(gaps[n]) };
    columns.push(column);
    const placed = step
      ? [...modelBars(step, -1, 0), ...rowsOf(step.calls, end, 0, (bar) => extentOf(bar, at, x, x + width))]
      : [{ step: { number: "next", input, calls: [], models: [] }, kind: "model", from: begin, to: end, row: -1, depth: 0, open: true }];
    for (const bar of placed) {
      const left = at(bar.from);
      const y = HEAD + (bar.row + 1) * LANE;
      const [edge] = extentOf(bar, at, x, x + width);
      const early = bar.call?.begun === undefined ? 0 : at(bar.from + bar.call.early) - left;
      const box = keyed({ ...bar, x: left, y, width: Math.max(6, at(bar.to) - left), early, column, edge });
      bars.push(box);
      rows = Math.max(rows, bar.row + 2);
      if (bar.call && !bar.depth) places.set(bar.call, box);
    }
    x += width + GAP;
  });
  for (const [call, box] of places) {
    for (const id of call.needs) {
      const needed = call.step.calls.find((one) => one.own === id);
      const from = needed && places.get(needed);
      if (from) lines.push({ key: `${id}>${call.id}`, x1: from.x + from.width, y1: from.y + LANE / 2, x2: box.x, y2: box.y + LANE / 2 });
    }
  }
  const byRow = [...bars].sort((left, right) => left.y - right.y || left.x - right.x);
  byRow.forEach((bar, n) => {
    const next = byRow[n + 1];
    const before = byRow[n - 1];
    bar.before = before?.y === bar.y ? before.x + before.width : -Infinity;
    bar.room = Math.max(bar.width, Math.min(next?.y === bar.y ? next.edge : x, bar.column.x + bar.column.width) - bar.x - 4);
    // Short model calls that are too close for their names have one name, beside the last one.
    const isClose = !bar.call && next && !next.call && next.y === bar.y && bar.width < WIDE && next.x - bar.x - bar.width < nameLength(bar) + 8;
    if (isClose) {
      next.count = (bar.count || 1) + 1;
      bar.isUnnamed = true;
    }
  });
  const marks = input.notes.map((note, n) => {
    const column = columns.find((one) => note.time <= one.end) || columns.at(-1);
    const part = column && column.end > column.begin ? (note.time - column.begin) / (column.end - column.begin) : 1;
    return { note, key: `note${n}`, x: column ? column.x + Math.min(1, Math.max(0, part)) * column.width : 8 };
  });
  return { width: Math.max(viewport, x), height: HEAD + rows * LANE + (waits.some((one) => one.length) ? 22 : 10), columns, bars, lines, marks, head: HEAD };
}
