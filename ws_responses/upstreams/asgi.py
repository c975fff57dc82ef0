"""The wrapped app as an upstream: one in-process HTTP call per turn, with back-pressure and an orderly abort."""

import logging
import math
from collections.abc import Callable

import anyio

from ws_responses._types import ASGIApp
from ws_responses.cancellation import parted
from ws_responses.errors import StreamTruncated, UpstreamError
from ws_responses.instrumentation.raised import log_raised
from ws_responses.limits import Limits
from ws_responses.upstreams.app_call import AppCall
from ws_responses.upstreams.base import SCOPE_STATE_KEY, CurrentTurn, Emit, set_current_turn
from ws_responses.upstreams.bodies import Bodies
from ws_responses.upstreams.scope import InnerScope

logger = logging.getLogger("ws_responses.turn")


class AsgiUpstream:
    """Answers turns by the wrapped app.

    Args:
        app: The app.
        scope: Makes the source of the inner scopes of one connection, when its first turn comes.
        bodies: Makes the inner body of a turn.
        limits: Bounds of events and answers.
    """

    __slots__ = ("_app", "_bodies", "_limits", "_make_scope", "_scope")

    def __init__(self, app: ASGIApp, scope: Callable[[], InnerScope], bodies: Bodies, limits: Limits) -> None:
        self._app = app
        self._make_scope = scope
        self._scope: InnerScope | None = None
        self._bodies = bodies
        self._limits = limits

    async def run(self, turn: CurrentTurn, emit: Emit) -> None:
        """Call the app for one turn.

        Raises:
            WireError: The request cannot be built, or the app failed before it ended the turn.
        """
        body = self._bodies.build(turn)
        turn.create.body = {}  # these views hold the whole frame; what is kept of it has been copied
        if self._scope is None:
            self._scope = self._make_scope()
        scope = self._scope.request(len(body))
        scope.setdefault("state", {})[SCOPE_STATE_KEY] = turn
        set_current_turn(turn)
        call = AppCall(body, emit, self._limits)
        del body  # the call gives it up when the app has read it
        emit.on_abort = call.abort
        try:
            await self._app(scope, call.receive, call.send)
        except anyio.get_cancelled_exc_class() as error:
            if call.gone or anyio.current_effective_deadline() == -math.inf:
                raise
            # Nobody has cancelled us: it is the app's own, of a task of it that was cancelled (asyncio only).
            self._judge(turn, call, emit, error)
        except Exception as error:  # noqa: BLE001 - whatever an app raises becomes one wire error
            self._judge(turn, call, emit, error)
        except BaseExceptionGroup as group:
            goes_on, failure = parted(group)
            if failure is not None:
                self._judge(turn, call, emit, failure)
            raise goes_on from None
        finally:
            call.release()  # a task that the framework has left in `receive` would wait for ever
        if call.gone or emit.ended:
            return
        if not call.started:
            raise UpstreamError("The app returned without an answer.")
        raise StreamTruncated

    def _judge(self, turn: CurrentTurn, call: AppCall, emit: Emit, error: BaseException) -> None:
        if call.gone:
            logger.debug("turn %s: the app ended by %s after it was aborted", turn.id, type(error).__name__)
            return
        if emit.ended:
            level = logging.DEBUG if isinstance(error, OSError) else logging.ERROR
            text = "turn %s: the app raised after the end of the turn"
            log_raised(logger, level, text, turn.id, error=error, private=turn.is_private)
            return
        log_raised(logger, logging.ERROR, "turn %s: the app raised", turn.id, error=error, private=turn.is_private)
        raise UpstreamError(
            f"The server had an error while processing the request. Give this id when you report it: {turn.id}.",
            status=500,
            code="server_error",
        )
