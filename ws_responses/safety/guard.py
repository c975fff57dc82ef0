"""The gate with its tasks: stands between an upstream and the turn that takes its events."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, cast

import anyio
from anyio.lowlevel import checkpoint

from ws_responses.errors import WireError
from ws_responses.safety.gate import OutputGate, Payload
from ws_responses.safety.judge import Judge
from ws_responses.safety.verdict import Judgement, SafetyInput, SafetyState, merged

logger: Final = logging.getLogger("ws_responses.safety")

_YIELD_EVERY: Final = 64
"""Events that are not written after which an upstream that never waits lets others run."""


class Downstream(Protocol):
    """Where events go that may leave: ``Emit``, as the turn has it."""

    on_abort: Callable[[], None] | None
    in_background: bool

    def event(self, payload: bytes, /) -> Awaitable[None]:
        """Take one event."""
        ...

    def delta(self, event: str, /) -> Awaitable[None]:
        """Take one event that lacks nothing, as text."""
        ...

    def alive(self) -> None:
        """Note a sign of life."""

    async def fail(self, error: WireError) -> None:
        """End the turn by an error."""

    @property
    def ended(self) -> bool:
        """Whether the turn is over."""
        ...


class Guard:
    """What an upstream is given in the turn's place (the ``Emit`` contract): its events leave when they have been judged.

    Args:
        judge: The classifiers.
        gate: Holds the events.
        downstream: The turn.
        stop: Asks the upstream to end, since its turn is over: by ``on_abort`` and then, after a grace, by cancellation.

    Attributes:
        judgement: What has been said so far; None if nothing was.
    """

    def __init__(self, judge: Judge, gate: OutputGate, downstream: Downstream, *, stop: Callable[[], object]) -> None:
        self.judgement: Judgement | None = None
        self._judge = judge
        self._gate = gate
        self._downstream = downstream
        self._stop = stop
        self._looping = False
        self._pumping = False
        self._over = False
        self._error: WireError | None = None
        self._kept = 0
        self._wake: anyio.Event | None = None
        self._room: anyio.Event | None = None
        self._quiet: anyio.Event | None = None
        self._in_background = False

    async def run(
        self,
        answer: Callable[[Downstream], Awaitable[None]],
        pending: SafetyInput | None = None,
        state: SafetyState | None = None,
    ) -> None:
        """Let the upstream answer, and return when all that may leave has left.

        Args:
            answer: Runs the upstream, which gives its events to this guard.
            pending: The input, if it is to be judged beside the inference.
            state: What to judge it with.

        Raises:
            Exception: Whatever ``answer`` raised, after what came before it has left; nothing once the turn was blocked.
        """
        error: Exception | None = None
        if pending is None and not self._judge.waits("output"):
            # Without classifiers that wait, a task would only cost.
            error = await self._answered(answer)
            self._gate.finish()
            await self._judge_due()
        else:
            self._looping = True
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._loop, pending, state or SafetyState())
                error = await self._answered(answer)
                self._over = True
                self._gate.finish()
                self._wake_up()
        if error is not None and not self._gate.blocked:
            raise error

    async def _answered(self, answer: Callable[[Downstream], Awaitable[None]]) -> Exception | None:
        try:
            await answer(cast("Downstream", self))  # pyright takes no property for an attribute
        except Exception as error:  # noqa: BLE001 - raised again by ``run``, when its time has come
            if self._gate.blocked:
                logger.debug("the upstream of a blocked turn raised %s", type(error).__name__)
            return error
        return None

    # -- the upstream's side (Emit) ----------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether the turn is over, or will be when what is held has been judged."""
        return self._gate.complete or self._gate.blocked or self._error is not None or self._downstream.ended

    @property
    def on_abort(self) -> Callable[[], None] | None:
        """The upstream's; the turn calls it."""
        return self._downstream.on_abort

    @on_abort.setter
    def on_abort(self, value: Callable[[], None] | None) -> None:
        self._downstream.on_abort = value

    @property
    def in_background(self) -> bool:
        """Whether what still runs is the upstream's own affair."""
        return self._in_background

    @in_background.setter
    def in_background(self, value: bool) -> None:
        self._in_background = value
        self._tell_background()

    def _tell_background(self) -> None:
        # Not before the closing event is out: until then the turn is ours to end.
        if self._downstream.ended:
            self._downstream.in_background = self._in_background

    def alive(self) -> None:
        """Note a sign of life."""
        self._downstream.alive()

    def event(self, payload: bytes, /) -> Awaitable[None]:
        """Take one event; waits while too much is held."""
        if self._gate.transparent and not self._pumping:
            return self._downstream.event(payload)
        return self._take(payload)

    def delta(self, event: str, /) -> Awaitable[None]:
        """Take one event that lacks nothing, as text; waits while too much is held."""
        if self._gate.transparent and not self._pumping:
            return self._downstream.delta(event)
        return self._take(event)

    async def fail(self, error: WireError) -> None:
        """End the turn by an error, after what came before it."""
        if self.ended:
            return
        self._error = error
        self._gate.finish()
        if self._looping:
            self._wake_up()
        else:
            await self._judge_due()
            await self._tell_error()

    async def _take(self, payload: Payload) -> None:
        if self.ended:
            await self._keep()
            return
        self._downstream.alive()
        try:
            self._gate.take(payload)
        except WireError as error:
            self._gate.block()
            await self._close(error)
            return
        if not self._looping:
            await self._judge_due()
            return
        if self._gate.is_due():
            self._wake_up()
        await self._pump()
        if not self._gate.idle:
            await self._keep()
        while self._gate.full and not self._downstream.ended:
            if self._room is None:
                self._room = anyio.Event()
            await self._room.wait()

    async def _keep(self) -> None:
        """Let others run now and then, since no write does that for an event that is not written."""
        self._kept += 1
        if not self._kept % _YIELD_EVERY:
            await checkpoint()

    # -- what leaves -------------------------------------------------------------------------------------------------

    async def _pump(self) -> None:
        """Pass on what may leave, unless somebody is at it, who will see this as well."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while (payload := self._gate.leaving()) is not None:
                if isinstance(payload, str):
                    await self._downstream.delta(payload)
                else:
                    await self._downstream.event(payload)
        finally:
            self._pumping = False
            self._wake_waiting()
        self._tell_background()

    def _wake_waiting(self) -> None:
        if self._room is not None and not self._gate.full:
            self._room.set()
            self._room = None
        if self._quiet is not None:
            self._quiet.set()
            self._quiet = None

    async def _close(self, error: WireError | None, closing: bytes | None = None) -> None:
        """End the turn, and the upstream."""
        if self._pumping:
            # An event is on its way that may be written in several frames: nothing may come between them.
            self._quiet = anyio.Event()
            await self._quiet.wait()
        if error is not None:
            await self._downstream.fail(error)
        elif closing is not None:
            await self._downstream.event(closing)
        self._wake_waiting()
        self._stop()

    # -- the verdicts ------------------------------------------------------------------------------------------------

    async def _judge_due(self) -> None:
        """Judge what is due, here and now."""
        while self._gate.is_due():
            await self._judge_window()
        await self._pump()

    async def _judge_window(self) -> None:
        window, state = self._gate.window(), self._gate.state
        if window is None or state is None:
            return
        judgement = await self._judge.judge(window, state)
        self.judgement = merged(self.judgement, judgement)
        if not judgement.blocked:
            self._gate.passed(judgement)
            return
        closing = self._gate.block()
        if judgement.unavailable:
            await self._close(judgement.error())
        else:
            await self._close(None, closing)

    async def _loop(self, pending: SafetyInput | None, state: SafetyState) -> None:
        """Judge what is due, beside the upstream, until there will be no more."""
        if pending is not None and not await self._let_in(pending, state):
            return
        while not (self._gate.blocked or self._downstream.ended):
            if self._gate.is_due():
                await self._judge_window()
            await self._pump()
            if self._gate.is_due() or self._gate.blocked:
                continue
            if self._gate.idle and self._error is not None:
                await self._tell_error()
            elif self._over:
                break
            else:
                self._wake = anyio.Event()
                await self._wake.wait()
        self._gate.drop()
        self._wake_waiting()

    async def _let_in(self, pending: SafetyInput, state: SafetyState) -> bool:
        judgement = await self._judge.judge(pending, state)
        self.judgement = merged(self.judgement, judgement)
        if judgement.blocked:
            self._gate.block()
            await self._close(judgement.error())
            return False
        self._gate.open(judgement.state)
        await self._pump()  # what needs no verdict: a response that is blocked is announced all the same
        return True

    async def _tell_error(self) -> None:
        if self._error is not None and not self._gate.blocked:
            await self._downstream.fail(self._error)

    def _wake_up(self) -> None:
        if self._wake is not None:
            self._wake.set()
            self._wake = None
