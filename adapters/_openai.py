"""What the adapters of chat completions and completions have in common: the way of a generation."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Any

import msgspec

from ws_responses.adapters._chunks import DONE, ChunkReader, used
from ws_responses.adapters._event_stream import EventStream, HttpLimits, RefusedError
from ws_responses.adapters._http import HttpService
from ws_responses.backends import Accepts, ChatPrompt, Delta, GenerateParams, TokenPrompt, Usage
from ws_responses.errors import ConfigurationError, StreamTruncated, UpstreamTimeout, WireError


class HttpBackend(ABC):
    """A backend that answers by a stream of chunks.

    Args:
        base_url: Of the service, with ``/v1`` or whatever comes before ``/completions``.
        path: Below it.
        accepts: What it takes and gives.
        api_key: Sent as ``Authorization: Bearer``; None for none.
        headers: Sent with every request; they win over ``api_key``.
        extra_body: Further members of every request.
        omit: Members never sent.
        optional: Members that may be left out.
        limits: See there.
        prefill: Let a warm-up read the prompt, by sampling one token that is thrown away.

    Raises:
        ConfigurationError: The URL is none of HTTP, ``omit`` names a member that is not optional, or ``extra_body`` has one that
            the backend sets itself.
    """

    own_members: frozenset[str] = frozenset()
    """Members of a request that ``extra_body`` cannot have."""

    def __init__(
        self,
        base_url: str,
        *,
        path: str,
        accepts: Accepts,
        api_key: str | None,
        headers: Mapping[str, str] | None,
        extra_body: Mapping[str, Any] | None,
        omit: Collection[str],
        optional: frozenset[str],
        limits: HttpLimits | None,
        prefill: bool,
    ) -> None:
        extra = dict(extra_body or {})
        if clash := sorted(extra.keys() & self.own_members):
            raise ConfigurationError(f"extra_body cannot have {clash[0]!r}: the backend sets it")
        if unknown := sorted(set(omit) - optional):
            raise ConfigurationError(f"omit cannot have {unknown[0]!r}, only {', '.join(sorted(optional))}")
        authorization = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._http = HttpService(base_url, headers={**authorization, **(headers or {})}, limits=limits or HttpLimits())
        self._path = path
        self._accepts = accepts
        self._extra = extra
        self._omit = frozenset(omit)
        self._prefills = prefill

    @property
    def accepts(self) -> Accepts:
        """What it takes and gives."""
        return self._accepts

    async def generate(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> AsyncGenerator[Delta]:
        """Sample an answer; see :class:`ws_responses.backends.Backend`.

        Raises:
            WireError: As :mod:`ws_responses.backend_errors` makes it; PromptNotAccepted before any delta.
        """
        body = self._body(prompt, params, stream=True)
        reader = self._reader()
        read = reader.read
        try:
            stream = await self._http.stream(self._path, body)
        except RefusedError as refused:
            raise self._refusal(refused) from refused
        del body
        try:
            while events := await _next_events(stream, reader):
                for event in events:
                    if event == DONE:
                        stream.give_back()
                        yield reader.end(done=True)
                        return
                    if (delta := read(event)) is not None:
                        yield delta
            yield reader.end()
        finally:
            stream.close()

    async def prefill(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> Usage | None:
        """Have the service read the prompt, if ``prefill`` is set; see :class:`ws_responses.backends.Backend`.

        Raises:
            WireError: It failed.
        """
        if not self._prefills:
            return None
        one = msgspec.structs.replace(params, max_tokens=1)
        try:
            answer = await self._http.ask(self._path, self._body(prompt, one, stream=False))
        except RefusedError as refused:
            raise self._refusal(refused) from refused
        return used(answer)

    async def aclose(self) -> None:
        """Close the connections; may be called twice."""
        await self._http.aclose()

    @abstractmethod
    def _reader(self) -> ChunkReader:
        """Return what reads one generation."""

    @abstractmethod
    def _body(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams, *, stream: bool) -> Sequence[bytes]:
        """Return the body of a request, in pieces.

        Raises:
            PromptNotAccepted: It takes no such prompt.
        """

    def _members(self, options: Mapping[str, Any]) -> bytes:
        """Return the members of a request that are not None, and the configured ones, encoded without the opening brace."""
        sent = {name: value for name, value in options.items() if value is not None and name not in self._omit}
        return msgspec.json.encode(sent | self._extra)[1:]

    def _refusal(self, refused: RefusedError) -> WireError:
        """Return what the client is told of an answer that is no success."""
        return refused.wire_error()


async def _next_events(stream: EventStream, reader: ChunkReader) -> list[bytes]:
    if reader.finish is None:
        return await stream.read()
    # All that was sampled has come. The usage is worth a moment, but no failure.
    stream.hurry()
    try:
        return await stream.read()
    except (StreamTruncated, UpstreamTimeout):
        return []
