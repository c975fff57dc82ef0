"""Writing to one socket: order, fairness, blocked and cancelled writes, and what servers do."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.lowlevel import checkpoint

from ws_responses._types import Message
from ws_responses.testing import settle
from ws_responses.writer import Writer


class Server:
    """A server's `send` that blocks as the test says, and refuses to be called while it does.

    Args:
        block: which of the messages block (by number), or whether all do.
    """

    def __init__(self, block: Callable[[int], bool] = lambda _: False) -> None:
        self.sent: list[str] = []
        self.finished: list[str] = []
        self.cancelled: list[str] = []
        self.errors: dict[int, Exception] = {}
        self.late_errors: dict[int, Exception] = {}
        self._block = block
        self._go = anyio.Event()
        self._busy = False

    def let_go(self) -> None:
        """Let the write that blocks go on."""
        go, self._go = self._go, anyio.Event()
        go.set()

    async def __call__(self, message: Message) -> None:
        assert not self._busy, "two sends at the same time"
        number = len(self.sent)
        name = str(message.get("text", message.get("code")))
        self.sent.append(name)
        if number in self.errors:
            raise self.errors[number]
        if self._block(number):
            self._busy = True
            try:
                await self._go.wait()
            except anyio.get_cancelled_exc_class():
                self.cancelled.append(name)
                raise
            finally:
                self._busy = False
        if number in self.late_errors:
            raise self.late_errors[number]
        self.finished.append(name)


def writer_of(server: Callable[[Message], Awaitable[None]], now: Callable[[], float] = lambda: 0.0) -> Writer:
    return Writer(server, now)


async def write_all(writer: Writer, *frames: bytes) -> None:
    for frame in frames:
        await writer.write(frame)


# -- nothing blocks ---------------------------------------------------------------------------------------------------


async def test_a_write_that_does_not_block_has_happened_when_it_returns() -> None:
    """What a fast client answers must find the state of after the write: no task switch in between."""
    server = Server()
    writer = writer_of(server)

    written = writer.write(b'"\xc3\xa9"')

    assert server.finished == ['"é"']
    await written
    assert writer.blocked_since is None


async def test_frames_of_one_task_keep_their_order() -> None:
    server = Server()
    frames = [b"%d" % number for number in range(300)]

    await write_all(writer_of(server), *frames)

    assert server.finished == [frame.decode() for frame in frames]


async def test_a_writer_that_never_awaits_anything_else_lets_others_run() -> None:
    """A generator without an await would starve the loop: no hang-up is seen, no time limit looks."""
    server = Server()
    writer = writer_of(server)
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            await anyio.lowlevel.checkpoint()
            others += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        await write_all(writer, *[b"x"] * 2000)
        tasks.cancel_scope.cancel()
    assert 12 <= others <= 50, "every 128 frames or so"


async def test_it_lets_others_run_also_when_nothing_is_written_any_more() -> None:
    """The client has gone and the app does not notice: the reader must get the chance to end it."""
    writer = writer_of(Server())
    writer.finish()
    stopped = False

    async def other() -> None:
        nonlocal stopped
        stopped = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        await write_all(writer, *[b"x"] * 400)
        assert stopped


# -- a write that blocks ----------------------------------------------------------------------------------------------


async def test_while_one_blocks_the_others_wait_behind_it_in_order() -> None:
    server = Server(lambda number: number == 0)
    writer = writer_of(server, lambda: 7.0)

    async with anyio.create_task_group() as tasks:
        for frame in (b"a", b"b", b"c"):
            tasks.start_soon(write_all, writer, frame)
            await settle()
        assert server.sent == ["a"]
        assert writer.blocked_since == 7.0
        server.let_go()
    assert server.finished == ["a", "b", "c"]
    assert writer.blocked_since is None


async def test_nobody_jumps_ahead_of_who_waits() -> None:
    """The one that is woken has its turn, even if another writes before it runs."""
    server = Server(lambda number: number == 0)
    writer = writer_of(server)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write_all, writer, b"a")
        await settle()
        tasks.start_soon(write_all, writer, b"waits")
        await settle()
        server.let_go()
        await anyio.lowlevel.checkpoint()
        await writer.write(b"late")
    assert server.finished == ["a", "waits", "late"]


async def test_two_lanes_alternate_on_a_server_that_blocks() -> None:
    """Nobody starves: with every write blocking, a big lane and a small one take turns."""
    server = Server(lambda _: True)
    writer = writer_of(server)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write_all, writer, *[b"big"] * 20)
        tasks.start_soon(write_all, writer, *[b"small"] * 5)
        for _ in range(25):
            await settle()
            server.let_go()
    pairs = zip(server.finished[0:10:2], server.finished[1:10:2], strict=True)
    assert [set(pair) for pair in pairs] == [{"big", "small"}] * 5
    assert server.finished[10:] == ["big"] * 15


@pytest.mark.parametrize("lead", [*range(60, 70), *range(250, 260)])
async def test_frames_of_two_writers_keep_the_order_in_which_they_were_begun(lead: int) -> None:
    """Also where a writer lets others run: what a lane writes next must come after this."""
    server = Server()
    writer = writer_of(server)
    await write_all(writer, *[b"x"] * lead)

    async def second() -> None:
        await writer.write(b"second")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(second)
        await writer.write(b"first")
    assert server.finished[lead:] == ["first", "second"]


# -- cancellation -----------------------------------------------------------------------------------------------------


async def test_a_blocked_write_that_is_cancelled_hands_the_socket_on() -> None:
    server = Server(lambda number: number == 0)
    writer = writer_of(server)

    scope = anyio.CancelScope()

    async def first() -> None:
        with scope:
            await writer.write(b"a")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await settle()
        tasks.start_soon(write_all, writer, b"b")
        await settle()
        scope.cancel()
    assert server.cancelled == ["a"]
    assert server.finished == ["b"]
    assert writer.blocked_since is None


async def test_a_waiting_write_that_is_cancelled_leaves_the_queue() -> None:
    server = Server(lambda number: number == 0)
    writer = writer_of(server)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write_all, writer, b"a")
        await settle()
        scope = anyio.CancelScope()
        scope.cancel()
        with scope:
            await writer.write(b"cancelled")
        tasks.start_soon(write_all, writer, b"b")
        await settle()
        server.let_go()
    assert server.finished == ["a", "b"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_write_that_is_cancelled_when_its_turn_has_come_hands_the_socket_on() -> None:
    """Of asyncio only: a task can be cancelled there although what it waited for has happened."""
    server = Server(lambda number: number == 0)
    writer = writer_of(server)

    async def first() -> None:
        await writer.write(b"a")
        waiting.cancel()

    running = asyncio.create_task(first())
    await settle()
    waiting = asyncio.create_task(write_all(writer, b"cancelled"))
    await settle()
    after = asyncio.create_task(write_all(writer, b"b"))
    await settle()
    server.let_go()
    await asyncio.wait([running, waiting, after], timeout=5)

    assert waiting.cancelled()
    assert server.finished == ["a", "b"]


# -- what servers raise -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError("gone"), BrokenPipeError(), RuntimeError("already closed"), KeyError("x")])
@pytest.mark.parametrize("late", [False, True])
async def test_a_send_that_raises_ends_the_writing_and_nobody_elses_work(error: Exception, late: bool) -> None:
    """uvicorn raises when the client has gone. It is no fault of the app whose event it was; and nobody may wait for ever."""
    server = Server(lambda number: late and number == 1)
    (server.late_errors if late else server.errors)[1] = error
    writer = writer_of(server)

    async with anyio.create_task_group() as tasks:
        await writer.write(b"a")
        tasks.start_soon(write_all, writer, b"b")
        await settle()
        tasks.start_soon(write_all, writer, b"c")
        await settle()
        server.let_go()
        await settle()
        await writer.write(b"d")
    assert server.sent == ["a", "b"]
    assert writer.closed
    assert writer.blocked_since is None


async def test_a_plain_function_that_raises() -> None:
    """A `send` need not be a coroutine function: then it raises before there is anything to await."""

    def send(message: Message) -> Awaitable[None]:
        raise OSError("gone")

    writer = writer_of(send)
    await writer.write(b"a")
    await writer.write(b"b")
    assert writer.closed


# -- awaitables of all kinds ------------------------------------------------------------------------------------------


class Plain:
    """An awaitable that is no coroutine; its steps are a generator, or an iterator that can take nothing."""

    def __init__(self, steps: Generator[Any, Any, Any] | Any) -> None:
        self._steps = steps

    def __await__(self) -> Any:
        return self._steps


@pytest.mark.parametrize("blocks", [False, True])
async def test_a_send_that_returns_an_awaitable_which_is_no_coroutine(blocks: bool) -> None:
    server = Server(lambda _: blocks)

    def send(message: Message) -> Awaitable[None]:
        return Plain(server(message).__await__())

    writer = writer_of(send)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write_all, writer, b"a", b"b")
        for _ in range(2):
            await settle()
            server.let_go()
    assert server.finished == ["a", "b"]


class Iterator:
    """The least that `__await__` may return (PEP 492): it has no `send` and no `throw`."""

    def __init__(self, steps: Generator[Any, Any, Any]) -> None:
        self._next = steps.__next__

    def __iter__(self) -> "Iterator":
        return self

    def __next__(self) -> Any:
        return self._next()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_send_whose_awaitable_is_a_mere_iterator() -> None:
    """Of asyncio only: trio answers what is yielded, which an iterator cannot take. granian's are such."""
    server = Server(lambda number: number == 0)

    def send(message: Message) -> Awaitable[None]:
        return Plain(Iterator(server(message).__await__()))

    writer = writer_of(send)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write_all, writer, b"a", b"b")
        await settle()
        server.let_go()
    assert server.finished == ["a", "b"]


# -- the close --------------------------------------------------------------------------------------------------------


async def test_the_close_comes_after_all_that_waits_and_nothing_after_it() -> None:
    server = Server(lambda number: number == 0)
    writer = writer_of(server)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write_all, writer, b"a")
        await settle()
        tasks.start_soon(write_all, writer, b"b")
        await settle()
        tasks.start_soon(writer.close, 1001, "age")
        await settle()
        tasks.start_soon(write_all, writer, b"late")
        await settle()
        server.let_go()
    await writer.write(b"later")
    await writer.close(1000, "again")
    assert server.finished == ["a", "b", "1001"]


async def test_cut_off_ends_what_blocks_drops_what_waits_and_still_closes() -> None:
    """A client that does not read gets its close as soon as the server can take it."""
    server = Server(lambda number: number == 0)
    writer = writer_of(server)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write_all, writer, b"a", b"more")
        await settle()
        tasks.start_soon(write_all, writer, b"b")
        await settle()
        writer.cut_off()
        tasks.start_soon(writer.close, 1008, "client does not read")
    assert server.cancelled == ["a"]
    assert server.finished == ["1008"]


async def test_a_close_that_blocks_is_not_cut_off_by_itself() -> None:
    server = Server(lambda number: True)
    writer = writer_of(server)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.close, 1000, "")
        await settle()
        assert server.cancelled == []
        server.let_go()
    assert server.finished == ["1000"]


async def test_after_finish_not_even_a_close_is_written() -> None:
    server = Server(lambda number: number == 0)
    writer = writer_of(server)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write_all, writer, b"a")
        await settle()
        writer.finish()
        tasks.start_soon(writer.close, 1000, "")
    assert server.sent == server.cancelled == ["a"]


@pytest.mark.parametrize("gone", [True, False])
async def test_only_writes_that_were_given_up_are_waited_for(gone: bool) -> None:
    """A turn may be ended while a slow client holds up another one's write, for a minute: nobody may poll for that."""
    server = Server(lambda _: True)
    writer = writer_of(server)
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        while True:
            await checkpoint()
            rounds += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write_all, writer, b"a", b"b")
        tasks.start_soon(write_all, writer, b"c")
        await settle()
        tasks.start_soon(count)
        if gone:
            writer.finish()
        await writer.let_go()
        assert rounds < 50
        assert len(server.cancelled) == (1 if gone else 0)
        tasks.cancel_scope.cancel()
