// Responses of a server to the Vercel AI SDK's `openai()` with its defaults, as JSON: URL, key.
import { createOpenAI } from '@ai-sdk/openai';
import { Output, generateText, isStepCount, streamText, tool } from 'ai';
import { z } from 'zod';

const [url, apiKey] = process.argv.slice(2);
const model = createOpenAI({ baseURL: `${url}/v1`, apiKey })('parrot');
const BOTH = '!call look_up {"key": "k"}\n!call paint {"color": "red"}\n!call paint {"color": "blue"}';
const tools = {
  paint: tool({ inputSchema: z.object({ color: z.string() }), execute: async ({ color }) => `painted ${color}` }),
};
const ask = (options) => generateText({ model, maxRetries: 0, ...options });
const user = (content) => ({ role: 'user', content });
const results = (text) => text.split('; ').slice(1).join('; ');

const first = await ask({ prompt: 'hello' });
const second = await ask({ messages: [user('hello'), ...first.response.messages, user('again')] });
const handedBack = await ask({ prompt: BOTH, tools, stopWhen: isStepCount(5) });
const stream = streamText({ model, prompt: BOTH, tools, stopWhen: isStepCount(5), maxRetries: 0 });
let streamed = '';
for await (const piece of stream.textStream) streamed += piece;
const shaped = await ask({
  prompt: '!json Here: {"city": "Bergen"}',
  output: Output.object({ schema: z.object({ city: z.string() }) }),
});
const unstored = { providerOptions: { openai: { store: false } } };
const kept = await ask({ prompt: 'hello', ...unstored });
const again = await ask({ messages: [user('hello'), ...kept.response.messages, user('again')], ...unstored });
const named = (openai) => ({ providerOptions: { openai } });
const conversation = await (
  await fetch(`${url}/v1/conversations`, { method: 'POST', headers: { authorization: `Bearer ${apiKey}` } })
).json();
await ask({ prompt: 'hello', ...named({ conversation: conversation.id }) });
const chained = [
  await ask({ prompt: 'again', ...named({ previousResponseId: first.providerMetadata.openai.responseId }) }),
  await ask({ prompt: 'again', ...named({ conversation: conversation.id }) }),
];
const report = {
  whole: [first.text, first.finishReason, first.usage.totalTokens],
  'second turn': [second.text, again.text, ...chained.map((answer) => answer.text)],
  'handed back': results(handedBack.text),
  streamed: [results(streamed), await stream.finishReason],
  structured: shaped.output,
};
process.stdout.write(JSON.stringify(report));
