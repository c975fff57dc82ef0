"""Work that several ask for at once is done once, whoever of them is cancelled."""

import anyio
import pytest

from ws_responses.single_flight import SingleFlight
from ws_responses.testing import settle


class Work:
    """Work that waits for the test."""

    def __init__(self) -> None:
        self.begun = 0
        self.go = anyio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> int:
        self.begun += 1
        mine = self.begun
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return mine


async def test_who_asks_meanwhile_is_given_the_same_result() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    work = Work()
    results: list[int] = []

    async def ask(key: str) -> None:
        results.append(await flights.run(key, work))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(ask, "a")
        await settle()
        assert work.begun == 1
        tasks.start_soon(ask, "b")
        await settle()
        assert work.begun == 2, "another key is other work"
        work.go.set()
    assert sorted(results) == [1] * 5 + [2]
    assert len(flights) == 0
    assert await flights.run("a", work) == 3, "what is done is not kept"


async def test_who_asks_meanwhile_is_given_the_same_error() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    work = Work()
    work.error = ValueError("x")
    failed: list[str] = []

    async def ask() -> None:
        with pytest.raises(ValueError, match="x"):
            await flights.run("a", work)
        failed.append("a")

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(ask)
        await settle()
        work.go.set()
    assert (len(failed), work.begun, len(flights)) == (3, 1, 0)


async def test_the_work_of_one_who_is_cancelled_is_begun_anew() -> None:
    """Else a client that hangs up would take the answer of all others with it."""
    flights: SingleFlight[str, int] = SingleFlight()
    work = Work()
    results: list[int] = []
    scope = anyio.CancelScope()

    async def leave() -> None:
        with scope:
            await flights.run("a", work)

    async def ask() -> None:
        results.append(await flights.run("a", work))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leave)
        await settle()
        for _ in range(3):
            tasks.start_soon(ask)
        await settle()
        scope.cancel()
        await settle()
        assert work.begun == 2
        work.go.set()
    assert results == [2] * 3
    assert len(flights) == 0
