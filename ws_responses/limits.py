"""Every number that bounds the middleware, each with its reason.

Bytes unless the name ends in ``_s`` (seconds) or counts something. ``None`` switches a limit off where its type allows it;
the documentation warns about what that means.
"""

from dataclasses import dataclass, fields

from ws_responses.errors import ConfigurationError

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one middleware.

    Raises:
        ConfigurationError: If a number is negative, is zero where that would serve nobody, or is no number at all.
    """

    # -- what a client may send
    max_frame_bytes: int = 16 * MIB
    """Largest client frame. 16 MiB is what the public ChatGPT route and uvicorn's default accept."""
    max_request_bytes: int = 64 * MIB
    """Largest body rebuilt for the app: four full frames; more is a runaway chain, which must be compacted."""
    max_queued_creates: int = 64
    """Creates waiting on one connection: four for each of the 16 that may run."""
    max_queued_bytes: int = 32 * MIB
    """Bytes of the creates waiting: two full frames."""
    max_lanes: int = 32
    """Distinct ``stream_id`` names for the life of a connection (guide, multiplexing)."""
    max_running_turns: int = 16
    """Turns in flight on a connection, the default lane included; more wait (guide, multiplexing)."""
    max_warmup_bytes: int = MIB
    """Bytes of warm-ups kept before the app has accepted a first call of the connection: a warm-up is answered without
    asking the app, so an unproven client may fill only this much. Codex warms up with about 40 kB."""

    max_pending_steers: int = 16
    """Steers of one connection that are accepted and not committed: more than a person types during one response."""
    max_pending_steer_bytes: int = MIB // 2
    """Bytes of their input, and of a single one: what is refused is given back, below ``max_outgoing_bytes``."""

    max_rollout_appends: int = 512
    """Times that a rollout (prototype mode) may wait for tool outputs: its response is told in one piece at the end. Long agent
    loops have some hundred calls."""

    # -- what the upstream may send
    max_event_bytes: int = 32 * MIB
    """Largest event of the app, and of its unfinished part: a base64 image of 16 MiB pixels fits."""
    max_answer_bytes: int = 32 * MIB
    """Largest JSON answer of an app that does not stream."""

    # -- what may wait to be sent
    max_outgoing_bytes: int = MIB
    """Bytes of our own frames (errors, warm-up answers) waiting behind a blocked write; beyond it the client is not
    reading what it provokes and the connection is closed with 1008."""

    # -- connections
    max_connections: int | None = 4096
    """Open connections of the process: about 200 MB of idle sockets with uvicorn's 19 kB, ours and some history."""
    max_tenant_connections: int | None = 256
    """Open connections of one tenant: a team's agents behind one key; one agent holds one to three. With ``counters`` this holds
    over all nodes, else per process."""
    max_tenant_turns: int | None = 1024
    """Turns of one tenant that run at once, over all its connections: four on each of the 256 that it may have. With ``counters``
    this holds over all nodes, else per process."""
    max_connection_age_s: float | None = 3600.0
    """Age at which no new turn starts (guide: 60 minutes)."""
    age_grace_s: float = 60.0
    """What running turns get after that before the close."""
    idle_timeout_s: float | None = 1800.0
    """Silence between turns after which the connection is closed with 1001. Agents pause for tests and people; half an
    hour keeps a coding session together and still frees abandoned sockets."""

    # -- time of a turn
    authorize_timeout_s: float = 5.0
    """Time for ``authorize``; after it the answer is 503 (Codex gives a handshake 15 s)."""
    body_timeout_s: float | None = 120.0
    """Time for the body of a POST that is served here, during which it takes the place of a connection: a full frame at 140 kB/s."""
    probe_timeout_s: float = 2.0
    """Time for the inner GET that asks the app's outer layers at the handshake."""
    first_event_timeout_s: float | None = 300.0
    """Time from the call of the app to its first event: Codex's own stream idle limit."""
    event_timeout_s: float | None = 300.0
    """Time between two events (comments count as life): the same."""
    blocked_timeout_s: float | None = 1800.0
    """Time that a rollout (prototype mode) waits for tool outputs: as long as an idle connection is kept, and for the same reason."""
    send_timeout_s: float | None = 60.0
    """Time that one write may block on a client that does not read, before the connection is closed with 1008."""
    store_timeout_s: float = 2.0
    """Time for one operation of the response store, and for one answer of the counters."""

    # -- ending things
    disconnect_grace_s: float = 0.25
    """Time between ``http.disconnect`` and the cancellation of an aborted app call."""
    abort_timeout_s: float = 5.0
    """Time a cancelled call gets to end before it is reported as stuck."""
    trailing_timeout_s: float = 5.0
    """Time an app may keep its body open after its terminal event."""
    background_timeout_s: float = 30.0
    """Time the app's own background tasks get when the connection ends."""
    close_timeout_s: float = 10.0
    """Time to wait for the peer's side of a close."""

    # -- memory
    max_connection_bytes: int = 64 * MIB
    """History kept for one connection: four full frames, some 16 million tokens."""
    max_tenant_bytes: int = 256 * MIB
    """History kept for one tenant, its stored responses included."""
    max_process_bytes: int = 1024 * MIB
    """History kept in the process."""
    store_ttl_s: float = 3600.0
    """Life of a stored chain in the in-process store after its last turn: one connection's life."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                if "None" not in str(field.type):
                    raise ConfigurationError(f"{field.name} must be a number, not None")
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124 - NaN
                raise ConfigurationError(f"{field.name} must be a number, not {value!r}")
            if isinstance(value, float) and not field.name.endswith("_s"):
                raise ConfigurationError(f"{field.name} must be a whole number, not {value!r}")
            if value < 0 or (value == 0 and field.name not in _MAY_BE_ZERO):
                raise ConfigurationError(f"{field.name} must be positive, not {value!r}")


_MAY_BE_ZERO = frozenset(
    {"max_queued_creates", "max_queued_bytes", "max_warmup_bytes", "age_grace_s", "disconnect_grace_s", "max_lanes"}
)
