"""Tells hooks and the log."""

import logging
from collections.abc import Sequence

from ws_responses.instrumentation.facts import ConnectionClosed, ConnectionDenied, Fact, Hook, NodeDropped, StoreFailed

_connection_log = logging.getLogger("ws_responses.connection")
_turn_log = logging.getLogger("ws_responses.turn")
_store_log = logging.getLogger("ws_responses.store")


class Reporter:
    """Passes facts on to hooks; a hook that raises cannot break a turn.

    Args:
        hooks: In the order of their calls.
    """

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self._hooks = tuple(hooks)
        self._broken: set[int] = set()

    def report(self, fact: Fact) -> None:
        """Tell everybody."""
        for index, hook in enumerate(self._hooks):
            try:
                hook(fact)
            except Exception:  # noqa: BLE001 - a hook must not break a turn
                if index not in self._broken:
                    self._broken.add(index)
                    _turn_log.exception("a hook raised; further failures of it are not logged")
        if isinstance(fact, ConnectionClosed):
            _connection_log.log(
                logging.INFO if fact.transport == "websocket" else logging.DEBUG,  # servers log requests themselves
                "connection %s closed (%d, %s) after %.1f s and %d turns",
                fact.connection_id,
                fact.code,
                "client" if fact.by_client else "server",
                fact.duration_s,
                fact.turns,
            )
        elif isinstance(fact, ConnectionDenied):
            _connection_log.info("upgrade of %s refused: %d %s", fact.path, fact.status, fact.code)
        elif isinstance(fact, NodeDropped):
            _store_log.warning("response %s (%d bytes) does not fit the budgets", fact.response_id, fact.size)
        elif isinstance(fact, StoreFailed):
            _store_log.warning("store: %s failed: %s", fact.operation, fact.error)
        elif _turn_log.isEnabledFor(logging.DEBUG):
            _turn_log.debug("%r", fact)
