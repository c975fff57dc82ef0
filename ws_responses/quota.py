"""The quota room: the operator may refuse a turn before it runs."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from math import ceil
from typing import Final

from msgspec import Struct

from ws_responses.asking import LateError, in_time
from ws_responses.clock import Clock
from ws_responses.errors import Refused, Unavailable

logger: Final = logging.getLogger("ws_responses.quota")


class QuotaRequest(Struct, frozen=True, kw_only=True):
    """A turn that is about to run.

    Attributes:
        turn_id: Our id of the turn; its settlement record has the same.
        tenant: Who owns the chain.
        principal_id: Who asks, as ``authorize`` said; None without it.
        model: As the request names it.
        warm_up: It generates nothing.
        parent_id: The response that it continues; None without one.
        input_bytes: Of the request.
    """

    turn_id: str
    tenant: str
    principal_id: str | None = None
    model: str | None = None
    warm_up: bool = False
    parent_id: str | None = None
    input_bytes: int = 0


Quota = Callable[[QuotaRequest], Awaitable[None] | None]
"""Is asked before each turn runs, on a socket and over HTTP; returns to let it run, raises :class:`QuotaExceeded` (or another
:class:`~ws_responses.errors.Refused`) to turn it away. The turn has not run then: its parent stays."""


class QuotaExceeded(Refused):
    """The turn is above its quota.

    Args:
        message: Text for the client.
        retry_after_s: Seconds after which it may try again, rounded up; None if that will not help.
    """

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, message: str = "The quota is used up.", *, retry_after_s: float | None = None) -> None:
        headers = None if retry_after_s is None else {"retry-after": str(max(1, ceil(retry_after_s)))}
        super().__init__(message, headers=headers)


async def ask_quota(quota: Quota, request: QuotaRequest, *, clock: Clock, timeout_s: float) -> None:
    """Ask the operator whether a turn may run.

    Args:
        quota: The operator's function, async or not.
        request: The turn.
        clock: Of the time limit.
        timeout_s: Time for the answer.

    Raises:
        Refused: It may not, or the function failed or was late (503): a quota fails closed.
    """
    try:
        await in_time(partial(quota, request), clock, timeout_s)
    except Refused:
        raise
    except LateError:
        logger.warning("quota was late")
        raise Unavailable("The quota could not be checked in time.", headers={"retry-after": "1"}) from None
    except Exception as error:
        logger.exception("quota raised")
        raise Unavailable("The quota could not be checked.", headers={"retry-after": "1"}) from error
