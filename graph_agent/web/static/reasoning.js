// Shows the model's reasoning, folded: as it arrives with a run, or as the events have recorded it.
import { html } from "./html.js";
import { Markdown } from "./markdown.js";

/** Add the recorded reasoning of model calls to the inputs that they belong to; events of other types are left out. */
export function addReasoning(log, events) {
  const places = new Map();
  for (const input of log.inputs) {
    input.steps.forEach(({ models }, n) => {
      // A plan's reasoning stands before its calls, that of a composed answer behind them.
      for (const { record } of models) places.set(record.started, { input, after: n + (record.purpose === "plan" ? 0 : 1) });
    });
  }
  const found = new Map();
  for (const { started, reasoning } of events) {
    const place = reasoning && places.get(started);
    if (place) found.set(place.input, [...(found.get(place.input) || []), { after: place.after, text: reasoning }]);
  }
  log.touched += 1;
  for (const [input, recorded] of found) Object.assign(input, { recorded, revision: input.revision + 1 });
}

/** Return the reasoning of an input's model calls: that which arrived with its runs, and the recorded one of other calls. */
export function reasoningOf({ thoughts, recorded = [] }, runs) {
  const arrived = [...thoughts.map((one) => [one, false]), ...runs.flatMap((run) => run.thoughts.map((one) => [one, !run.ended]))];
  const isNew = ({ after }) => !arrived.some(([one]) => one.after === after);
  return [...recorded.filter(isNew).map((one) => [one, false]), ...arrived];
}

/** The reasoning of a model call, folded. */
export function Reasoning({ text, isLive, copy }) {
  return html`<details class="reasoning"><summary>${isLive ? "Reasoning…" : "Reasoning"}</summary><${Markdown} text=${text} copy=${copy} /></details>`;
}
