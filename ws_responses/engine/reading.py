"""What a backend yields, read into output items."""

from array import array
from collections.abc import Awaitable, Sequence
from typing import Final

from ws_responses.backends import Delta, Finish, ToolCallDelta, Usage
from ws_responses.engine.items import ItemWriter
from ws_responses.engine.response import IncompleteReason
from ws_responses.errors import UpstreamError
from ws_responses.protocol.steering import STEERED
from ws_responses.rendering.json_text import InputReader
from ws_responses.rendering.renderer import OutputParser, OutputPiece, ToolSet

INCOMPLETE: Final[dict[Finish, IncompleteReason]] = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Ends of sampling after which a response is incomplete; every other one completes it."""

INVALID: Final = "upstream_invalid_output"
"""Code of the error for output that makes no sense."""


class AnswerReader:
    """Reads one answer.

    Args:
        items: Makes its items.
        parser: Reads the text and the ids of a token prompt's answer; None where the backend reads them itself (chat).
        tools: What was offered.
        single_call: The answer ends before a second call.

    Attributes:
        usage: As the service told last.
        service_tier: Likewise.
        finish: Why sampling ended; None while it goes on.
        stopped: The answer is over, whatever else is sampled.
        steered: It is over because it is steered.
        complete: Nothing more is to be known: sampling has ended and its usage is told, or the answer is over.
        ids: What was sampled, as ids; None if some are missing.
    """

    __slots__ = (
        "_call",
        "_input",
        "_items",
        "_parser",
        "_single_call",
        "_tools",
        "complete",
        "finish",
        "ids",
        "service_tier",
        "steered",
        "stopped",
        "usage",
    )

    def __init__(
        self, items: ItemWriter, parser: OutputParser | None, tools: ToolSet | None, *, single_call: bool
    ) -> None:
        self._items = items
        self._parser = parser
        self._tools = tools
        self._single_call = single_call
        self._call = -1
        self._input: InputReader | None = None
        self.usage: Usage | None = None
        self.service_tier: str | None = None
        self.finish: Finish | None = None
        self.stopped = False
        self.steered = False
        self.complete = False
        self.ids: array[int] | None = array("I")

    def take(self, delta: Delta) -> Awaitable[None] | None:
        """Take what was sampled next; await the result, if there is one, before the next. The hot path.

        Raises:
            UpstreamError: It makes no sense.
        """
        text = delta.text
        parser = self._parser
        if self._input is not None or delta.tool_calls or delta.reasoning or delta.refusal:
            return self._take(delta)
        if delta.finish is not None or delta.usage is not None or delta.service_tier is not None:
            self._note(delta)
        if parser is None:
            return self._items.text(text) if text else None
        if delta.token_ids or delta.ids_lost:
            self._keep_ids(delta)
        pieces = parser.feed(delta.token_ids, text)
        if not pieces:
            return None
        if len(pieces) == 1 and pieces[0].kind == "text" and pieces[0].text:
            return self._items.text(pieces[0].text, pieces[0].phase)
        return self._take_pieces(pieces)

    async def take_all(self, deltas: Sequence[Delta]) -> bool:
        """Take several; return whether the answer is complete."""
        for delta in deltas:
            taken = self.take(delta)
            if taken is not None:
                await taken
        return self.complete

    async def end(self) -> IncompleteReason | None:
        """Take the end of the answer: finish its last item; return why it is incomplete, None if it is completed."""
        if self._parser is not None and not self.stopped:
            await self._take_pieces(self._parser.end())
        await self._end_input()
        if self.steered:
            return STEERED
        reason = None if self.stopped or self.finish is None else INCOMPLETE.get(self.finish)
        await self._items.close("completed" if reason is None else "incomplete")
        if reason is None and not self._items.finished:
            await self._items.empty_message()
        return reason

    def stop_steered(self) -> None:
        """Note that the answer has ended between two items, because it is steered."""
        self.steered = self.stopped = self.complete = True

    # -- parts -------------------------------------------------------------------------------------------------------

    async def _take(self, delta: Delta) -> None:
        self._note(delta)
        self._keep_ids(delta)
        if delta.reasoning:
            await self._end_input()
            await self._items.reasoning(delta.reasoning)
        if self._parser is not None:
            await self._take_pieces(self._parser.feed(delta.token_ids, delta.text))
        elif delta.text:
            await self._end_input()
            await self._items.text(delta.text)
        if delta.refusal:
            await self._end_input()
            await self._items.refusal(delta.refusal)
        for call in delta.tool_calls:
            if self.stopped:
                return
            await self._take_call(call)

    async def _take_pieces(self, pieces: Sequence[OutputPiece]) -> None:
        for piece in pieces:
            if self.stopped:
                return
            if piece.kind == "call":
                await self._take_call_piece(piece)
            elif piece.text:
                await (
                    self._items.text(piece.text, piece.phase)
                    if piece.kind == "text"
                    else self._items.reasoning(piece.text)
                )

    async def _take_call_piece(self, piece: OutputPiece) -> None:
        if piece.call != self._call and not await self._begin_call(piece.call, piece.name, None):
            return
        if piece.text:
            await self._items.call(piece.call, piece.text)

    async def _take_call(self, call: ToolCallDelta) -> None:
        if call.index != self._call:
            await self._end_input()
            if not await self._begin_call(call.index, call.name, call.id):
                return
            tool = None if self._tools is None else self._tools.find(call.name or "")
            if tool is not None and tool.kind == "custom":
                self._input = InputReader()
        text = call.arguments if self._input is None else self._input.feed(call.arguments)
        if text:
            await self._items.call(call.index, text)

    async def _begin_call(self, index: int, name: str | None, call_id: str | None) -> bool:
        """Begin a call; return False if the answer ends before it."""
        if index < self._call or not name:
            raise UpstreamError("The service began a tool call without a name.", code=INVALID)
        if self._single_call and self._items.calls:
            self.stopped = self.complete = True
            return False
        self._call = index
        await self._items.begin_call(index, name, call_id)
        return True

    async def _end_input(self) -> None:
        """Take what is left of a custom tool's input."""
        if self._input is None:
            return
        rest = self._input.end()
        self._input = None
        if rest:
            await self._items.call(self._call, rest)

    def _note(self, delta: Delta) -> None:
        self.usage = delta.usage or self.usage
        self.service_tier = delta.service_tier or self.service_tier
        self.finish = delta.finish or self.finish
        self.complete = self.finish is not None and self.usage is not None

    def _keep_ids(self, delta: Delta) -> None:
        if delta.ids_lost:
            self.ids = None
        if self.ids is not None and delta.token_ids:
            try:
                self.ids.extend(delta.token_ids)
            except (OverflowError, TypeError):
                raise UpstreamError("The service sent token ids that are none.", code=INVALID) from None
