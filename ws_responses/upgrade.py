"""An upgrade: guarded, judged, and accepted as a connection or denied."""

import logging
from contextlib import suppress

from ws_responses._types import Receive, Scope, Send
from ws_responses.admission import Guest
from ws_responses.connection import Connection
from ws_responses.connector import Connector, InnerScopeOf
from ws_responses.errors import Forbidden, Refused
from ws_responses.handshake import Handshake, deny, deny_with
from ws_responses.instrumentation import ConnectionDenied
from ws_responses.probe import AppRefusal, ask_app
from ws_responses.registry import Registry
from ws_responses.seats import Seat
from ws_responses.serving import serve

logger = logging.getLogger("ws_responses.connection")


class Upgrades:
    """Takes the upgrades on a middleware's paths.

    Args:
        registry: What the connections share.
        connector: Makes them; its app's outer layers are asked (``probe``).
    """

    def __init__(self, registry: Registry, connector: Connector) -> None:
        self._registry = registry
        self._settings = registry.settings
        self._connector = connector

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one socket to its end, or deny it."""
        if (await receive())["type"] != "websocket.connect":
            return
        handshake = Handshake(scope)
        inner = self._connector.inner_scope_of(handshake)
        with self._registry.seats.seat() as seat:
            try:
                self._guard(handshake)
                guest = await self._admit(handshake, inner, seat)
            except AppRefusal as refusal:
                self._report_denial(scope, refusal.status, refusal.code)
                with suppress(OSError):  # the client has gone meanwhile
                    await deny_with(scope, send, refusal.status, refusal.raw_headers, refusal.body)
            except Refused as refusal:
                self._report_denial(scope, refusal.status, refusal.code)
                with suppress(OSError):
                    await deny(scope, send, refusal)
            else:
                connection = await self._accept(handshake, inner, send, guest)
                del guest, inner  # what this frame names stays as long as the socket
                if connection is not None:
                    await serve(connection, receive)

    async def _admit(self, handshake: Handshake, inner: InnerScopeOf, seat: Seat) -> Guest:
        """Judge an upgrade, the cheap checks first.

        Raises:
            Refused: It is turned away.
        """
        guest = await self._registry.admission.admit(handshake, seat)
        if self._settings.probe:
            await ask_app(self._connector.app, inner(), self._settings.clock, self._settings.limits.probe_timeout_s)
        seat.confirm()
        return guest

    async def _accept(self, handshake: Handshake, inner: InnerScopeOf, send: Send, guest: Guest) -> Connection | None:
        connection = self._connector.connect(handshake, send, guest, inner)
        try:
            await send({"type": "websocket.accept", "headers": self._accept_headers(handshake)})
        except OSError:
            logger.debug("a client left before its upgrade was accepted")
            return None
        return connection

    def _accept_headers(self, handshake: Handshake) -> list[tuple[bytes, bytes]]:
        if self._settings.handshake_headers is None:
            return []
        try:
            given = self._settings.handshake_headers(handshake)
            return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in given]
        except Exception:
            logger.exception("handshake_headers raised; the socket is accepted without them")
            return []

    def _guard(self, handshake: Handshake) -> None:
        if not self._settings.enabled:
            raise Refused(
                "WebSocket mode is not available here; use HTTP.",
                status=426,
                code="upgrade_required",
                headers={"connection": "close"},
            )
        if not handshake.origin_allowed(self._settings.allowed_origins):
            raise Forbidden("This origin may not open a connection.", code="origin_not_allowed")

    def _report_denial(self, scope: Scope, status: int, code: str) -> None:
        self._registry.reporter.report(ConnectionDenied(path=scope["path"], status=status, code=code))
