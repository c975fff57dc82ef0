// The AI SDK over the transport of examples/ai-sdk. Prints a line of JSON for each call.
//
//     node ai_sdk.mjs BASE_URL loop | unstored | lanes | error | reconnect | abort
import { createOpenAI } from '@ai-sdk/openai';
import { stepCountIs, streamText, tool } from 'ai';
import { WebSocket } from 'ws';
import { z } from 'zod';
import { createSocketFetch } from '../../examples/ai-sdk/socket-fetch.mjs';

const [baseURL, scenario] = process.argv.slice(2);
const say = (value) => console.log(JSON.stringify(value));
const cities = [];
const fetch = createSocketFetch({ url: `${baseURL.replace('http', 'ws')}/responses`, WebSocket });
const openai = createOpenAI({ baseURL, apiKey: 'k', fetch });
const tools = {
  get_weather: tool({
    description: 'The weather in a city.',
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      cities.push(city);
      return `sunny in ${city}`;
    },
  }),
};

// One user turn with its tool loop: the text as it was streamed, and the messages with the answer's.
async function ask(messages, options) {
  const errors = [];
  const result = streamText({
    model: openai.responses('gpt-5-mini'),
    messages,
    tools,
    stopWhen: stepCountIs(5),
    maxRetries: 1,
    onError: ({ error }) => errors.push({ name: error.name, message: error.message, status: error.statusCode }),
    ...options,
  });
  let text = '';
  let deltas = 0;
  for await (const delta of result.textStream) {
    text += delta;
    deltas += 1;
  }
  if (errors.length) return { errors };
  return { text, deltas, finish: await result.finishReason, messages: [...messages, ...(await result.responseMessages)] };
}

const user = (content) => ({ role: 'user', content });
const unstored = { providerOptions: { openai: { store: false } } };

async function twice(options) {
  const first = await ask([user('Weather?')], options);
  say(first);
  say({ ...(await ask([...first.messages, user('Again?')], options)), cities });
}

const scenarios = {
  loop: () => twice({}),
  unstored: () => twice(unstored),
  lanes: async () => (await Promise.all([1, 2, 3].map((number) => ask([user(`Weather ${number}?`)])))).forEach(say),

  async error() {
    say(await ask([user('Weather?')], { providerOptions: { openai: { previousResponseId: 'resp_unknown' } } }));
    say(await ask([user('Weather?')]));
  },

  async reconnect() {
    const first = await ask([user('Weather?')], unstored);
    say(first);
    await new Promise((resolve) => process.stdin.once('data', resolve));
    process.stdin.pause();
    say(await ask([...first.messages, user('Thanks.')], { ...unstored, tools: undefined }));
  },

  async abort() {
    const abortion = new AbortController();
    const { fullStream } = streamText({ model: openai.responses('gpt-5-mini'), prompt: 'hi', abortSignal: abortion.signal });
    for await (const part of fullStream) {
      if (part.type === 'text-delta') abortion.abort();
      if (part.type === 'abort') say({ aborted: true });
    }
    say(await ask([user('Weather?')]));
  },
};

await scenarios[scenario]();
fetch.close();
