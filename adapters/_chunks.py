"""What the chunks of chat completions and completions have in common, without any I/O."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

import msgspec
from msgspec import Struct

from ws_responses.backend_errors import nonsense, stream_error
from ws_responses.backends import Delta, Finish, Usage
from ws_responses.errors import StreamTruncated, UpstreamError, WireError
from ws_responses.protocol.text import mended
from ws_responses.upstreams.answers import decode_answer

DONE: Final = b"[DONE]"

_FINISHES: Final[Mapping[str, Finish]] = {
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
"""Words of services for the end of sampling; every other one is a stop of some kind (``stop``, ``eos``, ``stop_sequence``)."""

_BROKEN: Final = frozenset({"error", "abort"})
"""The service gave up: vLLM and Fireworks, SGLang."""

_FLAT_ERROR: Final = ("error", "message", "detail")

# --- usage ------------------------------------------------------------------------------------------------------------


class _PromptDetails(Struct, gc=False):
    cached_tokens: int | None = None


class _OutputDetails(Struct, gc=False):
    reasoning_tokens: int | None = None


class UsageObject(Struct, gc=False):
    """``usage`` of a chunk or an answer.

    Attributes:
        reasoning_tokens: Where SGLang has it.
        prompt_cache_hit_tokens: Where DeepSeek has what came from a cache.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    reasoning_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None

    def known(self) -> Usage:
        """Return it in the words of the contract."""
        prompt, output = self.prompt_tokens_details, self.completion_tokens_details
        cached = None if prompt is None else prompt.cached_tokens
        reasoning = None if output is None else output.reasoning_tokens
        return Usage(
            input_tokens=self.prompt_tokens,
            cached_tokens=self.prompt_cache_hit_tokens if cached is None else cached,
            output_tokens=self.completion_tokens,
            reasoning_tokens=self.reasoning_tokens if reasoning is None else reasoning,
        )


class _Answer(Struct, gc=False):
    usage: UsageObject | None = None


def used(answer: bytes) -> Usage:
    """Return the usage of an answer that is no stream.

    Raises:
        WireError: It is an error, or no completion.
    """
    try:
        usage = msgspec.json.decode(answer, type=_Answer).usage
    except msgspec.DecodeError as error:
        raise reported_error(answer) or nonsense("It is no completion.") from error
    return Usage() if usage is None else usage.known()


# --- chunks -----------------------------------------------------------------------------------------------------------

ChoiceT = TypeVar("ChoiceT")
ChunkT = TypeVar("ChunkT")


class Chunk(Struct, Generic[ChoiceT], gc=False):
    """A chunk, whatever its choices are; only the first one is read, since no more are asked for."""

    choices: list[ChoiceT] | None = None
    usage: UsageObject | None = None
    service_tier: str | None = None


class CompletionChoice(Struct, gc=False):
    """A choice of completions, by the names of vLLM."""

    text: str | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class ChunkReader(ABC):
    """Reads the chunks of one generation.

    The end of sampling is told with the usage, which comes in a chunk behind it.

    Attributes:
        finish: Why sampling ended, once the service has said so.
        usage: The newest.
        service_tier: The newest.
    """

    __slots__ = ("finish", "service_tier", "usage")

    list_decoder: ClassVar["msgspec.json.Decoder[list[Chunk[Any]]]"] = msgspec.json.Decoder(list[Chunk[Any]])
    """Decodes chunks that came together."""

    def __init__(self) -> None:
        self.finish: Finish | None = None
        self.usage: UsageObject | None = None
        self.service_tier: str | None = None

    @abstractmethod
    def read(self, event: bytes) -> Delta | None:
        """Return what a chunk adds; None if that is nothing.

        Raises:
            WireError: It is an error, or no chunk.
        """

    def read_list(self, events: bytes, count: int) -> Delta | None:
        """Return what chunks that came together add, as one delta, if all of them are pieces of one kind.

        Args:
            events: The chunks, as a JSON list.
            count: How many they are.

        Returns:
            None if one of them is more, or none: they are to be read one by one. Nothing has happened then.
        """
        try:
            chunks = self.list_decoder.decode(events)
        except msgspec.DecodeError:
            return None
        choices = [chunk.choices[0] for chunk in chunks if chunk.choices and chunk.usage is None]
        if len(choices) != count or len(chunks) != count:
            return None
        delta = self.together(choices)
        if delta is not None:
            tiers = [chunk.service_tier for chunk in chunks if chunk.service_tier is not None]
            self.service_tier = tiers[-1] if tiers else self.service_tier
        return delta

    def together(self, choices: "list[Any]") -> Delta | None:
        """Return what choices add, as one delta; None if they are not all pieces of one kind. Takes note of nothing."""
        del choices
        return None

    def end(self, *, done: bool = False) -> Delta:
        """Return the last delta, after the end of the body.

        Args:
            done: The service has said that it is the end (``[DONE]``).

        Raises:
            StreamTruncated: It has neither, nor said that sampling ended.
        """
        if self.finish is None:
            if not done:
                raise StreamTruncated
            self.finish = "stop"
        return Delta(
            finish=self.finish,
            usage=None if self.usage is None else self.usage.known(),
            service_tier=self.service_tier,
        )

    def choice_of(self, decoder: "msgspec.json.Decoder[Chunk[ChoiceT]]", event: bytes) -> ChoiceT | None:
        """Take note of what a chunk tells beside its choice, and return that; None if it has none.

        Raises:
            WireError: It is an error, or no chunk.
        """
        try:
            chunk = decoder.decode(event)
        except msgspec.DecodeError:
            chunk = decoded(decoder, event)
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.service_tier is not None:
            self.service_tier = chunk.service_tier
        if chunk.choices:
            return chunk.choices[0]
        if chunk.usage is None and (error := reported_error(event)) is not None:
            raise error
        return None

    def finished(self, reason: str, event: bytes) -> None:
        """Take note of the service's word for the end.

        Raises:
            WireError: It gave up.
        """
        if reason in _BROKEN:
            raise reported_error(event) or UpstreamError(
                "The backend gave up while it sampled.", status=500, code="server_error"
            )
        self.finish = _FINISHES.get(reason, "stop")


def decoded(decoder: "msgspec.json.Decoder[ChunkT]", event: bytes) -> ChunkT:
    """Decode what the plain way could not: text that is no Unicode, or no text at all.

    Raises:
        WireError: It is an error in a shape of its own, or no chunk.
    """
    if not event:
        return decoder.decode(b"{}")  # nothing is said
    try:
        return decoder.decode(mended(event))
    except msgspec.DecodeError as error:
        if (reported := reported_error(event)) is not None:
            raise reported from error
        raise nonsense("An event of it is no chunk.") from error


def reported_error(event: bytes) -> WireError | None:
    """Return the error that an event without choices reports; None if it reports none."""
    content = decode_answer(event)
    if not isinstance(content, dict):
        return None
    members = cast("dict[str, Any]", content)
    return stream_error(members) if any(members.get(name) for name in _FLAT_ERROR) else None
