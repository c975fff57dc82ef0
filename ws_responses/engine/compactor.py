"""Compaction on request (``/responses/compact``): the answer is what the next conversation is to begin with.

That is the newest of the user's messages, word for word, and a compaction item: the first instructions and a summary of all.
"""

from collections.abc import Sequence
from typing import Final

import anyio

from ws_responses.engine.events import EventWriter, encode
from ws_responses.engine.generation import Caller
from ws_responses.engine.items import random_id
from ws_responses.engine.plan import Plan, tell_route
from ws_responses.engine.planning import Planner
from ws_responses.engine.response import ResponseObjects, usage_object, with_output
from ws_responses.engine.sealing import Seal, Window
from ws_responses.engine.summary import Summariser
from ws_responses.engine.truncating import starts_of
from ws_responses.errors import InvalidRequest
from ws_responses.protocol import events
from ws_responses.protocol.items import decode_head
from ws_responses.rendering.items import Image, Message, Text, read_item
from ws_responses.rendering.renderer import CannotRender
from ws_responses.upstreams.base import CurrentTurn, Emit

USER_BYTES: Final = 32 * 1024
"""User's messages that ``/responses/compact`` gives back word for word, the newest."""


class Compactor:
    """Answers a request to compact a conversation: its output is what the next one is to begin with.

    Args:
        planner: Plans.
        caller: Asks the backend.
        seal: Makes the item.
    """

    def __init__(self, planner: Planner, caller: Caller, seal: Seal) -> None:
        self._planner = planner
        self._caller = caller
        self._seal = seal

    async def run(self, turn: CurrentTurn, emit: Emit) -> None:
        """Compact the conversation of a turn, its new items included.

        Raises:
            WireError: The request cannot be served, or the backend failed.
        """
        with anyio.CancelScope() as scope:
            emit.on_abort = scope.cancel
            plan = await self._planner.plan(turn)
            given = [*turn.history(), *plan.draft.items]
            if not given:
                raise InvalidRequest("There is nothing to compact.", param="input")
            turn.rendering = plan.rendering
            tell_route(turn, plan.route)
            summariser = Summariser(self._planner.plan_summary(plan), self._caller, emit.alive)
            summary = await summariser.read(await summariser.open())
            self._planner.served(plan)
            items = self._seal.readable(given)
            window = Window(items[: starts_of(items)[0]], summary.text, [])
            output = [*_user_messages(given), self._seal.item(random_id("cmp"), window)]
            await self._tell(turn, emit, plan, output, usage_object(summary.usage, None, None))

    @staticmethod
    async def _tell(turn: CurrentTurn, emit: Emit, plan: Plan, output: Sequence[bytes], usage: bytes) -> None:
        request = plan.draft.request
        objects = ResponseObjects(
            turn,
            model=plan.route.model,
            echo=request.echo,
            tools=plan.draft.tools_echo,
            service_tier=request.service_tier,
        )
        writer = EventWriter(emit)
        await writer.write(events.CREATED, objects.in_progress())
        await writer.write(events.COMPLETED, with_output(objects.closed(None, usage, None), output))


def _user_messages(items: Sequence[bytes]) -> list[bytes]:
    """Return the newest user's messages as output items."""
    kept: list[bytes] = []
    room = USER_BYTES
    for index in range(len(items) - 1, -1, -1):
        item = items[index]
        head = decode_head(item)
        if head.role != "user" or head.type not in (None, "message"):
            continue
        room -= len(item)
        if room < 0:
            break
        message = _as_output(item, index)
        if message is not None:
            kept.append(message)
    kept.reverse()
    return kept


def _as_output(item: bytes, index: int) -> bytes | None:
    """Return a user's message with what output items have; None if it holds what has no place there."""
    try:
        message = read_item(item, index)
    except CannotRender:
        return None
    if not isinstance(message, Message):
        return None
    content = message.content
    parts: list[dict[str, str | None]] = []
    for part in [Text(content)] if isinstance(content, str) else content or ():
        if isinstance(part, Text):
            parts.append({"type": "input_text", "text": part.text})
        elif isinstance(part, Image) and part.image_url is not None:
            parts.append({"type": "input_image", "image_url": part.image_url, "detail": part.detail or "auto"})
        else:
            return None
    return encode({"id": random_id("msg"), "type": "message", "role": "user", "status": "completed", "content": parts})
