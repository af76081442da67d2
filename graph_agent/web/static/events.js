// Reduces the events of a session to its inputs, steps and calls: the same from a stream, a list and an export.
import { takeRating } from "./feedback.js";
import { asText, counted, textIn, words } from "./html.js";
import { toJson } from "./json.js";
import { GrowingText } from "./markdown.js";

/** Return the log of a session without events; `live` has the runs whose output is not stored, oldest first; `standing` the calls that were approved for good; `touched` counts changes of earlier inputs. */
export function newLog() {
  return { seq: -1, early: new Set(), status: "CREATED", inputs: [], calls: new Map(), standing: new Map(), live: [], touched: 0, usage: { calls: 0, tokens: 0, cost: 0 } };
}

/** Return a time stamp in milliseconds since 1970, with the fraction that the event has. */
export function timeOf(ts) {
  const fraction = /\.\d{3}(\d+)/.exec(ts || "");
  return Date.parse(ts) + (fraction ? Number(`0.${fraction[1]}`) : 0);
}

// Type of a notice → its text.
const NOTICES = {
  loop_detected: ({ pattern, count, repeated }) => `${pattern.join(", ")} repeated ${count} times (${repeated})`,
  limit: ({ reason, limit }) => `${words(reason)} of ${limit} reached`,
  provider_call: ({ name, status, arguments: args }) => `${name} (run by the provider), ${status}: ${toJson(args)}`,
  recall: ({ facts, kept = [] }) =>
    facts.length ? `${counted(facts.length, "fact")} of the memory used` : `${counted(kept.length, "fact")} kept in the memory`,
  revocation: ({ by, ...event }) => `${by} revoked the approval of all calls of ${kindOf(event)}`,
  summary: ({ messages }) => `${counted(messages, "older message")} summarized`,
  background_result: ({ target, status, content }) => `${target}, ${status}: ${asText(content)}`,
  middleware: ({ name, hook, jump_to: target }) => `${name}, ${hook}${target ? `: jumped to ${target}` : ""}`,
  warning: ({ message }) => message,
  error: ({ message }) => message,
};

function newInput(log, event) {
  const start = timeOf(event.ts);
  const expected = takeExpected(log);
  const before = log.inputs.at(-1);
  // Several messages of one input follow each other.
  if (before && !before.done && log.newest !== "user_message") {
    Object.assign(before, { status: "SUPERSEDED", done: true });
    for (const { calls } of before.steps) for (const call of calls) endWait(call, start);
  }
  // The message that was sent here keeps its object, which may be chosen.
  const isExpected = expected && textIn(expected.question) === textIn(event.content);
  const input = isExpected ? expected : {};
  Object.assign(input, { number: log.inputs.length, first: event.seq, start, end: start, question: event.content, answer: null, status: "RUNNING", done: false, steps: [], notes: [], thoughts: [], dead: [], resumes: [], newest: start, isExpected: false });
  input.revision = (input.revision || 0) + 1;
  log.inputs.push(input);
  if (expected && !isExpected) log.inputs.push(Object.assign(expected, { number: log.inputs.length }));
  return input;
}

function takeExpected(log) {
  return log.inputs.at(-1)?.isExpected ? log.inputs.pop() : null;
}

/** Add a message that was sent and has no event yet, so that it is shown at once, at its place; return its input. */
export function expectInput(log, content, now, number) {
  const input = { number, start: now, end: now, question: content, answer: null, status: "RUNNING", done: false, steps: [], notes: [], thoughts: [], dead: [], resumes: [], newest: now, revision: 0, isExpected: true };
  log.inputs.push(input);
  return input;
}

/** Move a message that was sent to the log that was read meanwhile, unless this has its event. */
export function carryExpected(from, log) {
  const expected = takeExpected(from);
  if (!expected || (log.inputs.length > expected.number && textIn(log.inputs.at(-1).question) === textIn(expected.question))) return;
  log.inputs.push(Object.assign(expected, { number: log.inputs.length }));
}

/** Remove the message that was sent and has no event, because the server refused it. */
export const dropExpected = takeExpected;

function newCall(log, step, { id, name, needs = [], plan_id: own = id }) {
  const kind = name.startsWith("delegate_to_") ? "delegation" : "tool";
  const call = { id, own, name, kind, step, needs, state: "planned", waits: [], progress: [], arguments: null };
  step.calls.push(call);
  log.calls.set(id, call);
  return call;
}

function newStep(input, event, time) {
  const step = { input, number: event.step, begin: input.end, planned: time, end: time, plan: event, calls: [], models: [] };
  input.steps.push(step);
  return step;
}

function stepOf(input, event, time) {
  return input.steps.at(-1) || newStep(input, event, time);
}

/** Drop the first live text that an event contains. */
function consume(log, text) {
  const holds = ({ texts }) => texts.length && text && (text.startsWith(texts[0].text.trim()) || texts[0].text.startsWith(text));
  log.live.find(holds)?.texts.shift();
}

/** Keep some of the live runs; the reasoning of the others stays with their input. */
export function keepLive(log, isKept) {
  const input = log.inputs.at(-1);
  for (const run of log.live) if (run.ended && !isKept(run)) input?.thoughts.push(...run.thoughts.splice(0));
  log.live = log.live.filter(isKept);
  if (input) input.revision += 1;
}

/** Return whether a live run's question is not stored. */
const isAsked = (run) => run.question !== null;

function callOf(log, input, event, time) {
  const name = event.name || `delegate_to_${event.target}`;
  const call = log.calls.get(event.id) || newCall(log, stepOf(input, event, time), { id: event.id, name });
  call.name = name;
  return call;
}

/** Add a model call to the step that it led to: the newest one, which begins with its first model call. */
function addModel(log, input, record, event, time) {
  const tokens = (record.input_tokens || 0) + (record.output_tokens || 0);
  log.usage.calls += 1;
  log.usage.tokens += tokens;
  log.usage.cost += record.cost || 0;
  const step = stepOf(input, event, time);
  const from = timeOf(record.started);
  endDeadTime(input, from);
  step.models.push({ record, tokens, from, to: from + record.duration_s * 1000 });
  if (event.type === "plan" && step.models.length === 1) step.begin = Math.min(from, step.planned);
}

/** Add what began before a plan asked for it to the sums of an input. */
function addEarly(input, source, counts) {
  const sums = ((input.early ??= {})[source] ??= { started: 0, used: 0, dropped: 0, dropped_s: 0, cost: 0 });
  for (const name of Object.keys(sums)) sums[name] += counts[name] || 0;
}

/** Return the kind of calls that an approval is about: the name, with the delegate if they are not the agent's own. */
const kindOf = ({ name, delegate }) => (delegate ? `${delegate}/${name}` : name);

function endWait(call, time) {
  const wait = call.waits.at(-1);
  if (wait && wait.to === null) wait.to = time;
}

/** Add the time from the newest event before a crash to a resume, once. */
function addDeadTime(input, to) {
  const from = input.newest;
  const known = input.dead.find((one) => one.from === from);
  if (known) Object.assign(known, { to: known.isGuess ? to : Math.max(known.to, to), isGuess: false });
  else if (from < to) input.dead.push({ from, to });
}

/** End a dead time, whose end is known only from when the page was told, where work has begun again. */
function endDeadTime(input, began) {
  const gap = input.dead.at(-1);
  if (gap?.isGuess) gap.to = Math.min(gap.to, began);
}

/** End the work of an input that a crash has cut off, and that no process runs, at its newest event. */
export function cutOff(log) {
  const input = log.inputs.at(-1);
  if (!input || input.done || input.isExpected) return;
  input.status = "INTERRUPTED";
  input.revision += 1;
  for (const call of input.steps.flatMap(({ calls }) => calls)) {
    if (call.state === "running") Object.assign(call, { state: "interrupted", isCut: true, end: Math.max(call.start, input.end) });
  }
}

/** Continue an input that was cut off: its calls run again, or are settled soon. */
export function goOn(log, now) {
  const input = log.inputs.at(-1);
  if (input?.status !== "INTERRUPTED") return;
  input.status = "RUNNING";
  input.revision += 1;
  addDeadTime(input, now);
  for (const gap of input.dead) if (gap.to === now) gap.isGuess = true;
  for (const call of input.steps.flatMap(({ calls }) => calls)) {
    if (call.state === "interrupted") Object.assign(call, { state: "running", isCut: false, end: undefined, again: now });
  }
}

const REDUCERS = {
  status(log, event, input, time) {
    log.status = event.to;
    input.status = event.to;
    input.done = event.to !== "RUNNING";
    if (!input.done) return;
    input.last = event.seq;
    keepLive(log, isAsked);
  },
  plan(log, event, input, time) {
    const step = newStep(input, event, time);
    for (const one of event.calls) newCall(log, step, one);
    // Without calls, the text is the answer, whose event may be stored later.
    if (event.calls.length) consume(log, event.reasoning);
  },
  tool_call(log, event, input, time) {
    const call = callOf(log, input, event, time);
    endWait(call, time);
    call.start = time;
    call.arguments = event.arguments ?? { task: event.task };
    call.origins = event.origins;
    if (call.state === "planned" || call.state === "waiting") call.state = event.refused || "running";
  },
  tool_result(log, event, input, time) {
    const call = callOf(log, input, event, time);
    endWait(call, time);
    if (event.duration_s !== undefined) call.start = time - event.duration_s * 1000;
    if (event.waited_s && !call.waits.length) call.waits.push({ from: call.start - event.waited_s * 1000, to: call.start });
    call.start ??= time;
    // Settled after a crash: until when the call ran is not known.
    const isLost = event.status === "unknown" && event.duration_s === undefined;
    if (isLost) addDeadTime(input, time);
    else if (event.duration_s !== undefined) endDeadTime(input, call.start);
    if (event.lead_s) {
      call.begun = call.start - event.lead_s * 1000;
      call.early = event.early_s * 1000;
    }
    // A call that had ended before its plan was whole has only handed over its result since.
    const end = isLost ? Math.max(call.start, input.newest) : event.lead_s > event.early_s ? call.begun + call.early : time;
    Object.assign(call, { end, again: undefined, isCut: isLost, state: event.status, result: event });
    if (event.history) call.nested = reduceAll(newLog(), event.history);
    call.step.end = Math.max(call.step.end, time);
    call.step.last = Math.max(call.step.last || 0, event.seq ?? 0);
  },
  delegation_progress(log, event) {
    log.calls.get(event.id)?.progress.push(event.content);
  },
  approval_request(log, event, input, time) {
    const held = event.delegation ? [{ id: event.delegation }] : event.calls;
    for (const { id, arguments: given } of held) {
      const call = log.calls.get(id);
      if (!call) continue;
      call.state = "waiting";
      call.arguments ??= given;
      call.waits.push({ from: time, to: null });
    }
  },
  approval_decision(log, event, input, time) {
    const call = log.calls.get(event.delegation || event.id);
    if (event.always) log.standing.set(kindOf(event), { name: event.name, delegate: event.delegate, by: event.decided_by });
    if (!call) return;
    endWait(call, time);
    call.decision = event;
    if (call.state === "waiting") call.state = "running";
  },
  revocation(log, event) {
    log.standing.delete(kindOf(event));
  },
  rename(log, event) {
    log.title = event.title;
  },
  steering(log, event, input, time) {
    input.notes.push({ kind: "steering", text: event.content, time, after: input.steps.length });
  },
  agent_response(log, event, input, time) {
    input.answer = event;
    input.answered = time;
    for (const run of log.live) if (!isAsked(run)) run.texts = [];
  },
};
REDUCERS.delegation_request = REDUCERS.tool_call;
REDUCERS.delegation_response = REDUCERS.tool_result;

// These may come before their place in the history is final.
const begins = ({ type, to }) => /^user_message|^feedback|^rename|^revocation/.test(type) || to === "RUNNING";

/** Return whether a log has an event. */
export const isKnown = (log, event) => event.seq <= log.seq || log.early.has(textOf(event));

/** Add one event to a log. */
export function reduce(log, event) {
  if (event.type === "live") {
    for (const part of event.parts) reduceLive(log, part);
    return log;
  }
  if (event.type === "feedback") return takeRating(log, event);
  if (event.seq !== undefined) {
    if (isKnown(log, event)) return log;
    // Until the plan of an input is stored, its first events may come again, at other places.
    if (begins(event)) log.early.add(textOf(event));
    else log.seq = event.seq;
  }
  const time = timeOf(event.ts);
  const isQuestion = event.type === "user_message";
  // The events of a run that ends do not belong to the message that was sent meanwhile.
  const current = log.inputs.findLast((one) => !one.isExpected);
  const input = isQuestion || !current ? newInput(log, event) : current;
  if (event.resumed_at) input.resumes.push(timeOf(event.resumed_at));
  const asking = isQuestion && log.live.find(isAsked);
  if (asking) asking.question = null;
  REDUCERS[event.type]?.(log, event, input, time);
  for (const record of event.model_calls || []) addModel(log, input, record, event, time);
  for (const [source, counts] of Object.entries(event.early || {})) addEarly(input, source, counts);
  const text = NOTICES[event.type]?.(event);
  if (text !== undefined) input.notes.push({ kind: event.type, text, time, after: input.steps.length, facts: event.facts?.length ? event.facts : event.kept });
  input.end = Math.max(input.end, time);
  // Results that a resume adds for lost calls are not of the run that was cut off.
  if (!/^(tool_result|delegation_response)$/.test(event.type) || event.duration_s !== undefined) input.newest = Math.max(input.newest, time);
  input.revision += 1;
  log.newest = event.type;
  return log;
}

const textOf = ({ seq, ts, queued_s, ...event }) => toJson(event);

/** Add events to a log, oldest first; its position stays at `after`: those behind it come again, at their final places. */
export function reduceAll(log, events, after) {
  const { seq } = log;
  for (const event of events) {
    const known = isKnown(log, event);
    reduce(log, event);
    if (event.seq > after) log.early.add(textOf(event));
    else if (!known && /^plan|^agent/.test(event.type)) log.early.clear();
  }
  if (after < log.seq) log.seq = Math.max(seq, after);
  return log;
}

function reduceLive(log, part) {
  const input = log.inputs.at(-1);
  if (input) input.revision += 1;
  if (part.type === "call") {
    const call = log.calls.get(part.id);
    if (call && !call.result) Object.assign(call, { state: part.status, end: timeOf(part.ts), isCut: false });
  }
  if (part.type === "begin") {
    // The history of a run that is followed from its middle has its question.
    const isStored = !log.live.length && input && !input.done && textIn(input.question) === textIn(part.content);
    log.live.push({ texts: [], thoughts: [], question: isStored ? null : part.content });
  }
  const run = log.live.at(-1);
  if (part.type === "end" && run) run.ended = true;
  if (!run || run.ended) return;
  if (part.type === "break" || (part.type === "text" && !run.texts.length)) run.texts.push(new GrowingText());
  if (part.type === "text") run.texts.at(-1).append(part.text);
  if (part.type === "reasoning") {
    const after = input?.steps.length || 0;
    if (run.thoughts.at(-1)?.after !== after) run.thoughts.push({ after, text: new GrowingText() });
    run.thoughts.at(-1).text.append(part.text);
  }
}

const runsOf = (events) => [events, ...events.flatMap(({ history = [] }) => runsOf(history))];

/** Return the messages that a model call was sent, from the recorded requests of its run; null if there are none. */
export function requestAt(all, started) {
  const events = runsOf(all).findLast((run) => run.some((event) => event.model_calls?.some((call) => call.started === started))) || all;
  const parts = {};
  let keys = [];
  let found = null;
  for (const event of events.filter((each) => each.parts)) {
    if (event.started > started) break;
    Object.assign(parts, event.parts);
    const kept = event.kept_last ? keys.slice(-event.kept_last) : [];
    keys = [...keys.slice(0, event.kept_first), ...event.added, ...kept];
    found = { first: event.kept_first, last: keys.length - event.kept_last };
  }
  return found && { ...found, messages: keys.map((key) => parts[key]) };
}

/** Return the messages that the model was sent before a step, from the history: without system prompt, tools and cuts. */
export function rebuiltRequest(log, step) {
  const messages = [];
  const add = (type, content, others) => messages.push({ type, content, ...others });
  let first = 0;
  for (const { question, steps, notes, answer } of log.inputs) {
    add("human", question);
    for (const [n, one] of [...steps, null].entries()) {
      for (const { kind, text, after } of notes) if (kind === "steering" && after === n) add("human", text);
      if (one === step) return { first, last: messages.length, messages, rebuilt: true };
      if (!one?.calls.length) continue;
      first = messages.length;
      add("ai", one.plan.reasoning, { tool_calls: one.calls.map(({ id, name, arguments: args }) => ({ id, name, args })) });
      for (const { id, result } of one.calls) if (result) add("tool", result.content, { tool_call_id: id });
    }
    first = messages.length;
    if (answer) add("ai", answer.content);
  }
  return null;
}

/** Return the node of the graph that works now: its name, or empty when nothing runs. */
export function activeNode(log) {
  const input = log.inputs.at(-1);
  if (!input || input.done) return input ? "__end__" : "";
  if (input.status === "INTERRUPTED") return "";
  const active = (input.steps.at(-1)?.calls || []).map(({ state, kind }) => (state === "running" ? kind : state));
  if (active.includes("waiting")) return "approve";
  if (active.includes("delegation")) return "delegate";
  if (active.includes("tool")) return "tools";
  return input.answer ? "finalize" : "plan";
}
