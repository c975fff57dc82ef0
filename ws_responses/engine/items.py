"""What is sampled as output items and their events: one item is open at a time, and in it one part that grows.

The text of the deltas is the text of ``done`` is the text of the item, whatever the pieces were.
"""

import secrets
from collections.abc import Awaitable, Callable
from typing import Final, Literal

from msgspec import Struct

from ws_responses.engine.events import ARGUMENTS, INPUT, REASONING, REFUSAL, TEXT, EventWriter, Kind, encode, mended
from ws_responses.errors import UpstreamError
from ws_responses.protocol import events
from ws_responses.protocol.withheld import withheld
from ws_responses.rendering.renderer import ToolSet

ItemStatus = Literal["completed", "incomplete"]

MAX_ITEMS: Final = 512
"""Items of one response: four times the calls that the API makes at once; more is a service that repeats itself."""


MAX_CALL_ID_CHARS: Final = 256
"""Longer ones are no names; OpenAI's have 29."""


def _never(*_: object) -> bool:
    return False


def random_id(prefix: str) -> str:
    """Return an id that nobody can guess."""
    return f"{prefix}_{secrets.token_hex(16)}"


class OutputOver(Exception):
    """The answer ends here, before its next item: it is steered."""


class _Item(Struct):
    """The item that is open.

    Attributes:
        id: Its id, encoded.
        head: Its members that do not change, encoded; ``status`` and what grows come behind them.
        parts: Finished parts, encoded.
    """

    id: bytes
    head: bytes
    parts: list[bytes]

    __repr__ = withheld


class ItemWriter:
    """Makes the output items of one response.

    Args:
        events: Writes the events.
        tools: What was offered: tells whether a call is a function's or a custom tool's, and its namespace.
        new_id: Gives ids: takes the prefix.
        encrypted_reasoning: Reasoning items have ``encrypted_content`` (null).
        is_taken: Whether an id of a call, as the service gave it, is another call's of the conversation.
        first: Place of its first item.
        is_steered: Whether the answer is to end before its next item. It goes on once a call has begun: all calls of an answer
            are made at once, and wait for the client anyway.

    Attributes:
        finished: Finished items, encoded.
        calls: Calls begun.
    """

    __slots__ = (
        "_call",
        "_call_ids",
        "_encrypted",
        "_events",
        "_first",
        "_grow",
        "_is_steered",
        "_is_taken",
        "_item",
        "_kind",
        "_new_id",
        "_phase",
        "_tools",
        "calls",
        "finished",
    )

    def __init__(
        self,
        events: EventWriter,
        tools: ToolSet | None,
        *,
        new_id: Callable[[str], str] = random_id,
        encrypted_reasoning: bool = False,
        is_taken: Callable[[str], bool] = _never,
        first: int = 0,
        is_steered: Callable[[], bool] = _never,
    ) -> None:
        self._events = events
        self._grow = events.delta
        self._tools = tools
        self._new_id = new_id
        self._encrypted = encrypted_reasoning
        self._is_taken = is_taken
        self._first = first
        self._is_steered = is_steered
        self._kind: Kind | None = None
        self._phase: str | None = None
        self._call = -1
        self._call_ids: set[str] = set()
        self._item = _Item(b"", b"", [])
        self.finished: list[bytes] = []
        self.calls = 0

    # -- pieces ------------------------------------------------------------------------------------------------------

    def text(self, text: str, phase: str | None = None) -> Awaitable[None]:
        """Add to the answer's text; another phase is another message."""
        if self._kind is TEXT and phase == self._phase:
            return self._grow(text)
        return self._begin_text(TEXT, text, phase)

    def refusal(self, text: str) -> Awaitable[None]:
        """Add to the refusal."""
        return self._grow(text) if self._kind is REFUSAL else self._begin_text(REFUSAL, text, self._phase)

    def reasoning(self, text: str) -> Awaitable[None]:
        """Add to the reasoning."""
        return self._grow(text) if self._kind is REASONING else self._begin_reasoning(text)

    async def empty_message(self) -> None:
        """Make a message without text: an answer of nothing is still an answer."""
        await self._open_message(None)
        await self._open_part(TEXT)
        await self.close()

    async def begin_call(self, index: int, wire_name: str, call_id: str | None = None) -> None:
        """Begin a call.

        Args:
            index: Which one of this answer.
            wire_name: The tool's name as the model knows it; one that was not offered is told the client as it is.
            call_id: The service's id of the call, if it gives one.
        """
        await self._close_for_next()
        self._call = index
        self.calls += 1
        tool = self._tools.find(wire_name) if self._tools is not None else None
        name = tool.name if tool else mended(wire_name)
        call_id = self._call_id(call_id)
        kind, prefix, kind_name = (
            (INPUT, "ctc", b"custom_tool_call")
            if tool is not None and tool.kind == "custom"
            else (ARGUMENTS, "fc", b"function_call")
        )
        members = b',"call_id":%b,"name":%b' % (encode(call_id), encode(name))
        if tool is not None and tool.namespace is not None:
            members += b',"namespace":' + encode(tool.namespace)
        await self._open_item(kind_name, prefix, members, kind)
        self._begin_part(kind, None)

    def call(self, index: int, text: str) -> Awaitable[None]:
        """Add to the arguments (or the input) of the call that was begun last.

        Raises:
            UpstreamError: It is another one.
        """
        if index != self._call or self._kind not in (ARGUMENTS, INPUT):
            raise UpstreamError("The service went on with a tool call that was over.", code="upstream_invalid_output")
        return self._grow(text)

    # -- beginnings --------------------------------------------------------------------------------------------------

    async def _begin_text(self, kind: Kind, text: str, phase: str | None) -> None:
        if self._kind in (TEXT, REFUSAL) and phase == self._phase:
            await self._end_part()
        else:
            await self._open_message(phase)
        await self._open_part(kind)
        await self._grow(text)

    async def _open_message(self, phase: str | None) -> None:
        await self._close_for_next()
        self._phase = phase
        members = b',"role":"assistant"' + (b"" if phase is None else b',"phase":' + encode(phase))
        await self._open_item(b"message", "msg", members, None)

    async def _begin_reasoning(self, text: str) -> None:
        await self._close_for_next()
        members = b',"summary":[]' + (b',"encrypted_content":null' if self._encrypted else b"")
        await self._open_item(b"reasoning", "rs", members, None)
        await self._open_part(REASONING)
        await self._grow(text)

    async def _open_item(self, name: bytes, prefix: str, members: bytes, kind: Kind | None) -> None:
        if len(self.finished) >= MAX_ITEMS:
            raise UpstreamError(
                f"The service's answer has more than {MAX_ITEMS} items.", code="upstream_output_too_large"
            )
        item_id = encode(self._new_id(prefix))
        self._item = _Item(item_id, b'{"id":%b,"type":"%b"%b,"status":' % (item_id, name, members), [])
        grown = b'"content":[]' if kind is None else b'"%b":""' % kind.member.encode()
        await self._events.write(
            events.ITEM_ADDED, b'"output_index":%d,"item":%b"in_progress",%b}' % (self._index, self._item.head, grown)
        )

    async def _open_part(self, kind: Kind) -> None:
        content_index = len(self._item.parts)
        place = self._begin_part(kind, content_index)
        await self._events.write("response.content_part.added", b'%b,"part":%b' % (place, _part(kind, b'""')))

    def _begin_part(self, kind: Kind, content_index: int | None) -> bytes:
        self._kind = kind
        place = self._place(content_index)
        self._events.begin_deltas(kind, place.decode())
        return place

    # -- ends --------------------------------------------------------------------------------------------------------

    async def _close_for_next(self) -> None:
        """Finish the item that is open, if one is, so that another can begin.

        Raises:
            OutputOver: None is to begin.
        """
        await self.close()
        if self.finished and not self.calls and self._is_steered():
            raise OutputOver

    async def close(self, status: ItemStatus = "completed") -> None:
        """Finish the item that is open, if one is."""
        if self._kind is None:
            return
        if self._kind is ARGUMENTS and status == "completed" and not self._events.grown():
            await self._grow("{}")  # no arguments: clients read them as JSON
        whole = await self._end_part()
        kind, item = self._kind, self._item
        grown = b'"content":[%b]' % b",".join(item.parts) if kind.part else b'"%b":%b' % (kind.member.encode(), whole)
        encoded = b'%b"%b",%b}' % (item.head, status.encode(), grown)
        await self._events.write(events.ITEM_DONE, b'"output_index":%d,"item":%b' % (self._index, encoded))
        self.finished.append(encoded)
        self._kind = None
        self._phase = None
        self._call = -1

    async def _end_part(self) -> bytes:
        """Write the ends of the part that is open; return what it has grown to, encoded."""
        kind = self._kind
        assert kind is not None
        whole = encode(self._events.grown())
        place = self._place(len(self._item.parts) if kind.part else None)
        await self._events.write(
            f"{kind.prefix}.done", b'%b,"%b":%b%b' % (place, kind.member.encode(), whole, kind.rest.encode())
        )
        if kind.part:
            part = _part(kind, whole)
            await self._events.write("response.content_part.done", b'%b,"part":%b' % (place, part))
            self._item.parts.append(part)
        return whole

    # -- places and names --------------------------------------------------------------------------------------------

    @property
    def _index(self) -> int:
        return self._first + len(self.finished)

    def _place(self, content_index: int | None) -> bytes:
        place = b'"item_id":%b,"output_index":%d' % (self._item.id, self._index)
        return place if content_index is None else b'%b,"content_index":%d' % (place, content_index)

    def _call_id(self, given: str | None) -> str:
        """Return the service's id of a call if it can name one, and no other; else one of ours."""
        call_id = mended(given) if given else ""
        if not 0 < len(call_id) <= MAX_CALL_ID_CHARS or call_id in self._call_ids or self._is_taken(call_id):
            call_id = self._new_id("call")
        self._call_ids.add(call_id)
        return call_id


def _part(kind: Kind, whole: bytes) -> bytes:
    return b'{"type":"%b","%b":%b%b}' % (kind.part.encode(), kind.member.encode(), whole, kind.part_rest.encode())
