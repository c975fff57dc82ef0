"""A Responses server elsewhere, as an ASGI app: wrapped, it has WebSocket mode, in whatever language it is written.

    app = ResponsesWebSocketMiddleware(ProxyApp("http://localhost:8000/v1"))

For asyncio only, because aiohttp is. Needs the extra ``http``.
"""

import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from ssl import SSLContext
from typing import Final, Literal

import anyio

from ws_responses._types import Receive, Scope, Send
from ws_responses.adapters._proxy_connections import Connections, running_loop
from ws_responses.adapters._proxy_exchange import Answer, ClientGone, Upload
from ws_responses.adapters._proxy_rules import METHODS, Base, HeaderRules, check_headers, declared_length
from ws_responses.errors import ConfigurationError, InvalidRequest, Unavailable, UpstreamError, WireError
from ws_responses.extras import Extra
from ws_responses.handshake import deny

with Extra("http"):
    import aiohttp
    from yarl import URL

logger = logging.getLogger("ws_responses.proxy")

_MIB: Final = 1 << 20
_TLS_KEEPALIVE_S: Final = 30.0
"""Agents run tools between turns; less than the 60 s after which proxies tend to close."""
_OWN_HEADERS: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that aiohttp would add: those of the client stand, or none."""


class ProxyApp:
    """Forward HTTP requests to a Responses server.

    Every path below ``prefix`` goes to the same path below ``upstream_url``, and nothing goes to another host. Bodies are
    passed on as they come, both ways. Redirects are not followed, cookies not kept, proxies of the environment not used.

    What goes wrong is told by an OpenAI-style error object: 502 ``upstream_unreachable``, 502 ``upstream_error`` (no HTTP
    came back), 504 ``upstream_timeout``, 503 ``upstream_busy``, 413 ``request_too_large``, 404 ``not_found``, 400
    ``invalid_path``. An answer that is cut off has no proper end here either, so that its reader knows.

    Args:
        upstream_url: Base URL as the OpenAI SDKs take it: ``http://localhost:8000/v1``.
        prefix: Path that stands for the base URL.
        api_key: Key for the upstream, in place of all credentials of the client. The upstream's 401 becomes a 502
            (``upstream_refused_key``) then: it is not about the client's key.
        credentials: "pass" gives the upstream the client's own (``Authorization``, API keys, cookies), "drop" none.
        headers: Further headers for every request, in place of the client's.
        forwarded: Tell the upstream who the client is (``X-Forwarded-For``, ``-Proto``, ``-Host``). What clients claim in
            such headers is never passed on.
        max_body_bytes: Largest body of a request; as much as the middleware rebuilds by default.
        max_requests: Requests at the upstream at once; more get 503.
        connect_timeout_s: Time to reach the upstream.
        silence_timeout_s: Longest silence of the upstream, before and within its answer; as long as the OpenAI SDKs wait.
        keepalive_s: How long an idle connection to the upstream is kept; 0 for not at all, None for 30 s over TLS and not at
            all without: a new one costs little there, and some servers close a kept one without a word (llama.cpp does,
            after each stream), so that the next request is lost.
        ssl: A context that knows the authorities of the upstream; False takes any certificate.

    Raises:
        ConfigurationError: An option is wrong.
    """

    def __init__(
        self,
        upstream_url: str,
        *,
        prefix: str = "/v1",
        api_key: str | None = None,
        credentials: Literal["pass", "drop"] = "pass",
        headers: Mapping[str, str] | None = None,
        forwarded: bool = False,
        max_body_bytes: int = 64 * _MIB,
        max_requests: int = 1024,
        connect_timeout_s: float = 10.0,
        silence_timeout_s: float | None = 600.0,
        keepalive_s: float | None = None,
        ssl: SSLContext | bool = True,
    ) -> None:
        if credentials not in {"pass", "drop"}:
            raise ConfigurationError(f"credentials must be 'pass' or 'drop', not {credentials!r}")
        own_key = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._base = Base(upstream_url, prefix)
        self._rules = HeaderRules(
            credentials=credentials == "pass" and api_key is None,
            added=check_headers({**(headers or {}), **own_key}),
            forwarded=forwarded,
            pseudonym=f"ws-responses-{secrets.token_hex(4)}",
        )
        self._has_key = api_key is not None
        self._max_body_bytes = max_body_bytes
        self._max_requests = max_requests
        if keepalive_s is None:
            keepalive_s = _TLS_KEEPALIVE_S if self._base.secure else 0.0
        self._keeps = keepalive_s > 0
        self._connections = Connections(
            aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s, sock_read=silence_timeout_s),
            keepalive_s=keepalive_s,
            ssl=ssl,
        )
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope. Sockets are refused: those on the right path never come here."""
        kind = scope["type"]
        if kind == "http":
            await self._serve(scope, receive, send)
        elif kind == "lifespan":
            await self._live(receive, send)
        elif kind == "websocket" and (await receive())["type"] == "websocket.connect":
            await deny(scope, send, InvalidRequest("There is no socket at this path.", status=404, code="not_found"))

    async def aclose(self) -> None:
        """Close the connections to the upstream that the running event loop has opened; they open anew when needed."""
        await self._connections.aclose()

    # -- one request -------------------------------------------------------------------------------------------------

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = Answer(send)
        try:
            failure = await self._forward(scope, receive, answer)
            if failure is not None:
                await answer.fail(failure)
        except ClientGone:
            logger.debug("a client left before it had its answer")

    async def _forward(self, scope: Scope, receive: Receive, answer: Answer) -> WireError | None:
        """Answer a request by the answer of the upstream; return why there is none."""
        try:
            url, headers = self._admit(scope)
            upload = Upload(receive, declared_length(scope), self._max_body_bytes)
            await upload.begin()
        except WireError as refusal:
            return refusal
        # Not counted before: a client that is slow to send its request keeps nobody else from the upstream.
        if self._running >= self._max_requests:
            return Unavailable("The upstream has enough to do.", code="upstream_busy", headers={"retry-after": "1"})
        failure: WireError | None = None
        self._running += 1
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(upload.watch, tasks.cancel_scope)
                with suppress(ClientGone):
                    failure = await self._relay(scope["method"], url, headers, upload, answer)
                tasks.cancel_scope.cancel()
        finally:
            self._running -= 1
        return failure

    def _admit(self, scope: Scope) -> tuple[URL, list[tuple[str, str]]]:
        """Return where a request goes, and its headers.

        Raises:
            WireError: It goes nowhere.
        """
        if scope["method"] not in METHODS:
            allowed = {"allow": ", ".join(METHODS)}
            raise InvalidRequest("This method is not served.", status=405, code="method_not_allowed", headers=allowed)
        headers = self._rules.request(scope)
        if not self._keeps:
            headers.append(("connection", "close"))
        return URL(self._base.url_for(scope), encoded=True), headers

    async def _relay(
        self, method: str, url: URL, headers: list[tuple[str, str]], upload: Upload, answer: Answer
    ) -> WireError | None:
        payload = upload.payload()
        try:
            response = await self._connections.session().request(
                method,
                url,
                headers=headers + upload.headers,
                data=payload,
                allow_redirects=False,
                skip_auto_headers=_OWN_HEADERS,
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            return None if upload.gone else upload.failure or self._explain(error)
        try:
            return await self._pass_on(response, answer)
        except (aiohttp.ClientError, TimeoutError) as error:
            logger.warning("%s ended its answer before it was complete: %s", self._base.origin, type(error).__name__)
            return None
        finally:
            response.close()  # gives back a connection whose answer is complete, and ends any other

    async def _pass_on(self, response: aiohttp.ClientResponse, answer: Answer) -> WireError | None:
        if response.status == 401 and self._has_key:
            logger.error("%s refuses our key", self._base.origin)
            return UpstreamError("The upstream refused the key of this proxy.", code="upstream_refused_key")
        if response.status == 101:
            return UpstreamError("The upstream changed the protocol, although nobody asked it to.")
        await answer.start(response.status, self._rules.answer(response.raw_headers))
        async for chunk in response.content.iter_any():
            await answer.write(chunk)
        await answer.end()
        return None

    def _explain(self, error: Exception) -> WireError:
        logger.warning("%s gave no answer: %s: %s", self._base.origin, type(error).__name__, error)
        if isinstance(error, TimeoutError):
            return UpstreamError("The upstream did not answer in time.", status=504, code="upstream_timeout")
        if isinstance(error, aiohttp.ClientConnectionError):
            return UpstreamError("The upstream cannot be reached.", code="upstream_unreachable")
        return UpstreamError("The upstream sent what is no HTTP answer.")

    # -- life --------------------------------------------------------------------------------------------------------

    async def _live(self, receive: Receive, send: Send) -> None:
        """Serve the lifespan: refuse to start where nothing could be forwarded, and close what was opened."""
        await receive()
        try:
            running_loop()
        except RuntimeError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.aclose()
        await send({"type": "lifespan.shutdown.complete"})
