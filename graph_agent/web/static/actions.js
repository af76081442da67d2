// What a person takes away from an input: a copy of it as a program, a branch of it, a comparison with a branch.
import { answerText, asText, duration, html, short, Still, textIn, words } from "./html.js";
import { Axis } from "./axis.js";
import { toJson as json } from "./json.js";

const inShell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** Return the command that sends an input again. */
export function asCurl(input, { name, origin }) {
  const body = json({ model: name, messages: [{ role: "user", content: asText(input.question) }] });
  return `curl -s ${origin}/v1/chat/completions -H 'content-type: application/json' \\\n  -d ${inShell(body)}`;
}

/** Return the Python program that sends an input again. */
export function asPython(input, { name, origin }) {
  return `from openai import OpenAI

client = OpenAI(base_url=${json(`${origin}/v1`)}, api_key="none")
reply = client.chat.completions.create(
    model=${json(name)},
    messages=[{"role": "user", "content": ${json(asText(input.question))}}],
)
print(reply.choices[0].message.content)
`;
}

/** Return a test in which a scripted model repeats the plans of an input, and tools their outputs. */
export function asTest(input) {
  const text = (value) => json(typeof value === "string" ? value : json(value));
  const outputs = {};
  for (const { kind, name, arguments: given, result } of input.steps.flatMap((step) => step.calls)) {
    if (kind === "tool") (outputs[name] ??= []).push([given || {}, asText(result?.content ?? "")]);
  }
  const replies = input.steps.map(({ calls, plan }) => {
    const listed = calls.map((call) => ({ id: call.id, name: call.name, arguments: call.arguments || {} }));
    return text(calls.length ? { tool_calls: listed, content: plan.reasoning } : answerText(plan.reasoning || input.answer?.content || ""));
  });
  return `import asyncio
import json

from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, Session, create_graph_agent

OUTPUTS = json.loads(${text(outputs)})
REPLIES = [
${replies.map((reply) => `    ${reply},`).join("\n")}
]


def recorded(name):
    """Return a tool with the recorded outputs; put the agent's own in its place."""

    def run(**given):
        return next(output for arguments, output in OUTPUTS[name] if arguments == given)

    schema = {"type": "object", "properties": {key: {} for arguments, _ in OUTPUTS[name] for key in arguments}}
    return StructuredTool.from_function(run, name=name, description=name, args_schema={"title": name, **schema})


def test_the_answer():
    model = ScriptedChatModel(REPLIES)
    agent = create_graph_agent(model, tools=[recorded(name) for name in OUTPUTS], checkpointer=InMemorySaver())

    result = asyncio.run(Session(agent, "s1").run(${text(asText(input.question))}))

    assert result.answer == ${text(answerText(input.answer?.content ?? ""))}
`;
}

/** The buttons of an input. */
export class Actions extends Still {
  render({ input, target, copy, compare, candidates, other }) {
    return html`<div class="input-actions">
    <span class="hint">Copy input ${input.number + 1} as</span>
    <button onClick=${() => copy(asCurl(input, target))}>curl</button>
    <button onClick=${() => copy(asPython(input, target))}>Python</button>
    <button onClick=${() => copy(asTest(input))}>test</button>
    ${candidates.length > 0 && html`<label class="hint">Compare with <select value=${other?.id || ""} onChange=${(event) => compare(event.target.value)}>
      <option value="">none</option>
      ${candidates.map(({ id, label }) => html`<option value=${id}>${label}</option>`)}
    </select></label>`}
    ${Object.entries(input.early || {}).map(([source, sums]) => html`<p class="hint early-work">${earlyText(source, sums)}</p>`)}
  </div>`;
  }
}

/** Return what became of the calls or requests that began before a plan asked for them. */
function earlyText(source, { started, used, dropped, dropped_s: wasted, cost }) {
  const lost = dropped ? ` · ${dropped} dropped, ${duration(wasted * 1000)} wasted${cost ? `, cost ${cost.toPrecision(2)}` : ""}` : "";
  return `Early ${source === "request" ? "requests" : `calls, ${source}`}: ${used} of ${started} used (${Math.round((100 * used) / started || 0)} %)${lost}`;
}

function factsOf(input) {
  const calls = input.steps.flatMap((step) => step.calls);
  const models = input.steps.flatMap((step) => step.models);
  return {
    Status: words(input.status),
    Steps: input.steps.length,
    Calls: `${calls.length}, ${calls.filter((call) => call.state === "error").length} failed`,
    Tokens: models.reduce((sum, model) => sum + model.tokens, 0),
    Duration: duration(input.end - input.start),
    Answer: input.answer ? answerText(input.answer.content) : "",
  };
}

/** Two branches of a session, one below the other, with what differs between them. */
export function Comparison({ input, other, now }) {
  const branch = other.log.inputs[Math.min(input.number, other.log.inputs.length - 1)];
  if (!branch) return null;
  const title = other.log.title || short(textIn(other.log.inputs[0].question), 60) || other.id;
  const left = factsOf(input);
  const right = factsOf(branch);
  return html`<section class="comparison" aria-label=${`Comparison with ${other.id}`}>
    <h3>${title}</h3>
    <${Axis} input=${branch} now=${now} pick=${() => {}} />
    <table><thead><tr><td></td><th scope="col">this session</th><th scope="col">the other one</th></tr></thead>
      <tbody>${Object.keys(left).map((name) => html`<tr class=${left[name] === right[name] ? "" : "differs"}><th scope="row">${name}</th><td>${left[name]}</td><td>${right[name]}</td></tr>`)}</tbody></table>
  </section>`;
}
