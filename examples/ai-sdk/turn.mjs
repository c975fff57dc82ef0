// A request and its answer: what of it is sent, and what becomes of the events.

// The connection is too old, or its server is about to stop: another one takes the turn.
const TURNED_AWAY = new Set(['websocket_connection_limit_reached', 'server_is_overloaded']);
const ENDS = new Set(['response.completed', 'response.failed', 'response.incomplete', 'error']);

export class Turn {
  #parent;
  #input;
  #answered;
  #stream = new TransformStream();
  #writer = this.#stream.writable.getWriter();
  #begun = false;
  #completed;

  /**
   * @param {object} body The request's, with the whole conversation.
   * @param {Turn[]} finished Turns that it may go on from.
   * @param {(turn: Turn) => void} completed Called when others may go on from this one.
   */
  constructor(body, finished, completed) {
    this.body = body;
    this.failed = false;
    this.turnedAway = false;
    this.#input = body.input.map((item) => JSON.stringify(item));
    this.#parent = body.previous_response_id || body.conversation ? undefined : finished.find((turn) => turn.#leadsTo(this));
    this.answer = new Promise((resolve, reject) => {
      this.#answered = { resolve, reject };
    });
    this.#writer.closed.catch(() => {}); // its reader is told
    this.#completed = completed;
  }

  frame(lane) {
    const { stream, ...body } = this.body;
    const chained = this.#parent && {
      previous_response_id: this.#parent.response.id,
      input: body.input.slice(this.#parent.#known(this)),
    };
    return JSON.stringify({ type: 'response.create', ...body, ...chained, stream_id: lane });
  }

  // Whether the server does not know the turn that this one goes on from. It is to be sent again then, and as a whole.
  isOrphaned(event) {
    const orphaned = this.#parent && event.type === 'error' && event.error.code === 'previous_response_not_found';
    if (orphaned) this.#parent = undefined;
    return orphaned;
  }

  // Takes an event, and tells whether it was the last one.
  take(event) {
    const ended = ENDS.has(event.type);
    if (this.failed) return ended;
    this.turnedAway = event.type === 'error' && !this.#begun && TURNED_AWAY.has(event.error.code);
    if (event.type === 'error' && !this.#begun) {
      const { status = 500, headers, error } = event;
      this.#answered.resolve(Response.json({ error }, { status, headers }));
    } else if (!this.#begun) {
      this.#begun = true;
      this.#answered.resolve(new Response(this.#stream.readable, { headers: { 'content-type': 'text/event-stream' } }));
    }
    if (event.type === 'response.completed') {
      this.response = event.response;
      this.#completed(this);
    }
    this.#write(`data: ${JSON.stringify(event)}\n\n`);
    if (ended) this.#writer.close().catch(() => {});
    return ended;
  }

  fail(reason) {
    this.failed = true;
    this.#answered.reject(reason);
    this.#writer.abort(reason).catch(() => {});
  }

  #write(text) {
    this.#writer.write(new TextEncoder().encode(text)).catch(() => {}); // the SDK may have stopped reading
  }

  // Whether a turn's input is this one's, then its output, then something new.
  #leadsTo(turn) {
    const known = this.#known(turn);
    return known > this.#input.length && known < turn.#input.length && this.#input.every((item, at) => item === turn.#input[at]);
  }

  // How many items the server has: this turn's input, and what follows of its output in any of the SDK's forms.
  #known(turn) {
    let at = this.#input.length;
    while (at < turn.#input.length && this.response.output.some((item) => isSame(item, turn.body.input[at]))) at += 1;
    return at;
  }
}

function isSame(output, item) {
  if (item.type === 'item_reference') return item.id === output.id;
  if (output.call_id) return item.type === output.type && item.call_id === output.call_id;
  if (output.type === 'message') return item.role === 'assistant' && textOf(item) === textOf(output);
  return item.type === output.type && item.id === output.id;
}

function textOf({ content }) {
  return typeof content === 'string' ? content : content.map((part) => part.text ?? part.refusal).join('');
}
