"""Cerebras as a backend: chat completions, and completions of token ids, by the official SDK on its aiohttp transport.

The SDK does what it is for (key, base URL, its classes of errors); the bytes of requests and answers go past its models, which
would cost ten times as much per chunk. For asyncio only, because aiohttp is.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Final, Literal, get_args

import msgspec

from ws_responses.adapters._cerebras_errors import LOST
from ws_responses.adapters._cerebras_request import FIXED_MEMBERS, Body, RequestOptions, chat_body, token_body
from ws_responses.adapters._cerebras_service import CHAT, COMPLETIONS, LATE_S, Call, ClientOptions, Service, shared_tls
from ws_responses.adapters._cerebras_stream import AnswerReader, TokenReader
from ws_responses.adapters._chunks import ChunkReader
from ws_responses.adapters._gathering import Gathered
from ws_responses.adapters.chat_completions import ChatReader
from ws_responses.backends import Accepts, ChatPrompt, Delta, GenerateParams, PromptNotAccepted, TokenPrompt, Usage
from ws_responses.errors import ConfigurationError
from ws_responses.extras import Extra

with Extra("cerebras"):
    from cerebras.cloud.sdk import AsyncCerebras

__all__ = ["CerebrasBackend", "PromptEncoding", "ReasoningFormat"]

ReasoningFormat = Literal["parsed", "text_parsed", "raw", "hidden", "none"]
"""How chat completions tell the reasoning; only the first two tell it apart from the answer."""

PromptEncoding = Literal["msgpack", "json"]
"""How token ids are sent."""

MIB: Final = 1024 * 1024

GATHER_S: Final = 0.015
"""Less than one picture of a screen, and at 4,000 chunks a second 60 of them: as many as come in one piece."""

MAX_GATHER_S: Final = 0.1
"""More than that people see."""


class CerebrasBackend:
    """Samples at Cerebras.

    Takes chat messages (``/v1/chat/completions``) and token ids (``/v1/completions``, as MessagePack). Serves any
    number of generations at once, one connection each, and needs not be entered. The client is made at the first use, one for each event loop.

    Args:
        api_key: None for ``CEREBRAS_API_KEY``.
        base_url: Without ``/v1``; None for ``CEREBRAS_BASE_URL``, else the public service.
        client: A client of the SDK of your own instead, which is not closed here. Make it with ``warm_tcp_connection=False``
            (the default blocks the event loop) and ``http_client=DefaultAioHttpClient()``; its retries are not used.
        reasoning_format: How chat completions tell the reasoning; None leaves it to the model.
        keep_thinking: Beginnings of the names of models that drop earlier reasoning from the prompt unless told not to
            (``clear_thinking: false``): dropped reasoning changes the prefix, and so loses the prompt cache.
        images: The models take images.
        prompt_encoding: How token ids are sent.
        return_ids: Have completions tell the ids that were sampled, instead of their text.
        gzip_above_bytes: Compress larger bodies, in a thread; None for never. Worth it where the network is slow: 100,000
            tokens take 2.5 ms, and become 113 kB of 285.
        prefill_by_sampling: Let a warm-up read the prompt by sampling one token, which is paid for; else it opens a connection.
        timeout_s: Longest silence of the service (its own default), also the longest wait for a free connection.
        connect_timeout_s: Time for a new connection.
        keepalive_s: Time that an idle connection is kept for the next turn: tools take long.
        max_connections: Most connections, each of one generation at a time; more generations wait.
        max_event_bytes: Largest event: the arguments of a call may come in one.
        gather_s: Chunks that follow each other faster than every 3 ms are handed on together, as one delta, and so at most this
            much later, and by no more than 4 % of the time that the answer has taken: a fast one takes a fifth of the CPU
            time. The first chunk never waits, nor do those of a slower answer. 0 hands on each by itself.
        extra_body: Further members of every request. They win; None leaves a member out.

    Raises:
        ConfigurationError: There is no key, or an option is wrong or contradicts another.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        client: AsyncCerebras | None = None,
        reasoning_format: ReasoningFormat | None = "parsed",
        keep_thinking: tuple[str, ...] = ("zai-glm",),
        images: bool = False,
        prompt_encoding: PromptEncoding = "msgpack",
        return_ids: bool = True,
        gzip_above_bytes: int | None = None,
        prefill_by_sampling: bool = False,
        timeout_s: float = 60.0,
        connect_timeout_s: float = 5.0,
        keepalive_s: float = 120.0,
        max_connections: int = 1000,
        max_event_bytes: int = 4 * MIB,
        gather_s: float = GATHER_S,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        extra = dict(extra_body or {})
        if client is not None and (api_key is not None or base_url is not None):
            raise ConfigurationError("api_key and base_url are the client's own: give them to AsyncCerebras")
        if client is None and not (api_key or os.environ.get("CEREBRAS_API_KEY")):
            raise ConfigurationError("Cerebras needs api_key=, or CEREBRAS_API_KEY in the environment")
        if reasoning_format is not None:
            _check_one_of("reasoning_format", reasoning_format, ReasoningFormat)
        _check_one_of("prompt_encoding", prompt_encoding, PromptEncoding)
        if fixed := FIXED_MEMBERS & extra.keys():
            raise ConfigurationError(f"extra_body cannot name {', '.join(sorted(fixed))}")
        clients = ClientOptions(
            api_key=api_key,
            base_url=None if base_url is None else base_url.rstrip("/").removesuffix("/v1"),
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            keepalive_s=keepalive_s,
            max_connections=max_connections,
        )
        if client is None:
            shared_tls()
        if not 0 <= gather_s <= MAX_GATHER_S:
            raise ConfigurationError(f"gather_s must be from 0 to {MAX_GATHER_S:g} seconds, not {gather_s!r}")
        self._service = Service(clients.make, client)
        self._max_event_bytes = max_event_bytes
        self._gather_s = gather_s
        self._gzip_above_bytes = gzip_above_bytes
        self._prefill_by_sampling = prefill_by_sampling
        self._prompt_encoding = prompt_encoding
        self._options = RequestOptions(
            reasoning_format=reasoning_format, keep_thinking=keep_thinking, return_ids=return_ids, extra_body=extra
        )
        self._accepts = Accepts(
            kinds=frozenset({"tokens", "chat"}), form=prompt_encoding, returns_ids=return_ids, images=images
        )

    @property
    def accepts(self) -> Accepts:
        """Both kinds of prompts; ids are kept in the encoding in which they are sent."""
        return self._accepts

    async def generate(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> AsyncGenerator[Delta]:
        """Sample an answer; nothing is tried twice.

        Raises:
            WireError: As :mod:`ws_responses.backend_errors` makes it.
            PromptNotAccepted: ``/v1/completions`` is not there, or not for this model, or not for token ids; or the answer
                would have to follow a schema, which is known of chat only.
        """
        path, body, reader = self._request(prompt, params)
        if self._gzip_above_bytes is not None and body.size > self._gzip_above_bytes:
            body = await body.compressed()
        call = await self._service.call(path, body)
        del body
        try:
            async for chunk in self._pieces(call):
                for delta in reader.feed(chunk):
                    yield delta
                if reader.done:
                    break
            last = reader.end()
        except LOST as error:
            await call.close()
            if not reader.sampled:
                raise call.lost(error) from error
            last = reader.end()
        except BaseException:
            await call.close()
            raise
        if reader.cut:
            await call.close()
            yield last
            return
        ending = self._service.give_back(call)
        yield last
        await asyncio.wait([ending], timeout=LATE_S)

    async def prefill(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> Usage | None:
        """Have the prompt read by sampling one token of which nothing is used; None unless ``prefill_by_sampling`` is set.

        Cerebras has no request that only reads a prompt.

        Raises:
            WireError: It failed.
        """
        if not self._prefill_by_sampling:
            await self._service.connect()
            return None
        usage = None
        async for delta in self.generate(prompt, msgspec.structs.replace(params, max_tokens=1)):
            usage = delta.usage or usage
        return usage

    async def aclose(self) -> None:
        """Close the client of the running event loop; a later use makes another."""
        await self._service.aclose()

    def _pieces(self, call: Call) -> AsyncIterator[bytes]:
        return Gathered(call.response, call.chunks, self._gather_s) if self._gather_s else call.chunks

    def _request(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> tuple[str, Body, AnswerReader]:
        if isinstance(prompt, ChatPrompt):
            return CHAT, chat_body(prompt, params, self._options), self._reader(ChatReader())
        if prompt.schema is not None:
            raise PromptNotAccepted("The backend cannot hold an answer to token ids to a schema.")
        body = token_body(prompt, params, self._options, self._prompt_encoding)
        chunks = TokenReader(expects_ids=self._options.return_ids, stop_ids=prompt.stop_ids)
        return COMPLETIONS, body, self._reader(chunks)

    def _reader(self, chunks: ChunkReader) -> AnswerReader:
        return AnswerReader(chunks, self._max_event_bytes, joins=self._gather_s > 0)


def _check_one_of(name: str, value: str, choices: Any) -> None:
    if value not in get_args(choices):
        raise ConfigurationError(f"{name} must be one of {', '.join(get_args(choices))}, not {value!r}")
