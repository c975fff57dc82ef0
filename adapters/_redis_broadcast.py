"""Notices to all nodes of a server, by a stream on a Redis or Valkey server."""

import logging
from collections.abc import Callable
from typing import Any, Final, Literal

import anyio
import msgspec
from msgspec import Struct

from ws_responses.adapters._redis_client import Client, Server
from ws_responses.errors import ConfigurationError, StoreError

__all__ = ["RedisBroadcast"]

logger = logging.getLogger("ws_responses.store")

_KEPT: Final = 10_000
"""Notices that the stream holds: what a node may miss while it cannot reach the server, and still hear of."""

_AT_ONCE: Final = 100
"""Notices that are read by one command."""

_MAX_BACKOFF_S: Final = 5.0
"""Longest pause after a failure."""


class _Notice(Struct, array_like=True, frozen=True):
    """What all nodes are to do.

    Attributes:
        kind: "disconnect", "forget", or what a newer version says.
        tenant: Whose.
        detail: The reason of the close; or the response id.
    """

    kind: str
    tenant: str
    detail: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Notice).decode


class RedisBroadcast:
    """Tells all nodes to end a tenant's connections (a revoked key), or to forget a response that its owner has deleted.

        broadcast = RedisBroadcast("redis://localhost:6379/0")
        tasks.start_soon(partial(broadcast.listen, disconnect=app.disconnect))  # in each node's lifespan
        await broadcast.disconnect("tenant", "key revoked")  # anywhere

    A notice is read by every node that listens, this one too; one that could not reach the server for a while reads what it has
    missed. Who has not begun to listen has no connections either. For servers on asyncio.

    Args:
        server: A URL, or a client of ``redis.asyncio`` that stays the caller's to close.
        prefix: Begins the stream's key.
        interval_s: How often each node looks.
        timeout_s: Bound of one command.

    Raises:
        ConfigurationError: An option is wrong.
    """

    def __init__(
        self,
        server: str | Client,
        *,
        prefix: str = "ws_responses",
        interval_s: float = 0.5,
        timeout_s: float = 1.0,
    ) -> None:
        if interval_s <= 0:
            raise ConfigurationError("interval_s must be positive")
        self._server = Server(server, prefix, timeout_s)
        self._client = self._server.client
        self._operations = self._server.operations
        self._key = f"{prefix}:notices".encode()
        self._interval_s = interval_s

    async def disconnect(self, tenant: str, reason: str = "disconnected") -> None:
        """Have all nodes end the connections of a tenant; returns when the notice is given.

        Raises:
            StoreError: The server failed.
        """
        await self._tell("disconnect", tenant, reason)

    async def forget(self, tenant: str, response_id: str) -> None:
        """Have all nodes forget a response that they may hold in memory.

        Raises:
            StoreError: The server failed.
        """
        await self._tell("forget", tenant, response_id)

    async def listen(
        self,
        *,
        disconnect: Callable[[str, str], object] | None = None,
        forget: Callable[[str, str], object] | None = None,
    ) -> None:
        """Do what the notices say that are given from now on, until this is cancelled; failures are logged and waited out.

        Args:
            disconnect: Is called with a tenant and a reason.
            forget: Is called with a tenant and a response id.
        """
        actions = {"disconnect": disconnect, "forget": forget}
        last: bytes | None = None
        failures = 0
        while True:
            try:
                if last is None:
                    last = await self._operations.run(self._newest())
                notices = await self._operations.run(self._after(last))
                failures = 0
            except StoreError as error:
                logger.warning("notices cannot be read: %s", error)
                failures = min(failures + 1, 16)
                notices = []
            for last, content in notices:  # noqa: B007 - kept for the next look
                self._act(actions, content)
            if len(notices) < _AT_ONCE:
                await anyio.sleep(min(self._interval_s * 2**failures, max(_MAX_BACKOFF_S, self._interval_s)))

    async def aclose(self) -> None:
        """Wait for what is on its way, and close the connections unless they are the caller's."""
        await self._server.aclose()

    async def _tell(self, kind: Literal["disconnect", "forget"], tenant: str, detail: str) -> None:
        notice = _encode(_Notice(kind, tenant, detail))
        command = ("XADD", self._key, "MAXLEN", "~", _KEPT, "*", "n", notice)
        await self._operations.run(self._client.execute_command(*command))

    async def _newest(self) -> bytes:
        """Return the id of the newest notice."""
        found = await self._client.execute_command("XREVRANGE", self._key, "+", "-", "COUNT", 1)
        return bytes(found[0][0]) if found else b"0-0"

    async def _after(self, last: bytes) -> list[tuple[bytes, bytes | None]]:
        """Return the ids and contents of the next notices."""
        found = await self._client.execute_command("XRANGE", self._key, b"(" + last, "+", "COUNT", _AT_ONCE)
        return [(bytes(id_), _content_of(fields)) for id_, fields in found]

    @staticmethod
    def _act(actions: dict[str, Callable[[str, str], object] | None], content: bytes | None) -> None:
        try:
            notice = _decode(content or b"")
        except (msgspec.DecodeError, UnicodeDecodeError):
            logger.warning("a notice cannot be read")
            return
        action = actions.get(notice.kind)
        if action is None:
            return
        try:
            action(notice.tenant, notice.detail)
        except Exception:
            logger.exception("the action for a notice raised")


def _content_of(fields: dict[Any, Any] | None) -> bytes | None:
    content = None if fields is None else fields.get(b"n")
    return content if isinstance(content, bytes) else None
