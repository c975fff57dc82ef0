"""The life of one connection: opened, read, wound up, and forgotten."""

import logging

import anyio

from ws_responses._types import Message, Receive
from ws_responses.connection import Connection
from ws_responses.instrumentation import ConnectionClosed, ConnectionOpened
from ws_responses.protocol.actions import AbortTurn

logger = logging.getLogger("ws_responses.connection")

_NO_STATUS = 1005
"""RFC 6455, 7.1.5: no close code was received."""


async def serve(connection: Connection, receive: Receive) -> None:
    """Serve a connection to its end; nothing of it runs on when this returns.

    Args:
        connection: A new one.
        receive: Gives its frames.
    """
    connection.registry.add(connection)
    connection.charges.open()
    connection.reporter.report(
        ConnectionOpened(
            connection_id=connection.id,
            path=connection.handshake.path,
            transport=str(connection.handshake.scope["type"]),
        )
    )
    code = 1006
    try:
        async with anyio.create_task_group() as tasks:
            connection.open(tasks)
            try:
                code = await _read(connection, receive)
            finally:
                try:
                    with anyio.CancelScope(shield=True):
                        await _wind_up(connection)
                finally:
                    # Also if the server does not wait for all that, but cancels once more.
                    connection.stop()
                tasks.cancel_scope.cancel()
    finally:
        _forget(connection)
        _report_end(connection, code)


async def _read(connection: Connection, receive: Receive) -> int:
    """Hand every frame to the session at once; always wait in ``receive``, also during turns (asgi fact 1)."""
    while True:
        # No variable here may hold the message: it would stay in memory until the next one comes.
        code = _take(connection, await receive())
        if code is not None:
            return code


def _take(connection: Connection, message: Message) -> int | None:
    """Hand on one message of the server; return the close code if it is the last."""
    kind = message["type"]
    if kind == "websocket.receive":
        text = message.get("text")
        data = text if text is not None else message.get("bytes")
        if data is not None:
            connection.perform(connection.session.frame_received(data, connection.clock.now()))
    elif kind == "websocket.disconnect":
        return int(message.get("code") or _NO_STATUS)
    return None


async def _wind_up(connection: Connection) -> None:
    """End all turns: disconnect, grace, cancellation, bounded waits."""
    drain_s = connection.settings.on_disconnect_s
    actions = connection.session.peer_gone()
    connection.writer.finish()
    await connection.writer.let_go()
    if drain_s and connection.close_sent is None:
        await connection.runs.run_out(drain_s)
    connection.perform([action for action in actions if not isinstance(action, AbortTurn)])
    await connection.runs.end()
    if connection.settling is not None:
        await connection.settling.drain()
    connection.release()
    if len(connection.runs):
        logger.error("connection %s: %d app calls ignore cancellation", connection.id, len(connection.runs))


def _forget(connection: Connection) -> None:
    """Give the memory back at once: what is not stored is gone."""
    on_close = connection.settings.on_close
    ids = connection.cache.ids()
    connection.charges.clear()
    connection.turns.clear()
    connection.registry.remove(connection)
    if on_close is not None and ids:
        try:
            on_close(ids)
        except Exception:
            logger.exception("on_close raised")


def _report_end(connection: Connection, code: int) -> None:
    connection.reporter.report(
        ConnectionClosed(
            connection_id=connection.id,
            transport=str(connection.handshake.scope["type"]),
            code=connection.close_sent or code,
            by_client=connection.close_sent is None,
            duration_s=connection.clock.now() - connection.opened_at,
            turns=connection.session.turns_started,
        )
    )
