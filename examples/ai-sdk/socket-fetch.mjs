// A `fetch` for the AI SDK's OpenAI provider (`createOpenAI({ fetch })`) that takes its Responses requests over one WebSocket.
// It is a transport of our own, to copy: the SDK speaks HTTP, and sends the whole conversation with each step of a tool loop.
//
// - A streaming POST to `/responses` becomes a `response.create`; its events come back as the SSE body that the SDK expects.
//   Everything else goes over HTTP, and so do these when no socket can be had.
// - A request that goes on from an earlier one names that by `previous_response_id`, and sends what is new only.
// - Requests at the same time share the socket, each on a lane (`stream_id`) of its own.
// - An error before the first event becomes an HTTP answer with its status and headers, so that the SDK's retries work.
// - A lost socket, one that is too old and a server that is started anew cost a new socket; a parent that is not known any more
//   costs the whole conversation. Neither is seen by the caller, unless the answer had begun.
//
// The socket carries the headers of the first request: make one of these for each key.
import { Connection } from './connection.mjs';
import { Turn } from './turn.mjs';

const KEPT_TURNS = 16;

/**
 * @param {object} options
 * @param {string} options.url The socket: `ws://host/v1/responses`.
 * @param {Function} [options.WebSocket] A constructor that takes `(url, { headers })`: that of `ws`, or Node's own from 22 on.
 * @param {typeof fetch} [options.fetch] What takes the other requests.
 * @returns {typeof fetch & { close(): void }}
 */
export function createSocketFetch({ url, WebSocket = globalThis.WebSocket, fetch = globalThis.fetch }) {
  let connection;
  let refused; // what the first one came to; later ones may fail for a while
  let finished = []; // turns that others may go on from, the newest first

  async function socketFetch(resource, init = {}) {
    const body = refused ? undefined : streamingBody(resource, init);
    if (!body) return fetch(resource, init);
    const turn = await sent(body, init);
    if (!turn) return fetch(resource, init);
    const answer = await turn.answer;
    if (!turn.turnedAway) return answer;
    const again = await sent(body, init);
    return again ? again.answer : fetch(resource, init);
  }

  // The turn, on its way; nothing if no socket can be had.
  async function sent(body, init) {
    if (!connection?.usable) connection = new Connection(new WebSocket(url, { headers: headersOf(init) }), forget);
    const used = connection;
    const open = await used.opened;
    refused ??= !open;
    if (!open) return undefined;
    init.signal?.throwIfAborted();
    const turn = new Turn(body, finished, keep);
    init.signal?.addEventListener('abort', () => used.abort(turn, init.signal.reason), { once: true });
    used.send(turn);
    return turn;
  }

  function keep(turn) {
    finished = [turn, ...finished].slice(0, KEPT_TURNS);
  }

  // What is not stored goes with its socket.
  function forget(lost) {
    finished = finished.filter((turn) => turn.connection !== lost || turn.body.store !== false);
  }

  return Object.assign(socketFetch, { close: () => connection?.close() });
}

function headersOf(init) {
  const headers = new Headers(init.headers);
  for (const name of ['accept', 'content-length', 'content-type']) headers.delete(name);
  headers.set('openai-beta', 'responses_websockets=2026-02-06');
  return Object.fromEntries(headers);
}

// The body of a request that the socket takes; nothing for all others.
function streamingBody(resource, { method, body }) {
  const { pathname } = new URL(resource instanceof Request ? resource.url : resource);
  if (method !== 'POST' || !pathname.endsWith('/responses') || typeof body !== 'string') return undefined;
  const members = JSON.parse(body);
  return members.stream && Array.isArray(members.input) ? members : undefined;
}
