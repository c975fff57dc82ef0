"""Make the HTTP scope of each turn from the scope of the socket."""

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from ws_responses._types import Scope

Header = tuple[bytes, bytes]

# With 2.4 or above, Starlette stops listening for `http.disconnect` and notices
# an abort only when it next sends: a generator waiting for a slow model would
# run on.
_SPEC_VERSION = "2.3"
_SCHEMES = {"ws": "http", "wss": "https"}
_BODYLESS_METHODS = frozenset({"GET", "HEAD"})

# What belongs to the socket's own connection and upgrade, not to a turn.
_CONNECTION_HEADERS = frozenset(
    {b"connection", b"upgrade", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"expect", b"content-length"}
)
_CONNECTION_PREFIXES = (b"proxy-", b"sec-websocket-")
# What describes a body and its wanted answer. The handshake has no say in
# either; the ones that a turn needs are added anew.
_CONTENT_HEADERS = frozenset({b"content-type", b"content-encoding", b"accept", b"accept-encoding"})

# JSON too, or frameworks that negotiate drop the text of their errors (Falcon),
# or refuse (Django REST framework). `identity`, because a compressing layer in
# the app would hide the events.
_ANSWER_HEADERS: tuple[Header, ...] = (
    (b"accept", b"text/event-stream, application/json"),
    (b"accept-encoding", b"identity"),
)
_JSON_BODY: Header = (b"content-type", b"application/json")
# RFC 3986 `pchar` and the slash; letters, digits and `-._~` are always safe.
_PATH_SAFE = "/:@!$&'()*+,;="


def route_path(scope: Scope) -> str:
    """Return the path below `root_path`, which is the one that routes match.

    The prefix is removed only at a segment border: `/apis` is not below `/api`.
    Servers and proxies disagree whether `path` includes `root_path`, so a path
    which does not begin with it is returned as it is.

    Args:
        scope: The scope of a request or of a socket.
    """
    path: str = scope["path"]
    root_path: str = scope.get("root_path") or ""
    return path[len(root_path) :] if _is_below(path, root_path) else path


def _is_below(path: str, root_path: str) -> bool:
    return path == root_path or (path.startswith(root_path) and path.startswith("/", len(root_path)))


class InnerScope:
    """The source of HTTP scopes for the turns of one connection.

    All that stays the same from turn to turn is worked out once. The scope of
    the socket is never changed; what outer layers have put into it (`app`,
    `user`, `session`, mount data) goes on to each turn.

    Args:
        scope: The scope of the socket.
        inner_path: Path of the HTTP route, below `root_path`, if it is not the
            path of the socket.
        keep_origin: Whether the `origin` header goes on to the app. An app may
            need it for its CSRF check, or refuse a turn because of it.
    """

    __slots__ = ("_headers", "_state", "_template")

    def __init__(self, scope: Scope, *, inner_path: str | None = None, keep_origin: bool = True) -> None:
        template: dict[str, Any] = dict(scope)
        template.pop("subprotocols", None)
        scheme = scope.get("scheme") or "ws"
        path, raw_path = _paths(scope, inner_path)
        template.update(
            type="http",
            http_version=scope.get("http_version") or "1.1",
            scheme=_SCHEMES.get(scheme, scheme),
            path=path,
            raw_path=raw_path,
            query_string=scope.get("query_string") or b"",
            root_path=scope.get("root_path") or "",
        )
        for key in ("client", "server"):
            if key in template:
                template[key] = _with_int_port(template[key])
        self._template = template
        self._state = scope.get("state")
        self._headers = (*_turn_headers(scope.get("headers") or (), keep_origin=keep_origin), *_ANSWER_HEADERS)

    def request(self, body_length: int, *, method: str = "POST", extra_headers: Sequence[Header] = ()) -> Scope:
        """Return a new HTTP scope; changes to it reach no other turn.

        Args:
            body_length: Length of the body in bytes. A GET has none.
            method: The HTTP method.
            extra_headers: Headers of this turn, in place of those with an equal
                name. `content-length` and the headers of the connection itself
                are ignored here.
        """
        headers = list(self._headers)
        if method not in _BODYLESS_METHODS:
            headers.append(_JSON_BODY)
            headers.append((b"content-length", b"%d" % body_length))
        if extra_headers:
            headers = _replace_headers(headers, extra_headers)
        request = self._template.copy()
        request["method"] = method
        request["headers"] = headers
        request["asgi"] = {"version": "3.0", "spec_version": _SPEC_VERSION}
        # Nothing of the server's own: a file sent by path, say, would go past us.
        request["extensions"] = {}
        if self._state is not None:
            request["state"] = dict(self._state)
        return request


def _paths(scope: Scope, inner_path: str | None) -> tuple[str, bytes]:
    path: str = scope["path"]
    if inner_path is not None and inner_path != route_path(scope):
        root_path: str = scope.get("root_path") or ""
        path = root_path + inner_path if _is_below(path, root_path) else inner_path
        return path, _quote_path(path)
    raw_path: bytes | None = scope.get("raw_path")
    return path, _quote_path(path) if raw_path is None else raw_path


def _quote_path(path: str) -> bytes:
    return quote(path, safe=_PATH_SAFE).encode("ascii")


def _with_int_port(address: Any) -> Any:
    """Turn a port given as text into a number; granian gives it so."""
    match address:
        case [host, str(port)] if port.isdecimal():
            return host, int(port)
        case _:
            return address


def _turn_headers(headers: Iterable[Iterable[bytes]], *, keep_origin: bool) -> list[Header]:
    pairs = _lower_names(headers)
    return [
        (name, value)
        for name, value in pairs
        if not _is_of_connection(name) and name not in _CONTENT_HEADERS and (keep_origin or name != b"origin")
    ]


def _replace_headers(headers: list[Header], extra_headers: Sequence[Header]) -> list[Header]:
    extra = [pair for pair in _lower_names(extra_headers) if not _is_of_connection(pair[0])]
    replaced = {name for name, _ in extra}
    return [pair for pair in headers if pair[0] not in replaced] + extra


def _lower_names(headers: Iterable[Iterable[bytes]]) -> list[Header]:
    return [(bytes(name).lower(), bytes(value)) for name, value in headers]


def _is_of_connection(name: bytes) -> bool:
    return name in _CONNECTION_HEADERS or name.startswith(_CONNECTION_PREFIXES)
