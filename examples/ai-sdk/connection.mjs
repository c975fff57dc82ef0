// One socket and the turns that run on it.

export class Connection {
  #socket;
  #running = new Map(); // by lane

  /**
   * @param {WebSocket} socket A new one.
   * @param {(connection: Connection) => void} lost Called when it is gone.
   */
  constructor(socket, lost) {
    this.#socket = socket;
    this.usable = true;
    this.opened = new Promise((resolve) => {
      socket.onopen = () => resolve(true);
      socket.onerror = () => {}; // it is closed next
      socket.onclose = ({ code }) => {
        this.usable = false;
        for (const turn of this.#running.values()) turn.fail(closed(code));
        lost(this);
        resolve(false);
      };
    });
    socket.onmessage = ({ data }) => this.#receive(JSON.parse(data));
  }

  send(turn) {
    if (!this.usable) {
      turn.fail(closed('before it was sent'));
      return;
    }
    turn.connection = this;
    const lane = this.#freeLane();
    this.#running.set(lane, turn);
    this.#socket.send(turn.frame(lane));
  }

  // There is no frame that stops a turn: the socket is closed if nobody else needs it, else the rest is not listened to.
  abort(turn, reason) {
    turn.fail(reason);
    if ([...this.#running.values()].every((other) => other.failed)) this.close();
  }

  close() {
    this.usable = false;
    this.#socket.close();
  }

  #receive(event) {
    const lane = event.stream_id;
    const turn = this.#running.get(lane);
    if (!turn) return; // about the connection, as the notice of its age
    if (turn.isOrphaned(event)) {
      this.#socket.send(turn.frame(lane));
    } else if (turn.take(event)) {
      this.#running.delete(lane);
      if (turn.turnedAway) this.usable = false; // what runs on it may end
    }
  }

  // The default lane first. Names are used again: a connection takes a limited number of them.
  #freeLane() {
    let lane;
    for (let number = 1; this.#running.has(lane); number += 1) lane = `lane-${number}`;
    return lane;
  }
}

// In the form of a `fetch` that has failed: the SDK asks again if nothing of the answer had come.
function closed(why) {
  return new TypeError('fetch failed', { cause: new Error(`the socket was closed (${why})`) });
}
