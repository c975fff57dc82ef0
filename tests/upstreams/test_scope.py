import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette._utils import get_route_path

from ws_responses.upstreams.scope import InnerScope, route_path


def socket_scope(**changes: Any) -> dict[str, Any]:
    """Return the scope of a socket as uvicorn gives it."""
    scope: dict[str, Any] = {
        "type": "websocket",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "scheme": "ws",
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 50000),
        "root_path": "",
        "path": "/v1/responses",
        "raw_path": b"/v1/responses",
        "query_string": b"a=1",
        "headers": [(b"host", b"example.org"), (b"authorization", b"Bearer k")],
        "subprotocols": ["responses"],
        "state": {"pool": object()},
        "extensions": {"websocket.http.response": {}},
    }
    return scope | changes


def without(*keys: str, **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in socket_scope(**changes).items() if key not in keys}


def headers_of(headers: Any, **options: Any) -> list[tuple[bytes, bytes]]:
    result: list[tuple[bytes, bytes]] = InnerScope(socket_scope(headers=headers), **options).request(2)["headers"]
    return result


ADDED = [
    (b"accept", b"text/event-stream, application/json"),
    (b"accept-encoding", b"identity"),
    (b"content-type", b"application/json"),
    (b"content-length", b"2"),
]


class TestScope:
    def test_whole_scope(self) -> None:
        scope = socket_scope()
        assert InnerScope(scope).request(2) == {
            "type": "http",
            "method": "POST",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "server": ("127.0.0.1", 8000),
            "client": ("127.0.0.1", 50000),
            "root_path": "",
            "path": "/v1/responses",
            "raw_path": b"/v1/responses",
            "query_string": b"a=1",
            "headers": [*scope["headers"], *ADDED],
            "state": scope["state"],
            "extensions": {},
        }

    def test_least_scope(self) -> None:
        assert InnerScope({"type": "websocket", "path": "/v1/responses"}).request(2) == {
            "type": "http",
            "method": "POST",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "root_path": "",
            "path": "/v1/responses",
            "raw_path": b"/v1/responses",
            "query_string": b"",
            "headers": ADDED,
            "extensions": {},
        }

    @pytest.mark.parametrize(
        "key", ["asgi", "http_version", "scheme", "state", "headers", "raw_path", "root_path", "query_string", "client"]
    )
    def test_any_optional_key_may_be_missing_or_none(self, key: str) -> None:
        for scope in (without(key), socket_scope(**{key: None})):
            request = InnerScope(scope).request(2)
            assert (request["type"], request["path"], request["raw_path"]) == (
                "http",
                "/v1/responses",
                b"/v1/responses",
            )

    @pytest.mark.parametrize(
        ("scheme", "expected"), [("ws", "http"), ("wss", "https"), ("https", "https"), (None, "http")]
    )
    def test_scheme(self, scheme: str | None, expected: str) -> None:
        assert InnerScope(socket_scope(scheme=scheme)).request(2)["scheme"] == expected

    def test_http_version_is_kept(self) -> None:
        assert InnerScope(socket_scope(http_version="2")).request(2)["http_version"] == "2"

    def test_keys_of_outer_layers_are_kept(self) -> None:
        user, params = object(), {"org": "a"}
        request = InnerScope(socket_scope(user=user, path_params=params)).request(2)
        assert request["user"] is user
        assert request["path_params"] is params

    @pytest.mark.parametrize(
        ("address", "expected"),
        [
            (["127.0.0.1", "8000"], ("127.0.0.1", 8000)),
            (("127.0.0.1", "8000"), ("127.0.0.1", 8000)),
            (["127.0.0.1", 8000], ["127.0.0.1", 8000]),
            (("/run/app.sock", None), ("/run/app.sock", None)),
            (("testclient", "none"), ("testclient", "none")),
            (None, None),
        ],
    )
    def test_port(self, address: object, expected: object) -> None:
        request = InnerScope(socket_scope(client=address, server=address)).request(2)
        assert request["client"] == expected
        assert request["server"] == expected

    def test_original_stays_as_it_was(self) -> None:
        scope = socket_scope(headers=[[b"Upgrade", b"websocket"], [b"X-A", b"1"]])
        before = copy.copy(scope)
        inner = [copy.deepcopy(scope[key]) for key in ("asgi", "headers", "extensions", "subprotocols")]
        request = InnerScope(scope, inner_path="/other").request(2, extra_headers=[(b"x-a", b"2")])
        request["asgi"]["version"] = "2.0"
        request["headers"].clear()
        request["extensions"]["x"] = {}
        request["state"].clear()
        request.clear()
        assert scope == before
        assert [scope[key] for key in ("asgi", "headers", "extensions", "subprotocols")] == inner

    def test_requests_share_nothing_that_changes(self) -> None:
        source = InnerScope(socket_scope())
        first, second = source.request(2), source.request(2)
        assert first == second
        for key in ("asgi", "headers", "extensions", "state"):
            assert first[key] is not second[key]


class TestState:
    def test_each_turn_gets_a_shallow_copy(self) -> None:
        scope = socket_scope()
        source = InnerScope(scope)
        first = source.request(2)["state"]
        first["turn"] = 1
        assert source.request(2)["state"] == scope["state"]
        assert first["pool"] is scope["state"]["pool"]

    def test_empty_state_is_copied_too(self) -> None:
        state: dict[str, Any] = {}
        request_state = InnerScope(socket_scope(state=state)).request(2)["state"]
        assert request_state == {}
        assert request_state is not state

    def test_no_state_without_that_of_the_server(self) -> None:
        assert "state" not in InnerScope(without("state")).request(2)


class TestPath:
    @pytest.mark.parametrize(
        ("path", "raw_path"),
        [("/v1/responses", b"/v1/responses"), ("/é b/c:d?", b"/%C3%A9%20b/c:d%3F"), ("/a@b~c", b"/a@b~c")],
    )
    def test_missing_raw_path_is_made(self, path: str, raw_path: bytes) -> None:
        request = InnerScope(without("raw_path", path=path)).request(2)
        assert (request["path"], request["raw_path"]) == (path, raw_path)

    def test_given_raw_path_is_kept(self) -> None:
        scope = socket_scope(path="/a/b", raw_path=b"/a%2Fb")
        for inner_path in (None, "/a/b"):
            assert InnerScope(scope, inner_path=inner_path).request(2)["raw_path"] == b"/a%2Fb"

    @pytest.mark.parametrize(
        ("root_path", "path", "expected"),
        [
            ("", "/ws", "/v1/responses"),
            ("/api", "/api/ws", "/api/v1/responses"),
            ("/api", "/api", "/api/v1/responses"),
            ("/proxy", "/ws", "/v1/responses"),
            ("/api", "/apis/ws", "/v1/responses"),
            ("/a b", "/a b/ws", "/a b/v1/responses"),
        ],
    )
    def test_inner_path(self, root_path: str, path: str, expected: str) -> None:
        scope = socket_scope(root_path=root_path, path=path, raw_path=path.replace(" ", "%20").encode())
        request = InnerScope(scope, inner_path="/v1/responses").request(2)
        assert request["path"] == expected
        assert request["raw_path"] == expected.replace(" ", "%20").encode()
        assert request["root_path"] == root_path
        assert route_path(request) == "/v1/responses"

    @pytest.mark.parametrize("root_path", ["", "/api", "/proxy", "/api/v1"])
    def test_path_of_the_socket_as_inner_path_changes_nothing(self, root_path: str) -> None:
        scope = socket_scope(root_path=root_path, path="/api/v1/responses", raw_path=b"/api/v1/%72esponses")
        assert InnerScope(scope, inner_path=route_path(scope)).request(2) == InnerScope(scope).request(2)

    @given(*[st.lists(st.sampled_from(["/", "/api", "/v1", "s", "/a b"]), max_size=4).map("".join)] * 2)
    def test_route_path_is_that_of_starlette(self, path: str, root_path: str) -> None:
        scope = {"type": "websocket", "path": path, "root_path": root_path}
        assert route_path(scope) == get_route_path(scope)

    def test_route_path_without_root_path(self) -> None:
        assert route_path({"path": "/a"}) == "/a"
        assert route_path({"path": "/a", "root_path": None}) == "/a"


class TestHeaders:
    @pytest.mark.parametrize(
        "name",
        [
            b"Connection",
            b"Upgrade",
            b"Keep-Alive",
            b"TE",
            b"Trailer",
            b"Transfer-Encoding",
            b"Proxy-Authorization",
            b"Proxy-Connection",
            b"Sec-WebSocket-Key",
            b"Sec-WebSocket-Protocol",
            b"Sec-WebSocket-Anything",
            b"Content-Length",
            b"Content-Type",
            b"Content-Encoding",
            b"Accept",
            b"Accept-Encoding",
            b"Expect",
        ],
    )
    def test_dropped(self, name: bytes) -> None:
        assert headers_of([(name, b"x"), (name.lower(), b"y")]) == ADDED

    @pytest.mark.parametrize(
        "name",
        [
            b"host",
            b"authorization",
            b"cookie",
            b"user-agent",
            b"origin",
            b"x-forwarded-for",
            b"traceparent",
            b"openai-beta",
            b"x-request-id",
            b"accept-language",
        ],
    )
    def test_kept(self, name: bytes) -> None:
        assert headers_of([(name.title(), b"X")]) == [(name, b"X"), *ADDED]

    def test_order_and_repetition_are_kept(self) -> None:
        pairs = [(b"cookie", b"a=1"), (b"x-a", b"1"), (b"cookie", b"b=2")]
        assert headers_of(pairs) == [*pairs, *ADDED]

    def test_pairs_may_be_lists_and_headers_any_iterable(self) -> None:
        assert headers_of(iter([[b"X-A", b"1"]])) == [(b"x-a", b"1"), *ADDED]

    def test_origin_can_be_dropped(self) -> None:
        assert headers_of([(b"Origin", b"https://example.org")], keep_origin=False) == ADDED

    def test_get_has_no_body(self) -> None:
        request = InnerScope(socket_scope(headers=[(b"content-length", b"3")])).request(0, method="GET")
        assert request["method"] == "GET"
        assert request["headers"] == ADDED[:2]

    def test_extra_headers_replace_equal_names(self) -> None:
        source = InnerScope(socket_scope(headers=[(b"x-a", b"1"), (b"x-b", b"2"), (b"x-a", b"3")]))
        extra = [(b"X-A", b"4"), (b"x-c", b"5"), (b"x-c", b"6")]
        assert source.request(2, extra_headers=extra)["headers"] == [
            (b"x-b", b"2"),
            *ADDED,
            (b"x-a", b"4"),
            (b"x-c", b"5"),
            (b"x-c", b"6"),
        ]
        assert source.request(2)["headers"][0] == (b"x-a", b"1")

    def test_extra_headers_cannot_falsify_the_framing(self) -> None:
        extra = [(b"Content-Length", b"9"), (b"Transfer-Encoding", b"chunked"), (b"connection", b"close")]
        assert InnerScope(socket_scope(headers=[])).request(2, extra_headers=extra)["headers"] == ADDED


FORBIDDEN = {b"connection", b"upgrade", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"expect"}
names = st.one_of(
    st.sampled_from(
        [
            *FORBIDDEN,
            b"content-length",
            b"content-type",
            b"content-encoding",
            b"accept",
            b"accept-encoding",
            b"sec-websocket-key",
            b"sec-websocket-x",
            b"proxy-authorization",
            b"host",
            b"cookie",
        ]
    ),
    st.text("abcXYZ-09_", min_size=1).map(str.encode),
).flatmap(lambda name: st.sampled_from([name, name.upper(), name.title()]))
pairs = st.one_of(st.tuples(names, st.binary(max_size=8)), st.tuples(names, st.binary(max_size=8)).map(list))


@given(st.lists(pairs), st.integers(0, 1 << 40), st.sampled_from(["POST", "GET"]), st.booleans())
def test_headers_of_any_handshake(handshake: list[Any], length: int, method: str, keep_origin: bool) -> None:
    before = copy.deepcopy(handshake)
    source = InnerScope(socket_scope(headers=handshake), keep_origin=keep_origin)
    result = source.request(length, method=method)["headers"]
    result_names = [name for name, _ in result]
    assert handshake == before
    assert result_names == [name.lower() for name in result_names]
    assert not FORBIDDEN.intersection(result_names)
    assert not any(name.startswith((b"sec-websocket-", b"proxy-")) for name in result_names)
    assert [value for name, value in result if name == b"accept"] == [b"text/event-stream, application/json"]
    assert [value for name, value in result if name == b"accept-encoding"] == [b"identity"]
    assert b"content-encoding" not in result_names
    has_body = method == "POST"
    assert [value for name, value in result if name == b"content-type"] == [b"application/json"] * has_body
    assert [value for name, value in result if name == b"content-length"] == [str(length).encode()] * has_body
    kept = [(bytes(name).lower(), value) for name, value in handshake if name.lower() in (b"host", b"cookie")]
    assert [pair for pair in result if pair[0] in (b"host", b"cookie")] == kept
