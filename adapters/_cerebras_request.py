"""Bodies of requests to Cerebras, built around bytes that are kept: what is old is neither decoded nor encoded again."""

import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import anyio.to_thread
import msgspec
from msgspec import Raw, Struct

from ws_responses.backends import ChatPrompt, GenerateParams, TokenPrompt

JSON: Final = "application/json"
MSGPACK: Final = "application/vnd.msgpack"

ONE_PIECE_BYTES: Final = 64 * 1024
"""Bodies up to here are joined: one more copy costs less than further writes to the socket, each a packet of its own."""

_LEVEL: Final = 1
"""Of gzip: 100,000 tokens in 2.5 ms; level 6 takes 14 ms and saves a few per cent more."""
_GZIP: Final = 31

EFFORTS: Final[Mapping[str, str]] = {"minimal": "low", "xhigh": "high", "max": "high"}
"""Efforts of the Responses API that Cerebras does not know, and the nearest that it knows."""

GPT_OSS: Final = "gpt-oss"
"""Always reasons: ``none`` is an error there, and the least is ``low``."""

TIERS: Final = frozenset({"flex", "priority"})
"""Service tiers that are passed on. ``auto`` and ``default`` of the Responses API are what Cerebras does without a tier (its
own ``auto`` may go down to ``flex``); others it does not know."""


FIXED_MEMBERS: Final = frozenset({"messages", "model", "prompt", "stream", "tools"})
"""Members that nothing but the prompt and the parameters decide."""

_STRICT: Final = b'"strict"'


class _Function(Struct):
    strict: bool | None = None


class _Tool(Struct):
    function: _Function | None = None


_tools: Final = msgspec.json.Decoder(list[_Tool])


class Body(Struct, frozen=True):
    """A body: its pieces one after another.

    Attributes:
        pieces: As they are sent.
        content_type: Media type.
        gzipped: Whether it is compressed.
    """

    pieces: Sequence[bytes]
    content_type: str
    gzipped: bool = False

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(map(len, self.pieces))

    def headers(self) -> dict[str, str]:
        """Return what the service needs to know of the body, and how the answer is wanted: as it is."""
        headers = {
            "Content-Type": self.content_type,
            "Content-Length": str(self.size),
            "Accept-Encoding": "identity",
        }
        if self.gzipped:
            headers["Content-Encoding"] = "gzip"
        return headers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield what is to be written, in one piece or in slices that let others run in between."""
        if self.size <= ONE_PIECE_BYTES:
            yield b"".join(self.pieces)
            return
        for piece in self.pieces:
            view = memoryview(piece)
            for begin in range(0, len(view), ONE_PIECE_BYTES):
                yield view[begin : begin + ONE_PIECE_BYTES]  # type: ignore[misc]

    async def compressed(self) -> "Body":
        """Return the same body compressed; the work is done in a thread."""
        return Body([await anyio.to_thread.run_sync(_gzip, self.pieces)], self.content_type, gzipped=True)


def _gzip(pieces: Sequence[bytes]) -> bytes:
    compressor = zlib.compressobj(_LEVEL, wbits=_GZIP)
    return b"".join([*map(compressor.compress, pieces), compressor.flush()])


class RequestOptions(Struct, frozen=True, kw_only=True):
    """What an operator chooses for all requests.

    Attributes:
        reasoning_format: Of chat completions; None leaves it to the model.
        keep_thinking: Beginnings of model names whose earlier reasoning is to stay in the prompt (``clear_thinking: false``).
        return_ids: Completions tell the ids that were sampled.
        extra_body: Further members of every body; they win, and None leaves one out.
    """

    reasoning_format: str | None
    keep_thinking: tuple[str, ...]
    return_ids: bool
    extra_body: Mapping[str, Any]


def chat_body(prompt: ChatPrompt, params: GenerateParams, options: RequestOptions) -> Body:
    """Return the body of ``/v1/chat/completions``; the messages are copied once, when they are put together."""
    tools = prompt.tools
    fields = {
        **_common(params),
        "max_completion_tokens": params.max_tokens,
        "reasoning_effort": _effort(params),
        "reasoning_format": options.reasoning_format,
        "clear_thinking": False if params.model.startswith(options.keep_thinking) else None,
        "service_tier": params.service_tier if params.service_tier in TIERS else None,
        "tools": None if tools is None else Raw(evenly_strict(tools)),
        "tool_choice": None if tools is None or prompt.tool_choice is None else Raw(prompt.tool_choice),
        "parallel_tool_calls": None if tools is None else prompt.parallel_tool_calls,
        "response_format": None if prompt.response_format is None else Raw(prompt.response_format),
        **options.extra_body,
    }
    head = msgspec.json.encode(_open(fields, "messages")).removesuffix(b"null}")
    return Body([head, prompt.rendered.json_array(), b"}"], JSON)


def token_body(prompt: TokenPrompt, params: GenerateParams, options: RequestOptions, form: str) -> Body:
    """Return the body of ``/v1/completions``; the ids are copied once, when they are put together."""
    fields = {
        **_common(params),
        "max_tokens": params.max_tokens,
        "return_raw_tokens": True if options.return_ids else None,
        **options.extra_body,
    }
    fields = _open(fields, "prompt")
    if form == "json":
        return Body([msgspec.json.encode(fields).removesuffix(b"null}"), prompt.rendered.json_ids(), b"}"], JSON)
    return Body([msgspec.msgpack.encode(fields).removesuffix(b"\xc0"), prompt.rendered.msgpack_ids()], MSGPACK)


def evenly_strict(tools: bytes) -> bytes:
    """Return tools of which all are strict, or none: Cerebras refuses a mixture, and takes what is not said for not strict."""
    if _STRICT not in tools:
        return tools
    said = {tool.function is not None and bool(tool.function.strict) for tool in _tools.decode(tools)}
    if len(said) < 2:
        return tools
    decoded: list[dict[str, Any]] = msgspec.json.decode(tools)
    for tool in decoded:
        tool.get("function", {}).pop("strict", None)
    return msgspec.json.encode(decoded)


def _common(params: GenerateParams) -> dict[str, Any]:
    return {
        "model": params.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": params.temperature,
        "top_p": params.top_p,
        "prompt_cache_key": params.prompt_cache_key or params.session,
        "user": params.user,
    }


def _effort(params: GenerateParams) -> str | None:
    effort = params.reasoning_effort
    if effort is None:
        return None
    if effort == "none" and GPT_OSS in params.model:
        return "low"
    return EFFORTS.get(effort, effort)


def _open(fields: Mapping[str, Any], last: str) -> dict[str, Any]:
    """Return the fields that are given, and one more whose value is still to come: encoded it ends the whole."""
    given = {name: value for name, value in fields.items() if value is not None}
    given[last] = None
    return given
