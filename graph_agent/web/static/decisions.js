// Shows the questions that a session asks a person: decisions on calls, an MCP server's form, and questions in words.
import { Component, html, pretty, visible } from "./html.js";
import { givenNumber, parseJson } from "./json.js";
import { Origins } from "./origins.js";

const WORDS = { always: "approve all of this kind" };
const allowedOf = (request, n) => request.review_configs[n]?.allowed_decisions || ["approve", "reject"];

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
        const always = allowedOf(request, n).includes("approve") ? ["always"] : [];
        const wanted = { edit: "New arguments, as JSON", reject: "Reason, for the model (optional)", respond: "Result in place of the call" }[decision];
        return html`<fieldset>
          <legend><code>${visible(call.name)}</code></legend>
          ${call.description && html`<p>${visible(call.description)}</p>`}
          <pre>${visible(pretty(call.args))}</pre>
          <${Origins} origins=${request.origins?.[n]} />
          <div class="choices" role="radiogroup" aria-label=${`Decision on ${call.name}`}>
            ${[...allowedOf(request, n), ...always].map((one) => html`<label><input type="radio" name=${`decision${n}`} value=${one} checked=${decision === one}
              onChange=${() => this.set(n, { type: one, text: one === "edit" ? pretty(call.args) : "" })} /> ${WORDS[one] || one}</label>`)}
          </div>
          ${decision === "always" && html`<p class="hint">This call, and later calls of ${visible(call.name)} in this session.</p>`}
          ${wanted && html`<textarea rows=${decision === "edit" ? 5 : 2} value=${decisions[n]?.text || ""} onInput=${(event) => this.set(n, { text: event.target.value })}
            aria-label=${wanted} placeholder=${wanted} />`}
        </fieldset>`;
      })}
      ${error && html`<p class="notice error" role="alert">${error}</p>`}
      <button type="submit" class="primary" disabled=${busy}>Send ${request.action_requests.length === 1 ? "decision" : "decisions"}</button>
    </form>`;
  }
}

function decisionOf(call, { type = "approve", text = "" } = {}) {
  if (type === "always") return { type: "approve", always: true };
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
export class Question extends Component {
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
export function Elicitation({ value, answer, busy }) {
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

/** Return the approval requests of several interrupts as one. */
export function joined(requests) {
  const asked = requests.filter((value) => value?.action_requests);
  return {
    action_requests: asked.flatMap((one) => one.action_requests),
    review_configs: asked.flatMap((one) => one.review_configs),
    origins: asked.flatMap((one) => one.origins || one.action_requests.map(() => ({}))),
    error: asked.map((one) => one.error).filter(Boolean).join(" "),
  };
}
