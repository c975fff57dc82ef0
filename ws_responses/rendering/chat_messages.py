"""Items as messages of chat completions: what stands in one message there may be several items here.

An assistant's message there holds reasoning, text and calls; items that follow each other in that order become one message.
"""

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from ws_responses.rendering.items import (
    AdditionalTools,
    CallOutput,
    CustomCall,
    File,
    FunctionCall,
    Image,
    InputPart,
    Item,
    Message,
    Part,
    Reasoning,
    Refusal,
    Text,
    read_items,
    text_of,
)
from ws_responses.rendering.json_text import arguments_with
from ws_responses.rendering.renderer import CannotRender

ChatMessage: TypeAlias = dict[str, Any]

Stage = Literal["reasoning", "content", "calls"] | None
"""What an assistant's message that may go on holds last; None if the last message is closed."""


class MessageWriter:
    """Turns items into messages.

    Args:
        stage: Of the last message before.
        reasoning_field: Member of an assistant's message that takes reasoning; None leaves it out.
        developer_role: Role of messages with the role ``developer``.
        text_only: Content is always a string; what is no text is refused.

    Attributes:
        messages: What was written.
        stage: Of the last message.
        continued: Members for the last message before, which goes on: more reasoning, content, calls. None if it does not.
    """

    __slots__ = ("_developer_role", "_open", "_reasoning_field", "_text_only", "continued", "messages", "stage")

    def __init__(
        self, stage: Stage, *, reasoning_field: str | None, developer_role: str, text_only: bool = False
    ) -> None:
        self.messages: list[ChatMessage] = []
        self.stage: Stage = stage
        self.continued: ChatMessage | None = None
        self._open: ChatMessage | None = None
        self._reasoning_field = reasoning_field
        self._developer_role = developer_role
        self._text_only = text_only

    def write(self, items: Iterable[bytes]) -> None:
        """Write items (encoded JSON).

        Raises:
            CannotRender: An item has no form; ``index`` tells which.
        """
        for index, item in read_items(items):
            self._write(item, index)

    def _write(self, item: Item, index: int) -> None:
        match item:
            case Message(role="assistant"):
                self._assistant(item, index)
            case Message():
                self._close(self._message(item, index))
            case FunctionCall():
                self._call(item.call_id, item.wire_name, item.arguments or "{}")
            case CustomCall():
                self._call(item.call_id, item.wire_name, arguments_with(item.input))
            case CallOutput():
                content = self._output(item.output, index)
                self._close({"role": "tool", "tool_call_id": item.call_id, "content": content})
            case Reasoning():
                self._reasoning(item)
            case AdditionalTools():
                pass

    def _close(self, message: ChatMessage) -> None:
        self.messages.append(message)
        self.stage = self._open = None

    def _message(self, message: Message, index: int) -> ChatMessage:
        if message.role == "user" and not self._text_only:
            return {"role": "user", "content": _parts(message.content, index, "content")}
        role = self._developer_role if message.role == "developer" else message.role
        return {"role": role, "content": text_of(message.content, index)}

    def _output(self, content: str | list[InputPart], index: int) -> str | list[ChatMessage]:
        """Return the content of a tool's message: the API takes text only there."""
        text = text_of(content, index, "output")
        if self._text_only or isinstance(content, str):
            return text
        return _joined([{"type": "text", "text": part.text} for part in content if isinstance(part, Text)])

    # -- the assistant's ---------------------------------------------------------------------------------------------

    def _assistant(self, message: Message, index: int) -> None:
        # A refusal is told as text: few servers know a member for it.
        self._goes_on(("reasoning",))["content"] = text_of(message.content, index)
        self.stage = "content"

    def _reasoning(self, item: Reasoning) -> None:
        field = self._reasoning_field
        text = item.text
        if field is None or not text:
            return
        message = self._goes_on(("reasoning",), content="")
        message[field] = f"{message[field]}\n{text}" if field in message else text
        self.stage = "reasoning"

    def _call(self, call_id: str, name: str, arguments: str) -> None:
        message = self._goes_on(("reasoning", "content", "calls"))
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        message.setdefault("tool_calls", []).append(call)
        self.stage = "calls"

    def _goes_on(self, stages: tuple[Stage, ...], content: str | None = None) -> ChatMessage:
        """Return the members of the assistant's message that takes what comes now: the last one, or a new one.

        Args:
            stages: In which the last one does.
            content: Of a new one, until there is text.
        """
        if self.stage not in stages:
            self._open = {"role": "assistant", "content": content}
            self.messages.append(self._open)
        elif self._open is None:
            self._open = self.continued = {}
        return self._open

    def continue_message(self, before: ChatMessage) -> ChatMessage:
        """Return the last message before, with what it goes on by."""
        message = dict(before)
        for name, value in (self.continued or {}).items():
            if name == "tool_calls":
                message[name] = [*message.get(name, ()), *value]
            elif name == self._reasoning_field and name in message:
                message[name] = f"{message[name]}\n{value}"
            else:
                message[name] = value
        return message


def _parts(content: str | list[Part] | None, index: int, where: str) -> str | list[ChatMessage]:
    if content is None or isinstance(content, str):
        return content or ""
    return _joined([_part(part, index, f"{where}[{at}]") for at, part in enumerate(content)])


def _joined(parts: list[ChatMessage]) -> str | list[ChatMessage]:
    """Return parts as content: a single text as a string, which every server takes."""
    if not parts:
        return ""
    if len(parts) == 1 and parts[0]["type"] == "text":
        text: str = parts[0]["text"]
        return text
    return parts


def _part(part: Part, index: int, where: str) -> ChatMessage:
    match part:
        case Image():
            return _image(part, index, where)
        case File():
            return _file(part, index, where)
        case Refusal():
            return {"type": "text", "text": part.refusal}
        case Text():
            return {"type": "text", "text": part.text}


def _image(image: Image, index: int, where: str) -> ChatMessage:
    if image.image_url is None:
        raise CannotRender("An image must come with its URL or its data.", index=index, param=f"{where}.image_url")
    url = {"url": image.image_url}
    return {"type": "image_url", "image_url": url if image.detail is None else {**url, "detail": image.detail}}


def _file(file: File, index: int, where: str) -> ChatMessage:
    if file.file_data is None and file.file_id is None:
        raise CannotRender("A file must come with its data or its id.", index=index, param=f"{where}.file_data")
    members = {"file_data": file.file_data, "file_id": file.file_id, "filename": file.filename}
    return {"type": "file", "file": {name: value for name, value in members.items() if value is not None}}
