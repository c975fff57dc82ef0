"""Who may talk to a server that was started from a shell."""

import hashlib
import hmac
import ipaddress
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from ws_responses._types import ASGIApp, Receive, Scope, Send
from ws_responses.errors import Forbidden, Refused, Unauthorized
from ws_responses.handshake import Handshake, deny
from ws_responses.http_turn import send_error, send_json
from ws_responses.upstreams.scope import route_path

logger = logging.getLogger("ws_responses.serve")

HEALTH_PATH: Final = "/health"
"""Answered without a key: 200 while it serves, 503 while it drains."""


class Keys:
    """The keys of clients; compared in a time that tells nothing of them.

    Args:
        keys: As clients send them.
    """

    __slots__ = ("_digests", "_secret")

    def __init__(self, keys: Sequence[str]) -> None:
        self._secret = secrets.token_bytes(32)
        self._digests = [self._digest(key) for key in keys]

    def __contains__(self, token: str) -> bool:
        given = self._digest(token)
        # All are compared, so that the time does not tell which one it was.
        return sum(hmac.compare_digest(given, each) for each in self._digests) > 0

    def _digest(self, token: str) -> bytes:
        return hmac.digest(self._secret, token.encode("utf-8", "surrogateescape"), hashlib.sha256)


class Guard:
    """Let in holders of a key; or, without keys, everybody who does not come by way of a foreign web page.

    It lies outside of everything else, so that sockets and requests are judged alike.

    Args:
        app: What it guards.
        keys: Keys; none for no check.
        local_only: Without keys: only names of this machine are served. A page whose name was made to point here (DNS
            rebinding) is turned away by that.
        allowed_origins: Web pages let in; None for those of the same host.
        draining: Whether the server is about to stop.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Sequence[str] = (),
        local_only: bool = False,
        allowed_origins: Sequence[str] | None = None,
        draining: Callable[[], bool] = lambda: False,
    ) -> None:
        self._app = app
        self._keys = Keys(keys) if keys else None
        self._local_only = local_only
        self._allowed_origins = allowed_origins
        self._draining = draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope, or refuse it."""
        kind = scope["type"]
        if kind == "lifespan":
            await self._app(scope, receive, send)
        elif kind == "http" and route_path(scope) == HEALTH_PATH:
            await self._tell_health(send)
        elif (refusal := self._refusal(Handshake(scope))) is None:
            await self._app(scope, receive, send)
        elif kind == "http":
            await send_error(send, refusal)
        elif (await receive())["type"] == "websocket.connect":
            await deny(scope, send, refusal)

    def _refusal(self, handshake: Handshake) -> Refused | None:
        if self._keys is not None:
            if (handshake.bearer_token or "") in self._keys:
                return None
            return Unauthorized("The API key is missing or not valid here.", headers={"www-authenticate": "Bearer"})
        if self._local_only and not is_local_name(handshake.headers.get("host", "")):
            logger.warning(
                "a request by a name that is not of this machine was refused; behind a proxy, give --api-key or --open"
            )
            return Forbidden("Only clients of this machine are served, by a name of it.")
        if not handshake.origin_allowed(self._allowed_origins):
            return Forbidden("Pages of this origin are not let in.", code="origin_not_allowed")
        return None

    async def _tell_health(self, send: Send) -> None:
        draining = self._draining()
        await send_json(send, 503 if draining else 200, {"status": "draining" if draining else "ok"})


def is_local_name(host: str) -> bool:
    """Whether a ``Host`` header names this machine; one that is missing was not sent by a browser."""
    if not host:
        return True
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost"):
        return True
    return is_loopback(name)


def is_loopback(address: str) -> bool:
    """Whether an address is reached from this machine only."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
