"""A fast stream read in fewer pieces: what waits, and how long."""
# ruff: noqa: E402 - the packages are optional

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.adapters.cerebras.fake import DONE, KEY, LAST, ROLE, chat, chat_prompt, params, stream, text_of
from tests.conftest import require
from ws_responses.backends import Delta
from ws_responses.errors import ConfigurationError, StreamTruncated
from ws_responses.testing.clock import settle
from ws_responses.testing.services import HOLD, LoopbackService

require("cerebras")

import httpx
from httpx_aiohttp.transport import AiohttpResponseStream

from ws_responses.adapters import cerebras
from ws_responses.adapters._gathering import Gathered, answer_below
from ws_responses.adapters.cerebras import CerebrasBackend

GATHER_S = 0.004
FULL = AiohttpResponseStream.CHUNK_SIZE
ALWAYS = 1e12
"""A share of any time that is all that may be waited."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


# --- what waits -------------------------------------------------------------------------------------------------------


class Paced:
    """A body whose pieces come at times of its own, on a clock of its own; what is there is read at once, up to a bound."""

    def __init__(self, times: Sequence[float], size: int) -> None:
        self._times = deque(times)
        self._size = size
        self.now = 0.0
        self.slept: list[float] = []

    def __aiter__(self) -> "Paced":
        return self

    async def __anext__(self) -> bytes:
        if not self._times:
            raise StopAsyncIteration
        self.now = max(self.now, self._times[0])
        read = b""
        while self._times and self._times[0] <= self.now and len(read) < FULL:
            self._times.popleft()
            read += b"x" * self._size
        return read

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


async def times(at: Sequence[float], *, size: int = 1, busy_s: float = 0.0) -> tuple[list[float], list[float]]:
    """Return when each piece was handed on, and for how long was slept; the reader is busy after each time."""
    body = Paced(at, size)
    gathered = Gathered(httpx.Response(200), body, GATHER_S, now=lambda: body.now, sleep=body.sleep)
    handed: list[float] = []
    async for read in gathered:
        handed += [body.now] * (len(read) // size)
        body.now += busy_s
    return handed, body.slept


async def test_a_slow_stream_does_not_wait() -> None:
    """Without this an answer at a usual pace would be late at each token, and cost a timer more."""
    at = [number * 0.015 for number in range(1, 6)]
    handed, slept = await times(at)
    assert handed == at
    assert not slept


async def test_no_piece_waits_longer_than_was_said() -> None:
    """Also where the pace changes: at the first pieces that are fast, and after a pause."""
    at = [0.010, 0.011, 0.012, 0.013, 0.050, 0.051, 0.090]
    handed, _ = await times(at)
    assert handed[0] == at[0]
    assert all(0 <= late - one <= GATHER_S + 1e-9 for one, late in zip(at, handed, strict=True))


async def test_a_fast_stream_wakes_its_reader_once_in_a_while() -> None:
    """Without this 4,000 packets a second are 4,000 wake-ups."""
    at = [number * 0.00025 for number in range(4_000)]
    _, slept = await times(at)
    assert sum(slept) == pytest.approx(1.0, rel=0.1)
    assert len([one for one in slept if one < GATHER_S]) <= 4 / 0.04 + 2
    assert len(slept) <= 1.0 / GATHER_S + 4 / 0.04 + 2


@given(st.lists(st.sampled_from([0.0, 0.0002, 0.001, 0.002, 0.02]), min_size=1, max_size=200))
async def test_no_answer_gets_longer_by_more_than_a_share_of_it(gaps: list[float]) -> None:
    """Without this the end of a short call, which its client waits for, would be later by what nobody sees in a long text."""
    at = list(accumulate(gaps))
    handed, _ = await times(at)
    assert all(late - one <= (late - at[0]) * 0.04 + 1e-9 for one, late in zip(at, handed, strict=True))


async def test_a_reader_that_is_slow_does_not_sleep_as_well() -> None:
    """Time that its client takes counts: more has come meanwhile anyway."""
    _, slept = await times([number * 0.00025 for number in range(400)], busy_s=GATHER_S)
    assert not slept


async def test_what_comes_in_large_pieces_does_not_wait() -> None:
    """Without this what has been read already would wait a second time, behind the first part of it."""
    _, slept = await times([0.0] * 5, size=FULL)
    assert not slept


async def test_what_comes_meanwhile_waits_in_the_kernel_and_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this each packet wakes the process up all the same; shows as well that aiohttp's answer is found below httpx's."""
    sleeping, go_on = asyncio.Event(), asyncio.Event()
    pieces: list[bytes] = []

    async def sleep(_: float) -> None:
        sleeping.set()
        await go_on.wait()

    class Watched(Gathered):
        def __init__(self, response: httpx.Response, body: AsyncIterator[bytes], _: float) -> None:
            answer = answer_below(response)
            assert answer is not None
            self.answer = answer
            super().__init__(response, body, 60.0, share=ALWAYS, sleep=sleep)
            watched.append(self)

        async def __anext__(self) -> bytes:
            pieces.append(await super().__anext__())
            return pieces[-1]

    watched: list[Watched] = []
    monkeypatch.setattr(cerebras, "Gathered", Watched)
    words = [chat({"content": f"{number}"}) for number in range(5)]
    async with LoopbackService() as service:
        service.script(stream([ROLE, HOLD, *words, HOLD, LAST, DONE]))
        backend = CerebrasBackend(api_key=KEY, base_url=service.url)
        async with aclosing(backend.generate(chat_prompt(), params())) as generation:
            reading = asyncio.ensure_future(anext(generation))
            await sleeping.wait()
            connection = watched[0].answer.connection
            assert connection is not None
            transport: Any = connection.transport  # typed as one that only writes
            assert not transport.is_reading()
            service.release()
            await settle()
            assert len(pieces) == 1
            go_on.set()
            assert (await reading).text == "01234"
            service.release()
            assert [delta.finish async for delta in generation] == ["stop"]
        await backend.aclose()
        assert service.connections == 1


async def test_a_generation_that_is_left_while_it_waits_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this a service would sample on for a client that has gone."""
    sleeping = asyncio.Event()

    async def sleep(_: float) -> None:
        sleeping.set()
        await asyncio.Event().wait()

    def gathered(response: httpx.Response, body: AsyncIterator[bytes], _: float) -> Gathered:
        return Gathered(response, body, 60.0, share=ALWAYS, sleep=sleep)

    monkeypatch.setattr(cerebras, "Gathered", gathered)
    async with LoopbackService() as service:
        service.script(stream([ROLE, chat({"content": "a"}), HOLD, LAST, DONE]))
        backend = CerebrasBackend(api_key=KEY, base_url=service.url)
        generation = backend.generate(chat_prompt(), params())
        reading = asyncio.ensure_future(text(generation))
        await sleeping.wait()
        reading.cancel()
        await service.wait_until(lambda: service.hung_up == 1)
        await backend.aclose()


async def text(generation: AsyncIterator[Delta]) -> str:
    return text_of([delta async for delta in generation])


async def test_a_connection_that_is_lost_while_it_waits_is_a_stream_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this the loss would be an error of the adapter's own."""
    sleeping, go_on = asyncio.Event(), asyncio.Event()

    async def sleep(_: float) -> None:
        sleeping.set()
        await go_on.wait()

    def gathered(response: httpx.Response, body: AsyncIterator[bytes], _: float) -> Gathered:
        return Gathered(response, body, 60.0, share=ALWAYS, sleep=sleep)

    monkeypatch.setattr(cerebras, "Gathered", gathered)
    async with LoopbackService() as service:
        service.script(stream([ROLE, chat({"content": "a"}), HOLD, LAST, DONE]))
        backend = CerebrasBackend(api_key=KEY, base_url=service.url)
        reading = asyncio.ensure_future(text(backend.generate(chat_prompt(), params())))
        await sleeping.wait()
        service.stop_listening()
        await settle()
        go_on.set()
        with pytest.raises(StreamTruncated):
            await reading
        await backend.aclose()


@pytest.mark.parametrize("seconds", [-0.001, 0.101, float("nan")])
def test_a_time_out_of_range_is_refused(seconds: float) -> None:
    """Without this an answer would hang between two tokens, for as long as somebody has mistyped."""
    with pytest.raises(ConfigurationError, match="gather_s"):
        CerebrasBackend(api_key=KEY, gather_s=seconds)


async def test_without_it_each_chunk_is_a_delta() -> None:
    """Whoever wants each token by itself can have it."""
    async with LoopbackService() as service:
        body = b"".join(chat({"content": word}) for word in "abc")
        for gather_s, expected in ((0.0, ["a", "b", "c", ""]), (GATHER_S, ["abc", ""])):
            service.script(stream([body, LAST, DONE]))
            backend = CerebrasBackend(api_key=KEY, base_url=service.url, gather_s=gather_s)
            assert [delta.text async for delta in backend.generate(chat_prompt(), params())] == expected
            await backend.aclose()
