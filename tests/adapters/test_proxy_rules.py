"""What a proxy may be talked into: nothing but its upstream's paths, whatever the request says."""

from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ws_responses.adapters._proxy_rules import Base, HeaderRules
from ws_responses.errors import InvalidRequest

BASE = Base("http://upstream.example:8000/api/v1", "/v1")
RULES = HeaderRules(credentials=True, added={}, forwarded=False, pseudonym="us")

NASTY = [
    "..",
    ".",
    "%2e%2e",
    "%2E.",
    "%252e%252e",
    "..%2f",
    "%5c",
    "\\",
    "@evil",
    "//evil",
    "#",
    "?",
    ";",
    ":",
    "%00",
    "é",
    "a b",
]
segments = st.one_of(
    st.sampled_from(NASTY), st.text(st.characters(codec="utf-8"), max_size=5), st.sampled_from(["responses", "resp_1"])
)
paths = st.builds("/v1/{}".format, st.lists(segments, max_size=4).map("/".join)) | st.text(max_size=20)


def scope_of(raw: bytes, query: bytes = b"") -> dict[str, Any]:
    """The scope that a server makes of a request line."""
    return {
        "type": "http",
        "method": "GET",
        "path": unquote(raw.decode("ascii")),
        "raw_path": raw,
        "query_string": query,
    }


@given(paths, st.binary(max_size=12))
@example("/v1/../admin", b"")
@example("/v1/%2e%2e/admin", b"")
@example("/v1/a%2f..%2f..%2fadmin", b"")
@example("/v1/%252e%252e/admin", b"")
@example("/v1/..\\admin", b"")
@example("//evil/v1/responses", b"")
@example("http://evil/v1/responses", b"")
@example("/v1@evil/responses", b"")
@example("/v1", b"x#y")
@example("/v1", b"x\r\ny")
@example("/v1responses", b"")
def test_a_request_goes_below_the_base_or_nowhere(path: str, query: bytes) -> None:
    """Without this a client could reach the administration of the upstream, or a host of its own choice."""
    raw = path if path.isascii() else quote(path, safe="/%")
    try:
        url = BASE.url_for(scope_of(raw.encode(), query))
    except InvalidRequest:
        return
    parts = urlsplit(url)
    decoded = unquote(unquote(parts.path)).split("/")
    assert (parts.scheme, parts.netloc, parts.fragment) == ("http", "upstream.example:8000", "")
    assert decoded[:3] == ["", "api", "v1"]
    assert not {".", ".."} & set(decoded)
    assert "\\" not in unquote(parts.path)
    assert url.isascii()
    assert url.isprintable()
    assert parts.query.encode() == query


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v1/responses",
        "/v1/responses/",
        "/v1/models/meta-llama%2FLlama-3:8b",
        "/v1/models/gpt-4.1",
        "/v1/a/~b(1),'2'",
    ],
)
def test_ordinary_paths_pass_as_they_are(path: str) -> None:
    """Without this a rule that is too strict would break what works without the proxy."""
    assert BASE.url_for(scope_of(path.encode())) == "http://upstream.example:8000/api" + path


@pytest.mark.parametrize(
    "raw",
    [
        "/v1/../x",
        "/v1/./x",
        "/v1/%2e%2e",
        "/v1/a%2F..%2Fx",
        "/v1/%252e%252e/x",
        "/v1//x",
        "/v1/a%5Cb",
        "/v1/a%0Ab",
        "/v1/a b",
    ],
)
def test_paths_that_could_be_read_in_two_ways_are_refused(raw: str) -> None:
    """Without this the proxy and its upstream could mean different resources by one path."""
    with pytest.raises(InvalidRequest) as caught:
        BASE.url_for(scope_of(raw.encode()))
    assert (caught.value.status, caught.value.code) == (400, "invalid_path")


@pytest.mark.parametrize("raw", ["/", "/v2/responses", "/v10", "/admin", "*", "http://evil/v1", "//v1/responses"])
def test_paths_beside_the_prefix_are_not_found(raw: str) -> None:
    """Without this everything that the upstream's host serves would be public."""
    with pytest.raises(InvalidRequest) as caught:
        BASE.url_for(scope_of(raw.encode()))
    assert caught.value.status == 404


def test_without_a_raw_path_the_path_is_encoded() -> None:
    """Without this servers that give no raw path could not be used."""
    scope = {"type": "http", "method": "GET", "path": "/v1/modèle+1"}
    assert BASE.url_for(scope) == "http://upstream.example:8000/api/v1/mod%C3%A8le+1"


names = st.sampled_from(
    [
        "host",
        "connection",
        "x-a",
        "x-b",
        "te",
        "upgrade",
        "cookie",
        "via",
        "content-length",
        "proxy-x",
        "x-forwarded-for",
    ]
)
pairs = st.lists(st.tuples(names, st.sampled_from(["1", "close", "x-a", "X-B , te", "us", "é"])), max_size=8)


@given(pairs)
def test_no_header_of_the_connection_passes(headers: list[tuple[str, str]]) -> None:
    """Without this a request could be cut into two on its way (request smuggling)."""
    given_headers = [(name.title().encode(), value.encode()) for name, value in headers]
    try:
        passed = RULES.request({"type": "http", "headers": given_headers})
    except InvalidRequest:
        assert ("via", "us") in headers
        return
    names_passed = [name for name, _ in passed]
    listed = {each.strip().lower() for name, value in headers if name == "connection" for each in value.split(",")}
    assert not {"host", "te", "upgrade", "content-length", "proxy-x", "x-forwarded-for", "connection", *listed} & set(
        names_passed
    )
    assert names_passed.count("via") == names_passed.count("accept-encoding") == 1
    kept = [pair for pair in headers if pair[0] in {"x-a", "x-b", "cookie"} - listed]
    assert [pair for pair in passed if pair[0] in {"x-a", "x-b", "cookie"}] == kept


@given(pairs)
def test_no_header_of_the_upstream_s_connection_comes_back(headers: list[tuple[str, str]]) -> None:
    """Without this the framing of one connection would be claimed of another."""
    raw = [(name.title().encode(), value.encode()) for name, value in headers]
    came = {name for name, _ in RULES.answer([*raw, (b"Transfer-Encoding", b"chunked"), (b"Connection", b"X-A")])}

    assert not {b"te", b"upgrade", b"proxy-x", b"transfer-encoding", b"connection", b"content-length", b"x-a"} & came
