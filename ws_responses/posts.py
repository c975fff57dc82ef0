"""POSTs that are answered as connections of one create, so that HTTP and sockets run on the same code."""

from collections.abc import Callable

import anyio

from ws_responses._types import Receive, Scope, Send
from ws_responses.connector import Connector
from ws_responses.errors import WireError
from ws_responses.handshake import Handshake
from ws_responses.http_turn import HttpTurn, read_body, send_error
from ws_responses.registry import Registry
from ws_responses.serving import serve
from ws_responses.upstreams.base import Upstream
from ws_responses.upstreams.scope import route_path


class Posts:
    """Answers the POSTs of a middleware that are not left to the app.

    Args:
        registry: What the connections share.
        connector: Makes them.
    """

    def __init__(self, registry: Registry, connector: Connector) -> None:
        self._registry = registry
        self._settings = registry.settings
        self._connector = connector

    def is_create(self, scope: Scope) -> bool:
        """Whether an HTTP request is a create of ours, guarded by quota, safety and settlement."""
        if scope["method"] != "POST":
            return False
        paths = (*self._settings.paths, self._settings.inner_path or "")
        return _plain_path(route_path(scope)) in map(_plain_path, paths)

    async def guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a create that comes by HTTP; an error that turns it away is its answer."""
        try:
            await self.serve(scope, receive, send)
        except WireError as error:
            await send_error(send, error)

    async def serve(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        upstream: Upstream | None = None,
        peer_of: Callable[[bytes, Receive, Send], HttpTurn] = HttpTurn,
    ) -> None:
        """Answer a POST as a connection of one create, so that both ways run on the same code.

        Args:
            scope: Of the request.
            receive: Likewise.
            send: Likewise.
            upstream: Answers it, if another one than usually does.
            peer_of: Makes the connection's peer: of the body, and the request.

        Raises:
            WireError: The request is turned away; nothing has been sent.
        """
        handshake = Handshake(scope)
        inner = self._connector.inner_scope_of(handshake)
        with self._registry.seats.seat() as seat:
            # Who may not come in is told so before the body is read.
            guest = await self._registry.admission.admit(handshake, seat)
            body = await read_body(scope, receive, self._settings.limits, self._settings.clock)
            if body is None:
                return
            peer = peer_of(body, receive, send)
            del body
            seat.confirm()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(peer.watch)
                connection = self._connector.connect(
                    handshake, peer.send, guest, inner, upstream, in_whole=peer.in_whole
                )
                await serve(connection, peer.receive)
                tasks.cancel_scope.cancel()


def _plain_path(path: str) -> str:
    """Return a path without needless slashes: some routers take one with them for the same, which must be no way round."""
    return "/".join(filter(None, path.split("/")))
