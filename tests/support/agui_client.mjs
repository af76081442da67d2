// Runs AG-UI's published HttpAgent for a test: one command a line on stdin, one report a line on stdout.
//
// The argument is the folder with node_modules. An agent lives as long as its thread is named, unless a command asks
// for a fresh one. Words on the console are part of the report: the client warns of a stream that breaks its rules.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { join } from "node:path";

const { HttpAgent } = createRequire(join(process.argv[2], "package.json"))("@ag-ui/client");
const agents = new Map();
let warnings = [];
for (const level of ["warn", "error"]) console[level] = (...words) => warnings.push(words.map(String).join(" "));

async function run({ url, thread, add, tools, resume, runId, stopAt, stop, fresh }) {
  if (fresh || !agents.has(thread)) agents.set(thread, new HttpAgent({ url: `${url}/agui`, threadId: thread }));
  const agent = agents.get(thread);
  for (const message of add ?? []) agent.addMessage(message);
  const events = [];
  let stopping = null;
  const subscriber = {
    onEvent({ event }) {
      events.push(event);
      if (event.type !== stopAt || stopping) return;
      stopping = stop === "client" ? Promise.resolve(agent.abortRun()) : fetch(`${url}/sessions/${thread}/abort`, { method: "POST" });
    },
  };
  warnings = [];
  let error = null;
  try {
    await agent.runAgent({ runId, tools, resume }, subscriber);
  } catch (raised) {
    error = String(raised);
  }
  await stopping;
  return { events, error, warnings, messages: agent.messages, state: agent.state, interrupts: agent.pendingInterrupts };
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(await run(JSON.parse(line))) + "\n");
}
