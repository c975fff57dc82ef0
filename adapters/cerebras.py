"""Cerebras as a backend: chat completions, and completions of token ids, by the official SDK on its aiohttp transport.

The SDK does what it is for (key, base URL, its classes of errors); the bytes of requests and answers go past its models, which
would cost twenty times as much per chunk. asyncio only, because aiohttp is.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final, Literal, get_args
from weakref import WeakKeyDictionary

import msgspec

from ws_responses.adapters._cerebras_errors import LOST, broken_off, not_opened, refused
from ws_responses.adapters._cerebras_request import Body, RequestOptions, chat_body, token_body
from ws_responses.adapters._cerebras_stream import AnswerReader, TokenReader
from ws_responses.adapters.chat_completions import ChatReader
from ws_responses.backend_errors import nonsense
from ws_responses.backends import Accepts, ChatPrompt, Delta, GenerateParams, PromptNotAccepted, TokenPrompt, Usage
from ws_responses.errors import ConfigurationError, excerpt

try:
    import httpx
    from cerebras.cloud.sdk import APIError, APIStatusError, AsyncCerebras, AsyncStream, DefaultAioHttpClient
except ImportError as error:
    raise ImportError("Cerebras needs its SDK: pip install 'ws-responses[cerebras]'") from error

__all__ = ["CerebrasBackend", "PromptEncoding", "ReasoningFormat"]

ReasoningFormat = Literal["parsed", "text_parsed", "raw", "hidden", "none"]
"""How chat completions tell the reasoning; only the first two tell it apart from the answer."""

PromptEncoding = Literal["msgpack", "json"]
"""How token ids are sent."""

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"

MIB: Final = 1024 * 1024

END_S: Final = 1.0
"""Time for the end of a body after its last event. A connection can be used again only when its body was read to the end; the
end may come late, but is not worth more than a new connection."""

LATE_S: Final = 0.05
"""Of that, what a generation itself waits for, so that one right after it finds the connection free."""

CONNECT_S: Final = 1.0
"""Time for the request by which a warm-up opens a connection (the SDK's own)."""


class CerebrasBackend:
    """Samples at Cerebras.

    Takes chat messages (``/v1/chat/completions``) and token ids (``/v1/completions``, as MessagePack). Iterate a generation to its
    end: its connection serves the next one then. The client is made at the first use, one for each event loop.

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
        prefill_by_sampling: Let a warm-up read the prompt by sampling one token, which is paid for; else it does nothing.
        timeout_s: Longest silence of the service (its own default), also the longest wait for a free connection.
        connect_timeout_s: Time for a new connection.
        keepalive_s: Time that an idle connection is kept for the next turn: tools take long.
        max_connections: Most connections, each of one generation at a time; more generations wait.
        max_event_bytes: Largest event: the arguments of a call may come in one.
        extra_body: Further members of every request; they win.

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
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        if client is not None and (api_key is not None or base_url is not None):
            raise ConfigurationError("api_key and base_url are the client's own: give them to AsyncCerebras")
        if client is None and not (api_key or os.environ.get("CEREBRAS_API_KEY")):
            raise ConfigurationError("Cerebras needs api_key=, or CEREBRAS_API_KEY in the environment")
        if reasoning_format is not None and reasoning_format not in get_args(ReasoningFormat):
            raise ConfigurationError(
                f"reasoning_format must be one of {get_args(ReasoningFormat)}, not {reasoning_format!r}"
            )
        if prompt_encoding not in get_args(PromptEncoding):
            raise ConfigurationError(
                f"prompt_encoding must be one of {get_args(PromptEncoding)}, not {prompt_encoding!r}"
            )
        self._api_key = api_key
        self._base_url = None if base_url is None else base_url.rstrip("/").removesuffix("/v1")
        self._given = client
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncCerebras] = WeakKeyDictionary()
        self._ending: dict[asyncio.Task[None], AsyncStream[object]] = {}
        self._tls = _tls()
        self._timeout = httpx.Timeout(timeout_s, connect=connect_timeout_s)
        self._pool = httpx.Limits(max_connections=max_connections, keepalive_expiry=keepalive_s)
        self._max_event_bytes = max_event_bytes
        self._gzip_above_bytes = gzip_above_bytes
        self._prefill_by_sampling = prefill_by_sampling
        self._prompt_encoding = prompt_encoding
        self._options = RequestOptions(
            reasoning_format=reasoning_format,
            keep_thinking=keep_thinking,
            return_ids=return_ids,
            extra_body=dict(extra_body or {}),
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
        stream = await self._call(path, body)
        chunks = _body(stream.response)
        try:
            async for chunk in chunks:
                for delta in reader.feed(chunk):
                    yield delta
                if reader.done:
                    break
            last = reader.end()
        except LOST as error:
            await stream.close()
            if not reader.sampled:
                raise broken_off(error, self._silence_s()) from error
            last = reader.end()
        except BaseException:
            await stream.close()  # at once: the service sees it, and stops
            raise
        if reader.cut:
            await stream.close()
            yield last
            return
        ending = self._give_back(stream, chunks)
        yield last
        await asyncio.wait([ending], timeout=LATE_S)

    async def prefill(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> Usage | None:
        """Have the prompt read by sampling one token of which nothing is used; None unless ``prefill_by_sampling`` is set.

        Cerebras has no request that only reads a prompt.

        Raises:
            WireError: It failed.
        """
        if not self._prefill_by_sampling:
            await self._connect()
            return None
        usage = None
        async for delta in self.generate(prompt, msgspec.structs.replace(params, max_tokens=1)):
            usage = delta.usage or usage
        return usage

    async def aclose(self) -> None:
        """Close the client of the running event loop; a later use makes another."""
        loop = asyncio.get_running_loop()
        ending = {task: stream for task, stream in self._ending.items() if task.get_loop() is loop}
        for task, stream in ending.items():
            task.cancel()
            await stream.close()  # the task may not have begun
        await asyncio.gather(*ending, return_exceptions=True)
        client = self._clients.pop(loop, None)
        if client is not None:
            await client.close()

    def _request(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> tuple[str, Body, AnswerReader]:
        if isinstance(prompt, ChatPrompt):
            body = chat_body(prompt, params, self._options)
            return CHAT, body, AnswerReader(ChatReader(), self._max_event_bytes)
        if prompt.schema is not None:
            raise PromptNotAccepted("The backend cannot hold an answer to token ids to a schema.")
        body = token_body(prompt, params, self._options, self._prompt_encoding)
        reader = TokenReader(expects_ids=self._options.return_ids, stop_ids=prompt.stop_ids)
        return COMPLETIONS, body, AnswerReader(reader, self._max_event_bytes)

    async def _call(self, path: str, body: Body) -> AsyncStream[object]:
        if self._gzip_above_bytes is not None and body.size > self._gzip_above_bytes:
            body = await body.compressed()
        try:
            stream = await self._client().post(
                path,
                cast_to=object,
                content=body,
                options={"headers": body.headers(), "max_retries": 0},
                stream=True,
                stream_cls=AsyncStream[object],
            )
        except APIStatusError as error:
            raise refused(error.response, tokens=path == COMPLETIONS) from None
        except LOST as error:
            raise not_opened(error, self._silence_s()) from error
        content_type = stream.response.headers.get("content-type", "")
        if "text/event-stream" not in content_type:
            await stream.close()
            raise nonsense(f"It is {excerpt(content_type)!r}, where an event stream was expected.")
        return stream

    async def _connect(self) -> None:
        """Open a connection for the turn that follows a warm-up, as the SDK's own warm-up does it for its other client."""
        with suppress(APIError, *LOST):
            await self._client().get("/v1/tcp_warming", cast_to=str, options={"timeout": CONNECT_S, "max_retries": 0})

    def _give_back(self, stream: AsyncStream[object], chunks: AsyncIterator[bytes]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(_read_to_the_end(stream, chunks))
        self._ending[task] = stream
        task.add_done_callback(self._ending.pop)
        return task

    def _client(self) -> AsyncCerebras:
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = AsyncCerebras(
                api_key=self._api_key,
                base_url=self._base_url,
                timeout=self._timeout,
                max_retries=0,
                http_client=DefaultAioHttpClient(timeout=self._timeout, limits=self._pool, verify=self._tls),
                warm_tcp_connection=False,  # it would block the loop, and warm up nothing that is used
            )
        return client

    def _silence_s(self) -> float | None:
        timeout = self._client().timeout
        return timeout.read if isinstance(timeout, httpx.Timeout) else timeout


@cache
def _tls() -> ssl.SSLContext:
    """Return what all clients share: it takes 20 ms to make, which no turn should wait for."""
    return httpx.create_ssl_context()


def _body(response: httpx.Response) -> AsyncIterator[bytes]:
    # Some proxies compress whatever they are told.
    plain = response.headers.get("content-encoding", "identity") == "identity"
    return response.aiter_raw() if plain else response.aiter_bytes()


async def _read_to_the_end(stream: AsyncStream[object], chunks: AsyncIterator[bytes]) -> None:
    async with stream:
        with suppress(*LOST):
            async with asyncio.timeout(END_S):
                async for _ in chunks:
                    pass
