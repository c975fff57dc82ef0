"""Conversations as messages of chat completions, for backends that take no token ids.

Messages are encoded once, when their items come, and shared by all that continue the conversation.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from ws_responses.rendering.chat_messages import ChatMessage, MessageWriter, Stage
from ws_responses.rendering.formats import read_format
from ws_responses.rendering.rendered import Form, Rendered
from ws_responses.rendering.renderer import (
    AUTO,
    Answer,
    OutputPiece,
    RenderSettings,
    Tool,
    ToolChoice,
    ToolSet,
)
from ws_responses.rendering.tool_schemas import function_of

__all__ = ["ChatRenderer", "PlainParser", "chat_response_format", "chat_tool_choice", "chat_tools"]

encode = msgspec.json.encode
_decode_message = msgspec.json.Decoder(dict[str, Any]).decode


class PlainParser:
    """Parser of answers whose parts the backend tells apart by itself: text is text."""

    def feed(self, token_ids: Sequence[int], text: str) -> Sequence[OutputPiece]:  # noqa: ARG002 - see the protocol
        """Take what was sampled next."""
        return (OutputPiece(kind="text", text=text),) if text else ()

    def end(self) -> Sequence[OutputPiece]:
        """Take the end of the answer: nothing was held back."""
        return ()


class ChatRenderer:
    """Renders items as messages of chat completions; tools, choice and format go beside them (see the functions below).

    An assistant's message may hold several items; if it goes on in the next turn's items, it is written anew (a rewind of one
    message).

    Args:
        reasoning_field: Member of an assistant's message that takes the reasoning of earlier answers, as the service knows it:
            ``reasoning`` at Cerebras, ``reasoning_content`` at some others; None leaves it out.
        developer_role: Role of developer messages and instructions. Every server knows ``system``.

    Attributes:
        name: Names the format.
    """

    produces: Literal["chat"] = "chat"

    def __init__(self, *, reasoning_field: str | None = None, developer_role: str = "system") -> None:
        self._reasoning_field = reasoning_field
        self._developer_role = developer_role
        self.name = f"chat:{developer_role}:{reasoning_field or ''}"

    def begin(self, settings: RenderSettings, form: Form) -> Rendered:  # noqa: ARG002 - see the protocol
        """Return the instructions, as the first message."""
        if not settings.instructions:
            return Rendered.of_messages(())
        return Rendered.of_messages((encode({"role": self._developer_role, "content": settings.instructions}),))

    def extend(self, state: Rendered, items: Iterable[bytes]) -> Rendered:
        """Return the state after these items.

        Raises:
            CannotRender: An item has no form in chat completions.
        """
        stage: Stage = state.memo
        writer = MessageWriter(stage, reasoning_field=self._reasoning_field, developer_role=self._developer_role)
        writer.write(items)
        messages = writer.messages
        if writer.continued is not None:
            messages = [writer.continue_message(_last_message(state)), *messages]
            state = state.before or Rendered.of_messages(())
        if not messages:
            return state
        if writer.stage is None or len(messages) == 1:
            return _with(state, messages, writer.stage)
        # What may be written anew has a link of its own.
        return _with(_with(state, messages[:-1], None), messages[-1:], writer.stage)

    def answer(self, state: Rendered, choice: ToolChoice, settings: RenderSettings) -> Answer:  # noqa: ARG002 - see the protocol
        """Return the messages as they are: the backend begins the answer."""
        return Answer(prompt=state, parser=PlainParser())

    def answered(self, state: Rendered, sampled_ids: Sequence[int]) -> Rendered:  # noqa: ARG002 - see the protocol
        """Refuse: messages are made of items.

        Raises:
            TypeError: Always.
        """
        raise TypeError("chat messages are made of items: extend the state by those of the answer")


def _with(state: Rendered, messages: Sequence[ChatMessage], stage: Stage) -> Rendered:
    return state.with_messages([encode(message) for message in messages], stage)


def _last_message(state: Rendered) -> ChatMessage:
    """Return the last message of a state whose last message may go on: its last link is that message alone."""
    return _decode_message(state.encoded)


# -- what goes beside the messages ---------------------------------------------------------------------------------------


def chat_tools(tools: ToolSet, choice: ToolChoice = AUTO) -> bytes:
    """Return the ``tools`` of chat completions, encoded.

    Few services know a choice among several tools (``allowed_tools``): what may not be called is not offered.

    Args:
        tools: Of the request.
        choice: Which of them may be called.
    """
    names = choice.names
    return encode([_chat_tool(tool) for tool in tools.tools if names is None or tool.wire_name in names])


def _chat_tool(tool: Tool) -> dict[str, Any]:
    function = function_of(tool)
    if tool.kind == "function" and tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def chat_tool_choice(choice: ToolChoice) -> bytes | None:
    """Return the ``tool_choice`` of chat completions, encoded; None for its default."""
    if choice.mode == "required" and choice.names is not None and len(choice.names) == 1:
        return encode({"type": "function", "function": {"name": choice.names[0]}})
    return None if choice.mode == "auto" else encode(choice.mode)


def chat_response_format(text_format: bytes) -> bytes:
    """Return the ``response_format`` of chat completions, encoded.

    Args:
        text_format: ``text.format`` of the request, encoded.

    Raises:
        CannotRender: It is of a kind that chat completions does not have.
    """
    known = read_format(text_format)
    if known.type != "json_schema":
        return encode({"type": known.type})
    optional = {"description": known.description, "strict": known.strict}
    schema = {name: value for name, value in optional.items() if value is not None}
    return encode({"type": "json_schema", "json_schema": {"name": known.name, **schema, "schema": known.schema}})
