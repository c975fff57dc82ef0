// @openai/agents with its WebSocket transport. Prints a line of JSON for each run.
//
//     node agents.mjs BASE_URL session | provider | error | reconnect
import './ws_global.mjs';
import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool, withResponsesWebSocketSession } from '@openai/agents';
import { z } from 'zod';

const [baseURL, scenario] = process.argv.slice(2);
const say = (value) => console.log(JSON.stringify(value));
const cities = [];
const getWeather = tool({
  name: 'get_weather',
  description: 'The weather in a city.',
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => {
    cities.push(city);
    return `sunny in ${city}`;
  },
});
const agent = new Agent({ name: 'weather', instructions: 'Be short.', model: 'fake-model', tools: [getWeather] });
const connection = { apiKey: 'k', baseURL, useResponses: true, useResponsesWebSocket: true };

setTracingDisabled(true);

async function streamed(run, input, options) {
  const result = await run(agent, input, { ...options, stream: true });
  let text = '';
  for await (const event of result) {
    if (event.type === 'raw_model_stream_event' && event.data.type === 'output_text_delta') text += event.data.delta;
  }
  await result.completed;
  return { final: result.finalOutput, streamed: text, id: result.lastResponseId };
}

const scenarios = {
  // A session holds one socket for all its runs.
  session: () =>
    withResponsesWebSocketSession(
      async ({ run }) => {
        const first = await streamed(run, 'Weather?');
        say(first);
        say(await streamed(run, 'And again?', { previousResponseId: first.id }));
        const third = await run(agent, 'And once more?');
        say({ final: third.finalOutput, cities });
      },
      { providerOptions: connection },
    ),

  // A provider holds one for each model, as long as it lives.
  async provider() {
    const provider = new OpenAIProvider(connection);
    const runner = new Runner({ modelProvider: provider });
    const first = await runner.run(agent, 'Weather?');
    say({ final: first.finalOutput });
    const second = await runner.run(agent, 'Again?', { previousResponseId: first.lastResponseId });
    say({ final: second.finalOutput, cities });
    await provider.close();
  },

  // It raises on an error frame, and takes the next run on another socket.
  error: () =>
    withResponsesWebSocketSession(
      async ({ run }) => {
        await run(agent, 'Weather?', { previousResponseId: 'resp_unknown' }).catch((error) => say({ error: error.name }));
        say({ final: (await run(agent, 'Weather?')).finalOutput });
      },
      { providerOptions: connection },
    ),

  // The server is started anew between two runs.
  reconnect: () =>
    withResponsesWebSocketSession(
      async ({ run }) => {
        say({ final: (await run(agent, 'Weather?')).finalOutput });
        await new Promise((resolve) => process.stdin.once('data', resolve));
        process.stdin.pause();
        say({ final: (await run(agent, 'And now?')).finalOutput });
      },
      { providerOptions: connection },
    ),
};

await scenarios[scenario]();
