"""A lane and its turns."""

from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from ws_responses.errors import LocalProtocolError
from ws_responses.protocol.creates import ResponseCreate
from ws_responses.protocol.injecting import Injection
from ws_responses.protocol.phases import TURN_TABLE, TurnInput, TurnPhase
from ws_responses.protocol.rollout import Blocked
from ws_responses.protocol.steering import Steer


class Lane:
    """One ``stream_id``, or the default lane (``name`` None): its running turn and those waiting behind it.

    Attributes:
        held: Accepted steers of the latest response, which waits for input that only the client has.
        latest: Id of the latest response that has ended; None if there is none.
        completed: It has ended as it should.
        refused: Creates that did not get to run, and are to be told so when the running turn is over.
    """

    __slots__ = ("completed", "held", "latest", "name", "queue", "refused", "running")

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.running: Turn | None = None
        self.queue: list[Turn] = []
        self.held: Sequence[Steer] = ()
        self.latest: str | None = None
        self.completed = False
        self.refused = 0


class Turn:
    """One accepted create, to its end.

    Attributes:
        id: Our own id of the turn, unique in the process.
        create: The frame.
        lane: Where it runs.
        phase: See :class:`TurnPhase`.
        heard: Number of signs of life of the upstream; the shell counts it up, also for comments.
        pin: For the shell: what keeps a fork's parent alive while the turn waits.
        automatic: It continues a steered response by itself: no frame of the client has asked for it.
        response_id: Id of its response, from ``response.created`` on.
        inherited: The body of its create, for a successor; the shell keeps it, None if the response cannot be steered.
        carried: Steers that its input begins with: committed by its ``response.created``.
        steers: Accepted steers of its response, in order.
        blocked: What a rollout waits for; None while it does not wait.
        blocks: How often it has.
        injects: Its response takes injections: it is a rollout, and waits without a word.
        injections: Those that wait in it, in order.
    """

    __slots__ = (
        "automatic",
        "blocked",
        "blocks",
        "carried",
        "create",
        "heard",
        "heard_at",
        "id",
        "inherited",
        "injections",
        "injects",
        "kept_alive_at",
        "lane",
        "order",
        "phase",
        "pin",
        "response_id",
        "seen",
        "steers",
    )

    def __init__(
        self,
        id: str,  # noqa: A002 - the word
        create: ResponseCreate,
        lane: Lane,
        order: int,
        *,
        automatic: bool = False,
    ) -> None:
        self.id = id
        self.create = create
        self.lane = lane
        self.order = order
        self.phase = TurnPhase.QUEUED
        self.pin: Any = None
        self.automatic = automatic
        self.response_id: str | None = None
        self.inherited: dict[str, Raw] | None = None
        self.carried: Sequence[Steer] = ()
        self.steers: tuple[Steer, ...] = ()
        self.blocked: Blocked | None = None
        self.blocks = 0
        self.injects = False
        self.injections: tuple[Injection, ...] = ()
        self.heard = 0
        self.seen = 0
        self.heard_at = 0.0
        self.kept_alive_at = 0.0

    def move(self, stimulus: TurnInput) -> None:
        """Change the phase by the table."""
        try:
            self.phase = TURN_TABLE[self.phase][stimulus]
        except KeyError:
            raise LocalProtocolError(f"turn {self.id}: {stimulus.name} is illegal when {self.phase.name}") from None

    def resume(self, now: float) -> None:
        """Wait no more: the response goes on."""
        self.move(TurnInput.RESUME)
        self.blocked = None
        self.heard_at = self.kept_alive_at = now
