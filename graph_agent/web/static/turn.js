// Shows one input of the conversation: the message, the model's reasoning and calls, and the answer.
import { attachmentsIn, Attachments, contentOf } from "./attachments.js";
import { Feedback } from "./feedback.js";
import { answerText, asText, Component, Fragment, html, prose, signOf, textIn, visible, wordOf, words } from "./html.js";
import { Markdown } from "./markdown.js";
import { Reasoning, reasoningOf } from "./reasoning.js";
import { Recalled, Sources } from "./sources.js";

function Note({ note, memory }) {
  if (note.kind === "recall") return html`<${Recalled} ids=${note.facts} title=${note.text} ...${memory} />`;
  if (note.kind === "steering") return html`<p class="message user steering"><b>Steering</b> ${prose(asText(note.text))}</p>`;
  return html`<p class=${`notice ${note.kind}`}><b>${words(note.kind)}</b> ${prose(asText(note.text))}</p>`;
}

/** Return the agent's texts; the stored answer takes the place of the live one, so that its element stays. */
function bubblesOf({ answer, status }, texts) {
  const bubbles = texts.filter((text) => text.pieces.length).map((text) => ["live", text]);
  return answer ? [...bubbles, [status === "FAILED" ? "failed" : "", answerText(answer.content)]] : bubbles;
}

/** A person's message; the newest one can be changed and sent again, in a branch of the session. */
class Question extends Component {
  save(event) {
    event.preventDefault();
    const text = event.target.elements.text.value.trim();
    const { input, resend } = this.props;
    if (!text) return;
    this.setState({ isEdited: false });
    resend(input, contentOf(text, attachmentsIn(input.question)));
  }

  render({ input, resend }, { isEdited }) {
    const text = textIn(input.question);
    if (isEdited) {
      return html`<form class="message user edited" onSubmit=${(event) => this.save(event)}>
        <textarea name="text" rows="3" aria-label="Edited message" defaultValue=${text} ref=${(box) => box?.focus()}
          onKeyDown=${(event) => event.key === "Escape" && this.setState({ isEdited: false })} />
        <div class="actions"><button type="button" onClick=${() => this.setState({ isEdited: false })}>Keep it</button>
          <button type="submit" class="primary">Send in a fork</button></div>
      </form>`;
    }
    return html`<div class=${`message user${input.isExpected ? " sending" : ""}`}>
        <${Attachments} blocks=${attachmentsIn(input.question)} />${text && html`<p>${prose(text)}</p>`}</div>
      ${resend && html`<div class="turn-tools"><button class="quiet" onClick=${() => this.setState({ isEdited: true })}>Edit</button>
        <button class="quiet" onClick=${() => resend(input, input.question)}>Regenerate</button></div>`}`;
  }
}

/** One input of the conversation; `runs` are the live runs of the newest one. */
export class Turn extends Component {
  shouldComponentUpdate({ input, chosen, runs, resend }) {
    const old = this.props;
    const isOther = input !== old.input || chosen !== old.chosen || Boolean(runs.length) !== Boolean(old.runs.length) || Boolean(resend) !== Boolean(old.resend);
    return isOther || this.revision !== input.revision;
  }

  render({ input, chosen, runs, choose, pickCall, copy, resend, rate, memory, showCase }) {
    this.revision = input.revision;
    const thoughts = reasoningOf(input, runs);
    const after = (n) => [
      ...input.notes.filter((note) => note.after === n).map((note) => html`<${Note} note=${note} memory=${memory} />`),
      ...thoughts.filter(([one]) => one.after === n).map(([one, isLive]) => html`<${Reasoning} text=${one.text} isLive=${isLive} copy=${copy} />`),
    ];
    return html`<article class=${`turn${chosen ? " chosen" : ""}`} aria-label=${`Input ${input.number + 1}`}>
      <${Question} input=${input} resend=${resend} />
      ${after(0)}
      ${input.steps.map((step, n) => html`<${Fragment} key=${step.number}>
        ${step.calls.length > 0 && html`<div class="step">
          ${step.plan.reasoning && html`<p class="commentary">${prose(step.plan.reasoning)}</p>`}
          <ul class="chips" aria-label=${`Calls of step ${step.number}`}>${step.calls.slice(0, 12).map((call) => html`<li key=${call.id}><button class=${`chip ${call.state}`}
            onClick=${() => pickCall(call)} aria-label=${`${call.name}, ${wordOf(call.state)}`}><i aria-hidden="true">${signOf(call.state)}</i> ${visible(call.name.replace(/^delegate_to_/, "→ "))}</button></li>`)}
            ${step.calls.length > 12 && html`<li class="hint">and ${step.calls.length - 12} more</li>`}</ul>
        </div>`}
        ${after(n + 1)}
      </${Fragment}>`)}
      ${bubblesOf(input, runs.flatMap((run) => run.texts)).map(([kind, text]) => html`<div class=${`message agent ${kind}`}><${Markdown} text=${text} copy=${copy} /></div>`)}
      ${input.answer && html`<${Attachments} blocks=${attachmentsIn(input.answer.content).filter(({ type }) => type === "image" || type === "file")} />`}
      ${input.answer?.citations && html`<${Sources} citations=${input.answer.citations} />`}
      ${input.answer && input.done && (rate || input.ratings) && html`<${Feedback} input=${input} rate=${rate} showCase=${showCase} />`}
      ${(input.done || input.status === "INTERRUPTED") && input.status !== "COMPLETED" && html`<p class="ending">${words(input.status)}</p>`}
      ${!chosen && choose && html`<button class="quiet show-time" onClick=${() => choose(input)}>Show its time</button>`}
    </article>`;
  }
}
