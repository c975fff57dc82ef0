"""llama.cpp's server as a backend: token ids in and out, by its own endpoint ``/completion`` (asyncio, because aiohttp is).

``/v1/completions`` of the same server takes ids as well but tells none, so it is not used. A prompt is read from where it first
differs from what a slot, or the server's cache in memory, holds.
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

import msgspec

from ws_responses.adapters._event_stream import EventStream, HttpLimits, RefusedError
from ws_responses.adapters._http import HttpService
from ws_responses.adapters._llama_cpp_events import FIELDS, EventReader, decode
from ws_responses.adapters._llama_cpp_slots import Slots
from ws_responses.backends import Accepts, ChatPrompt, Delta, GenerateParams, PromptNotAccepted, TokenPrompt, Usage
from ws_responses.errors import ConfigurationError
from ws_responses.rendering.tokenizer import Tokenizer

__all__ = ["HttpLimits", "LlamaCppBackend"]

_ACCEPTS: Final = Accepts(kinds=frozenset({"tokens"}), form="json", returns_ids=True, constrains=True)

_OURS: Final = frozenset(
    {
        "prompt",
        "model",
        "stream",
        "return_tokens",
        "return_progress",
        "response_fields",
        "n_predict",
        "id_slot",
        "json_schema",
    }
)
"""Members of a request that are not the operator's to set."""

_PROBE: Final = "It's 12:05 -- naïve 漢字 🙂\n\n\tdef f(x):\r\n    return x['a']  # 1234567"
"""Text that vocabularies and rules for words cut differently."""


class LlamaCppBackend:
    """Samples at a llama.cpp server (``llama-server``, or one in this process: :mod:`ws_responses.adapters.local_model`).

    Takes token ids only. The ids of an answer are lost where one character takes several tokens (emoji, rare scripts):
    the server tells the last of them only. Such deltas have ``ids_lost``.

    Args:
        base_url: Without a path, for example ``http://localhost:8080``.
        api_key: If the server asks for one (``--api-key``).
        slots: Tie each conversation to one of this many slots (as many as the server has, ``--parallel``), the least recently
            used one for a new conversation; None leaves the choice to the server, which looks for the longest common prefix.
        extra_body: Further members of each generation, for example ``{"top_k": 20, "seed": 7}``.
        limits: Bounds and time limits. A prompt is read before the first event: 300 s are 90,000 tokens at 300 tokens/s.

    Raises:
        ConfigurationError: An option is wrong.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        slots: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        if slots is not None and slots < 1:
            raise ConfigurationError(f"slots must be at least 1, not {slots}")
        ours = sorted(_OURS.intersection(extra_body or ()))
        if ours:
            raise ConfigurationError(f"extra_body cannot set {', '.join(ours)}")
        # It promises to keep connections and closes them after each stream: the next request would run into that.
        headers = {"Connection": "close"}
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        self._service = HttpService(base_url, headers=headers, limits=limits or HttpLimits())
        self._slots = Slots(slots or 0)
        self._extra = dict(extra_body or {})

    @property
    def accepts(self) -> Accepts:
        """Token ids, kept as JSON."""
        return _ACCEPTS

    async def generate(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> AsyncGenerator[Delta]:
        """Sample an answer; nothing is tried twice.

        Closing the generator, or cancelling its task, ends the sampling within milliseconds. A prompt that is just being read
        is read to its end first (llama.cpp notices only then), which is not lost: the server keeps it.

        Raises:
            WireError: As :mod:`ws_responses.backends` says.
        """
        reader = EventReader(_tokens(prompt).stop_ids)
        with self._slots.held(params.session) as slot:
            stream = await self._open(_body(_tokens(prompt), params, slot, {**self._extra, "stream": True}))
            try:
                while not reader.over and (events := await stream.read()):
                    for event in events:
                        delta = reader.read(event)
                        if delta is not None:
                            yield delta
                if reader.complete:
                    stream.give_back()
            finally:
                stream.close()
        yield reader.end()

    async def prefill(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> Usage | None:
        """Have the server read the prompt into its cache.

        Raises:
            WireError: It failed.
        """
        # The server samples one token all the same, and tells it; nobody is given it.
        params = msgspec.structs.replace(params, max_tokens=0)
        with self._slots.held(params.session) as slot:
            event = decode(await self._ask("/completion", _body(_tokens(prompt), params, slot, {"stream": False})))
        return msgspec.structs.replace(event.usage(), output_tokens=0)

    async def check(self, tokenizer: Tokenizer) -> None:
        """See that the server encodes text as ``tokenizer`` does.

        Raises:
            ConfigurationError: It does not: the vocabulary is another one.
            WireError: The server cannot be asked.
        """
        body = msgspec.json.encode({"content": _PROBE, "parse_special": False, "add_special": False})
        answer = decode(await self._ask("/tokenize", [body]))
        if answer.tokens != list(tokenizer.encode(_PROBE)):
            raise ConfigurationError(f"the server's vocabulary is not that of the tokenizer {tokenizer.name!r}")

    async def aclose(self) -> None:
        """Close the connections; a later use opens new ones."""
        await self._service.aclose()

    async def _open(self, body: list[bytes]) -> EventStream:
        try:
            return await self._service.stream("/completion", body)
        except RefusedError as refused:
            raise refused.wire_error() from None

    async def _ask(self, path: str, body: list[bytes]) -> bytes:
        try:
            return await self._service.ask(path, body)
        except RefusedError as refused:
            raise refused.wire_error() from None


def _tokens(prompt: TokenPrompt | ChatPrompt) -> TokenPrompt:
    if isinstance(prompt, TokenPrompt):
        return prompt
    raise PromptNotAccepted("The backend takes token ids only.")


def _body(prompt: TokenPrompt, params: GenerateParams, slot: int | None, extra: Mapping[str, Any]) -> list[bytes]:
    """Return the request in pieces; the ids are in one of them, put together from the kept ones."""
    members = {
        "model": params.model,
        "return_tokens": True,
        "response_fields": FIELDS,
        "n_predict": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "id_slot": slot,
        "json_schema": None if prompt.schema is None else msgspec.Raw(prompt.schema),
    }
    given = {name: value for name, value in members.items() if value is not None}
    return [msgspec.json.encode({**extra, **given})[:-1], b',"prompt":', prompt.rendered.json_ids(), b"}"]
