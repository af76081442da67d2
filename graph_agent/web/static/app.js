// Starts the page: holds its state, follows the open session, and joins the views.
import { asRequest } from "./attachments.js";
import { Component, counted, html, render, short, Status, textIn, visible } from "./html.js";
import { keyed, modelBars } from "./layout.js";
import { activeNode, carryExpected, cutOff, dropExpected, expectInput, goOn, isKnown, keepLive, newLog, reduceAll } from "./events.js";
import { ApiError, eventsPath, follow, get, post, remove, sessionPath, storedKey, storeKey } from "./api.js";
import { Axis, Graph } from "./axis.js";
import { Conversation, SHOWN_TURNS } from "./conversation.js";
import { Case } from "./cases.js";
import { Detail } from "./detail.js";
import { Actions, Comparison } from "./actions.js";
import { Facts } from "./facts.js";
import { parseJson, toJson } from "./json.js";
import { addReasoning } from "./reasoning.js";
import { branchLabel, SessionList } from "./sessions.js";

const CONFIG = parseJson(document.getElementById("config").textContent);
const EXPORT = CONFIG.export || null;
const TARGET = { name: CONFIG.name, origin: EXPORT ? "http://127.0.0.1:8000" : new URL(".", location.href).href.replace(/\/$/, "") };
const NONE = [];
const RETRY_MS = [250, 500, 1000, 2000, 4000];

const inUrl = encodeURIComponent;
const newId = () => `page-${crypto.randomUUID().slice(0, 8)}`;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
// Unlike decodeURIComponent, it raises no error for a lone %.
const sessionOfUrl = () => new URLSearchParams(`=${location.hash.slice(1)}`).get("");

class App extends Component {
  state = { id: "", log: newLog(), queue: [], info: null, bar: null, chosen: null, pane: "talk", requests: [] };

  // The sessions of inputs whose requests are not answered.
  sending = [];
  // Number of the newest request for the session's state; another change of the state counts, too.
  asked = 0;
  list = () => this.sessions?.list();
  // What shows facts of the memory: `attempt` reports an error of the server.
  memory = { attempt: (action) => this.attempt(action), manage: () => this.setState({ dialog: "facts" }) };

  componentDidMount() {
    if (EXPORT) {
      const log = reduceAll(newLog(), EXPORT.events);
      addReasoning(log, EXPORT.events);
      if (EXPORT.interrupted) cutOff(log);
      document.title = `${EXPORT.session} – ${CONFIG.name}`;
      this.setState({ id: EXPORT.session, log, requests: EXPORT.events, chosen: log.inputs.at(-1) || null });
      return;
    }
    addEventListener("hashchange", () => this.open(sessionOfUrl()));
    addEventListener("keydown", (event) => this.shortcut(event));
    // In the background, a browser delays what waits.
    addEventListener("visibilitychange", () => document.hidden || (this.wake?.(), this.list()));
    this.open(sessionOfUrl());
    // A running call grows on the axis.
    setInterval(() => /run|wait/.test(this.state.info?.activity) && this.draw(), 250);
  }

  shortcut(event) {
    // A dialog closes itself.
    if (event.target.closest("dialog")) return;
    if (event.key === "Escape") this.setState({ bar: null, error: "" });
    if (event.target.closest("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") (event.preventDefault(), document.querySelector(".sessions input[type=search]")?.focus());
    if (event.key === "n") (event.preventDefault(), (location.hash = ""), document.querySelector(".composer textarea")?.focus());
  }

  holdSessions = (list) => (this.sessions = list);
  /** Draw the ratings again, because the name of this person is known now. */
  showOwn = () => {
    const { log } = this.state;
    for (const input of log.inputs) if (input.ratings) Object.assign(input, { revision: input.revision + 1 });
    log.touched += 1;
    this.draw();
  };
  showTalk = () => this.setState({ pane: "talk" });
  refuse = (error) => this.fail(error);

  /** Draw once a frame, however many events arrive. */
  draw() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = 0;
      this.setState({});
    });
  }

  /** Run an action, and show its error; return the error, if any. */
  async attempt(action) {
    try {
      await action();
    } catch (error) {
      this.fail(error);
      return error;
    }
  }

  fail(error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) this.setState({ needsKey: true, keyError: storedKey() ? error.message : "" });
    else if (error.status) this.setState({ error: error.message });
  }

  /** Open a session: read its history, then follow it until another one is opened. */
  async open(id, begun = newLog()) {
    this.following?.abort();
    const aborter = (this.following = new AbortController());
    this.setState({ id, log: begun, info: null, bar: null, chosen: begun.inputs.at(-1) || null, missing: false, connection: "", told: "", error: "", other: this.branchOf, requests: [], queue: [] });
    this.branchOf = null;
    if (!id) return;
    const { signal } = aborter;
    let log = null;
    for (let tries = 0; !signal.aborted; ) {
      // An input that begins or ends during a request makes its answer out of date.
      const woken = new Promise((resolve) => (this.wake = resolve));
      try {
        if (!log) {
          // A browser reports a missing page as an error.
          const isNew = this.sending.includes(id);
          const { events, after } = await get(eventsPath(id, isNew ? "?missing_ok=true" : ""));
          if (signal.aborted) return;
          if (isNew && !events.length) {
            await Promise.race([woken, pause(60)]);
            continue;
          }
          log = reduceAll(newLog(), events, after);
          carryExpected(begun, log);
          this.setState({ log, chosen: log.inputs.at(-1) || null, connection: "live", missing: false });
          // Recorded requests are left out of the events, so that their numbers have gaps.
          log.hasRequests = events.length > 0 && events.at(-1).seq >= events.length;
          this.reveal(log.inputs[Math.max(0, log.inputs.length - SHOWN_TURNS)], log);
        }
        await this.refresh(id);
        tries = 0;
        this.setState({ connection: "live" });
        keepLive(log, () => false);
        const end = await follow(id, log.seq, (event) => this.take(log, event), signal);
        if (end?.reason !== "deleted") this.setState({ connection: "lost" });
      } catch (error) {
        if (signal.aborted || error.name === "AbortError") return;
        if (/40[013]/.test(error.status)) return this.fail(error);
        if (error.status === undefined) throw error;
        if (error.status === 404) log = null;
        this.setState(log || error.status !== 404 ? { connection: "lost" } : { connection: "", missing: !this.sending.includes(id) });
      }
      await Promise.race([woken, pause(!log && this.sending.includes(id) ? 60 : RETRY_MS[Math.min(tries++, RETRY_MS.length - 1)])]);
    }
  }

  add(log, { events, after }) {
    // An answer may arrive after the session was read again, or another one opened.
    if (log !== this.state.log) return;
    const n = log.inputs.length - 1;
    reduceAll(log, events, after);
    if (log.inputs[n + 1] && (this.state.chosen?.number ?? n) === n) this.setState({ chosen: log.inputs.at(-1), bar: null });
    this.draw();
  }

  take(log, event) {
    if (isKnown(log, event)) return;
    const { type, to } = event;
    if (this.state.queue.length && /steering|user_message|status/.test(type)) this.readQueue();
    const has = (kind) => event.parts?.some((one) => one.type === kind);
    this.add(log, { events: [event] });
    if (has("end") || type === "approval_request" || (to && to !== "RUNNING")) {
      this.setState({ told: "" });
      this.settle(log);
      this.list();
    } else if (to || /decision/.test(type) || has("begin")) {
      this.asked += 1;
      goOn(log, Date.now());
      this.setState({ info: { ...this.state.info, activity: "running", waiting: null, interrupts: [] } });
      this.list();
    }
  }

  /** Read the state and the events that a run has left, whether or not the stream brings them. */
  async settle(log) {
    const { id } = this.state;
    const known = [...log.live];
    for (const ms of RETRY_MS) {
      const asked = this.asked + 1;
      try {
        const info = await this.refresh(id);
        if (log !== this.state.log) return;
        if (log.seq + 1 < info.events) this.add(log, await get(eventsPath(id, `?after=${log.seq}`)));
        keepLive(log, (run) => !known.includes(run) || (info.activity === "running" && !run.ended));
        this.draw();
        // An event that came meanwhile has made the answer out of date.
        if (asked === this.asked && (info.activity !== "running" || log.live.length)) return;
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
      }
      await pause(ms);
    }
  }

  /** Read the session's state, and show it unless it is out of date. */
  async refresh(id) {
    const asked = (this.asked += 1);
    const info = await get(sessionPath(id));
    if (id !== this.state.id || asked !== this.asked) return info;
    const { log } = this.state;
    if (info.activity === "interrupted") cutOff(log);
    if (info.activity === "running") goOn(log, Date.now());
    this.setState({ info });
    this.readQueue();
    // A person decides beside the request that planned the calls.
    const step = log.inputs.at(-1)?.steps.at(-1);
    if (!this.state.bar && step?.calls.some((call) => call.state === "waiting")) this.pick(keyed(modelBars(step, 0, 0)[0]));
    return info;
  }

  /** Read the messages that wait in the session. */
  async readQueue() {
    const { id } = this.state;
    const { queued } = await get(sessionPath(id, "/queue")).catch((error) => {
      if (!(error instanceof ApiError)) throw error;
      return { queued: [] };
    });
    if (id === this.state.id) this.setState({ queue: queued });
  }

  /** Withdraw a queued message; return whether no run had read it. */
  withdraw = async ({ id }) => {
    let accepted = false;
    await this.attempt(async () => ({ accepted } = await remove(sessionPath(this.state.id, `/queue/${id}`))));
    this.setState({ told: accepted ? "Withdrawn." : "A run has read it already." });
    await this.readQueue();
    return accepted;
  };

  /** Do what a person asks for, and return whether the server refused its message. */
  act = async (kind, content) => {
    const { id, log } = this.state;
    this.setState({ error: "", told: "" });
    if (kind === "input") return this.input(content);
    const isQueued = kind === "steer" || kind === "follow_up";
    if (isQueued) this.setState({ queue: [...this.state.queue, { kind, text: content }] });
    const error = await this.attempt(async () => {
      const { accepted } = await post(sessionPath(id, `/${kind}`), isQueued ? { text: content } : {});
      if (kind === "follow_up" && accepted) this.setState({ told: "Queued after the current answer." });
      if (kind === "steer") this.setState({ told: "Sent; the next plan reads it." });
    });
    if (isQueued) this.readQueue();
    if (!isQueued) this.settle(log);
    return isQueued && Boolean(error);
  };

  /** Run an input in a session; the answer arrives with the events, which a lost connection does not stop. */
  async input(content, id = this.state.id || newId(), before = this.state.log.inputs.length) {
    const isOther = id !== this.state.id;
    const log = isOther ? newLog() : this.state.log;
    const expected = expectInput(log, content, Date.now(), before);
    this.asked += 1;
    this.sending.push(id);
    if (isOther) {
      history.pushState(null, "", `#${inUrl(id)}`);
      this.open(id, log);
    }
    this.setState({ chosen: expected, bar: null, info: { activity: "running" } });
    this.wake?.();
    const error = await this.attempt(() => {
      const body = { model: CONFIG.name, stream: true, include_reasoning: true, messages: [{ role: "user", content: asRequest(content) }], metadata: { session_id: id } };
      return post("/v1/chat/completions", body, { "idempotency-key": crypto.randomUUID() }, (response) => response.text());
    });
    this.sending.splice(this.sending.indexOf(id), 1);
    this.wake();
    this.list();
    if (id !== this.state.id) return false;
    const shown = this.state.log;
    const isBegun = [shown.inputs.at(-1), ...shown.live].some((one) => one && !one.isExpected && textIn(one.question) === textIn(content));
    if (error && !isBegun && dropExpected(shown)) this.setState({ chosen: shown.inputs.at(-1) || null });
    this.settle(shown);
    return Boolean(error) && !isBegun;
  }

  /** Send the newest message again, maybe changed, in a branch that begins before it. */
  resend = async (input, content) => {
    const { id: origin, log } = this.state;
    const seq = log.inputs[input.number - 1]?.last ?? -1;
    this.setState({ error: "" });
    await this.attempt(async () => {
      if (!(await this.mayLeaveOut(origin, seq, "This message's run", "A new answer"))) return;
      const { id } = await post(sessionPath(origin, "/fork"), { seq });
      await this.input(content, id, input.number);
    });
  };

  /** Ask a person before a branch leaves out calls with side effects, because its runs may make them again. */
  async mayLeaveOut(id, seq, run, again) {
    const { left_out: calls } = await get(sessionPath(id, `/fork?seq=${seq}`));
    return !calls.length || confirm(`${run} made ${counted(calls.length, "call")} that may have side effects:\n\n${calls.slice(0, LISTED).map(callText).join("\n")}${calls.length > LISTED ? `\nand ${calls.length - LISTED} more` : ""}\n\n${again} may make ${calls.length > 1 ? "them" : "it"} again. Go on?`);
  }

  /** Take back the approval of all calls of a kind in the session. */
  revoke = async ({ name, delegate = "" }) => {
    const { id, log } = this.state;
    const error = await this.attempt(() => post(sessionPath(id, "/revoke"), { name, delegate }));
    if (!error) this.setState({ told: "Revoked: later calls wait for a decision again." });
    const read = await get(eventsPath(id, `?after=${log.seq}`)).catch(() => null);
    if (read) this.add(log, read);
  };

  answer = async (given) => {
    const { id } = this.state;
    this.setState({ busy: id, error: "" });
    await this.attempt(() => post(sessionPath(id, "/resume"), { answer: given }));
    this.setState({ busy: "" });
    this.settle(this.state.log);
    this.list();
  };

  /** Rate the answer of an input; return the event, or nothing after an error. */
  rate = async (input, rating, note, evaluate) => {
    const { id, log } = this.state;
    let event;
    await this.attempt(async () => ({ event } = await post(sessionPath(id, "/feedback"), { rating, note, answer: input.answer.seq, evaluate })));
    if (event && id === this.state.id) this.setState({ log: reduceAll(log, [event]) });
    return event;
  };

  /** Show a rated answer as a case of an evaluation. */
  showCase = async ({ answer }) => {
    await this.attempt(async () => this.setState({ dialog: await get(sessionPath(this.state.id, `/case?answer=${answer.seq}`)) }));
  };

  /** Read the recorded reasoning of the inputs from one on, which are shown now. */
  reveal = async (input, log = this.state.log) => {
    const { id } = this.state;
    if (!input || !log.hasRequests) return;
    await this.attempt(async () => {
      addReasoning(log, (await get(eventsPath(id, `?type=model_request&after=${input.first}`))).events);
      this.draw();
    });
  };

  /** Choose a bar; the recorded requests are read for the first one of a model. */
  pick = async (bar) => {
    const { id } = this.state;
    this.setState({ bar });
    if (!bar || bar.call || EXPORT) return;
    this.setState({ requests: null });
    await this.attempt(async () => {
      const { events } = await get(eventsPath(id, "?type=model_request&type=delegation_response"));
      if (id === this.state.id) this.setState({ requests: events });
    });
  };

  /** Fork the session from the end of a step, and compare the branch with it. */
  async fork(seq) {
    const { id: origin, log } = this.state;
    await this.attempt(async () => {
      if (!(await this.mayLeaveOut(origin, seq, "After this step, the session", "A run of the fork"))) return;
      const { id } = await post(sessionPath(origin, "/fork"), { seq });
      this.list();
      this.branchOf = { id: origin, log };
      location.hash = inUrl(id);
    });
  }

  compare = async (id) => {
    if (!id) return this.setState({ other: null });
    await this.attempt(async () => {
      const log = reduceAll(newLog(), (await get(eventsPath(id))).events);
      const { activity } = await get(sessionPath(id));
      if (activity === "interrupted") cutOff(log);
      this.setState({ other: { id, log, isOpen: /run|wait/.test(activity) } });
    });
  };

  async rename() {
    const { id, log } = this.state;
    const title = prompt("Title of the session", log.title || this.sessions?.titleOf(id) || textIn(log.inputs[0].question).slice(0, 200));
    if (!title?.trim()) return;
    await this.attempt(() => post(sessionPath(id, "/title"), { title: title.trim() }));
    this.list();
  }

  async forget() {
    if (!confirm(`Delete ${this.state.id}?`)) return;
    await this.attempt(async () => {
      await remove(sessionPath(this.state.id));
      location.hash = "";
      this.list();
    });
  }

  choose = (input) => this.setState({ chosen: input, bar: null, pane: "time" });
  pickCall = (call) => this.setState({ chosen: call.step.input, bar: keyed({ call, kind: call.kind, depth: 0 }), pane: "time" });
  closeDialog = () => this.setState({ dialog: null });

  copy = (text) => {
    navigator.clipboard.writeText(text).then(
      () => this.setState({ told: "Copied." }),
      () => this.setState({ told: "Copying is not permitted." }),
    );
  };

  render(props, state) {
    return state.needsKey ? html`<${KeyForm} error=${state.keyError} use=${(key) => (storeKey(key), this.setState({ needsKey: false }), this.open(sessionOfUrl()))} />` : this.page(state);
  }

  page({ id, log, info, bar, chosen, error, told, connection, missing, pane, busy, other, requests, queue, dialog }) {
    const activity = EXPORT?.interrupted ? "interrupted" : info?.activity || (activeNode(log) === "approve" ? "waiting" : "");
    return html`<div class=${`page show-${pane}${EXPORT ? " export" : ""}`}>
      <header class="top">
        <h1>${CONFIG.name}</h1>
        <span class="status" role="status">${id && html`<${Status} status=${log.status} activity=${activity} />`}
          ${connection === "lost" && html` <b class="lost">reconnecting…</b>`} ${told || ""}</span>
        ${log.title && html`<strong class="title">${visible(log.title)}</strong>`}
        ${CONFIG.memory && html`<button class="quiet" onClick=${this.memory.manage}>Memory</button>`}
        ${!EXPORT && id && log.inputs.length > 0 && html`<button class="quiet" onClick=${() => this.rename()}>Rename</button>
          <button class="quiet" onClick=${() => this.forget()}>Delete</button>`}
        ${log.usage.calls > 0 && html`<span class="hint">${usageWord(log.usage)}</span>`}
        <nav class="panes" aria-label="Views">${[["list", "Sessions"], ["talk", "Conversation"], ["time", "Time"]].slice(EXPORT ? 1 : 0).map(
          ([name, title]) => html`<button aria-pressed=${pane === name} onClick=${() => this.setState({ pane: name })}>${title}</button>`,
        )}</nav>
      </header>
      ${error && html`<p class="alert" role="alert">${error} <button class="quiet" onClick=${() => this.setState({ error: "" })} aria-label="Dismiss">✕</button></p>`}
      ${!EXPORT && html`<${SessionList} ref=${this.holdSessions} id=${id} pick=${this.showTalk} fail=${this.refuse} named=${this.showOwn} />`}
      <${Conversation} log=${log} info=${info} chosen=${chosen} busy=${busy === id} sending=${this.sending.includes(id)} readOnly=${Boolean(EXPORT)}
        choose=${this.choose} pickCall=${this.pickCall}
        act=${this.act} answer=${this.answer} copy=${this.copy} queue=${queue} withdraw=${this.withdraw} resend=${this.resend}
        fail=${(text) => this.setState({ error: text })} maxBytes=${CONFIG.max_body_bytes} rate=${!EXPORT && this.rate} showCase=${!EXPORT && this.showCase} reveal=${this.reveal} revoke=${this.revoke}
        memory=${EXPORT ? {} : this.memory}>
        ${missing && html`<p class="empty">There is no session <code>${visible(id)}</code>. A message creates it.</p>`}
        ${!id && html`<div class="empty"><h2>${CONFIG.name}</h2><p>${CONFIG.description}</p><p>Send a message to begin a session.</p></div>`}
      </${Conversation}>
      <aside class="time" aria-label="Time">
        ${id && html`<${Graph} active=${activeNode(log)} nodes=${nodesOf(log)} />`}
        ${chosen && html`<${Axis} input=${chosen} selected=${bar?.key} now=${activity !== "interrupted" && (EXPORT ? EXPORT.now : Date.now())} pick=${this.pick} />`}
        ${!chosen && html`<p class="empty">No steps yet.</p>`}
        ${chosen && html`<${Actions} input=${chosen} target=${TARGET}
          copy=${this.copy} compare=${this.compare} other=${other} candidates=${this.branches(id)} />`}
        ${bar && html`<${Detail} bar=${bar} log=${log} requests=${requests} copy=${this.copy} close=${() => this.setState({ bar: null })}>
          ${!EXPORT && forkPoint(bar) !== undefined && html`<button class="fork" onClick=${() => this.fork(forkPoint(bar))}>Fork after this step</button>`}
        </${Detail}>`}
        ${other && chosen && html`<${Comparison} input=${chosen} other=${other} now=${other.isOpen && Date.now()} />`}
      </aside>
      ${dialog === "facts" && html`<${Facts} close=${this.closeDialog} fail=${this.refuse} />`}
      ${dialog?.yaml && html`<${Case} ...${dialog} copy=${this.copy} close=${this.closeDialog} />`}
    </div>`;
  }

  /** Return the sessions that began as this one did. */
  branches(id) {
    const stem = (one) => one.split("-fork-")[0];
    const sessions = this.sessions?.state.sessions || NONE;
    if (sessions !== this.branched?.sessions || id !== this.branched.id) {
      const open = sessions.find((one) => one.id === id);
      const isRelated = (one) => stem(one.id) === stem(id) || one.forked_from === id || open?.forked_from === one.id;
      this.branched = { sessions, id, found: sessions.filter((one) => one.id !== id && isRelated(one)).map((one) => ({ id: one.id, label: branchLabel(one) })) };
    }
    return this.branched.found;
  }
}

/** Return the index of the event after which a bar's step can be forked; undefined while the step is unfinished. */
function forkPoint({ call, step, depth }) {
  const found = call ? call.step : step;
  if (depth || !found.plan) return undefined;
  return found.calls.length ? (found.calls.every((one) => one.result) ? found.last : undefined) : found.input.last;
}

/** Return the nodes that the agent's graph has or, of an exported session, those that have worked. */
function nodesOf({ calls, inputs }) {
  if (CONFIG.nodes) return CONFIG.nodes;
  const made = [...calls.values()];
  const kinds = { tools: made.some(({ kind }) => kind === "tool"), delegate: made.some(({ kind }) => kind === "delegation"), approve: made.some(({ waits }) => waits.length) };
  return Object.keys(kinds).filter((name) => kinds[name]);
}

const LISTED = 12;
const callText = ({ name, arguments: given, status }) => `${name}(${short(toJson(given), 200)})${status === "unknown" ? ", outcome unknown" : ""}`;

const usageWord = ({ calls, tokens, cost }) =>
  [cost && `cost ${cost.toPrecision(3)}`, tokens && counted(tokens, "token"), counted(calls, "model call")].filter(Boolean).join(" · ");

function KeyForm({ use, error }) {
  const submit = (event) => {
    event.preventDefault();
    use(event.target.elements.key.value.trim());
  };
  return html`<form class="key" onSubmit=${submit}>
    <h1>${CONFIG.name}</h1>
    <label>API key <input name="key" type="password" required autocomplete="off" autofocus /></label>
    <p class="hint">It stays in this tab.</p>
    ${error && html`<p class="alert" role="alert">${error}</p>`}
    <button type="submit" class="primary">Use it</button>
  </form>`;
}

render(html`<${App} />`, document.getElementById("page"));
