"""Any server that speaks OpenAI's chat completions, as a backend: chat messages in, deltas out.

For asyncio only, because aiohttp is.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from ws_responses.adapters._chunks import Chunk, ChunkReader
from ws_responses.adapters._event_stream import HttpLimits
from ws_responses.adapters._openai import HttpBackend
from ws_responses.backends import (
    Accepts,
    ChatPrompt,
    Delta,
    GenerateParams,
    PromptNotAccepted,
    TokenPrompt,
    ToolCallDelta,
)

__all__ = ["ChatCompletionsBackend", "HttpLimits"]

OPTIONAL_MEMBERS: Final = frozenset(
    {
        "parallel_tool_calls",
        "prompt_cache_key",
        "reasoning_effort",
        "response_format",
        "service_tier",
        "stream_options",
        "temperature",
        "tool_choice",
        "top_p",
        "user",
    }
)
"""Members of a request that ``omit`` may leave out, for servers that refuse what they do not know."""


class ChatCompletionsBackend(HttpBackend):
    """Samples by ``POST {base_url}/chat/completions``.

    Reads reasoning where services put it (``reasoning``, ``reasoning_content``), and cached tokens from
    ``usage.prompt_tokens_details.cached_tokens`` or ``usage.prompt_cache_hit_tokens``. Serves any number of generations at once,
    one connection each, and needs not be entered.

    Args:
        base_url: With ``/v1``, for example ``https://api.openai.com/v1`` or ``http://localhost:8000/v1``.
        api_key: Sent as ``Authorization: Bearer``; None for none.
        headers: Sent with every request (a gateway's own key, for example); they win over ``api_key``.
        max_tokens_member: What the server calls the bound. OpenAI's reasoning models take ``max_completion_tokens`` only, older
            servers ``max_tokens`` only.
        omit: Members never sent, of ``OPTIONAL_MEMBERS``.
        extra_body: Further members of every request, for example ``{"chat_template_kwargs": {"enable_thinking": True}}``.
        images: The models take images.
        files: The models take files.
        prefill: Let a warm-up read the prompt, by sampling one token that is thrown away; a service that bills will bill it.
        limits: Bounds of time and size.

    Raises:
        ConfigurationError: The URL is none of HTTP, ``omit`` names another member, or ``extra_body`` one that is set here.
    """

    own_members = OPTIONAL_MEMBERS | {"max_completion_tokens", "max_tokens", "messages", "model", "stream", "tools"}

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        max_tokens_member: Literal["max_tokens", "max_completion_tokens"] = "max_tokens",
        omit: Collection[str] = (),
        extra_body: Mapping[str, Any] | None = None,
        images: bool = True,
        files: bool = False,
        prefill: bool = True,
        limits: HttpLimits | None = None,
    ) -> None:
        super().__init__(
            base_url,
            path="/chat/completions",
            accepts=Accepts(kinds=frozenset({"chat"}), images=images, files=files),
            api_key=api_key,
            headers=headers,
            extra_body=extra_body,
            omit=omit,
            optional=OPTIONAL_MEMBERS,
            limits=limits,
            prefill=prefill,
        )
        self._max_tokens_member = max_tokens_member

    def _reader(self) -> ChunkReader:
        return ChatReader()

    def _body(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams, *, stream: bool) -> Sequence[bytes]:
        if not isinstance(prompt, ChatPrompt):
            raise PromptNotAccepted("This backend takes chat messages, and no token ids.")
        options: dict[str, Any] = {
            "model": params.model,
            "stream": stream,
            "stream_options": {"include_usage": True} if stream else None,
            self._max_tokens_member: params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "reasoning_effort": params.reasoning_effort,
            "service_tier": params.service_tier,
            "prompt_cache_key": params.prompt_cache_key,
            "user": params.user,
            "response_format": _raw(prompt.response_format),
        }
        if prompt.tools is not None:  # OpenAI refuses the two others without tools
            options["tools"] = _raw(prompt.tools)
            options["tool_choice"] = _raw(prompt.tool_choice)
            options["parallel_tool_calls"] = prompt.parallel_tool_calls
        return b'{"messages":', prompt.rendered.json_array(), b",", self._members(options)


def _raw(encoded: bytes | None) -> msgspec.Raw | None:
    return None if encoded is None else msgspec.Raw(encoded)


# --- chunks -----------------------------------------------------------------------------------------------------------


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _Custom(Struct, gc=False):
    name: str | None = None
    input: str | None = None


class _ToolCall(Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    custom: _Custom | None = None


class _Message(Struct, gc=False):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(Struct, gc=False):
    index: int = 0
    delta: _Message | None = None
    finish_reason: str | None = None


_DECODER: Final = msgspec.json.Decoder(Chunk[_Choice])
_NO_MESSAGE: Final = _Message()


class ChatReader(ChunkReader):
    """Reads chunks of chat completions."""

    __slots__ = ("_calls", "_places")

    list_decoder = msgspec.json.Decoder(list[Chunk[_Choice]])

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[int | None, tuple[int, str | None]] = {}
        self._calls = 0

    def read(self, event: bytes) -> Delta | None:
        choice = self.choice_of(_DECODER, event)
        if choice is None:
            return None
        message = choice.delta or _NO_MESSAGE
        if choice.finish_reason is not None:
            self.finished(choice.finish_reason, event)
        if message.tool_calls:
            return self._with_calls(message, message.tool_calls)
        text, reasoning = message.content, message.reasoning or message.reasoning_content
        if text and not reasoning and not message.refusal:
            return Delta(text=text)
        if text or reasoning or message.refusal:
            return Delta(text=text or "", reasoning=reasoning or "", refusal=message.refusal or "")
        return None

    def together(self, choices: list[_Choice]) -> Delta | None:
        count = len(choices)
        messages = [choice.delta for choice in choices if choice.finish_reason is None and choice.delta is not None]
        texts = [message.content for message in messages if message.content]
        thoughts = [thought for message in messages if (thought := message.reasoning or message.reasoning_content)]
        if any(message.tool_calls or message.refusal for message in messages):
            return None
        if len(texts) == count and not thoughts:
            return Delta(text="".join(texts))
        if len(thoughts) == count and not texts:
            return Delta(reasoning="".join(thoughts))
        return None

    def end(self, *, done: bool = False) -> Delta:
        if self._calls and self.finish in {None, "stop"} and (done or self.finish):
            self.finish = "tool_calls"  # some servers call every end a stop
        return super().end(done=done)

    def _with_calls(self, message: _Message, calls: list[_ToolCall]) -> Delta:
        return Delta(
            text=message.content or "",
            reasoning=message.reasoning or message.reasoning_content or "",
            refusal=message.refusal or "",
            tool_calls=tuple(map(self._call, calls)),
        )

    def _call(self, call: _ToolCall) -> ToolCallDelta:
        function, custom = call.function, call.custom
        if custom is not None:
            name, arguments = custom.name, custom.input
        else:
            name, arguments = (None, None) if function is None else (function.name, function.arguments)
        return ToolCallDelta(index=self._place(call), id=call.id or None, name=name or None, arguments=arguments or "")

    def _place(self, call: _ToolCall) -> int:
        """Return which call it is: some servers give every call the index 0, or none at all, and tell them apart by id."""
        known = self._places.get(call.index)
        if known is None or (call.id and known[1] and call.id != known[1]):
            known = self._places[call.index] = (self._calls, call.id or None)
            self._calls += 1
        return known[0]
