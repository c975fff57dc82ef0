"""What tells a cancellation of ours from one that comes by itself."""

import asyncio
import weakref
from collections.abc import Awaitable

import pytest

from tests.garbage import no_garbage_collection
from ws_responses.cancellation import CancelledByItself, no_cancellation_but_ours


class Held:
    """What a frame holds."""


async def cancelled_by_itself(held: Held) -> None:
    with no_cancellation_but_ours():
        raise asyncio.CancelledError


async def outcome_of(work: Awaitable[None]) -> type[BaseException] | None:
    try:
        await work
    except CancelledByItself as error:
        return type(error)
    return None


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_error_made_of_a_cancellation_holds_nothing() -> None:
    """Without this a turn whose store or quota fails so could stay in memory until the garbage collector comes by.

    It can fail from Python 3.12 on, where a context manager that is a generator leaves a cycle when it takes an exception.
    """
    held = Held()
    left = weakref.ref(held)
    with no_garbage_collection():
        outcome = await outcome_of(cancelled_by_itself(held))
        del held

        assert outcome is CancelledByItself
        assert left() is None
