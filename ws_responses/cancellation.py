"""Telling a cancellation of ours from one that a library raises by itself, or that comes with an error."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import cast

import anyio

from ws_responses.loop import current_task


class CancelledByItself(RuntimeError):
    """What was awaited ended as cancelled, although nobody had cancelled the one who waits (asyncio only)."""


def was_cancelled() -> bool:
    """Whether somebody has cancelled the running task, now that a cancellation was caught in it.

    On asyncio, awaiting what another task has cancelled raises the same as being cancelled: taken for that, the work at hand
    would end in silence. On trio there is no such thing.
    """
    task = current_task()
    return task is None or task.cancelling() > 0


class _OursOnly:
    # No generator: from Python 3.12 on, one that takes an exception leaves a cycle, which holds all frames that this has passed.

    def __enter__(self) -> None:
        """Nothing is to be done before."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and isinstance(error, anyio.get_cancelled_exc_class()) and not was_cancelled():
            raise CancelledByItself("what was awaited has been cancelled") from error


def no_cancellation_but_ours() -> AbstractContextManager[None]:
    """Make an error of a cancellation that nobody has asked for.

    Raises:
        CancelledByItself: The block ended by one.
    """
    return _OursOnly()


def parted(group: BaseExceptionGroup) -> tuple[BaseException, Exception | None]:
    """Part what a trio nursery raises that is cancelled while one of its tasks fails: neither of both may hide the other.

    Returns:
        What has to go on (a cancellation; the group itself if there is none, or an interrupt in it), and the failure, if any.
    """
    cancelled, rest = group.split(anyio.get_cancelled_exc_class())
    if cancelled is None or not (rest is None or isinstance(rest, Exception)):
        return group, None
    return next(_leaves(cancelled)), rest


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(cast("BaseExceptionGroup[BaseException]", error))
        else:
            yield error
