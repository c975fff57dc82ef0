"""ChatML conversations as token ids: ``<|im_start|>role`` ... ``<|im_end|>``, tools in the way of Hermes and Qwen.

A conversation is only appended to, and sampled ids stay as they were sampled, thoughts included. What may go back is the last
message, if what comes next belongs into it: an assistant's message that goes on, or more outputs of tools.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final, Literal

from msgspec import Struct

from ws_responses.rendering import chatml_texts as words
from ws_responses.rendering.chatml_messages import ChatMLWriter, Part
from ws_responses.rendering.formats import read_format
from ws_responses.rendering.marked import MarkedEncoder, Piece, behind_last_control
from ws_responses.rendering.rendered import Form, Rendered
from ws_responses.rendering.renderer import Answer, RenderSettings, Tool, ToolChoice
from ws_responses.rendering.tagged_calls import CALL_CLOSE, CALL_OPEN
from ws_responses.rendering.tagged_text import Begun, TagParser, TextSource
from ws_responses.rendering.tokenizer import Tokenizer, decode_text, find_special
from ws_responses.rendering.tool_schemas import call_schema, callable_tools

IM_START: Final = "<|im_start|>"
IM_END: Final = "<|im_end|>"
END_OF_TEXT: Final = "<|endoftext|>"

Thinking = Literal["none", "model", "prompt"]
"""Whether answers begin with thoughts: no; the model opens ``<think>`` itself (Qwen 3); the prompt opens it (QwQ)."""


class OpenMessage(Struct, frozen=True, gc=False):
    """Notes of a state whose last message may go on.

    Attributes:
        part: What that message holds last.
        tail: Ids up to its last text: up to the last control token before its end.
    """

    part: Part
    tail: int


class Beginning(Struct, frozen=True):
    """How an answer begins.

    Attributes:
        prefill: Text that is written for the model.
        begun: What that has opened.
        schema: JSON Schema of what follows.
    """

    prefill: str = ""
    begun: Begun = "text"
    schema: bytes | None = None


class ChatMLRenderer:
    """Renders ChatML for SmolLM2, Qwen, Hermes and their like.

    Tools stand in the system message (Hermes format). A forced call is begun for the model, and the rest is held to the
    tool's schema. An answer in a structured format is held to its schema unless tools may be called: then it is only asked for.

    Args:
        tokenizer: The model's vocabulary; must have ``<|im_start|>`` and ``<|im_end|>``.
        default_system: Instructions of conversations that have none; None for no system message.
        tool_role: Role of messages with outputs of tools: ``user`` (Qwen), ``tool`` (Hermes).
        thinking: Whether answers begin with thoughts. Effort ``none``, a forced call and a schema suppress them.
        bos: Special token that conversations begin with, for models that need one.

    Attributes:
        name: Names format, options and vocabulary.

    Raises:
        UnknownToken: The vocabulary lacks a token.
    """

    produces: Literal["tokens"] = "tokens"

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        default_system: str | None = None,
        tool_role: str = "user",
        thinking: Thinking = "none",
        bos: str | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._encoder = MarkedEncoder(tokenizer, words.TAGS)
        self._start, self._end = tokenizer.special(IM_START), tokenizer.special(IM_END)
        self._bos: list[Piece] = [] if bos is None else [tokenizer.special(bos)]
        self._default_system = default_system
        self._tool_role = tool_role
        self._thinking: Thinking = thinking
        end_of_text = find_special(tokenizer, END_OF_TEXT)
        self._stop_ids = (self._end,) if end_of_text is None else (self._end, end_of_text)
        self._header: list[Piece] = [self._start, "assistant\n"]
        options = blake2b(repr((default_system, tool_role, thinking, bos)).encode(), digest_size=4).hexdigest()
        self.name = f"chatml:{tokenizer.name}:{options}"

    def begin(self, settings: RenderSettings, form: Form) -> Rendered:
        """Return the system message: instructions, tools, format.

        Raises:
            CannotRender: The format has no form here.
        """
        pieces = self._system(settings)
        if pieces:
            pieces = [self._start, "system\n", *pieces, self._end]
        return Rendered.of_tokens(self._encoder.encode([*self._bos, *pieces]), form)

    def extend(self, state: Rendered, items: Iterable[bytes]) -> Rendered:
        """Return the state after these items.

        Raises:
            CannotRender: An item has no form in ChatML.
        """
        opened: OpenMessage | None = state.memo
        writer = ChatMLWriter(
            self._encoder,
            (self._start, self._end),
            tool_role=self._tool_role,
            part=None if opened is None else opened.part,
            first=self._is_first(state),
        )
        pieces = writer.write(items)
        if not pieces:
            return state
        if writer.reopens and opened is not None:
            pieces.insert(0, self._tail(state, opened))
            state = state.cut(opened.tail)
        at = behind_last_control(pieces[:-1])
        ids = self._encoder.encode(pieces[:at])
        memo = None if writer.part is None else OpenMessage(writer.part, state.end + len(ids))
        return state.with_tokens(ids + self._encoder.encode(pieces[at:]), memo)

    def answer(self, state: Rendered, choice: ToolChoice, settings: RenderSettings) -> Answer:
        """Return how an answer is sampled after ``state``.

        Raises:
            CannotRender: The choice cannot be held to.
        """
        tools = callable_tools(choice, settings.tools)
        beginning = self._beginning(choice, settings, tools)
        prefill = self._encoder.encode(self._encoder.marked(beginning.prefill))
        source = TextSource(self._tokenizer, self._encoder.tags, self._stop_ids)
        return Answer(
            prompt=state.with_tokens(self._head(state) + prefill),
            parser=TagParser(settings.tools if tools else None, source, beginning.begun),
            prefill=tuple(prefill),
            stop_ids=self._stop_ids,
            schema=beginning.schema,
        )

    def answered(self, state: Rendered, sampled_ids: Sequence[int]) -> Rendered:
        """Return the state after an answer: its ids as they were sampled, an open call closed, and the end of the message."""
        ids = list(sampled_ids)
        while ids and ids[-1] in self._stop_ids:
            ids.pop()
        closing = words.CALL_END if self._leaves_call_open(ids) else ""
        ids += self._encoder.encode([*self._encoder.marked(closing), self._end])
        return state.with_tokens(self._head(state) + ids)

    # -- parts -------------------------------------------------------------------------------------------------------

    def _is_first(self, state: Rendered) -> bool:
        return state.end <= len(self._bos)

    def _head(self, state: Rendered) -> list[int]:
        """Return the ids between a state and an answer."""
        return self._encoder.encode(self._header if self._is_first(state) else ["\n", *self._header])

    def _system(self, settings: RenderSettings) -> list[Piece]:
        texts: list[list[Piece]] = []
        instructions = settings.instructions or self._default_system
        if instructions:
            texts.append([instructions])
        if settings.tools is not None and settings.tools.tools:
            marked = self._encoder.marked
            texts.append([*marked(words.TOOLS_BEGIN), words.tools_text(settings.tools.tools), *marked(words.TOOLS_END)])
        schema = None if settings.response_format is None else words.schema_text(settings.response_format)
        if schema is not None:
            texts.append([words.JSON_BEGIN, schema, words.JSON_END])
        return [piece for number, text in enumerate(texts) for piece in (["\n\n", *text] if number else text)]

    def _tail(self, state: Rendered, opened: OpenMessage) -> str:
        """Return the last text of an open message, which is encoded again together with what it goes on by."""
        begin = state.end - len(state.own_ids)
        return decode_text(self._tokenizer, state.own_ids[opened.tail - begin : -1])

    def _beginning(self, choice: ToolChoice, settings: RenderSettings, tools: Sequence[Tool]) -> Beginning:
        silence = "" if self._thinking == "none" else words.NO_THOUGHT
        if choice.mode == "required":
            return Beginning(silence + words.CALL_BEGIN, "call", call_schema(tools))
        schema = None if settings.response_format is None else read_format(settings.response_format).json_schema
        if schema is not None and not tools:
            return Beginning(silence, schema=schema)
        if settings.reasoning_effort == "none":
            return Beginning(silence)
        return Beginning(words.THINK_BEGIN, "reasoning") if self._thinking == "prompt" else Beginning()

    def _leaves_call_open(self, ids: Sequence[int]) -> bool:
        text = decode_text(self._tokenizer, ids)
        return text.rfind(CALL_OPEN) > text.rfind(CALL_CLOSE)
