"""What is read of an upgrade request, and how it is refused."""

from typing import Any

import pytest

from ws_responses import Handshake
from ws_responses._types import Message
from ws_responses.errors import ConnectionsExhausted
from ws_responses.handshake import deny, deny_with

KEY = b"k" * 32


def handshake(*headers: tuple[bytes, bytes], **scope: Any) -> Handshake:
    return Handshake({"type": "websocket", "path": "/v1/responses", "headers": headers, **scope})


def test_headers_are_found_in_lower_case_whatever_the_server_sends() -> None:
    """Names *should* be lower case, not all servers and test clients keep to it; pairs may be lists."""
    given = Handshake({"path": "/", "headers": iter([[b"AuthoriZation", b"Bearer k"], (b"X-A", b"\xe9")])})

    assert given.headers == {"authorization": "Bearer k", "x-a": "é"}
    assert given.bearer_token == "k"


@pytest.mark.parametrize("headers", [None, ()])
def test_no_headers_at_all(headers: Any) -> None:
    given = Handshake({"path": "/v1/responses", "headers": headers})

    assert given.headers == {}
    assert given.credentials_tenant(KEY) is None
    assert Handshake({"path": "/"}).headers == {}


@pytest.mark.parametrize(
    ("value", "token"),
    [
        (b"Bearer abc", "abc"),
        (b"bearer  abc ", "abc"),
        (b"Bearer ", None),
        (b"Bearer", None),
        (b"Basic abc", None),
        (b"", None),
    ],
)
def test_bearer_token(value: bytes, token: str | None) -> None:
    assert handshake((b"authorization", value)).bearer_token == token


# -- tenants ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [b"authorization", b"api-key", b"x-api-key", b"x-goog-api-key", b"cookie"])
def test_each_credential_header_names_a_tenant(name: bytes) -> None:
    one = handshake((name, b"one")).credentials_tenant(KEY)
    other = handshake((name, b"other")).credentials_tenant(KEY)

    assert one is not None
    assert one != other
    assert one == handshake((name.upper(), b"one"), (b"user-agent", b"x")).credentials_tenant(KEY)


def test_the_tenant_tells_nothing_of_the_credential() -> None:
    """A keyed hash: whoever sees a store key must not be able to try out API keys against it."""
    tenant = handshake((b"authorization", b"Bearer secret")).credentials_tenant(KEY)

    assert tenant is not None
    assert "secret" not in tenant
    assert tenant != handshake((b"authorization", b"Bearer secret")).credentials_tenant(b"x" * 32)


def test_a_value_does_not_pass_for_another_header() -> None:
    assert handshake((b"api-key", b"k")).credentials_tenant(KEY) != handshake((b"x-api-key", b"k")).credentials_tenant(
        KEY
    )


def test_an_empty_credential_is_none() -> None:
    assert handshake((b"authorization", b""), (b"cookie", b"")).credentials_tenant(KEY) is None


def test_all_crumbs_of_a_cookie_count() -> None:
    """HTTP/2 splits cookies: by the last crumb alone, everybody with a dark theme would be one tenant."""
    anna = handshake((b"cookie", b"session=anna"), (b"cookie", b"theme=dark"))
    bert = handshake((b"cookie", b"session=bert"), (b"cookie", b"theme=dark"))

    assert anna.headers["cookie"] == "session=anna; theme=dark"
    assert anna.credentials_tenant(KEY) != bert.credentials_tenant(KEY)
    assert anna.credentials_tenant(KEY) == handshake((b"cookie", b"session=anna; theme=dark")).credentials_tenant(KEY)


def test_two_authorization_headers_are_no_token() -> None:
    """The app may read the first and we the last: nobody is to be taken for somebody by that."""
    both = handshake((b"authorization", b"Bearer a"), (b"authorization", b"Bearer b"))

    assert both.bearer_token not in {"a", "b"}
    assert both.credentials_tenant(KEY) != handshake((b"authorization", b"Bearer b")).credentials_tenant(KEY)


# -- origins ----------------------------------------------------------------------------------------------------------

HOST = (b"host", b"api.example.com")


@pytest.mark.parametrize(
    ("scheme", "host", "origin", "allowed"),
    [
        ("ws", b"api.example.com", None, True),
        ("ws", b"api.example.com", b"http://api.example.com", True),
        ("ws", b"api.example.com", b"http://API.EXAMPLE.COM", True),
        ("ws", b"api.example.com:80", b"http://api.example.com", True),
        ("ws", b"localhost:8000", b"http://localhost:8000", True),
        ("wss", b"api.example.com", b"https://api.example.com", True),
        ("wss", b"api.example.com", b"https://api.example.com:443", True),
        # A proxy ends TLS and the server knows nothing of it: the same host all the same.
        ("ws", b"api.example.com", b"https://api.example.com", True),
        (None, b"api.example.com", b"https://api.example.com", True),
        ("ws", b"api.example.com", b"http://evil.example", False),
        ("ws", b"api.example.com", b"http://api.example.com.evil.example", False),
        ("ws", b"api.example.com", b"http://api.example.com@evil.example", False),
        ("ws", b"localhost:8000", b"http://localhost:3000", False),
        ("ws", b"localhost:8000", b"http://localhost", False),
        # A page that anybody on the way can change must not drive a secure socket.
        ("wss", b"api.example.com", b"http://api.example.com", False),
        ("ws", b"api.example.com", b"null", False),
        ("ws", b"api.example.com", b"", False),
        ("ws", b"api.example.com", b"http://[", False),
        ("ws", b"api.example.com", b"http://api.example.com:port", False),
        ("ws", None, b"http://api.example.com", False),
        ("ws", b"[", b"http://api.example.com", False),
    ],
)
def test_by_default_only_pages_of_the_same_host_are_let_in(
    scheme: str | None, host: bytes | None, origin: bytes | None, allowed: bool
) -> None:
    headers = [(name, value) for name, value in ((b"host", host), (b"origin", origin)) if value is not None]
    scope = {} if scheme is None else {"scheme": scheme}

    assert handshake(*headers, **scope).origin_allowed(None) is allowed


@pytest.mark.parametrize(
    ("listed", "origin", "allowed"),
    [
        (("https://app.example.com",), b"https://app.example.com", True),
        (("https://app.example.com:443",), b"https://app.example.com", True),
        (("https://app.example.com/",), b"https://app.example.com", True),
        (("https://app.example.com",), b"http://app.example.com", False),
        (("https://app.example.com",), b"https://app.example.com:8443", False),
        (("https://app.example.com",), b"https://evil.example", False),
        (("https://a.example", "http://localhost:3000"), b"http://localhost:3000", True),
        (("https://app.example.com",), b"null", False),
        (("https://app.example.com",), b"http://[", False),
        # The list replaces the rule of the same host.
        (("https://app.example.com",), b"http://api.example.com", False),
        ((), b"http://api.example.com", False),
        (("*",), b"https://evil.example", True),
        (("*",), b"null", True),
    ],
)
def test_a_list_of_origins_is_exact(listed: tuple[str, ...], origin: bytes, allowed: bool) -> None:
    assert handshake(HOST, (b"origin", origin)).origin_allowed(listed) is allowed


def test_a_list_does_not_keep_out_who_is_no_browser() -> None:
    assert handshake(HOST).origin_allowed(()) is True


# -- refusals ---------------------------------------------------------------------------------------------------------


class Sent(list[Message]):
    async def __call__(self, message: Message) -> None:
        self.append(message)


async def test_a_refusal_is_an_http_answer_where_the_server_can_send_one() -> None:
    sent = Sent()
    await deny(
        {"extensions": {"websocket.http.response": {}}},
        sent,
        ConnectionsExhausted("Too many.", headers={"retry-after": "5"}),
    )

    start, body = sent
    headers = dict(start["headers"])
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"retry-after"] == b"5"
    assert int(headers[b"content-length"]) == len(body["body"])
    assert body["type"] == "websocket.http.response.body"
    assert not body.get("more_body")
    assert body["body"] == (
        b'{"error":{"type":"rate_limit_error","code":"websocket_connections_exhausted","message":"Too many.","param":null}}'
    )


@pytest.mark.parametrize("extensions", [{}, None, {"other": {}}])
async def test_a_refusal_is_a_plain_close_where_it_cannot(extensions: Any) -> None:
    """daphne has no denial response: a message it does not know would be an error of the server."""
    sent = Sent()

    await deny_with({"extensions": extensions}, sent, 401, [], b"")
    await deny_with({}, sent, 401, [], b"")

    assert [message["type"] for message in sent] == ["websocket.close"] * 2
