"""The contract between a turn and what answers it, and what a handler may know of its turn."""

from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ws_responses.errors import WireError, WSResponsesError
from ws_responses.protocol.creates import ResponseCreate
from ws_responses.protocol.items import split_items
from ws_responses.protocol.profiles import Profile
from ws_responses.state.interning import Interned, Interner
from ws_responses.state.node import Carried, ResponseNode, Sampled

if TYPE_CHECKING:
    from ws_responses.rendering.cache import Rendering
    from ws_responses.routing import Route
    from ws_responses.safety import Judgement


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who is at the other end, as the operator's ``authorize`` says.

    Attributes:
        id: A name for logs and limits; no secret.
        tenant: Who owns the chains; None keeps the default (a hash of the credentials).
    """

    id: str
    tenant: str | None = None


class CurrentTurn:
    """What a handler may know of the turn that it answers.

    In history mode "turn" the inner body holds the delta only; the rest of the conversation is here. The objects are
    shared with the connection: read them, do not change them.

    Attributes:
        id: Our id of the turn, unique in the process.
        lane: ``stream_id``, or None for the default lane.
        model: As the frame said.
        tenant: Who owns the chain.
        principal: As ``authorize`` said; None without it.
        parent: The node that this turn continues, or None.
        forwarded: Id of a response of the app's by which it is to go on (history mode "forward"); None if it gets all that there is.
        base: The delta starts a new base (it holds a compaction item): nothing older is joined.
        encoded_delta: The new input items, joined by commas.
        interned_tools: The frame's ``tools`` as they are kept; None if there were none, or no room for them.
        interned_instructions: The frame's ``instructions``, likewise.
        warm_up: True for a turn that generates nothing.
        profile: Which specification the connection follows.
        response_id: Id that the response has unless the upstream gives its own.
        may_store: Whether the response outlives the connection (``store`` of its response object).
        rendering: The conversation up to this turn's input as tokens, if a renderer is set (``renderer=``, or the engine's).
        judgement: What the classifiers said of the input; None if nothing was judged before inference.
        flags: ``classifier:category`` of what was flagged on the chain so far: in the turns before, and in this turn's input as far as
            it was judged before inference.
        unjudged: Inference runs while the input is still judged (``mode="beside"``): nothing of it may be stored yet.
        route: What serves the turn, as the router resolved it: set before a wrapped app is called (``router=``), or by the engine; None
            if nobody has routed it.
        route_reused: Whether that is the route of the turn that this one continues; None if there is none.
        usage_so_far: Gives the usage as encoded JSON, or None, for the record of a turn that is cut off (set by the engine).
        vocabulary: Names the format and vocabulary of recorded token ids.
        steered: The response is to end at the next border between its items, as ``response.incomplete`` ("steered"), unless it
            waits for tool outputs or ends by itself (set while the turn runs; for an upstream that ``steers``).
        kept: What the node is to keep for the next turn (set by the upstream before the terminal event).
        is_rollout: Its response may go on after calls of the client, by another call of the upstream for what was appended then
            (prototype mode, or injections).
        injects: What is appended comes by ``response.inject``: the create enables ``multi_agent``, and the connection came with the
            beta header.
        suspended: What an upstream that ``rolls`` needs to go on; it sets this before the terminal event of each step, and finds it
            in the next one.
        response: The response object without its output, for the record (set by the engine before the terminal event).
    """

    __slots__ = (
        "_sampled",
        "_split",
        "base",
        "create",
        "encoded_delta",
        "flags",
        "forwarded",
        "id",
        "injects",
        "interned_instructions",
        "interned_tools",
        "is_rollout",
        "judgement",
        "kept",
        "lane",
        "may_store",
        "model",
        "parent",
        "principal",
        "profile",
        "rendering",
        "response",
        "response_id",
        "route",
        "route_reused",
        "steered",
        "suspended",
        "tenant",
        "unjudged",
        "usage_so_far",
        "vocabulary",
        "warm_up",
    )

    def __init__(self, id: str, create: ResponseCreate, tenant: str, principal: Principal | None) -> None:  # noqa: A002
        self.id = id
        self.create = create
        self.lane = create.lane
        self.model = create.model
        self.warm_up = create.warm_up
        self.tenant = tenant
        self.principal = principal
        self.parent: ResponseNode | None = None
        self.forwarded: str | None = None
        self.base = False
        self.rendering: Rendering | None = None
        self.steered = False
        self.is_rollout = False
        self.injects = False
        self.suspended: object = None
        self.kept: Carried | None = None
        self.response: bytes | None = None
        self.profile: Profile = "openai"
        self.response_id = ""
        self.may_store = False
        self.judgement: Judgement | None = None
        self.flags: tuple[str, ...] = ()
        self.unjudged = False
        self.route: Route | None = None
        self.route_reused: bool | None = None
        self.usage_so_far: Callable[[], bytes | None] | None = None
        self._sampled: array[int] | None = None
        self.vocabulary = ""
        self.encoded_delta = b""
        self._split: tuple[bytes, list[bytes]] = (b"", [])
        self.interned_tools: Interned | None = None
        self.interned_instructions: Interned | None = None

    @property
    def is_private(self) -> bool:
        """Whether nothing of it may be kept anywhere (``store: false``, or on top of what was not to be stored)."""
        return not self.create.stored or (self.parent is not None and not self.parent.record.store)

    @property
    def previous_response_id(self) -> str | None:
        """Id of the response that this turn continues, or None."""
        return self.create.previous_response_id

    @property
    def delta(self) -> list[bytes]:
        """The new input items of this turn, each as it came (encoded JSON).

        Split once, however many of a turn's steps read it; each caller is given a list of its own.
        """
        encoded, items = self._split
        if encoded is not self.encoded_delta:
            items = split_items(self.encoded_delta)
            self._split = (self.encoded_delta, items)
        return list(items)

    @property
    def chain(self) -> Sequence[ResponseNode]:
        """The nodes that this turn sees, oldest first: back to the newest base (compaction), or the first turn."""
        if self.parent is None or self.base:
            return ()
        return tuple(reversed(list(self.parent.joined())))

    def history(self) -> list[bytes]:
        """Return all items before the delta, oldest first, each as it came (encoded JSON)."""
        return [item for node in self.chain for item in split_items(node.record.items[node.record.history_at :])]

    @property
    def tools(self) -> Any:
        """The frame's ``tools``, decoded once per distinct bytes; None if there were none."""
        return None if self.interned_tools is None else self.interned_tools.value

    @property
    def instructions(self) -> Any:
        """The frame's ``instructions``; None if there were none."""
        return None if self.interned_instructions is None else self.interned_instructions.value

    def take_route(self, route: "Route", before: "Route | None") -> None:
        """Note which route serves this turn (for the turn's steps, and the engine).

        Args:
            route: That one.
            before: Of the turn that this one continues; None if there is none.
        """
        self.route = route
        self.route_reused = None if before is None else route.name == before.name and route.backend is before.backend

    def keep(self, intern: Callable[[bytes], Interned | None]) -> None:
        """Take what outlives the frame from it (for the turn's steps).

        Args:
            intern: Keeps a value, for the connection or for this turn alone.
        """
        body = self.create.body
        if "tools" in body:
            self.interned_tools = intern(bytes(body["tools"]))
        if "instructions" in body:
            self.interned_instructions = intern(bytes(body["instructions"]))

    def forget_answer(self, response: bytes) -> None:
        """Keep nothing of what the upstream has said beyond what was sent of it (for the turn's steps).

        Args:
            response: What the client was told at the end, without the output.
        """
        self.kept = None
        self._sampled = None
        self.response = response

    def share(self, interner: Interner) -> None:
        """Keep for the connection what was kept for this turn alone (for the turn's steps)."""
        if self.interned_tools is not None:
            self.interned_tools = interner.adopt(self.interned_tools)
        if self.interned_instructions is not None:
            self.interned_instructions = interner.adopt(self.interned_instructions)

    @property
    def tokens(self) -> "array[int] | None":
        """The conversation up to and with the delta as token ids, in one copy; None without a renderer.

        The beginning of the answer is not among them.
        """
        return None if self.rendering is None else self.rendering.state.ids()

    def record_tokens(self, ids: Sequence[int], vocabulary: str = "") -> None:
        """Keep the token ids that the handler sampled for this turn's output; the node holds them in order.

        Args:
            ids: The next ids.
            vocabulary: Names the format and vocabulary that they belong to; by default the name of ``renderer=``.

        Raises:
            ValueError: An id is no integer from 0 to 2**32 - 1.
        """
        if any(type(i) is not int or not 0 <= i < 1 << 32 for i in ids):
            raise ValueError("token ids must be integers from 0 to 2**32 - 1")
        if self._sampled is None:
            self._sampled = array("I")
        self._sampled.extend(ids)
        self.vocabulary = vocabulary or self.vocabulary

    @property
    def sampled(self) -> Sampled | None:
        """What was recorded so far; None if nothing was."""
        return None if self._sampled is None else Sampled(self.vocabulary, self._sampled.tobytes())


_current: ContextVar[CurrentTurn] = ContextVar("ws_responses.turn")

SCOPE_STATE_KEY = "ws_responses.turn"
"""Where ``scope["state"]`` of the inner request holds the same object."""


def current_turn() -> CurrentTurn:
    """Return the turn that the calling handler answers.

    Raises:
        WSResponsesError: The handler was not called for a turn of a socket (a plain HTTP request, for example).
    """
    try:
        return _current.get()
    except LookupError:
        raise WSResponsesError("current_turn() is for handlers called over a socket; this is no such call") from None


def set_current_turn(turn: CurrentTurn) -> None:
    """Make ``turn`` the current one of this context."""
    _current.set(turn)


class Emit(Protocol):
    """Where an upstream's events go.

    Attributes:
        on_abort: Set by the upstream: called, once, when nobody listens any more; cancellation follows after a grace.
        in_background: Set by the upstream when its answer is complete and what still runs is its own affair.
    """

    on_abort: Callable[[], None] | None
    in_background: bool

    def event(self, payload: bytes, /) -> Awaitable[None]:
        """Take one event (encoded JSON, one object); await the result before the next one: that is the back-pressure.

        Events after the terminal one are dropped.
        """
        ...

    def delta(self, event: str, /) -> Awaitable[None]:
        """Take one event that lacks nothing, as JSON text: the hot path of an upstream whose events are known to be right.

        The event must be none of a lifecycle or of an item's beginning or end, belong to an item that was announced, have all
        its members, and bear the next ``sequence_number``. It is not looked at.
        """
        ...

    def alive(self) -> None:
        """Note a sign of life that is no event (a comment)."""

    async def fail(self, error: WireError) -> None:
        """End the turn by an error; does nothing if it has ended."""

    @property
    def ended(self) -> bool:
        """Whether the turn is over."""
        ...


class Upstream(Protocol):
    """What answers a turn.

    An upstream that wants to prepare for the next turn when a warm-up comes also has ``async def warm_up(turn)``: it may
    raise :class:`~ws_responses.errors.WireError`, and set ``turn.kept``.

    One that heeds ``turn.steered`` says so by a class attribute ``steers = True``: its responses can be steered.

    One that goes on with a rollout by itself says so by ``rolls = True``: in each further step (``turn.suspended`` is what it left) it
    begins no response anew, and goes on numbering events and items where it was. Others answer each step as a turn of its own.

    One whose responses with several agents wait for tool outputs in their middle (``response.inject``) says so by
    ``injects = True``: it ends each step where it waits, and is called again when all outputs have come.
    """

    async def run(self, turn: CurrentTurn, emit: Emit) -> None:
        """Answer one turn.

        Returning before a terminal event is a failure (``upstream_stream_truncated``); so is any exception:
        :class:`~ws_responses.errors.WireError` is told the client as it is, others as a plain server error.
        Cancellation means that nobody listens any more.
        """
