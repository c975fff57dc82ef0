"""Items as ChatML messages: what stands in one message there may be several items here."""

from collections.abc import Iterable
from typing import Literal

from ws_responses.rendering import chatml_texts as words
from ws_responses.rendering.items import (
    AdditionalTools,
    CallOutput,
    CustomCall,
    FunctionCall,
    Item,
    Message,
    Reasoning,
    ToolCall,
    read_items,
    text_of,
)
from ws_responses.rendering.marked import MarkedEncoder, Piece

Part = Literal["thoughts", "text", "calls", "outputs"]
"""What a message that may go on holds last; "thoughts" if there is nothing yet."""

_ASSISTANT: tuple[Part, ...] = ("thoughts", "text", "calls")


class ChatMLWriter:
    """Turns items into the pieces of messages.

    An assistant's message takes thoughts, then text, then calls; a message of a tool's role takes all outputs that follow
    each other.

    Args:
        encoder: Knows which tags are tokens.
        borders: Ids at the beginning and the end of a message.
        tool_role: Role of messages with outputs of tools.
        part: What the last message before holds last, if it may go on.
        first: There is no message before.

    Attributes:
        part: What the last message holds last, if it may go on.
        reopens: The last message before goes on with the first pieces.
    """

    __slots__ = ("_encoder", "_end", "_first", "_is_open", "_pieces", "_start", "_tool_role", "part", "reopens")

    def __init__(
        self, encoder: MarkedEncoder, borders: tuple[int, int], *, tool_role: str, part: Part | None, first: bool
    ) -> None:
        self._encoder = encoder
        self._start, self._end = borders
        self._tool_role = tool_role
        self._pieces: list[Piece] = []
        self._first = first
        self._is_open = False
        self.part: Part | None = part
        self.reopens = False

    def write(self, items: Iterable[bytes]) -> list[Piece]:
        """Return the pieces of items (encoded JSON), the last message closed.

        Raises:
            CannotRender: An item has no form; ``index`` tells which.
        """
        for index, item in read_items(items):
            self._write(item, index)
        self._close()
        return self._pieces

    def _write(self, item: Item, index: int) -> None:
        match item:
            case Message(role="assistant"):
                self._said(text_of(item.content, index))
            case Message():
                role = "system" if item.role == "developer" else item.role
                self._begin(f"{role}\n", None)
                self._pieces.append(text_of(item.content, index))
            case FunctionCall() | CustomCall():
                self._call(item)
            case CallOutput():
                self._goes_on(("outputs",), self._tool_role, "outputs")
                self._tagged(words.RESPONSE_BEGIN, text_of(item.output, index, "output"), words.RESPONSE_END)
            case Reasoning():
                self._thought(item.text)
            case AdditionalTools():
                pass

    # -- the assistant's ---------------------------------------------------------------------------------------------

    def _thought(self, text: str) -> None:
        if text:
            self._goes_on(("thoughts",), "assistant\n", "thoughts")
            self._tagged(words.THINK_BEGIN, text, words.THINK_END)

    def _said(self, text: str) -> None:
        self._goes_on(("thoughts",), "assistant\n", "thoughts")
        if text:
            self._pieces.append(text)
            self.part = "text"

    def _call(self, call: ToolCall) -> None:
        self._goes_on(_ASSISTANT, "assistant\n", "thoughts")
        if self.part != "thoughts":
            self._pieces.append("\n")
        self._tagged(words.CALL_BEGIN, words.call_text(call), words.CALL_END)
        self.part = "calls"

    # -- messages ----------------------------------------------------------------------------------------------------

    def _tagged(self, begin: str, content: str, end: str) -> None:
        self._pieces += (*self._encoder.marked(begin), content, *self._encoder.marked(end))

    def _goes_on(self, parts: tuple[Part, ...], head: str, part: Part) -> None:
        """Let the last message take what comes, if it may; else begin one."""
        if self.part not in parts:
            self._begin(head, part)
        elif not self._is_open:
            self.reopens = self._is_open = True

    def _begin(self, head: str, part: Part | None) -> None:
        self._close()
        if not self._first:
            self._pieces.append("\n")
        self._pieces += (self._start, head)
        self._first = False
        self._is_open = True
        self.part = part

    def _close(self) -> None:
        if self._is_open:
            self._pieces.append(self._end)
            self._is_open = False
