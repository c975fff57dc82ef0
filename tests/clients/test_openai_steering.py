"""The openai package steers a response over a real socket."""
# ruff: noqa: E402 - the package is optional

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.conftest import require

from .server import Server

require("openai")

from openai import AsyncOpenAI

pytestmark = pytest.mark.clients


@pytest.fixture
def thinking_server(tmp_path: Path) -> Iterator[Server]:
    with Server("tests.clients.steering_app:app", tmp_path) as server:
        yield server


async def test_the_sdk_steers_a_response_that_still_thinks(thinking_server: Server) -> None:
    """Its own method sends the frame, and its own types read all that comes; the client creates one response and gets two."""
    events: list[Any] = []
    client = AsyncOpenAI(base_url=thinking_server.base_url, api_key="k")
    async with client, client.responses.connect() as connection:
        await connection.send({"type": "response.create", "model": "m", "input": "Think."})
        with anyio.fail_after(20):
            async for event in connection:
                events.append(event)
                if event.type == "response.created" and len(events) == 1:
                    await connection.response.steer(input="Be brief.", previous_response_id=event.response.id)
                if event.type in {"response.completed", "response.failed", "error"}:
                    break

    told = [event for event in events if not event.type.startswith("response.") or event.type.count(".") == 1]
    assert [event.type for event in told] == [
        "response.created",
        "response.in_progress",
        "response.incomplete",
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    (accepted,) = [event for event in events if event.type == "response.steer.accepted"]
    ended, final = told[2].response, told[-1].response
    assert accepted.steer.previous_response_id == ended.id == final.previous_response_id
    assert ended.incomplete_details.reason == "steered"
    assert [item.type for item in ended.output] == ["reasoning"]
    assert final.output_text
    numbers = [event.sequence_number for event in events]
    second = numbers.index(0, 1)
    assert numbers == [*range(second), *range(len(numbers) - second)]
