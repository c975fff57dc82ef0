// A tool loop of the AI SDK over one socket:
//
//     uvicorn examples.fastapi_app:app &
//     cd examples/ai-sdk && npm install && node agent.mjs http://127.0.0.1:8000/v1 "What is the weather in Paris?"
import { createOpenAI } from '@ai-sdk/openai';
import { stepCountIs, streamText, tool } from 'ai';
import { WebSocket } from 'ws';
import { z } from 'zod';
import { createSocketFetch } from './socket-fetch.mjs';

const [baseURL, prompt] = process.argv.slice(2);
const fetch = createSocketFetch({ url: `${baseURL.replace('http', 'ws')}/responses`, WebSocket });
const openai = createOpenAI({ baseURL, apiKey: process.env.OPENAI_API_KEY ?? 'none', fetch });

const weather = tool({
  description: 'The weather in a city.',
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `sunny in ${city}`,
});

const result = streamText({
  model: openai.responses('gpt-5-mini'),
  prompt,
  tools: { get_weather: weather },
  stopWhen: stepCountIs(8),
});
for await (const text of result.textStream) process.stdout.write(text);
process.stdout.write('\n');
fetch.close();
