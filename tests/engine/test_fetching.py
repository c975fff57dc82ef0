"""The resolver that fetches: from public addresses only, bounded, and with one answer for all that it may not reach."""

import base64
import ipaddress
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conftest import require
from tests.engine.schema import assert_turn
from tests.engine.service import ScriptedService, socket_to
from ws_responses.engine.engine import ResponsesEngine
from ws_responses.engine.fetching import Address, HttpResolver, is_public
from ws_responses.errors import ConfigurationError, InvalidRequest
from ws_responses.testing.services import CUT, HOLD, HttpAnswer, LoopbackService

require("aiohttp")

PNG = b"\x89PNG\r\n\x1a\nrest"
UNREACHABLE = "The image could not be fetched."


@pytest.fixture
def anyio_backend() -> str:
    """aiohttp is asyncio's."""
    return "asyncio"


@pytest.fixture
async def web() -> AsyncIterator[LoopbackService]:
    async with LoopbackService() as service:
        yield service


def is_loopback(address: Address) -> bool:
    return address.is_loopback


def here(web: LoopbackService, **options: Any) -> HttpResolver:
    """A resolver that may reach this machine, and nothing else."""
    port = int(web.url.rpartition(":")[2])
    return HttpResolver(**{"schemes": ["http"], "ports": [port], "allows": is_loopback, **options})


def image(url: str) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url}


def png(body: Any = (PNG,), **options: Any) -> HttpAnswer:
    return HttpAnswer(content_type="image/png", body=body, **options)


def moved(url: str) -> HttpAnswer:
    return HttpAnswer(status=302, headers=(("location", url),), whole=True)


async def refusal(resolver: HttpResolver, url: Any) -> InvalidRequest:
    async with resolver:
        with pytest.raises(InvalidRequest) as caught:
            await resolver.resolve("image", image(url))
    return caught.value


# --- what it gets ---------------------------------------------------------------------------------------------------


async def test_an_image_becomes_a_data_url(web: LoopbackService) -> None:
    web.script(png())
    async with here(web) as resolver:
        part = await resolver.resolve("image", {**image(f"{web.url}/a.png"), "detail": "low"})
    data = base64.b64encode(PNG).decode()
    assert part == {"type": "input_image", "detail": "low", "image_url": f"data:image/png;base64,{data}"}
    assert "cookie" not in web.requests[0].headers


async def test_a_file_becomes_data_with_a_name(web: LoopbackService) -> None:
    web.script(HttpAnswer(content_type="application/pdf", body=[b"%PDF"]))
    async with here(web) as resolver:
        part = await resolver.resolve("file", {"type": "input_file", "file_url": f"{web.url}/a%20b.pdf?x=1"})
    assert part == {"type": "input_file", "file_data": "data:application/pdf;base64,JVBERg==", "filename": "a b.pdf"}


async def test_redirects_are_followed_and_their_connections_used_again(web: LoopbackService) -> None:
    web.script(moved("/b.png"), moved(f"{web.url}/c.png"), png())
    async with here(web) as resolver:
        await resolver.resolve("image", image(f"{web.url}/a.png"))
    assert [request.path for request in web.requests] == ["/a.png", "/b.png", "/c.png"]
    assert web.connections == 1


async def test_a_name_is_connected_to_at_the_address_that_was_checked(web: LoopbackService) -> None:
    web.script(png())
    async with here(web) as resolver:
        await resolver.resolve("image", image(web.url.replace("127.0.0.1", "localhost")))
    assert len(web.requests) == 1


async def test_an_engine_gives_the_backend_what_was_fetched(web: LoopbackService) -> None:
    web.script(png())
    service = ScriptedService("chat", images=True)
    engine = ResponsesEngine(service, resolver=here(web))
    async with socket_to(engine) as ws:
        body = {"model": "m", "input": [{"role": "user", "content": [image(f"{web.url}/a.png")]}]}
        assert_turn(await ws.turn(body))
    await engine.aclose()
    assert service.messages()[0]["content"][0]["image_url"]["url"].startswith("data:image/png;base64,")


# --- what it does not reach -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.1.2.3",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "2002:7f00:1::",
        "64:ff9b::127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::127.0.0.1",
        "::127.0.0.1",
        "::ffff:0:127.0.0.1",
        "fec0::1",
    ],
)
def test_private_addresses_in_whatever_spelling_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.215.14", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]
)
def test_public_addresses_are(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "localhost.",
        "[::1]",
        "[::127.0.0.1]",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "\uff11\uff12\uff17.\uff10.\uff10.\uff11",  # full-width digits
        "\u2460\u2461\u2466.\u24ea.\u24ea.\u2460",  # digits in circles
        "127\u30020\u30020\u30021",  # ideographic full stops
        "%31%32%37.0.0.1",
        "example.com\\@127.0.0.1",
    ],
)
async def test_this_machine_is_not_reached_in_whatever_spelling(host: str, web: LoopbackService) -> None:
    """The classic: a URL that makes the server ask itself, or the cloud's metadata service.

    The URL must be judged as aiohttp reads it: that makes an address of digits of any alphabet, past the check of names.
    """
    port = web.url.rpartition(":")[2]
    error = await refusal(HttpResolver(schemes=["http"], ports=[int(port)]), f"http://{host}:{port}/a.png")
    assert error.message == UNREACHABLE
    assert not web.connections


async def test_a_redirect_to_an_address_in_other_digits_is_checked_too(web: LoopbackService) -> None:
    judged: list[str] = []

    def allows(address: Address) -> bool:
        judged.append(str(address))
        return str(address) == "127.0.0.1"

    address = "\uff11\uff12\uff17.\uff10.\uff10.\uff12".encode().decode("latin-1")
    web.script(moved(f"http://{address}:{web.url.rpartition(':')[2]}/a.png"))
    assert (await refusal(here(web, allows=allows), f"{web.url}/a.png")).message == UNREACHABLE
    assert judged == ["127.0.0.1", "127.0.0.2"]


async def test_a_redirect_is_checked_like_a_first_request(web: LoopbackService) -> None:
    def only_by_name(address: Address) -> bool:
        return address == ipaddress.ip_address("127.0.0.1")

    web.script(moved(f"http://127.0.0.2:{web.url.rpartition(':')[2]}/a.png"))
    error = await refusal(here(web, allows=only_by_name), f"{web.url}/a.png")
    assert error.message == UNREACHABLE
    assert len(web.requests) == 1


async def test_a_name_with_a_private_address_among_its_own_is_reached_at_the_others_only(
    web: LoopbackService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that answers both keeps the check and the connection apart (rebinding)."""
    port = int(web.url.rpartition(":")[2])

    def both(host: str, *_: Any, **__: Any) -> list[Any]:
        hosts = ["127.0.0.2", "127.0.0.1"] if host == "both.example" else ["127.0.0.2"]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    web.script(png())
    resolver = here(web, allows=lambda address: str(address) == "127.0.0.1")
    async with resolver:
        await resolver.resolve("image", image(f"http://both.example:{port}/a.png"))
        with pytest.raises(InvalidRequest, match="could not be fetched"):
            await resolver.resolve("image", image(f"http://private.example:{port}/a.png"))
    assert len(web.requests) == 1


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://example.org/a.png",
        "gopher://127.0.0.1:70/",
        "http://example.org/a.png",
        "https:///a.png",
        "https://example.org:22/a.png",
        "https://user:secret@example.org/a.png",
        "https://example.org:99999/a.png",
        "https://[::1",
        "a.png",
        "https://example.org/" + "a" * 9000,
    ],
)
async def test_other_urls_are_not_asked_for(url: str) -> None:
    error = await refusal(HttpResolver(), url)
    assert (error.status, error.code) == (400, "failed_to_download_image")
    assert "secret" not in error.message


@pytest.mark.parametrize(
    "part", [{"type": "input_image", "file_id": "file-1"}, {"type": "input_image", "image_url": ""}]
)
async def test_what_is_named_by_no_url_cannot_be_fetched(part: dict[str, Any]) -> None:
    async with HttpResolver() as resolver:
        with pytest.raises(InvalidRequest, match="no URL"):
            await resolver.resolve("image", part)


# --- bounds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [9, 10, 11])
async def test_the_size_is_bounded(size: int, web: LoopbackService) -> None:
    web.script(png([b"x" * size]))
    if size <= 10:
        async with here(web, max_bytes=10) as resolver:
            await resolver.resolve("image", image(web.url))
    else:
        assert (await refusal(here(web, max_bytes=10), web.url)).code == "image_too_large"


@pytest.mark.parametrize("hops", [2, 3, 4])
async def test_redirects_are_bounded(hops: int, web: LoopbackService) -> None:
    web.script(*(moved("/") for _ in range(hops)), png())
    if hops <= 3:
        async with here(web) as resolver:
            await resolver.resolve("image", image(web.url))
    else:
        assert "redirects" in (await refusal(here(web), web.url)).message


@pytest.mark.parametrize("answer", [png(held=True), png([b"x", HOLD])])
async def test_the_time_is_bounded(answer: HttpAnswer, web: LoopbackService) -> None:
    web.script(answer)
    assert "in time" in (await refusal(here(web, timeout_s=0.2), web.url)).message
    web.release()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (HttpAnswer(content_type="text/html", body=[b"<html>"]), "not lead to an image"),
        (HttpAnswer(status=404, whole=True), "status 404"),
        (HttpAnswer(status=302, whole=True), "status 302"),
        (png([b"x", CUT]), "could not be fetched"),
    ],
)
async def test_what_is_no_image_is_refused(answer: HttpAnswer, words: str, web: LoopbackService) -> None:
    web.script(answer)
    assert words in (await refusal(here(web), web.url)).message


async def test_a_compressed_body_is_not_unpacked(web: LoopbackService) -> None:
    """A few bytes may become gigabytes."""
    web.script(png([b"\x1f\x8b"], headers=(("content-encoding", "gzip"),)))
    async with here(web) as resolver:
        part = await resolver.resolve("image", image(web.url))
    assert part["image_url"] == "data:image/png;base64,H4s="


def test_schemes_that_are_none_of_http_are_refused() -> None:
    for schemes in ([], ["ftp"], ["https", "file"]):
        with pytest.raises(ConfigurationError):
            HttpResolver(schemes=schemes)
