"""The clock that tests move by hand."""

import math

import anyio
import anyio.lowlevel
import pytest

from ws_responses.clock import Clock
from ws_responses.testing import FakeClock, settle


async def pause(clock: Clock, seconds: float) -> None:
    await clock.wait(seconds, anyio.Event())


async def test_it_stands_still_until_it_is_moved() -> None:
    clock: Clock = FakeClock(start=10)

    assert clock.now() == clock.now() == 10


async def test_wait_ends_at_its_time_and_not_before() -> None:
    clock = FakeClock()
    ended: list[float] = []

    async def sleeper() -> None:
        await pause(clock, 8)
        ended.append(clock.now())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleeper)
        await clock.advance(7.875)
        assert ended == []
        assert clock.next_due == 8
        await clock.advance(0.125)
        assert ended == [8]
        assert clock.next_due == math.inf


async def test_wait_ends_when_woken() -> None:
    clock = FakeClock()
    wake = anyio.Event()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(clock.wait, math.inf, wake)
        await settle()
        wake.set()
    assert clock.now() == 0


async def test_no_time_at_all_needs_no_advance() -> None:
    await FakeClock().wait(0, anyio.Event())


async def test_advance_wakes_in_order_of_time_and_sees_what_the_woken_ask_for() -> None:
    """A waiter that waits again within the same advance is woken at its own time; else watchdogs would oversleep."""
    clock = FakeClock()
    seen: list[tuple[str, float]] = []

    async def twice(name: str, first: float, second: float) -> None:
        await pause(clock, first)
        seen.append((name, clock.now()))
        await pause(clock, second)
        seen.append((name, clock.now()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(twice, "a", 2, 4)
        tasks.start_soon(twice, "b", 1, 2)
        await clock.advance(100)

    assert seen == [("b", 1), ("a", 2), ("b", 3), ("a", 6)]
    assert clock.now() == 100


async def test_move_on_after_cancels_the_block_at_its_time() -> None:
    clock = FakeClock()
    scopes: list[anyio.CancelScope] = []

    async def limited() -> None:
        with clock.move_on_after(1) as scope:
            scopes.append(scope)
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(limited)
        await clock.advance(0.5)
        assert not scopes[0].cancelled_caught
        await clock.advance(0.5)
    assert scopes[0].cancelled_caught


async def test_a_block_that_ended_in_time_is_forgotten() -> None:
    clock = FakeClock()

    with clock.move_on_after(1) as scope:
        pass
    await clock.advance(2)

    assert not scope.cancelled_caught


async def test_a_block_that_ignores_its_end_does_not_hold_time_up() -> None:
    clock = FakeClock()
    go = anyio.Event()

    async def stubborn() -> None:
        with clock.move_on_after(1), anyio.CancelScope(shield=True):
            await go.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stubborn)
        await clock.advance(5)
        assert clock.now() == 5
        go.set()


async def test_jump_moves_all_at_once() -> None:
    clock = FakeClock()
    ended: list[float] = []

    async def sleeper(seconds: float) -> None:
        await pause(clock, seconds)
        ended.append(clock.now())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleeper, 1)
        tasks.start_soon(sleeper, 2)
        await settle()
        clock.jump(2)
        assert ended == []
    assert ended == [2, 2]


async def test_settle_lets_everybody_come_to_rest() -> None:
    steps: list[int] = []

    async def worker() -> None:
        for step in range(50):
            await anyio.lowlevel.checkpoint()
            steps.append(step)
        await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker)
        await settle()
        assert len(steps) == 50
        tasks.cancel_scope.cancel()


async def test_settle_waits_for_cancellations_that_are_on_their_way() -> None:
    ended: list[str] = []

    async def worker() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anyio.sleep_forever()
        ended.append("ended")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker)
        await settle()
        assert ended == ["ended"]


async def test_several_tasks_may_settle_at_the_same_time() -> None:
    settled: list[int] = []

    async def client(number: int) -> None:
        await settle()
        settled.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(client, number)
        await settle()
    assert sorted(settled) == [0, 1, 2, 3, 4]


async def test_settle_gives_up_on_a_busy_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ws_responses.testing.clock._MAX_SECONDS", 0.05)

    async def busy() -> None:
        while True:
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(busy)
        with pytest.raises(AssertionError, match="still busy"):
            await settle()
        tasks.cancel_scope.cancel()
