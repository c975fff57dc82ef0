"""A turn, ready to be answered, and what is kept of it."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ws_responses.backends import ChatPrompt, GenerateParams, TokenPrompt
from ws_responses.engine.call_ids import CallIds
from ws_responses.engine.request import Request
from ws_responses.engine.response import ResponseObjects
from ws_responses.errors import InvalidRequest
from ws_responses.protocol.withheld import withheld
from ws_responses.rendering.cache import Kept, Rendering
from ws_responses.rendering.rendered import Rendered
from ws_responses.rendering.renderer import Answer, ToolChoice, ToolSet
from ws_responses.routing import Route
from ws_responses.state.node import Carried
from ws_responses.upstreams.base import CurrentTurn


class ContextLengthExceeded(InvalidRequest):
    """Prompt and answer do not fit into the context window."""

    code = "context_length_exceeded"

    def __init__(self, prompt: int, answer: int, window: int) -> None:
        super().__init__(
            f"Your input exceeds the context window of this model: it has {prompt} tokens, {answer} are asked for the answer, "
            f"and the window has {window}.",
            param="input",
        )


class EngineKept(Kept, frozen=True, kw_only=True):
    """What the engine keeps of a turn.

    Attributes:
        session: Name of the conversation, for services that keep a slot or a session for each.
        call_ids: Of the calls up to here; None if nobody has looked.
    """

    session: str = ""
    call_ids: CallIds | None = None

    def bytes_since(self, parent: Carried | None) -> int:
        """Return the bytes of memory that this keeps alive and the parent's does not."""
        return super().bytes_since(parent) + (0 if self.call_ids is None else self.call_ids.size)


class Draft(Struct, frozen=True, kw_only=True):
    """What of a turn does not depend on its route.

    Attributes:
        request: The request.
        items: New input items.
        tools: What is offered; None for nothing.
        tools_echo: ``tools`` of the request as response objects repeat them.
        choice: Which tools may or must be called.
        session: Name of the conversation.
        alone: The items are the whole conversation: what came before them was compacted.
    """

    request: Request
    items: Sequence[bytes]
    tools: ToolSet | None
    tools_echo: bytes
    choice: ToolChoice
    session: str
    alone: bool = False

    __repr__ = withheld


class Suspended(Struct, frozen=True, kw_only=True):
    """What is needed to go on with a rollout that waits for its client.

    Attributes:
        plan: Of the step before.
        objects: Makes the response objects.
        event: Number of the next event.
        item: Place of the next item.
    """

    plan: "Plan"
    objects: ResponseObjects
    event: int
    item: int


class Plan(Struct, frozen=True, kw_only=True):
    """A turn, ready to be answered.

    Attributes:
        draft: What does not depend on the route.
        route: Who answers.
        resolved: Items that were changed for the backend, by their place in the input.
        rendering: The conversation.
        answer: How the answer is sampled.
        prompt: What the backend is given.
        params: How it is to sample.
        truncated: The prompt is not the whole conversation.
    """

    draft: Draft
    route: Route
    resolved: Mapping[int, bytes]
    rendering: Rendering
    answer: Answer
    prompt: TokenPrompt | ChatPrompt
    params: GenerateParams
    truncated: bool

    __repr__ = withheld

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt; None if they are not counted here."""
        return self.answer.prompt.end if isinstance(self.prompt, TokenPrompt) else None

    def kept(self, state: Rendered | None, call_ids: CallIds | None = None) -> EngineKept:
        """Return what the next turn can go on from.

        Args:
            state: The conversation, this turn's answer included; None if it has no form.
            call_ids: Of its calls, if somebody has looked.
        """
        return EngineKept(
            key=None if state is None else self.rendering.key,
            state=state,
            route=self.route,
            resolved=self.resolved,
            session=self.draft.session,
            call_ids=call_ids,
        )


def kept_of(turn: CurrentTurn) -> Kept | None:
    """Return what is kept of the turn that this one continues; None if there is nothing."""
    kept = None if turn.parent is None or turn.base else turn.parent.kept
    return kept if isinstance(kept, Kept) else None


def tell_route(turn: CurrentTurn, route: Route) -> None:
    """Tell a turn which route serves it: for its record, and for the hooks."""
    kept = kept_of(turn)
    turn.take_route(route, None if kept is None else kept.route)
