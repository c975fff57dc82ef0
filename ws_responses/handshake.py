"""What is known of a client before it is accepted, and the answers to an upgrade."""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from anyio.lowlevel import checkpoint

from ws_responses._types import Scope, Send
from ws_responses.errors import WireError
from ws_responses.protocol.events import encode

CREDENTIAL_HEADERS = ("authorization", "api-key", "x-api-key", "x-goog-api-key", "cookie")
"""What tells one client from another, and nothing else does."""

_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class Handshake:
    """The upgrade request.

    Attributes:
        scope: The socket's ASGI scope; read it, do not change it.
        path: Its path, as the server gave it.
        headers: Request headers by lower-case name; the values of repeated ones are joined, as RFC 9110 (5.3) and, for
            cookies, RFC 9113 (8.2.3) have it.
    """

    __slots__ = ("path", "scope")

    def __init__(self, scope: Scope) -> None:
        headers = scope.get("headers") or ()
        # ASGI asks for an iterable; one that can be read only once is written down.
        self.scope = scope if isinstance(headers, list | tuple) else {**scope, "headers": list(headers)}
        self.path: str = scope["path"]

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, read anew each time: they are wanted at the upgrade, and then kept by thousands of idle sockets."""
        headers: dict[str, str] = {}
        for raw_name, raw_value in self.scope.get("headers") or ():
            name = bytes(raw_name).decode("latin-1").lower()
            value = bytes(raw_value).decode("latin-1")
            if name in headers:
                value = f"{headers[name]}{'; ' if name == 'cookie' else ', '}{value}"
            headers[name] = value
        return headers

    @property
    def bearer_token(self) -> str | None:
        """The token of ``Authorization: Bearer ...``, None if there is none."""
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" and token.strip() else None

    def credentials_tenant(self, key: bytes) -> str | None:
        """Return a keyed hash of the credentials, None if there are none."""
        headers = self.headers
        given = [(name, headers[name]) for name in CREDENTIAL_HEADERS if headers.get(name)]
        if not given:
            return None
        return hmac.new(key, encode(given), hashlib.sha256).hexdigest()

    def origin_allowed(self, allowed: Iterable[str] | None) -> bool:
        """Whether a page of this origin may drive the socket with its user's credentials.

        No ``Origin`` is no browser. Without a list the page's host must be the host that it talks to. Behind a proxy that
        ends TLS the scope says "ws" though the page is secure, so only a page that is not, on a socket that is, is told
        from another by its scheme.
        """
        headers = self.headers
        origin = headers.get("origin")
        if origin is None:
            return True
        theirs = _origin(origin)
        if theirs is None:
            return allowed is not None and "*" in allowed
        if allowed is not None:
            return "*" in allowed or theirs in map(_origin, allowed)
        scheme = theirs[0]
        if self.scope.get("scheme") == "wss" and scheme != "https":
            return False
        return theirs == _origin(f"{scheme}://{self.headers.get('host', '')}")


def _origin(url: str) -> tuple[str, str, int | None] | None:
    """Return scheme, host and port of an origin; None if it is none (``null``, for one)."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port or _DEFAULT_PORTS.get(parts.scheme)


async def deny(scope: Scope, send: Send, error: WireError) -> None:
    """Refuse an upgrade by an HTTP answer where the server can send one (ASGI, "websocket.http.response"), else by 403."""
    body = encode({"error": {"type": error.type, "code": error.code, "message": error.message, "param": error.param}})
    headers = [(b"content-type", b"application/json"), *_encoded(error.headers)]
    await deny_with(scope, send, error.status, headers, body)


async def deny_with(scope: Scope, send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
    """Refuse an upgrade by this answer, or by 403 where the server can send no other."""
    extensions: Mapping[str, Any] = scope.get("extensions") or {}
    if "websocket.http.response" not in extensions:
        await send({"type": "websocket.close", "code": 1008, "reason": ""})
        return
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
    # uvicorn (websockets-sansio) notes that the handshake is over only when the connection is lost, and reports an error if
    # the app returns before: https://github.com/Kludex/uvicorn/pull/3138.
    await checkpoint()


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
