"""The Cerebras backend is a backend: the suite for all, with chat messages and with token ids."""
# ruff: noqa: E402 - the package is optional

from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest

from tests.adapters.cerebras.fake import chat_prompt, token_prompt
from tests.conftest import require
from ws_responses.backends import ChatPrompt, Delta, TokenPrompt
from ws_responses.testing.backend_conformance import BackendConformance
from ws_responses.testing.faults import Fault
from ws_responses.testing.inference import ChatService, CompletionsService, InferenceService
from ws_responses.testing.services import HttpAnswer, ServiceRequest

require("cerebras")

from ws_responses.adapters.cerebras import CerebrasBackend


class CerebrasChat(ChatService):
    """Chat completions of Cerebras, which knows no refusals."""

    speaks = ChatService.speaks - {"refusal"}

    def _usual(self, request: ServiceRequest) -> HttpAnswer:
        return HttpAnswer.json("ok") if request.path == "/v1/tcp_warming" else super()._usual(request)


class CerebrasCompletions(CompletionsService):
    """Completions of Cerebras, which has the ids in ``tokens``."""

    # A model that is unknown here may be known to chat: see TestTokenIdsAreNotTaken in test_errors.py.
    faults = CompletionsService.faults - {Fault.MODEL_NOT_FOUND}

    def chunks(self, delta: Delta, *, first: bool) -> list[dict[str, Any]]:
        chunks = super().chunks(delta, first=first)
        for choice in (choice for chunk in chunks for choice in chunk["choices"]):
            choice["tokens"] = choice.pop("token_ids")
            del choice["prompt_token_ids"], choice["stop_reason"]
        return chunks

    def _usual(self, request: ServiceRequest) -> HttpAnswer:
        return HttpAnswer.json("ok") if request.path == "/v1/tcp_warming" else super()._usual(request)


class Conformance(BackendConformance):
    __test__ = False
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    async def backend(self, service: InferenceService) -> AsyncIterator[CerebrasBackend]:
        backend = CerebrasBackend(api_key=self.key, base_url=service.base_url, **self.options)
        yield backend
        await backend.aclose()

    @pytest.fixture
    async def hasty_backend(self, service: InferenceService) -> AsyncIterator[CerebrasBackend]:
        backend = CerebrasBackend(api_key=self.key, base_url=service.base_url, timeout_s=0.2, max_event_bytes=64 * 1024)
        yield backend
        await backend.aclose()


class TestChat(Conformance):
    __test__ = True

    @pytest.fixture
    async def service(self) -> AsyncIterator[CerebrasChat]:
        async with CerebrasChat() as service:
            yield service

    @pytest.fixture
    def prompt(self) -> ChatPrompt:
        return chat_prompt("hi")


class TestTokens(Conformance):
    """Also with warm-ups that sample a token."""

    __test__ = True
    options: ClassVar[dict[str, Any]] = {"prefill_by_sampling": True}

    @pytest.fixture
    async def service(self) -> AsyncIterator[CerebrasCompletions]:
        async with CerebrasCompletions() as service:
            yield service

    @pytest.fixture
    def prompt(self) -> TokenPrompt:
        return token_prompt(range(1, 9))
