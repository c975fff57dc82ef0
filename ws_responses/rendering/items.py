"""Typed reading of the items that renderers know: what a member is, is decided here; what it becomes, by each renderer.

Source: API reference, "Create a model response", input items. Members that no renderer uses are skipped unread.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from ws_responses.errors import excerpt
from ws_responses.protocol.items import decode_head
from ws_responses.protocol.withheld import withheld
from ws_responses.rendering.renderer import NAMESPACE_JOINT, CannotRender

# -- parts ---------------------------------------------------------------------------------------------------------------


class Text(Struct, frozen=True, gc=False, tag_field="type", tag="input_text"):
    """Text, of whatever kind: the kinds differ by their tag only."""

    text: str

    __repr__ = withheld


class OutputText(Text, frozen=True, gc=False, tag="output_text"):
    """Text that the model wrote."""


class PlainText(Text, frozen=True, gc=False, tag="text"):
    """Text as Open Responses spells it."""


class SummaryText(Text, frozen=True, gc=False, tag="summary_text"):
    """A summary of reasoning."""


class ReasoningText(Text, frozen=True, gc=False, tag="reasoning_text"):
    """Reasoning itself."""


class Refusal(Struct, frozen=True, gc=False, tag_field="type", tag="refusal"):
    """The model's refusal."""

    refusal: str

    __repr__ = withheld


class Image(Struct, frozen=True, gc=False, tag_field="type", tag="input_image"):
    """An image.

    Attributes:
        image_url: ``https:`` or ``data:`` URL.
        file_id: Names an uploaded one instead.
        detail: ``auto``, ``low``, ``high`` or ``original``.
    """

    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class File(Struct, frozen=True, gc=False, tag_field="type", tag="input_file"):
    """A file; one of data, URL and id says which.

    Attributes:
        file_data: Base64, as a ``data:`` URL or bare.
        file_url: ``https:`` URL.
        file_id: Names an uploaded one.
        filename: For the model.
    """

    file_data: str | None = None
    file_url: str | None = None
    file_id: str | None = None
    filename: str | None = None


InputPart: TypeAlias = Text | PlainText | Image | File
Part: TypeAlias = InputPart | OutputText | Refusal


# -- items ---------------------------------------------------------------------------------------------------------------


class Message(Struct, frozen=True, gc=False, tag_field="type", tag="message"):
    """A message of any role.

    Attributes:
        role: Who speaks.
        content: Text, or parts; None counts as empty.
        phase: ``commentary`` or ``final_answer``, of the assistant's.
    """

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part] | None = None
    phase: str | None = None

    __repr__ = withheld


class ToolCall(Struct, frozen=True, gc=False, kw_only=True, tag_field="type"):
    """What calls of all kinds have.

    Attributes:
        call_id: Names the call.
        name: The tool, as the client knows it.
        namespace: Of the tool, if it has one.
    """

    call_id: str
    name: str
    namespace: str | None = None

    __repr__ = withheld

    @property
    def wire_name(self) -> str:
        """The tool's name for a model: see :class:`~ws_responses.rendering.renderer.Tool`."""
        return self.name if self.namespace is None else f"{self.namespace}{NAMESPACE_JOINT}{self.name}"


class FunctionCall(ToolCall, frozen=True, gc=False, kw_only=True, tag="function_call"):
    """A call of a function tool; ``arguments`` is JSON text, as the model wrote it."""

    arguments: str


class CustomCall(ToolCall, frozen=True, gc=False, kw_only=True, tag="custom_tool_call"):
    """A call of a custom tool; ``input`` is free text."""

    input: str


class CallOutput(Struct, frozen=True, gc=False, tag_field="type", tag="function_call_output"):
    """What a call of a function tool gave.

    Attributes:
        call_id: Of the call.
        output: Text, or parts.
    """

    call_id: str
    output: str | list[InputPart]

    __repr__ = withheld


class CustomCallOutput(CallOutput, frozen=True, gc=False, tag="custom_tool_call_output"):
    """What a call of a custom tool gave."""


class Reasoning(Struct, frozen=True, gc=False, tag_field="type", tag="reasoning"):
    """Reasoning of the model.

    Attributes:
        summary: Summaries.
        content: The reasoning itself; None where it is not told.
        encrypted_content: The same for who has the key; no renderer has.
    """

    summary: list[SummaryText] = []
    content: list[ReasoningText | Text | OutputText | PlainText] | None = None
    encrypted_content: str | None = None

    __repr__ = withheld

    @property
    def text(self) -> str:
        """What is known of it in plain words: the reasoning, else its summary; empty if neither is told."""
        return "\n".join(part.text for part in self.content or self.summary)


class AdditionalTools(Struct, frozen=True, gc=False, tag_field="type", tag="additional_tools"):
    """Tools that came as an item: they are part of the settings, and the item itself has no form."""

    __repr__ = withheld


Item: TypeAlias = Message | FunctionCall | CustomCall | CallOutput | CustomCallOutput | Reasoning | AdditionalTools
"""The kinds that a renderer can give a form, or skip."""

_item: Final = msgspec.json.Decoder(Item)


class _EasyMessage(Struct):
    """A message that bears no type, or null."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part] | None = None
    phase: str | None = None


_easy_message: Final = msgspec.json.Decoder(_EasyMessage)

RENDERED_TYPES: Final = frozenset(
    {
        "additional_tools",
        "custom_tool_call",
        "custom_tool_call_output",
        "function_call",
        "function_call_output",
        "message",
        "reasoning",
    }
)
"""``type`` of the items that :func:`read_item` reads."""


def read_item(item: bytes, index: int) -> Item:
    """Return an item (encoded JSON), typed.

    Args:
        item: The item; a message may lack its ``type``.
        index: Which of the items given, for the error.

    Raises:
        CannotRender: It is of another kind, or not as the API reference has it.
    """
    try:
        return _item.decode(item)
    except (msgspec.MsgspecError, RecursionError) as error:
        return _untagged(item, index, error)


def read_items(items: Iterable[bytes]) -> Iterator[tuple[int, Item]]:
    """Yield items (encoded JSON), typed, each with its index.

    Raises:
        CannotRender: See :func:`read_item`.
    """
    for index, item in enumerate(items):
        yield index, read_item(item, index)


def _untagged(item: bytes, index: int, error: Exception) -> Item:
    """Return a message without a type, or say what is wrong with the item."""
    try:
        kind = decode_head(item).type
        if kind is None:
            easy = _easy_message.decode(item)
            return Message(role=easy.role, content=easy.content, phase=easy.phase)
    except (msgspec.MsgspecError, RecursionError) as wrong:
        raise _malformed(wrong, index) from None
    if kind not in RENDERED_TYPES:
        raise CannotRender(f"Items of type '{excerpt(kind)}' cannot be given to this model.", index=index, param="type")
    raise _malformed(error, index) from None


_PLACE: Final = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_MISSING: Final = re.compile(r"^Object missing required field `(\w+)`")


def _malformed(error: Exception, index: int) -> CannotRender:
    """Return what msgspec found, as an error of ours: its texts name types and members, never content."""
    match = _PLACE.match(str(error))
    what, path = (match[1], match[2] or "") if match else ("", "")
    missing = _MISSING.match(what)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return CannotRender(f"The field '{path}' of the item is missing.", index=index, param=path)
    if what.startswith("Invalid "):
        return CannotRender(f"The field '{path}' of the item has no value known here.", index=index, param=path)
    return CannotRender(f"The item cannot be read: {what}.", index=index, param=path or None)


# -- content -------------------------------------------------------------------------------------------------------------

_Part = TypeVar("_Part", bound=Any)


def text_of(content: str | Iterable[_Part] | None, index: int, where: str = "content") -> str:
    """Return content as text alone, its parts joined.

    Args:
        content: Text or parts.
        index: Of the item, for the error.
        where: The member that holds it.

    Raises:
        CannotRender: A part is no text; ``param`` is its path.
    """
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for at, part in enumerate(content):
        if isinstance(part, Refusal):
            texts.append(part.refusal)
        elif isinstance(part, Text):
            texts.append(part.text)
        else:
            kind = "Images" if isinstance(part, Image) else "Files"
            raise CannotRender(f"{kind} cannot be given to this model.", index=index, param=f"{where}[{at}]")
    return "".join(texts)
