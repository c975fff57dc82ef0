"""Servers that take token ids at OpenAI's completions endpoint, as a backend: ids in, text and ids out.

For asyncio only, because aiohttp is.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from ws_responses.adapters._chunks import ChunkReader
from ws_responses.adapters._completion_chunks import CompletionReader
from ws_responses.adapters._event_stream import HttpLimits, RefusedError
from ws_responses.adapters._openai import HttpBackend
from ws_responses.backends import Accepts, ChatPrompt, GenerateParams, PromptNotAccepted, TokenPrompt
from ws_responses.errors import ConfigurationError, WireError

__all__ = ["CompletionsBackend", "HttpLimits", "Server"]

Server = Literal["vllm", "sglang", "tensorrt-llm", "fireworks", "openai"]
"""Servers whose own members of requests and answers are known."""

DEFAULT_MAX_TOKENS: Final = 4096
"""Sampled at most if a request names no bound: the endpoint's own default is 16 (OpenAI, vLLM, SGLang)."""

OPTIONAL_MEMBERS: Final = frozenset(
    {
        "prompt_cache_key",
        "response_format",
        "return_token_ids",
        "service_tier",
        "stop_token_ids",
        "stream_options",
        "temperature",
        "top_p",
        "user",
    }
)
"""Members of a request that ``omit`` may leave out."""


class _Dialect(Struct, frozen=True, kw_only=True):
    """What is a server's own.

    Attributes:
        ids: Members that ask for the sampled ids; None if it cannot tell them.
        ids_by_default: They are worth asking for.
        stop_ids: It takes ``stop_token_ids``.
        schema: Shape of ``response_format`` for a JSON Schema; None if it takes none.
        stream_usage: Usage in streams must be asked for.
        hosted: It knows service tiers and cache keys.
    """

    ids: Mapping[str, bool] | None = None
    ids_by_default: bool = True
    stop_ids: bool = True
    schema: Literal["openai", "bare", "json"] | None = "openai"
    stream_usage: bool = True
    hosted: bool = False


_DIALECTS: Final[Mapping[Server, _Dialect]] = {
    # vllm/entrypoints/openai/completion/protocol.py
    "vllm": _Dialect(ids={"return_token_ids": True}),
    # sglang/srt/entrypoints/openai/protocol.py (0.5.23)
    "sglang": _Dialect(ids={"return_token_ids": True}),
    # tensorrt_llm/serve/openai_protocol.py, postprocess_handlers.py: ids come instead of text
    "tensorrt-llm": _Dialect(ids={"detokenize": False}, ids_by_default=False, schema="json"),
    # fireworks-ai 1.2.30, types/completion_create_params.py: usage comes by itself
    "fireworks": _Dialect(
        ids={"return_token_ids": True}, stop_ids=False, schema="bare", stream_usage=False, hosted=True
    ),
    "openai": _Dialect(stop_ids=False, schema=None),
}


class CompletionsBackend(HttpBackend):
    """Samples by ``POST {base_url}/completions`` with a prompt of token ids.

    The ids go out in the encoded form that the conversation keeps: a request costs one copy of it, and no encoding.

    ================  ============================  ====================  ================================
    server            ids out                       stop ids              JSON Schema
    ================  ============================  ====================  ================================
    ``vllm``          ``return_token_ids``          ``stop_token_ids``    ``response_format``
    ``sglang``        ``return_token_ids``          ``stop_token_ids``    ``response_format``
    ``tensorrt-llm``  ``detokenize: false``,        ``stop_token_ids``    ``response_format`` of type ``json``
                      *instead of* text
    ``fireworks``     ``return_token_ids``          the model's own only  ``response_format``
    ``openai``        no                            the model's own only  no
    ================  ============================  ====================  ================================

    Ids count as lost (``Delta.ids_lost``) when a chunk has text without ids, or the usage counts more tokens than ids came.

    Args:
        base_url: With ``/v1`` (Fireworks: ``https://api.fireworks.ai/inference/v1``).
        server: Whose members are used.
        api_key: Sent as ``Authorization: Bearer``; None for none.
        headers: Sent with every request; they win over ``api_key``.
        return_ids: Ask for the sampled ids; None does where they come beside the text. With TensorRT-LLM they come instead of it:
            ask for them if the renderer decodes ids by itself.
        default_max_tokens: Sampled at most if a request names no bound.
        omit: Members never sent, of ``OPTIONAL_MEMBERS``.
        extra_body: Further members of every request.
        prefill: Let a warm-up read the prompt, by sampling one token that is thrown away (none of these servers can do
            without); a service that bills will bill it.
        limits: Bounds of time and size.

    Raises:
        ConfigurationError: The URL is none of HTTP, the server is unknown or cannot tell ids, ``omit`` names another member, or
            ``extra_body`` one that is set here.
    """

    own_members = OPTIONAL_MEMBERS | {"detokenize", "max_tokens", "model", "prompt", "stream"}

    def __init__(
        self,
        base_url: str,
        *,
        server: Server = "vllm",
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        return_ids: bool | None = None,
        default_max_tokens: int = DEFAULT_MAX_TOKENS,
        omit: Collection[str] = (),
        extra_body: Mapping[str, Any] | None = None,
        prefill: bool = True,
        limits: HttpLimits | None = None,
    ) -> None:
        if server not in _DIALECTS:
            raise ConfigurationError(f"server must be one of {', '.join(_DIALECTS)}, not {server!r}")
        dialect = _DIALECTS[server]
        if return_ids and dialect.ids is None:
            raise ConfigurationError(f"return_ids: {server} does not tell the ids that it samples")
        if return_ids is None:
            return_ids = dialect.ids is not None and dialect.ids_by_default
        super().__init__(
            base_url,
            path="/completions",
            accepts=Accepts(
                kinds=frozenset({"tokens"}),
                form="json",
                returns_ids=return_ids,
                constrains=dialect.schema is not None and "response_format" not in omit,
            ),
            api_key=api_key,
            headers=headers,
            extra_body=extra_body,
            omit=omit,
            optional=OPTIONAL_MEMBERS,
            limits=limits,
            prefill=prefill,
        )
        self._dialect = dialect
        self._ids: Mapping[str, bool] = dialect.ids or {} if return_ids else {}
        self._default_max_tokens = default_max_tokens

    def _reader(self) -> ChunkReader:
        return CompletionReader(expects_ids=self._accepts.returns_ids)

    def _body(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams, *, stream: bool) -> Sequence[bytes]:
        if not isinstance(prompt, TokenPrompt):
            raise PromptNotAccepted("This backend takes token ids, and no chat messages.")
        dialect = self._dialect
        options: dict[str, Any] = {
            "model": params.model,
            "stream": stream,
            "stream_options": {"include_usage": True} if stream and dialect.stream_usage else None,
            "max_tokens": self._default_max_tokens if params.max_tokens is None else params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "user": params.user,
            "stop_token_ids": prompt.stop_ids if prompt.stop_ids and dialect.stop_ids else None,
            "response_format": self._response_format(prompt.schema),
            "service_tier": params.service_tier if dialect.hosted else None,
            "prompt_cache_key": params.prompt_cache_key if dialect.hosted else None,
            **(self._ids if stream else {}),  # vLLM would send the prompt's ids along
        }
        return b'{"prompt":', prompt.rendered.json_ids(), b",", self._members(options)

    def _response_format(self, schema: bytes | None) -> dict[str, Any] | None:
        if schema is None:
            return None
        raw = msgspec.Raw(schema)
        match self._dialect.schema:
            case "openai":
                return {"type": "json_schema", "json_schema": {"name": "answer", "schema": raw}}
            case "bare":
                return {"type": "json_schema", "json_schema": raw}
            case "json":
                return {"type": "json", "schema": raw}
            case None:
                return None

    def _refusal(self, refused: RefusedError) -> WireError:
        error = super()._refusal(refused)
        if refused.status in {405, 501} or (refused.status == 404 and error.code != "model_not_found"):
            return PromptNotAccepted("This backend has no endpoint for prompts of token ids.")
        if error.status in {400, 422} and (error.param or "").startswith("prompt") and "string" in error.message:
            return PromptNotAccepted("This backend takes text, and no token ids.")
        return error
