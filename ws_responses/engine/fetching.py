"""A resolver that fetches images and files from the public internet, and from nowhere else (asyncio: aiohttp).

A client that names a URL makes this server ask for it. So only addresses that everybody can reach are connected to: what a name
resolves to is checked, and just that address is used; each redirect is checked like a first request.
"""

import base64
import ipaddress
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urljoin

import anyio

from ws_responses.engine.resolving import Attachment
from ws_responses.errors import ConfigurationError, InvalidRequest, excerpt
from ws_responses.extras import Extra

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult
    from yarl import URL

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_BYTES: Final = 20 * 1024 * 1024
"""Largest image or file: the API's own bound of an image."""

MAX_URL_CHARS: Final = 8192
"""Longest URL: what web servers take in one line."""

MAX_CONNECTIONS: Final = 32
"""Open at the same time, for all turns; more fetches wait."""

_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_PORTS: Final = {"https": 443, "http": 80}
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


def is_public(address: Address) -> bool:
    """Whether an address is one that everybody can reach: not private, loopback, link-local, multicast or reserved.

    IPv6 addresses that stand for an IPv4 address (mapped, 6to4, Teredo, NAT64) are judged as that one.
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


class HttpResolver:
    """Fetches ``https:`` URLs of images and files, and puts what it got into the request.

    Needs aiohttp (extra ``http``). Close it, or use it with ``async with``.

    Args:
        schemes: URL schemes that are fetched.
        ports: Ports that are connected to; None for the scheme's own only.
        allows: Judges each address before it is connected to.
        max_bytes: Largest image or file.
        timeout_s: Time for one of them, redirects included.
        max_redirects: Redirects that are followed.

    Raises:
        ConfigurationError: aiohttp is missing, or a scheme is none of HTTP.
    """

    def __init__(
        self,
        *,
        schemes: Iterable[str] = ("https",),
        ports: Iterable[int] | None = None,
        allows: Callable[[Address], bool] = is_public,
        max_bytes: int = MAX_BYTES,
        timeout_s: float = 10.0,
        max_redirects: int = 3,
    ) -> None:
        self._schemes = frozenset(schemes)
        if not self._schemes or self._schemes - _PORTS.keys():
            raise ConfigurationError("schemes must be 'https', 'http' or both")
        _import_aiohttp()
        self._ports = None if ports is None else frozenset(ports)
        self._allows = allows
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._max_redirects = max_redirects
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give back the connections; may be called twice."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def resolve(self, kind: Attachment, part: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fetch what a part names.

        Raises:
            InvalidRequest: There is no URL, it may not be fetched, or it gave nothing that is of use.
        """
        field = "image_url" if kind == "image" else "file_url"
        url = part.get(field)
        if not isinstance(url, str) or not url:
            raise InvalidRequest(f"The {kind} is named by no URL: send it in the request itself.")
        with anyio.move_on_after(self._timeout_s):
            content_type, content = await self._fetch(url, kind)
            if kind == "image" and not content_type.startswith("image/"):
                raise InvalidRequest("The URL does not lead to an image.", code="invalid_image_url")
            data = f"data:{content_type};base64,{base64.b64encode(content).decode()}"
            if kind == "image":
                return {**part, "image_url": data}
            name = part.get("filename") or _import_yarl().URL(url).name or "file"
            rest = {member: value for member, value in part.items() if member != "file_url"}
            return {**rest, "file_data": data, "filename": name}
        raise InvalidRequest(f"The {kind} could not be fetched in time.", code=_failed(kind))

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _fetch(self, url: str, kind: Attachment) -> tuple[str, bytes]:
        aiohttp = _import_aiohttp()
        for _ in range(self._max_redirects + 1):
            checked = self._checked(url, kind)
            try:
                async with self._open().get(checked, allow_redirects=False) as answer:
                    if answer.status in _REDIRECTS and "location" in answer.headers:
                        url = urljoin(url, answer.headers["location"])
                        continue
                    if answer.status != 200:
                        raise InvalidRequest(
                            f"The {kind} could not be fetched: its server answered with status {answer.status}.",
                            code=_failed(kind),
                        )
                    return answer.content_type, await self._read(answer, kind)
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise _unreachable(kind) from error
        raise InvalidRequest(f"The {kind} could not be fetched: too many redirects.", code=_failed(kind))

    async def _read(self, answer: "aiohttp.ClientResponse", kind: Attachment) -> bytes:
        content = bytearray()
        async for chunk in answer.content.iter_chunked(1 << 16):
            content += chunk
            if len(content) > self._max_bytes:
                raise InvalidRequest(f"The {kind} has more than {self._max_bytes} bytes.", code=f"{kind}_too_large")
        return bytes(content)

    def _checked(self, url: str, kind: Attachment) -> "URL":
        """Return a URL that may be asked for, as aiohttp reads it.

        Another reader may see another host in the same text: to aiohttp, digits of all alphabets make an IPv4 address.

        Raises:
            InvalidRequest: Its scheme, port or address is not allowed.
        """
        try:
            parts: URL = _import_yarl().URL(url)
        except ValueError:
            raise _unreachable(kind) from None
        host = parts.raw_host
        if len(url) > MAX_URL_CHARS or parts.scheme not in self._schemes or not host:
            allowed = ", ".join(sorted(self._schemes))
            raise InvalidRequest(f"The {kind} must be named by a URL of these schemes: {allowed}.", code=_failed(kind))
        ports = self._ports or {_PORTS[parts.scheme]}
        if parts.port not in ports or parts.raw_user is not None:
            raise _unreachable(kind)
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return parts  # a name: what it resolves to is checked
        if not self._allows(address):
            raise _unreachable(kind)
        return parts

    def _open(self) -> "aiohttp.ClientSession":
        session = self._session
        if session is None:
            aiohttp = _import_aiohttp()
            resolver = _CheckedResolver(aiohttp.ThreadedResolver(), self._allows)
            connector = aiohttp.TCPConnector(resolver=resolver, use_dns_cache=False, limit=MAX_CONNECTIONS)
            session = self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),  # the whole of a fetch has a limit of its own
                trust_env=False,
                auto_decompress=False,  # a small body may become a huge one
                headers={"accept-encoding": "identity", "user-agent": "ws-responses"},
            )
        return session


class _CheckedResolver:
    """Gives aiohttp only addresses which may be connected to; so the interface of ``aiohttp.abc.AbstractResolver``.

    aiohttp connects to just what it is given: a name that resolves otherwise a moment later changes nothing.
    """

    def __init__(self, resolver: "AbstractResolver", allows: Callable[[Address], bool]) -> None:
        self._resolver = resolver
        self._allows = allows

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> "list[ResolveResult]":
        """Return the addresses of a name.

        Raises:
            OSError: None of them may be connected to.
        """
        found = await self._resolver.resolve(host, port, family)
        checked = [one for one in found if self._allows(ipaddress.ip_address(one["host"].partition("%")[0]))]
        if not checked:
            raise OSError(f"no address of {excerpt(host)} may be connected to")
        return checked

    async def close(self) -> None:
        """Give back what it holds."""
        await self._resolver.close()


def _import_aiohttp() -> Any:
    with Extra("http"):
        import aiohttp  # noqa: PLC0415 - optional
    return aiohttp


def _import_yarl() -> Any:
    import yarl  # noqa: PLC0415 - optional; aiohttp needs it

    return yarl


def _failed(kind: Attachment) -> str:
    return "failed_to_download_image" if kind == "image" else "failed_to_download_file"


def _unreachable(kind: Attachment) -> InvalidRequest:
    # One answer for what may not be reached and for what cannot be: it tells nothing of our network.
    return InvalidRequest(f"The {kind} could not be fetched.", code=_failed(kind))
