// The openai package's ResponsesWS, driven by hand. Prints a line of JSON for each thing that the tests look at.
//
//     node openai_node.mjs BASE_URL loop | error | lanes | reconnect
import OpenAI from 'openai';
import { ResponsesWS } from 'openai/resources/responses/ws';

const [baseURL, scenario] = process.argv.slice(2);
const model = 'fake-model';
const tools = [
  {
    type: 'function',
    name: 'get_weather',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false },
    strict: true,
  },
];
const ENDS = new Set(['response.completed', 'response.failed', 'response.incomplete']);
const say = (value) => console.log(JSON.stringify(value));

const ws = new ResponsesWS(new OpenAI({ baseURL, apiKey: 'k' }), {
  reconnect: { initialDelay: 10, maxDelay: 100, onReconnecting: ({ closeCode }) => say({ reconnecting: closeCode }) },
});
const stream = ws.stream();

// Takes one turn: sends it, reads to its end, and gives the response, or the error's frame.
async function turn(body) {
  ws.send({ type: 'response.create', model, ...body });
  let streamed = '';
  for (;;) {
    const { value, done } = await stream.next();
    if (done) throw new Error('the socket closed within a turn');
    if (value.type === 'error') return { error: value.error.error };
    if (value.type !== 'message') continue;
    const event = value.message;
    if (event.type === 'response.output_text.delta') streamed += event.delta;
    if (ENDS.has(event.type)) return { type: event.type, streamed, response: event.response };
  }
}

const scenarios = {
  async loop() {
    const warmUp = await turn({ generate: false, input: [], tools });
    say(warmUp);
    const call = await turn({ previous_response_id: warmUp.response.id, input: 'Use the tool.', tools, store: false });
    say(call);
    const [{ call_id }] = call.response.output;
    const input = [{ type: 'function_call_output', call_id, output: 'sunny' }];
    say(await turn({ previous_response_id: call.response.id, input, tools, store: false }));
  },

  async error() {
    say(await turn({ previous_response_id: 'resp_unknown', input: 'hi' }));
    say(await turn({ input: 'hi' }));
  },

  // Two turns at once, told apart by the lane that each event names.
  async lanes() {
    const names = ['a', 'b'];
    for (const stream_id of names) ws.send({ type: 'response.create', model, input: `hi from ${stream_id}`, stream_id });
    for (let ended = 0; ended < names.length; ) {
      const { value } = await stream.next();
      if (value.type !== 'message' || !ENDS.has(value.message.type)) continue;
      ended += 1;
      say({ lane: value.message.stream_id, response: value.message.response });
    }
  },

  // The server goes away between two turns. The client opens a socket anew by itself; what was sent it does not repeat.
  async reconnect() {
    const first = await turn({ input: 'hi' });
    const reconnected = new Promise((resolve) => ws.on('reconnected', resolve));
    say(first);
    await reconnected;
    say(await turn({ input: 'hi again' }));
  },
};

await scenarios[scenario]();
ws.close({ code: 1000, reason: 'done' });
