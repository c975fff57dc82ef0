"""What the work of a turn raises: its client is told, whatever it is."""

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio

from ws_responses.cancellation import parted, was_cancelled
from ws_responses.errors import WireError
from ws_responses.instrumentation.raised import log_raised
from ws_responses.protocol.turns import Turn

logger = logging.getLogger("ws_responses.turn")


class Teller(Protocol):
    """Tells a client how its turn has ended."""

    turn: Turn

    @property
    def ended(self) -> bool:
        """Whether it has been told."""
        ...

    @property
    def is_private(self) -> bool:
        """Whether nothing of the turn may be kept anywhere."""
        ...

    async def fail(self, error: WireError) -> None:
        """Tell of an error; does nothing if an end has been told."""


async def told(work: Callable[[], Awaitable[None]], teller: Teller) -> None:
    """Do the work of a turn: whatever it raises is told its client.

    Raises:
        BaseException: The task was cancelled, or more than an error has come.
    """
    try:
        await work()
    except WireError as error:
        await teller.fail(error)
    except Exception as error:  # noqa: BLE001 - the client is told, and the log
        await _tell_fault(teller, error)
    except anyio.get_cancelled_exc_class() as error:
        if teller.ended or was_cancelled():
            raise
        # Of something that the upstream waited for (asyncio): the client would wait for ever.
        await _tell_fault(teller, error)
    except BaseExceptionGroup as group:
        goes_on, failure = parted(group)
        if failure is not None and not teller.ended:
            await _tell_fault(teller, failure)
        raise goes_on from None


async def _tell_fault(teller: Teller, error: BaseException) -> None:
    text = "turn %s failed by a fault of ours"
    log_raised(logger, logging.ERROR, text, teller.turn.id, error=error, private=teller.is_private)
    await teller.fail(WireError("The server had an error while processing the request."))
