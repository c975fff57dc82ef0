"""The contract of renderers: items of a conversation in, a prompt out, and back from what was sampled.

A renderer is pure: the same calls give the same result, whatever was rendered before. That is what makes a warm result (the
parent's, continued) equal to a cold one (all records, rendered anew).
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, Protocol

from msgspec import Struct

from ws_responses.protocol.withheld import withheld
from ws_responses.rendering.rendered import Form, Rendered

ToolChoiceMode = Literal["auto", "none", "required"]


class Tool(Struct, frozen=True, kw_only=True):
    """A tool that the client runs.

    Attributes:
        kind: ``function`` (arguments are JSON) or ``custom`` (arguments are free text).
        name: As the client knows it.
        namespace: Of a tool that came in a namespace, else None.
        description: For the model.
        parameters: JSON Schema of a function's arguments, decoded; None if it has none.
        strict: As the client asked.
        grammar: ``format`` of a custom tool, decoded; None for plain text.
    """

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None = None
    description: str | None = None
    parameters: Any = None
    strict: bool | None = None
    grammar: Any = None

    __repr__ = withheld

    @property
    def wire_name(self) -> str:
        """The one name by which a model knows it: with its namespace in front, if it has one."""
        return self.name if self.namespace is None else f"{self.namespace}{NAMESPACE_JOINT}{self.name}"


NAMESPACE_JOINT: Final = "__"
"""Between namespace and name: chat completions allows letters, digits, ``_`` and ``-`` only."""


class ToolSet(Struct, frozen=True, kw_only=True):
    """The tools of a request, parsed once per distinct bytes; compare by identity first.

    Attributes:
        tools: In the client's order, namespaces flattened.
        raw: The bytes that they were parsed from.
    """

    tools: tuple[Tool, ...]
    raw: bytes

    __repr__ = withheld

    def find(self, wire_name: str) -> Tool | None:
        """Return the tool that a model calls by this name."""
        return next((tool for tool in self.tools if tool.wire_name == wire_name), None)


class ToolChoice(Struct, frozen=True, kw_only=True):
    """Which tools may or must be called.

    Attributes:
        mode: As asked.
        names: Wire names of the tools allowed; None for all. One name with mode "required" forces that tool.
    """

    mode: ToolChoiceMode = "auto"
    names: tuple[str, ...] | None = None


AUTO: Final = ToolChoice()


class RenderSettings(Struct, frozen=True, kw_only=True):
    """What stands before a conversation and changes its prefix: a state goes on only under settings that are equal.

    Attributes:
        instructions: As the request gave them.
        tools: None for none.
        reasoning_effort: As the request gave it.
        response_format: Encoded ``text.format`` that is not plain text; None for text.
    """

    instructions: str | None = None
    tools: ToolSet | None = None
    reasoning_effort: str | None = None
    response_format: bytes | None = None

    __repr__ = withheld


class OutputPiece(Struct, frozen=True, kw_only=True):
    """What a parser reads out of sampled tokens.

    Attributes:
        kind: Where ``text`` belongs.
        text: The next piece of it; may be empty where a call begins or ends.
        call: For "call": which call of this answer, from 0 on.
        name: For the first piece of a call: the tool's wire name.
        phase: For "text": ``commentary`` or ``final_answer`` if the model's format tells them apart. Another phase is
            another message.
    """

    kind: Literal["text", "reasoning", "call"]
    text: str = ""
    call: int = 0
    name: str | None = None
    phase: str | None = None


class OutputParser(Protocol):
    """Reads one answer. Made for it, and used for nothing else."""

    def feed(self, token_ids: Sequence[int], text: str) -> Sequence[OutputPiece]:
        """Take what was sampled next.

        Args:
            token_ids: Ids; empty if the backend tells none.
            text: Their text, as the backend decoded it (special tokens may be missing from it).
        """
        ...

    def end(self) -> Sequence[OutputPiece]:
        """Take the end of the answer; return what was held back."""
        ...


class Answer(Struct, frozen=True, kw_only=True):
    """How an answer is to be sampled after a state.

    Attributes:
        prompt: What the backend is given: the state, and the beginning of the answer.
        prefill: Ids at the end of ``prompt`` that count as part of the answer (a forced call's beginning): they come first in
            the answer's sampled ids.
        stop_ids: Ids at which sampling ends.
        schema: JSON Schema that the sampled text must follow; None if it is free.
        parser: Reads it.
    """

    prompt: Rendered
    parser: OutputParser
    prefill: tuple[int, ...] = ()
    stop_ids: tuple[int, ...] = ()
    schema: bytes | None = None

    __repr__ = withheld


class CannotRender(ValueError):
    """An item, tool or setting has no form in this renderer's format.

    Args:
        message: Text for the client.
        index: Which of the items given; None if it is not an item.
        param: Path below the item (or of the setting).
    """

    def __init__(self, message: str, *, index: int | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.index = index
        self.param = param


class Renderer(Protocol):
    """Items to tokens, or to chat messages.

    Attributes:
        name: Names format and vocabulary: ids sampled under another name mean nothing here.
        produces: "tokens" or "chat".
    """

    @property
    def name(self) -> str: ...  # noqa: D102 - see the class

    @property
    def produces(self) -> Literal["tokens", "chat"]: ...  # noqa: D102 - see the class

    def begin(self, settings: RenderSettings, form: Form) -> Rendered:
        """Return what stands before the first item.

        Args:
            settings: See there.
            form: Encoded form to be kept beside ids; ignored by chat renderers.

        Raises:
            CannotRender: A setting has no form here.
        """
        ...

    def extend(self, state: Rendered, items: Iterable[bytes]) -> Rendered:
        """Return the state after these items (encoded JSON, of input and output alike).

        May drop what later turns do not see any more (a rewind: the result then shares only a part with ``state``).

        Raises:
            CannotRender: An item has no form here; ``index`` tells which.
        """
        ...

    def answer(self, state: Rendered, choice: ToolChoice, settings: RenderSettings) -> Answer:
        """Return how an answer is sampled after ``state``.

        Raises:
            CannotRender: The choice cannot be held to.
        """
        ...

    def answered(self, state: Rendered, sampled_ids: Sequence[int]) -> Rendered:
        """Return the state after an answer was sampled; token renderers only.

        Args:
            state: The one that ``answer`` was asked with.
            sampled_ids: ``prefill`` and what was sampled after it, as it was sampled. How the format ends an answer in a
                history may differ from how it was sampled; nothing before that end changes.
        """
        ...
