// Holds the form of a person's next message: its text and attachments, and what is queued in the session.
import { attached, Attachments, contentOf, TYPES } from "./attachments.js";
import { Component, html, textIn, visible } from "./html.js";
import { timeOf } from "./events.js";

const KINDS = { steer: "Steering", follow_up: "Follow-up" };

/** Return the queued messages that the newest input does not show; the queue has one until its effect is stored. */
export function stillQueued(queue, input) {
  const isTaken = ({ kind, text, sent_at: sent }) => {
    if (!input || !sent) return false;
    if (kind === "follow_up") return !input.isExpected && input.start >= timeOf(sent) && textIn(input.question) === text;
    return input.notes.some((note) => note.kind === "steering" && note.time >= timeOf(sent) && textIn(note.text) === text);
  };
  return queue.filter((one) => !isTaken(one));
}

function Queue({ queue, withdraw }) {
  return queue.length > 0 && html`<ul class="queue" aria-label="Queued messages">
    ${queue.map((one) => html`<li key=${one.id}><b>${KINDS[one.kind]}</b> <span>${visible(one.text)}</span>
      <button type="button" class="quiet" disabled=${!one.id} onClick=${() => withdraw(one)} aria-label=${`Withdraw: ${one.text}`}>Withdraw</button></li>`)}
  </ul>`;
}

/** The approvals of all calls of a kind, which a person can take back. */
function Standing({ standing, revoke }) {
  return standing.size > 0 && html`<ul class="standing hint" aria-label="Approved in this session">
    ${[...standing].map(([kind, one]) => html`<li key=${kind}>All calls of <code>${visible(kind)}</code> are approved, by ${visible(one.by)}
      <button type="button" class="quiet" onClick=${() => revoke(one)} aria-label=${`Revoke: ${kind}`}>Revoke</button></li>`)}
  </ul>`;
}

/** The form of inputs; `act` receives what to do with the content, and returns whether it was refused. */
export class Composer extends Component {
  state = { blocks: [] };

  async send(kind) {
    const text = this.box.value.trim();
    const { blocks } = this.state;
    // A new session cannot be steered before it is stored.
    if (kind !== "input" && !this.props.exists) return;
    if (kind !== "input" && blocks.length) return this.props.fail("Attachments go with a new message: send it after this answer.");
    if (!text && !blocks.length) return this.box.focus();
    this.box.value = "";
    this.setState({ blocks: [] });
    const isRefused = await this.props.act(kind, kind === "input" ? contentOf(text, blocks) : text);
    if (!isRefused) return;
    this.box.value ||= text;
    if (!this.state.blocks.length) this.setState({ blocks });
  }

  submit(event) {
    event.preventDefault();
    this.send(this.props.running ? "steer" : "input");
  }

  async attach(files) {
    try {
      const blocks = await attached([...files], this.state.blocks, this.props.maxBytes);
      this.setState({ blocks: [...this.state.blocks, ...blocks] });
      this.box.focus();
    } catch (error) {
      this.props.fail(error.message);
    }
  }

  paste(event) {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    this.attach(event.clipboardData.files);
  }

  drag(event) {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    this.setState({ isOver: event.type === "dragover" });
    if (event.type === "drop") this.attach(event.dataTransfer.files);
  }

  withdraw = async (one) => {
    if (await this.props.withdraw(one)) this.box.value ||= one.text;
    this.box.focus();
  };

  render({ running, exists, stopped, act, queue, standing, revoke }, { blocks, isOver }) {
    const drag = (event) => this.drag(event);
    return html`<form class=${`composer${isOver ? " over" : ""}`} onSubmit=${(event) => this.submit(event)} onDragOver=${drag} onDragLeave=${drag} onDrop=${drag}>
      <${Standing} standing=${standing} revoke=${(one) => revoke(one).then(() => this.box.focus())} />
      <${Queue} queue=${queue} withdraw=${this.withdraw} />
      <${Attachments} blocks=${blocks} drop=${(n) => this.setState({ blocks: blocks.filter((one, at) => at !== n) })} />
      <textarea ref=${(box) => (this.box = box)} rows="2" aria-label="Message" onPaste=${(event) => this.paste(event)}
        onKeyDown=${(event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && this.submit(event)}
        placeholder=${running ? "Steer the run: the model reads it before its next plan" : "Message the agent"} />
      <input type="file" hidden multiple accept=${TYPES.join()} aria-label="Files to attach" ref=${(box) => (this.files = box)}
        onChange=${({ target }) => this.attach(target.files).then(() => (target.value = ""))} />
      <div class="actions">
        <button type="button" onClick=${() => this.files.click()} disabled=${running} title="Images and PDFs; paste and drop work, too">Attach</button>
        <button type="button" onClick=${() => this.send("steer")} disabled=${!exists}>Steer</button>
        <button type="button" onClick=${() => this.send("follow_up")} disabled=${!exists}>Follow up</button>
        ${stopped && html`<button type="button" onClick=${() => act("resume")}>Resume</button>`}
        ${running && html`<button type="button" class="danger" onClick=${() => act("abort")}>Abort</button>`}
        <button type="submit" class="primary" disabled=${running}>Send</button>
      </div>
    </form>`;
  }
}
