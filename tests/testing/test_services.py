"""The loopback service: what its users rest on."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ws_responses.testing.services import CUT, HOLD, HttpAnswer, LoopbackService, Piece, recut


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}


@pytest.fixture
async def service() -> AsyncIterator[LoopbackService]:
    async with LoopbackService() as service:
        yield service


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as client:
        yield client


async def test_requests_are_recorded_and_a_connection_is_reused(
    service: LoopbackService, client: aiohttp.ClientSession
) -> None:
    """Without this a test of connection reuse would prove nothing."""
    service.script(
        HttpAnswer(body=[b"a", b"bc"]), HttpAnswer.json({"x": 1}, status=429, headers=(("retry-after", "7"),))
    )

    async with client.post(f"{service.url}/v1/x?y=1", json={"n": [1, 2]}) as first:
        assert await first.read() == b"abc"
    async with client.post(f"{service.url}/v1/x", data=msgspec.msgpack.encode([3])) as second:
        assert (second.status, second.headers["retry-after"], await second.json()) == (429, "7", {"x": 1})

    assert [(each.path, each.connection) for each in service.requests] == [("/v1/x?y=1", 1), ("/v1/x", 1)]
    assert service.requests[0].decoded() == {"n": [1, 2]}
    assert service.connections == 1


async def test_chunked_and_packed_bodies_are_read(service: LoopbackService, client: aiohttp.ClientSession) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield msgspec.msgpack.encode({"a": 1})[:2]
        yield msgspec.msgpack.encode({"a": 1})[2:]

    headers = {"content-type": "application/vnd.msgpack"}
    async with client.post(service.url, data=pieces(), headers=headers):
        pass
    async with client.post(service.url, data=msgspec.json.encode([1]), compress="gzip"):
        pass

    assert [each.decoded() for each in service.requests] == [{"a": 1}, [1]]


async def test_a_cut_is_no_end(service: LoopbackService, client: aiohttp.ClientSession) -> None:
    """Without this a truncated stream could pass for a whole one in every test."""
    service.script(HttpAnswer(body=[b"half", CUT, b"never"]))

    with pytest.raises(aiohttp.ClientPayloadError):
        async with client.post(service.url) as response:
            await response.read()
    assert service.running == 0


async def test_a_client_that_hangs_up_is_noticed(service: LoopbackService, client: aiohttp.ClientSession) -> None:
    """Without this a test of cancellation would wait in vain, or pass by chance."""
    service.script(HttpAnswer(body=[b"half", HOLD, b"never"]), HttpAnswer(held=True))

    async with client.post(service.url) as response:
        assert await response.content.readany() == b"half"
        assert service.running == 1
        response.close()
    await service.wait_until(lambda: service.running == 0)

    assert service.hung_up == 1
    with pytest.raises(TimeoutError):
        async with client.post(service.url, timeout=aiohttp.ClientTimeout(total=0.05)):
            pass
    await service.wait_until(lambda: service.hung_up == 2)
    await service.wait_until(lambda: service.open == 0)


async def test_what_holds_goes_on_when_released(service: LoopbackService, client: aiohttp.ClientSession) -> None:
    service.script(HttpAnswer(body=[b"a", HOLD, b"b"]))

    async with client.post(service.url) as response:
        assert await response.content.readany() == b"a"
        service.release()
        assert await response.content.read() == b"b"


async def test_pieces_arrive_apart(service: LoopbackService, client: aiohttp.ClientSession) -> None:
    """Without this no test of chunk borders would see one."""
    service.script(HttpAnswer(body=recut([b"abcdef"], 1), apart=True))

    async with client.post(service.url) as response:
        assert [piece async for piece in response.content.iter_any()] == [b"a", b"b", b"c", b"d", b"e", b"f"]


async def test_a_shut_service_refuses(service: LoopbackService, client: aiohttp.ClientSession) -> None:
    await service.shut()

    with pytest.raises(aiohttp.ClientConnectorError):
        await client.post(service.url)


@given(st.lists(st.binary(max_size=9) | st.sampled_from([HOLD, CUT])), st.integers(1, 5))
def test_cutting_anew_changes_no_byte(pieces: list[Piece], size: int) -> None:
    def runs(body: list[Piece]) -> list[Piece]:
        joined: list[Piece] = [b""]
        for piece in body:
            last = joined[-1]
            if isinstance(piece, bytes) and isinstance(last, bytes):
                joined[-1] = last + piece
            else:
                joined += [piece] if isinstance(piece, bytes) else [piece, b""]
        return joined

    assert runs(recut(pieces, size)) == runs(pieces)
    assert all(len(piece) <= size for piece in recut(pieces, size) if isinstance(piece, bytes))
