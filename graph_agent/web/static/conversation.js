// Shows the conversation, and what a person does in it: inputs, steering, and decisions on calls.
import { asText, Component, Fragment, html, pretty, prose, signOf, visible, wordOf, words } from "./html.js";
import { givenNumber, parseJson } from "./json.js";
import { Markdown } from "./markdown.js";

const SHOWN_TURNS = 30;

function Note({ note }) {
  if (note.kind === "steering") return html`<p class="message user steering"><b>Steering</b> ${prose(asText(note.text))}</p>`;
  return html`<p class=${`notice ${note.kind}`}><b>${words(note.kind)}</b> ${prose(asText(note.text))}</p>`;
}

/** Return the agent's texts; the stored answer takes the place of the live one, so that its element stays. */
function bubblesOf({ answer, status }, texts) {
  const bubbles = (texts || []).filter((text) => text.pieces.length).map((text) => ["live", text]);
  return answer ? [...bubbles, [status === "FAILED" ? "failed" : "", asText(answer.content)]] : bubbles;
}

class Turn extends Component {
  shouldComponentUpdate({ input, chosen, texts }) {
    return input !== this.props.input || this.revision !== input.revision || chosen !== this.props.chosen || Boolean(texts) !== Boolean(this.props.texts);
  }

  render({ input, chosen, texts, choose, pickCall, copy }) {
    this.revision = input.revision;
    const notesAfter = (n) => input.notes.filter((note) => note.after === n).map((note) => html`<${Note} note=${note} />`);
    return html`<article class=${`turn${chosen ? " chosen" : ""}`} aria-label=${`Input ${input.number + 1}`}>
      <div class="message user"><p>${prose(asText(input.question))}</p></div>
      ${notesAfter(0)}
      ${input.steps.map((step, n) => html`<${Fragment} key=${step.number}>
        ${step.calls.length > 0 && html`<div class="step">
          ${step.plan.reasoning && html`<p class="commentary">${prose(step.plan.reasoning)}</p>`}
          <ul class="chips" aria-label=${`Calls of step ${step.number}`}>${step.calls.slice(0, 12).map((call) => html`<li key=${call.id}><button class=${`chip ${call.state}`}
            onClick=${() => pickCall(call)} aria-label=${`${call.name}, ${wordOf(call.state)}`}><i aria-hidden="true">${signOf(call.state)}</i> ${visible(call.name.replace(/^delegate_to_/, "→ "))}</button></li>`)}
            ${step.calls.length > 12 && html`<li class="hint">and ${step.calls.length - 12} more</li>`}</ul>
        </div>`}
        ${notesAfter(n + 1)}
      </${Fragment}>`)}
      ${bubblesOf(input, texts).map(([kind, text]) => html`<div class=${`message agent ${kind}`}><${Markdown} text=${text} copy=${copy} /></div>`)}
      ${input.done && input.status !== "COMPLETED" && html`<p class="ending">${words(input.status)}</p>`}
      ${!chosen && choose && html`<button class="quiet show-time" onClick=${() => choose(input)}>Show its time</button>`}
    </article>`;
  }
}

/** A form for the calls of one approval request. */
export class Approval extends Component {
  state = { decisions: {} };

  set(n, change) {
    const decisions = { ...this.state.decisions, [n]: { ...this.state.decisions[n], ...change } };
    this.setState({ decisions, error: "" });
  }

  submit(event) {
    event.preventDefault();
    const { request, answer } = this.props;
    try {
      answer({ decisions: request.action_requests.map((call, n) => decisionOf(call, this.state.decisions[n])) });
    } catch (error) {
      this.setState({ error: error.message });
    }
  }

  render({ request, reasoning, busy }, { decisions, error }) {
    return html`<form class="approval" onSubmit=${(event) => this.submit(event)} aria-label="Decisions on calls">
      <h3>${request.action_requests.length === 1 ? "A call waits" : `${request.action_requests.length} calls wait`} for your decision</h3>
      ${reasoning && html`<blockquote>${reasoning}</blockquote>`}
      ${request.error && html`<p class="notice error" role="alert">${request.error}</p>`}
      ${request.action_requests.map((call, n) => {
        const decision = decisions[n]?.type || "approve";
        const wanted = { edit: "New arguments, as JSON", reject: "Reason, for the model (optional)", respond: "Result in place of the call" }[decision];
        const allowed = request.review_configs[n]?.allowed_decisions || ["approve", "reject"];
        return html`<fieldset>
          <legend><code>${visible(call.name)}</code></legend>
          ${call.description && html`<p>${visible(call.description)}</p>`}
          <pre>${visible(pretty(call.args))}</pre>
          <div class="choices" role="radiogroup" aria-label=${`Decision on ${call.name}`}>
            ${allowed.map((one) => html`<label><input type="radio" name=${`decision${n}`} value=${one} checked=${decision === one}
              onChange=${() => this.set(n, { type: one, text: one === "edit" ? pretty(call.args) : "" })} /> ${one}</label>`)}
          </div>
          ${decision !== "approve" && html`<textarea rows=${decision === "edit" ? 5 : 2} value=${decisions[n]?.text || ""} onInput=${(event) => this.set(n, { text: event.target.value })}
            aria-label=${wanted} placeholder=${wanted} />`}
        </fieldset>`;
      })}
      ${error && html`<p class="notice error" role="alert">${error}</p>`}
      <button type="submit" class="primary" disabled=${busy}>Send ${request.action_requests.length === 1 ? "decision" : "decisions"}</button>
    </form>`;
  }
}

function decisionOf(call, { type = "approve", text = "" } = {}) {
  if (type === "edit") {
    let args;
    try {
      args = parseJson(text);
    } catch (error) {
      throw new Error(`The new arguments of ${call.name} are no JSON: ${error.message}`);
    }
    return { type, edited_action: { name: call.name, args } };
  }
  return type === "approve" ? { type } : { type, message: text };
}

/** A form for the answer to a question that is no approval. */
class Question extends Component {
  render({ value, answer, busy }) {
    const submit = (event) => {
      event.preventDefault();
      answer(event.target.elements.answer.value);
    };
    return html`<form class="approval" onSubmit=${submit} aria-label="Answer to a question">
      <h3>The agent asks</h3><pre>${visible(pretty(value))}</pre>
      <textarea name="answer" rows="2" aria-label="Your answer" required /><button type="submit" class="primary" disabled=${busy}>Answer</button>
    </form>`;
  }
}

function Field({ name, field, required }) {
  const { items, type, default: preset } = field;
  const { enum: values = [], enumNames, oneOf, anyOf } = items || field;
  const options = oneOf || anyOf || values.map((one, n) => ({ const: one, title: enumNames?.[n] }));
  return html`<label class="field">${visible(field.title || name)}${required && " *"}
    ${field.description && html`<small>${visible(field.description)}</small>`}
    ${options.length
      ? html`<select multiple=${items} required=${required}>${!items && html`<option />`}${options.map(
          (one) => html`<option value=${one.const} selected=${[preset].flat().includes(one.const)}>${visible(one.title || one.const)}</option>`,
        )}</select>`
      : html`<input type=${{ boolean: "checkbox", string: "text" }[type] || "number"} step=${type === "number" ? "any" : 1}
          required=${required && type !== "boolean"} defaultValue=${String(preset ?? "")} defaultChecked=${preset} />`}
  </label>`;
}

/** A form for the question of an MCP server. */
function Elicitation({ value, answer, busy }) {
  const { properties = {}, required = [] } = value.requested_schema || {};
  const submit = (event) => {
    event.preventDefault();
    const content = {};
    Object.entries(properties).forEach(([name, { type }], n) => {
      const input = event.target.elements[n];
      const given = { array: [...(input.selectedOptions || [])].map((one) => one.value), boolean: input.checked }[type] ?? input.value;
      if (given !== "") content[name] = /^(number|integer)$/.test(type) ? givenNumber(given) : given;
    });
    answer({ action: "accept", content });
  };
  return html`<form class="approval" onSubmit=${submit} aria-label="Answer to a question">
    <h3>${visible(value.server)} asks</h3><p>${visible(value.message)}</p>
    ${value.url && html`<a href=${/^https?:/.test(value.url) && value.url} target="_blank" rel="noreferrer">${visible(value.url)}</a>`}
    ${value.error && html`<p class="notice error" role="alert">${value.error}</p>`}
    ${Object.entries(properties).map(([name, field]) => html`<${Field} name=${name} field=${field} required=${required.includes(name)} />`)}
    <div class="actions"><button type="submit" class="primary" disabled=${busy}>Accept</button>
      ${["Decline", "Cancel"].map((one) => html`<button type="button" disabled=${busy} onClick=${() => answer({ action: one.toLowerCase() })}>${one}</button>`)}</div>
  </form>`;
}

/** The form of inputs; `act` receives what to do with the text. */
class Composer extends Component {
  send(kind) {
    const text = this.box.value.trim();
    // A new session cannot be steered before it is stored.
    if (kind === "steer" && !this.props.exists) return;
    if (!text) return this.box.focus();
    this.box.value = "";
    this.props.act(kind, text);
  }

  submit(event) {
    event.preventDefault();
    this.send(this.props.running ? "steer" : "input");
  }

  render({ running, exists, stopped, act }) {
    return html`<form class="composer" onSubmit=${(event) => this.submit(event)}>
      <textarea ref=${(box) => (this.box = box)} rows="2" aria-label="Message"
        onKeyDown=${(event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && this.submit(event)}
        placeholder=${running ? "Steer the run: the model reads it before its next plan" : "Message the agent"} />
      <div class="actions">
        <button type="button" onClick=${() => this.send("steer")} disabled=${!exists}>Steer</button>
        <button type="button" onClick=${() => this.send("follow_up")} disabled=${!exists}>Follow up</button>
        ${stopped && html`<button type="button" onClick=${() => act("resume")}>Resume</button>`}
        ${running && html`<button type="button" class="danger" onClick=${() => act("abort")}>Abort</button>`}
        <button type="submit" class="primary" disabled=${running}>Send</button>
      </div>
    </form>`;
  }
}

/** The conversation of a session. */
export class Conversation extends Component {
  state = { turns: SHOWN_TURNS };

  componentDidUpdate(before) {
    if (this.atEnd !== false || before.log !== this.props.log) this.box.scrollTop = this.box.scrollHeight;
  }

  componentDidMount() {
    this.componentDidUpdate();
  }

  render({ log, info, chosen, choose, pickCall, act, answer, busy, sending, children, readOnly, copy }, { turns }) {
    const hidden = Math.max(0, log.inputs.length - turns);
    const last = log.inputs.at(-1);
    const isUnfinished = last && !last.done && log.status === "RUNNING" && !info?.waiting && info?.activity !== "interrupted";
    const running = sending || (log.live.length ? log.live.some((run) => !run.ended) : isUnfinished);
    const requests = (info?.interrupts || []).map((one) => one.value);
    const asked = requests.find((value) => value?.action_requests);
    const form = requests[0]?.type === "elicitation";
    const step = last?.steps.at(-1);
    return html`<main class="conversation" aria-label="Conversation">
      <div class="turns" ref=${(box) => (this.box = box)} tabindex="0" role="log" aria-live="polite"
        onScroll=${({ target }) => (this.atEnd = target.scrollHeight - target.scrollTop - target.clientHeight < 60)}>
        ${hidden > 0 && html`<button class="quiet" onClick=${() => this.setState({ turns: turns + 100 })}>Show ${Math.min(100, hidden)} of ${hidden} earlier inputs</button>`}
        ${log.inputs.slice(hidden).map((input) => html`<${Turn} key=${input.number} input=${input} chosen=${input === chosen}
          texts=${input === last && log.live.flatMap((run) => run.texts)} choose=${choose} pickCall=${pickCall} copy=${copy} />`)}
        ${children}
      </div>
      ${!readOnly && asked && html`<${Approval} key=${info.interrupts[0].id} request=${joined(requests)} reasoning=${step?.plan.reasoning} answer=${answer} busy=${busy} />`}
      ${!readOnly && !asked && requests.length > 0 && html`<${form ? Elicitation : Question} key=${requests[0]?.questions?.at(-1)} value=${requests[0]}
        answer=${form ? (given) => answer({ [info.interrupts[0].id]: given }) : answer} busy=${busy} />`}
      ${!readOnly && html`<${Composer} running=${running} exists=${last || log.live.length} stopped=${info?.activity === "interrupted"} act=${act} />`}
    </main>`;
  }
}

function joined(requests) {
  const asked = requests.filter((value) => value?.action_requests);
  return {
    action_requests: asked.flatMap((one) => one.action_requests),
    review_configs: asked.flatMap((one) => one.review_configs),
    error: asked.map((one) => one.error).filter(Boolean).join(" "),
  };
}
