"""One step of a rollout: a call of the upstream, between two waits for the client."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

import anyio

from ws_responses.errors import WireError
from ws_responses.protocol.turns import Turn
from ws_responses.runs import Runs
from ws_responses.spawn import Cancel, nothing_to_cancel
from ws_responses.turn_faults import told
from ws_responses.upstreams.base import Emit

Answer = Callable[[Any], Awaitable[None]]
"""Runs the upstream with the ``Emit`` that it is given."""


async def _nothing_to_answer(_: object) -> None:
    """Stand in for the call when it is over."""


class Rollout(Emit, Protocol):
    """What a step is of.

    Attributes:
        turn: Its turn.
    """

    turn: Turn

    @property
    def is_private(self) -> bool:
        """See ``CurrentTurn``."""
        ...

    def skip(self, payload: bytes, /) -> Awaitable[None]:
        """Take an event that nobody wants any more."""
        ...


class Step:
    """One call of the upstream: takes its events for the rollout (the ``Emit`` contract), and is a run of the connection.

    Its call may still run when the next step has begun, as an app's may after any other response.

    Attributes:
        turn: Of the rollout.
        cancel: Asks its task to end.
        closed: Its closing event was taken.
        changed: Set when that is so, or when the call has ended.
        on_abort: See ``Emit``.
        in_background: See ``Emit``.
    """

    def __init__(self, runs: Runs, rollout: Rollout, answer: Answer) -> None:
        self.turn: Turn = rollout.turn
        self.cancel: Cancel = nothing_to_cancel
        self.closed = False
        self.changed = anyio.Event()
        self.on_abort: Callable[[], None] | None = None
        self.in_background = False
        self._runs = runs
        self._rollout = rollout
        self._answer = answer
        self._gone = False

    @property
    def ended(self) -> bool:
        """Whether nothing more of it is wanted."""
        return self.closed or self._gone or self._rollout.ended

    @property
    def is_private(self) -> bool:
        """See ``CurrentTurn``."""
        return self._rollout.is_private

    async def run(self) -> None:
        """Call the upstream; what it raises ends the rollout, unless the step is over."""
        try:
            await told(partial(self._answer, self), self)
        finally:
            self._runs.over(self)
            self._answer = _nothing_to_answer
            self.changed.set()

    def event(self, payload: bytes, /) -> Awaitable[None]:
        """Take one event."""
        return self._rollout.skip(payload) if self.closed or self._gone else self._rollout.event(payload)

    def delta(self, event: str, /) -> Awaitable[None]:
        """Take one event that lacks nothing."""
        return self._rollout.skip(b"") if self.closed or self._gone else self._rollout.delta(event)

    def alive(self) -> None:
        """Note a sign of life."""
        if not self.ended:
            self._rollout.alive()

    async def fail(self, error: WireError) -> None:
        """End the rollout by an error; does nothing if this step is over."""
        if not self.ended:
            await self._rollout.fail(error)

    def abort(self, error: WireError | None) -> None:
        """Take nothing more of it; the rollout tells its client."""
        del error
        self._gone = True

    def mute(self) -> None:
        """Do nothing: what it writes is the rollout's affair."""

    def close(self) -> None:
        """Note that its closing event was taken."""
        self.closed = True
        self.changed.set()
