// The openai package for Node: takes each turn over HTTP and over a socket. Prints a line of JSON for each, in this order.
//
//     node kinds.mjs BASE_URL BODIES
import OpenAI from 'openai';
import { ResponsesWS } from 'openai/resources/responses/ws';

const [baseURL, given] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: 'k', maxRetries: 0 });
const ENDS = new Set(['response.completed', 'response.failed', 'response.incomplete']);

async function overHttp(body) {
  const events = [];
  try {
    for await (const event of await client.responses.create({ ...body, stream: true })) events.push(event);
  } catch (error) {
    if (!(error instanceof OpenAI.APIError)) throw error;
    events.push({ type: 'error', status: error.status, error: error.error });
  }
  return events;
}

const ws = new ResponsesWS(client);
const stream = ws.stream();

async function overSocket(body) {
  ws.send({ type: 'response.create', ...body });
  for (const events = []; ; ) {
    const { value, done } = await stream.next();
    if (done) throw new Error('the socket closed within a turn');
    if (value.type === 'error') return [...events, value.error.error];
    if (value.type !== 'message') continue;
    events.push(value.message);
    if (ENDS.has(value.message.type)) return events;
  }
}

for (const body of JSON.parse(given)) {
  console.log(JSON.stringify({ http: await overHttp(body), socket: await overSocket(body) }));
}
ws.close();
