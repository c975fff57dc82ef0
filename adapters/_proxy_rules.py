"""What a proxy passes on: which paths, which headers, and how it says no. No I/O."""

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from ws_responses._types import Scope
from ws_responses.errors import ConfigurationError, InvalidRequest
from ws_responses.handshake import CREDENTIAL_HEADERS
from ws_responses.upstreams.scope import route_path

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
"""CONNECT and TRACE are for proxies of another kind."""

_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings", "expect"}
)
"""Headers of one connection only (RFC 9110, 7.6.1)."""
_HOP_PREFIXES: Final = ("proxy-", "sec-websocket-")
_REMADE: Final = frozenset({"host", "content-length", "accept-encoding", "via", "forwarded", "x-real-ip"})
"""Headers of a request that are made anew, or not at all: anybody can claim to be forwarded."""
_FORWARDED_PREFIX: Final = "x-forwarded-"
_OF_SERVER: Final = frozenset({"date", "server", "alt-svc"})
"""Headers of an answer that are the affair of the server in front, which sends its own."""

_PATH: Final = re.compile(r"(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+)*/?")
"""RFC 3986 ``path-abempty`` without empty segments."""
_PATH_SAFE: Final = "/:@!$&'()*+,;="
_QUERY: Final = re.compile(r"[!-\"$-~]*")
"""Printable ASCII but ``#``: what servers let through, and no more."""
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?")
_FORBIDDEN_IN_PATH: Final = re.compile(r"[\x00-\x1f\x7f\\%]")
"""In a decoded path: control characters, the other slash, and what would be decoded once more."""


class Base:
    """The URL below which an upstream is asked, and the prefix of our paths that stands for it.

    Args:
        url: ``http://host:8000/v1``: scheme, host, perhaps a port and a path.
        prefix: Path that is replaced by the URL.

    Attributes:
        origin: Scheme, host and port: for logs.
        secure: It is asked over TLS.

    Raises:
        ConfigurationError: It is no such URL.
    """

    __slots__ = ("_base", "_prefix", "origin", "secure")

    def __init__(self, url: str, prefix: str) -> None:
        try:
            parts = urlsplit(url)
            valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number, a bracket too few
            raise ConfigurationError("the URL of the upstream cannot be read") from None
        if not valid:
            raise ConfigurationError(f"the URL of the upstream must be like http://host:8000/v1, not {_shown(url)!r}")
        if "@" in parts.netloc:
            raise ConfigurationError("the URL of the upstream must hold no credentials; give them as api_key")
        if parts.query or parts.fragment:
            raise ConfigurationError("the URL of the upstream must have no query and no fragment")
        if prefix and not prefix.startswith("/"):
            raise ConfigurationError(f"prefix must begin with '/' or be empty, not {prefix!r}")
        path = parts.path.rstrip("/")
        if not _is_plain(path):
            raise ConfigurationError(f"the path of the URL of the upstream cannot be used: {path!r}")
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self.secure = parts.scheme == "https"
        self._base = self.origin + path
        self._prefix = prefix.rstrip("/")

    def url_for(self, scope: Scope) -> str:
        """Return the URL of a request: always one below the base.

        Raises:
            InvalidRequest: The path is not below the prefix (404), or is none that is passed on (400).
        """
        path = _raw_path(scope)
        below = path.removeprefix(self._prefix)
        if not path.startswith(self._prefix) or (below and not below.startswith("/")):
            raise InvalidRequest("There is nothing at this path.", status=404, code="not_found")
        if not _is_plain(below):
            raise InvalidRequest("This path is not passed on.", code="invalid_path")
        query = bytes(scope.get("query_string") or b"").decode("latin-1")
        if not _QUERY.fullmatch(query):
            raise InvalidRequest("This query is not passed on.", code="invalid_path")
        return f"{self._base}{below}?{query}" if query else self._base + below


class HeaderRules:
    """Which headers go to the upstream, and which come back.

    Args:
        credentials: Whether the client's credentials go to the upstream, and its cookies to the client.
        added: Headers for every request, in place of the client's own.
        forwarded: Whether the upstream is told who the client is.
        pseudonym: Our name in ``Via``.
    """

    __slots__ = ("_added", "_credentials", "_dropped", "_forwarded", "_pseudonym")

    def __init__(self, *, credentials: bool, added: Mapping[str, str], forwarded: bool, pseudonym: str) -> None:
        self._credentials = credentials
        self._added = {name.lower(): value for name, value in added.items()}
        self._forwarded = forwarded
        self._pseudonym = pseudonym
        credential_headers = frozenset[str]() if credentials else frozenset(CREDENTIAL_HEADERS)
        self._dropped: frozenset[str] = _REMADE | credential_headers | frozenset(self._added)

    def request(self, scope: Scope) -> list[tuple[str, str]]:
        """Return the headers for the upstream, without those of the body's length.

        Raises:
            InvalidRequest: The request comes from ourselves (508).
        """
        given = _decoded(scope.get("headers") or ())
        via = [value for name, value in given if name == "via"]
        if any(self._pseudonym in value for value in via):
            raise InvalidRequest("The upstream of this proxy is the proxy itself.", status=508, code="loop_detected")
        headers = [
            (name, value)
            for name, value in _end_to_end(given)
            if name not in self._dropped and not name.startswith(_FORWARDED_PREFIX)
        ]
        headers += self._added.items()
        if self._forwarded:
            headers += _forwarded_headers(scope, given)
        # A compressed event stream would come in lumps; and nobody here could read it.
        headers.append(("accept-encoding", "identity"))
        headers.append(("via", ", ".join([*via, f"1.1 {self._pseudonym}"])))
        return headers

    def answer(self, raw: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return the headers for the client."""
        given = [(bytes(name).decode("latin-1").lower(), bytes(value).decode("latin-1")) for name, value in raw]
        dropped = _OF_SERVER if self._credentials else _OF_SERVER | {"set-cookie"}
        if any(name == "transfer-encoding" for name, _ in given):
            dropped |= {"content-length"}
        return [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in _end_to_end(given)
            if name not in dropped
        ]


def check_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return headers that an operator adds.

    Raises:
        ConfigurationError: They are none that HTTP can carry; what is in them is not repeated, for it may be a key.
    """
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ConfigurationError(f"{name!r} is no name of a header")
        if not _HEADER_VALUE.fullmatch(value):
            raise ConfigurationError(f"the value of the header {name!r} must be printable ASCII")
    return headers


def declared_length(scope: Scope) -> int | None:
    """Return the ``Content-Length`` of a request, None if it has none."""
    for name, value in scope.get("headers") or ():
        if bytes(name).lower() == b"content-length" and bytes(value).isdigit():
            return int(value)
    return None


def _raw_path(scope: Scope) -> str:
    """Return the path below ``root_path`` as it was on the wire, or encoded anew if that is not known."""
    path = route_path(scope)
    raw = bytes(scope.get("raw_path") or b"").partition(b"?")[0].decode("ascii", "replace")
    root = quote(scope.get("root_path") or "", safe=_PATH_SAFE)
    for candidate in (raw, raw.removeprefix(root)):
        if unquote(candidate) == path:
            return candidate
    return quote(path, safe=_PATH_SAFE)


def _is_plain(path: str) -> bool:
    """Whether no reader of a path could take it for another one."""
    decoded = unquote(path)
    if not _PATH.fullmatch(path) or _FORBIDDEN_IN_PATH.search(decoded):
        return False
    return not {".", ".."} & set(decoded.split("/"))


def _end_to_end(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    listed = {
        each.strip().lower() for name, value in headers if name == "connection" for each in value.split(",")
    } | _HOP_BY_HOP
    return [pair for pair in headers if pair[0] not in listed and not pair[0].startswith(_HOP_PREFIXES)]


def _decoded(headers: Iterable[Iterable[bytes]]) -> list[tuple[str, str]]:
    return [(bytes(name).decode("latin-1").lower(), _text(bytes(value))) for name, value in headers]


def _text(value: bytes) -> str:
    # aiohttp encodes as UTF-8: what is that comes out as it went in.
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _forwarded_headers(scope: Scope, given: list[tuple[str, str]]) -> list[tuple[str, str]]:
    headers = [("x-forwarded-proto", str(scope.get("scheme") or "http"))]
    client = scope.get("client")
    if client:
        headers.append(("x-forwarded-for", str(client[0])))
    headers += [("x-forwarded-host", value) for name, value in given if name == "host"][:1]
    return headers


def _shown(url: str) -> str:
    """Return a URL without what may be credentials."""
    return re.sub(r"//.*@", "//...@", url)
