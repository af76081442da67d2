// Shows the conversation of a session, and what a person does in it: inputs, steering, and decisions on calls.
import { Composer, stillQueued } from "./composer.js";
import { Approval, Elicitation, joined, Question } from "./decisions.js";
import { Component, Fragment, html } from "./html.js";
import { Turn } from "./turn.js";

export const SHOWN_TURNS = 30;
const NONE = [];
const BLOCK = 10;
// A run may still change the input before a message that was sent meanwhile.
const NEWEST = 3;

/** Turns that follow each other, from one number to another; earlier ones are drawn again only if one has changed. */
class Turns extends Component {
  shouldComponentUpdate({ log, from, to, chosen }) {
    const old = this.props;
    const has = (input) => input && input.number >= from && input.number < to;
    const isOther = log !== old.log || from !== old.from || to !== old.to || log.touched !== this.touched;
    return isOther || to > log.inputs.length - NEWEST || (chosen !== old.chosen && (has(chosen) || has(old.chosen)));
  }

  render({ log, from, to, chosen, resend, ...others }) {
    this.touched = log.touched;
    const last = log.inputs.at(-1);
    // The key keeps the fragment: for a block that is not drawn again, preact visits only its own child.
    return html`<${Fragment} key="turns">${log.inputs.slice(from, to).map((input) => html`<${Turn} key=${input.number} input=${input} chosen=${input === chosen}
      runs=${input === last ? log.live : NONE} resend=${input === last ? resend : null} ...${others} />`)}</${Fragment}>`;
  }
}

/** Return the bounds of the blocks of turns from one number on; a turn stays in its block when others follow. */
function blocksFrom(first, count) {
  const bounds = [];
  for (let at = first - (first % BLOCK); at < count; at += BLOCK) bounds.push([Math.max(first, at), Math.min(at + BLOCK, count)]);
  return bounds;
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

  render({ log, info, chosen, choose, pickCall, act, answer, busy, sending, children, readOnly, copy, queue, withdraw, resend, fail, maxBytes, rate, memory, reveal, revoke, showCase }, { turns }) {
    const hidden = Math.max(0, log.inputs.length - turns);
    const last = log.inputs.at(-1);
    const isUnfinished = last && !last.done && log.status === "RUNNING" && !info?.waiting && info?.activity !== "interrupted";
    const running = sending || (log.live.length ? log.live.some((run) => !run.ended) : isUnfinished);
    const requests = (info?.interrupts || []).map((one) => one.value);
    const asked = requests.find((value) => value?.action_requests);
    const form = requests[0]?.type === "elicitation";
    const step = last?.steps.at(-1);
    // A branch begins where the input before has ended.
    const canResend = !readOnly && !running && last?.done && (!last.number || log.inputs.at(-2)?.last !== undefined);
    return html`<main class="conversation" aria-label="Conversation">
      <div class="turns" ref=${(box) => (this.box = box)} tabindex="0" role="log" aria-live="polite"
        onScroll=${({ target }) => (this.atEnd = target.scrollHeight - target.scrollTop - target.clientHeight < 60)}>
        ${hidden > 0 && html`<button class="quiet" onClick=${() => (this.setState({ turns: turns + 100 }), reveal?.(log.inputs[Math.max(0, hidden - 100)]))}>Show ${Math.min(100, hidden)} of ${hidden} earlier inputs</button>`}
        ${blocksFrom(hidden, log.inputs.length).map(([from, to]) => html`<${Turns} key=${Math.floor(from / BLOCK)} log=${log} from=${from} to=${to} chosen=${chosen}
          choose=${choose} pickCall=${pickCall} copy=${copy} resend=${canResend ? resend : null} rate=${rate} memory=${memory} showCase=${showCase} />`)}
        ${children}
      </div>
      ${!readOnly && asked && html`<${Approval} key=${info.interrupts[0].id} request=${joined(requests)} reasoning=${step?.plan.reasoning} answer=${answer} busy=${busy} />`}
      ${!readOnly && !asked && requests.length > 0 && html`<${form ? Elicitation : Question} key=${requests[0]?.questions?.at(-1)} value=${requests[0]}
        answer=${form ? (given) => answer({ [info.interrupts[0].id]: given }) : answer} busy=${busy} />`}
      ${!readOnly && html`<${Composer} running=${running} exists=${(last && !last.isExpected) || log.inputs.length > 1 || log.live.length} stopped=${info?.activity === "interrupted"} act=${act}
        standing=${log.standing} revoke=${revoke} queue=${stillQueued(queue, last)} withdraw=${withdraw} fail=${fail} maxBytes=${maxBytes} />`}
    </main>`;
  }
}
