"""Logs what somebody else's code raised: where, and what kind; its text only if that may be kept."""

import logging
import traceback
from collections.abc import Iterator
from typing import Final, cast

_WITHHELD: Final = " (the text of errors is withheld)\n%s"

_MOST: Final = 20
"""Exceptions of a chain or group that are told."""


def log_raised(
    logger: logging.Logger, level: int, text: str, *args: object, error: BaseException, private: bool
) -> None:
    """Log an exception with its traceback.

    Args:
        logger: Where to.
        level: Of the record.
        text: The message, with places for ``args``.
        args: See there.
        error: What was raised.
        private: Its text may hold content that is to be kept nowhere (``store: false``), as that of pydantic's errors does: only kinds
            and places are logged, nor is the exception itself handed on, whose frames hold all of it.
    """
    if not private:
        logger.log(level, text, *args, exc_info=error)
    elif logger.isEnabledFor(level):
        logger.log(
            level,
            text + _WITHHELD,  # noqa: G003 - so that what is told of one place is one message
            *args,
            "\n".join(_places(error, [])),
        )


def _places(error: BaseException | None, seen: list[BaseException]) -> Iterator[str]:
    """Yield the kind of an exception and where it went through; what it was raised from, and what it groups, likewise."""
    if error is None or any(error is each for each in seen) or len(seen) >= _MOST:
        return
    seen.append(error)
    yield from _places(error.__cause__ or (None if error.__suppress_context__ else error.__context__), seen)
    yield f"{type(error).__module__}.{type(error).__qualname__}, raised at:"
    yield "".join(traceback.format_tb(error.__traceback__)).rstrip()
    if isinstance(error, BaseExceptionGroup):
        grouped = cast("BaseExceptionGroup[BaseException]", error)
        for each in grouped.exceptions:
            yield from _places(each, seen)
