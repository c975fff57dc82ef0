"""The contract between the engine and an inference service: what goes in, what comes out, how it fails.

A backend takes a prompt, as token ids or as chat messages, and yields what is sampled. Everything that this module defines is
the same for all services; what one of them calls it is its adapter's affair.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Final, Literal, Protocol

from msgspec import Struct

from ws_responses.errors import WireError
from ws_responses.protocol.withheld import withheld
from ws_responses.rendering.rendered import Form, Rendered

PromptKind = Literal["tokens", "chat"]
"""How a conversation is handed over: as token ids, or as chat messages."""

Finish = Literal["stop", "length", "tool_calls", "content_filter"]
"""Why sampling ended, in the words of chat completions."""


class Usage(Struct, frozen=True, kw_only=True, gc=False):
    """What a generation used; None where the service does not tell (never 0 for unknown).

    Attributes:
        input_tokens: Of the prompt.
        cached_tokens: Of these, how many came from a cache of the service.
        output_tokens: Sampled, reasoning included.
        reasoning_tokens: Of these, how many were reasoning.
    """

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None


class ToolCallDelta(Struct, frozen=True, kw_only=True, gc=False):
    """A piece of one tool call.

    Attributes:
        index: Which call of this generation, from 0 on; the pieces of one call follow each other.
        id: The service's id of the call, with the first piece, if it gives one.
        name: The tool's name as the prompt gave it, with the first piece.
        arguments: The next piece of the arguments (JSON text for a function, free text for a custom tool).
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""

    __repr__ = withheld


class Delta(Struct, frozen=True, kw_only=True):
    """A piece of what is sampled.

    A backend that is given tokens and has no idea of their format yields ``text`` and ``token_ids`` only; the renderer's
    parser makes ``reasoning`` and ``tool_calls`` of them.

    Attributes:
        text: The next piece of the answer.
        reasoning: The next piece of the reasoning.
        refusal: The next piece of a refusal.
        tool_calls: Pieces of tool calls.
        token_ids: Ids sampled, in order; also of tokens that have no text (end of sequence).
        ids_lost: Ids are missing here: what was sampled is known as text only.
        usage: What is known of the usage so far; the last one counts.
        finish: Set in the last delta that carries output, or in one of its own.
        service_tier: The tier that the service says it used.
    """

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    token_ids: Sequence[int] = ()
    ids_lost: bool = False
    usage: Usage | None = None
    finish: Finish | None = None
    service_tier: str | None = None

    __repr__ = withheld

    @property
    def has_output(self) -> bool:
        """Whether it carries something sampled: after that nothing is retried."""
        return bool(self.text or self.reasoning or self.refusal or self.tool_calls or self.token_ids)


class TokenPrompt(Struct, frozen=True, kw_only=True):
    """A prompt of token ids.

    Attributes:
        rendered: The ids, shared with the conversation: ``rendered.ids()`` copies them, ``rendered.json_ids()`` and
            ``rendered.msgpack_ids()`` are their encoded form, put together from kept pieces.
        stop_ids: Ids at which sampling ends, beside the model's own end of sequence.
        schema: JSON Schema (encoded) that the sampled text must follow, for services that can constrain it.
    """

    rendered: Rendered
    stop_ids: tuple[int, ...] = ()
    schema: bytes | None = None

    __repr__ = withheld


class ChatPrompt(Struct, frozen=True, kw_only=True):
    """A prompt of chat messages.

    Attributes:
        rendered: The encoded messages, shared with the conversation: ``rendered.json_array()`` is the array.
        tools: Encoded JSON array of chat-completions tools, None for none.
        tool_choice: Encoded ``tool_choice`` of chat completions; None for the default.
        parallel_tool_calls: As asked; None for the default.
        response_format: Encoded ``response_format`` of chat completions; None for text.
    """

    rendered: Rendered
    tools: bytes | None = None
    tool_choice: bytes | None = None
    parallel_tool_calls: bool | None = None
    response_format: bytes | None = None

    __repr__ = withheld


class GenerateParams(Struct, frozen=True, kw_only=True):
    """How to sample. None leaves a choice to the service.

    Attributes:
        model: The service's own name of the model.
        max_tokens: Most tokens to sample, reasoning included.
        temperature: 0..2.
        top_p: 0..1.
        reasoning_effort: As the Responses API has it (none, minimal, low, medium, high, ...).
        service_tier: As the Responses API has it.
        prompt_cache_key: Hint for routing to a warm cache.
        user: Who the end user is (``safety_identifier``, else ``user``).
        session: Name of the conversation, stable over its turns: for services that keep a slot or a session per conversation.
    """

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning_effort: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    session: str | None = None

    __repr__ = withheld


class Accepts(Struct, frozen=True, kw_only=True):
    """What a backend takes and gives.

    Attributes:
        kinds: Prompt kinds that it takes.
        form: Encoded form of token ids that its requests use: kept with the conversation, so that a request costs no
            encoding of what is old; None for ids as such.
        returns_ids: It tells the ids that it sampled.
        images: It takes images (chat prompts).
        files: It takes files (chat prompts).
        constrains: It can hold the sampled text of a token prompt to a JSON Schema.
        tools: It takes tools (chat prompts).
    """

    kinds: frozenset[PromptKind]
    form: Form = None
    returns_ids: bool = False
    images: bool = False
    files: bool = False
    constrains: bool = False
    tools: bool = True


class Backend(Protocol):
    """An inference service.

    Implementations open what they need at the first use, serve many generations at once, and need not be entered.
    """

    @property
    def accepts(self) -> Accepts:
        """What it takes and gives; constant."""
        ...

    def generate(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> AsyncGenerator[Delta]:
        """Sample an answer, as an async generator (``async def`` with ``yield``).

        The last delta has ``finish``. Ends the service's own work within half a second of its ``aclose`` or of its task's
        cancellation. Retries nothing by itself after the first delta that carries output, and nothing that the engine's own
        retry should see.

        Raises:
            WireError: As :mod:`ws_responses.backend_errors` makes it. ``PromptNotAccepted`` if the service does not take
                this kind of prompt for this model, before any delta.
        """
        ...

    async def prefill(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> Usage | None:
        """Have the service read the prompt without answering; None if it cannot, which is no error.

        Raises:
            WireError: It failed.
        """
        ...

    async def aclose(self) -> None:
        """Give back connections and processes; may be called twice."""
        ...


class PromptNotAccepted(WireError):
    """The service does not take this kind of prompt for this model; another kind may do."""

    status = 400
    type = "invalid_request_error"
    code = "prompt_kind_not_accepted"


RETRYABLE: Final = frozenset({408, 409, 429, 500, 502, 503, 504})
"""Statuses of a service after which the same request may succeed."""

FINAL_CODES: Final = frozenset({"insufficient_quota", "upstream_authentication_error"})
"""Codes after which it will not, whatever the status: only the operator can help."""


def may_succeed_again(error: WireError) -> bool:
    """Whether the same request may succeed after this failure, if nothing was sampled before it."""
    return (
        error.status in RETRYABLE
        and error.code not in FINAL_CODES
        and error.headers.get("x-should-retry", "").lower() != "false"
    )
