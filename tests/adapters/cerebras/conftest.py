"""What the tests of Cerebras share: a loopback service, a backend that speaks to it, and asyncio."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.adapters.cerebras.fake import KEY
from ws_responses.testing.services import LoopbackService

if TYPE_CHECKING:
    from ws_responses.adapters.cerebras import CerebrasBackend


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The SDK on aiohttp is asyncio's."""
    return "asyncio", {"use_uvloop": False}


@pytest.fixture
async def service() -> AsyncIterator[LoopbackService]:
    async with LoopbackService() as service:
        yield service


@pytest.fixture
def options() -> dict[str, Any]:
    """Options of the backend; a module may have its own."""
    return {}


@pytest.fixture
async def backend(service: LoopbackService, options: dict[str, Any]) -> "AsyncIterator[CerebrasBackend]":
    from ws_responses.adapters.cerebras import CerebrasBackend

    backend = CerebrasBackend(api_key=KEY, base_url=service.url, **options)
    yield backend
    await backend.aclose()
