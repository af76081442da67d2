// Shows what a person has chosen on the time axis: a call, a plan, or an answer.
import { withoutFiles } from "./attachments.js";
import { rebuiltRequest, requestAt } from "./events.js";
import { asText, counted, duration, html, pretty, signOf, visible, wordOf } from "./html.js";
import { Origins } from "./origins.js";

const SHOWN = 20_000;

/** A text in its own box, with a button that copies it. */
export function Block({ title, text, copy }) {
  const cut = text.length > SHOWN ? text.slice(0, SHOWN) : text;
  return html`<div class="block">
    <header><h4>${title}</h4><button class="quiet" onClick=${() => copy(text)} aria-label=${`Copy: ${title}`}>Copy</button></header>
    <pre tabindex="0">${visible(cut)}</pre>
    ${cut !== text && html`<p class="hint">Cut after ${SHOWN} of ${text.length} characters; Copy has all.</p>`}
  </div>`;
}

function CallDetail({ call, copy }) {
  const { decision, result } = call;
  const elapsed = result && !call.isCut && call.end - (call.begun ?? call.start);
  return html`
    <h3><i class=${`state ${call.state}`} aria-hidden="true">${signOf(call.state)}</i> ${visible(call.name)}</h3>
    <p class="facts">${wordOf(call.state)}${elapsed >= 0 ? ` · ${duration(elapsed)}` : ""} · step ${call.step.number} · <code>${visible(call.id)}</code>
      ${call.needs.length ? html` · needs ${call.needs.map((id) => html`<code>${visible(id)}</code> `)}` : ""}</p>
    ${call.begun !== undefined && html`<p class="facts">Began ${duration(call.start - call.begun)} before the plan was complete.</p>`}
    ${call.isCut && html`<p class="facts">A crash ended the run before the call.</p>`}
    ${result?.decided_by && html`<p class="facts">Decided by ${visible(result.decided_by)}.</p>`}
    ${decision && html`<p class="facts">${decision.decided_by} decided: ${decision.decision}${decision.always ? ", and all of this kind in this session" : ""}${decision.message ? html` – ${visible(decision.message)}` : ""}</p>`}
    ${call.origins && html`<${Origins} origins=${call.origins} />`}
    ${call.arguments && html`<${Block} title="Arguments" text=${pretty(call.arguments)} copy=${copy} />`}
    ${call.progress.length > 0 && html`<${Block} title="Progress" text=${call.progress.join("\n")} copy=${copy} />`}
    ${result && html`<${Block} title=${result.truncated ? "Whole output (the model saw a part)" : "Whole output"} text=${pretty(withoutFiles(result.content))} copy=${copy} />`}`;
}

function requestText({ messages, first, last }) {
  return messages
    .map(({ type, content, omitted_blocks: blocks = [], omitted_chars: chars, ...extra }, n) => {
      const cut = chars ? `\n(Not recorded, because of the limit: ${[...blocks, counted(chars, "character")].join(", ")})` : "";
      return `${n >= first && n < last ? "+ " : ""}${type}\n${asText(withoutFiles(content))}${cut}${Object.keys(extra).length ? `\n${pretty(extra)}` : ""}`;
    })
    .join("\n\n");
}

function StepDetail({ step, answer, copy, log, requests }) {
  const { plan } = step;
  if (!plan) return html`<h3>The model works</h3>`;
  return html`
    <h3>${answer ? "Answer" : `Step ${step.number}: ${plan.action}`}</h3>
    ${step.models.map((model) => html`<${ModelFacts} ...${model} />`)}
    <p class="facts">${plan.planner ? `planner ${plan.planner}` : ""}${plan.cached ? " · from the cache" : ""}${plan.reruns ? ` · ${counted(plan.reruns, "rerun")} by hooks` : ""}</p>
    ${plan.reasoning && html`<${Block} title="Text" text=${asText(withoutFiles(plan.reasoning))} copy=${copy} />`}
    ${requests && step.models.map(({ record }) => requestAt(requests, record.started) || rebuiltRequest(log, step)).map((request) => request && html`
      <${Block} title=${`What the model was sent (+ is new, ${counted(request.messages.length, "message")}${request.rebuilt ? ", reconstructed" : ""})`} text=${requestText(request)} copy=${copy} />
      ${request.rebuilt && html`<p class="hint">Without prompt and tools: set record_requests.</p>`}`)}`;
}

function ModelFacts({ record, from, to }) {
  const facts = [record.purpose, record.model, duration(to - from)];
  if (record.first_token_s !== undefined) facts.push(`first token after ${duration(record.first_token_s * 1000)}`);
  if (record.input_tokens !== undefined) facts.push(`${counted(record.input_tokens, "token")} in, ${record.output_tokens ?? 0} out`);
  if (record.cost !== undefined) facts.push(`cost ${record.cost.toPrecision(3)}`);
  if (record.error) facts.push(`failed: ${record.error}`);
  return html`<p class="facts">Model call · ${facts.join(" · ")}</p>`;
}

/** The panel of the chosen bar. */
export function Detail({ bar, copy, close, log, requests, children }) {
  return html`<section class="detail" aria-label="Details">
    <button class="quiet close" onClick=${close} aria-label="Close details">✕</button>
    ${bar.call ? html`<${CallDetail} call=${bar.call} copy=${copy} />` : html`<${StepDetail} step=${bar.step} answer=${!bar.step.calls.length} copy=${copy} log=${log} requests=${requests} />`}
    ${children}
  </section>`;
}
