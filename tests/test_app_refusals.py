"""Requests that `ResponsesApp` cannot serve: each is answered by a clear error in the API's form, whatever came."""

import json
from typing import Any

import httpx
import pytest

from tests.shell import KEY, id_of
from ws_responses import ResponsesApp, ResponsesEngine
from ws_responses.testing import MemorySocket
from ws_responses.testing.backends import ScriptedBackend

PATH = "/v1/responses"
GOOD = json.dumps({"model": "m", "input": "hi"}).encode()


def served() -> ResponsesApp:
    return ResponsesApp(ResponsesEngine(ScriptedBackend(), models=["m"]), authorize="open")


async def asked(method: str, path: str, body: bytes | None = None) -> httpx.Response:
    transport = httpx.ASGITransport(served())
    async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=[KEY]) as http:
        return await http.request(method, path, content=body)


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error of an answer, which has the API's form and nothing else."""
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert list(body) == ["error"]
    error: dict[str, Any] = body["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    assert len(answer.content) < 1000, "a client is not sent back what it has sent"
    return error


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/v1", "/v1/", "//v1/responses", "/v1//responses", "/V1/Responses", "/v1/responses/resp_x/cancel"),
        *(f"{PATH}/", f"{PATH}//", f"{PATH}/compact/", f"{PATH}/resp_x/", f"{PATH}/a%2fb", f"{PATH}%2f"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "FOO"])
async def test_another_path_is_not_found(method: str, path: str) -> None:
    """A page in plain text, or a redirect to the host of the request's own header, helps no client of an API."""
    answer = await asked(method, path, GOOD if method == "POST" else None)

    assert answer.status_code == 404
    assert error_of(answer)["code"] == "not_found"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (PATH, "POST"),
        (f"{PATH}/compact", "POST"),
        (f"{PATH}/resp_x", "GET, DELETE"),
        (f"{PATH}/resp_x/input_items", "GET"),
        ("/v1/models", "GET"),
        ("/v1/models/m", "GET"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE", "POST", "FOO"])
async def test_another_method_is_told_which_ones_are_served(method: str, path: str, allowed: str) -> None:
    """Without the right `Allow` nobody would learn that a response can be deleted."""
    answer = await asked(method, path, GOOD if method == "POST" else None)

    served_as = "GET" if method == "HEAD" else method
    if served_as in allowed.split(", "):
        assert answer.status_code in (200, 404)
        return
    assert answer.status_code == 405
    assert answer.headers["allow"] == allowed
    if method != "HEAD":
        assert error_of(answer)["code"] == "method_not_allowed"


@pytest.mark.parametrize("where", ["", "/compact"])
@pytest.mark.parametrize(
    ("body", "code", "param", "text"),
    [
        (b"", "invalid_json", None, "truncated"),
        (b"{", "invalid_json", None, "truncated"),
        (GOOD + b"garbage", "invalid_json", None, "trailing characters"),
        (b"\xef\xbb\xbf" + GOOD, "invalid_json", None, "invalid character"),
        (b'{"input":"\xff"}', "invalid_json", None, "UTF-8"),
        (b'{"input":' + b"[" * 100_000, "invalid_json", None, "nested too deeply"),
        (b"null", "invalid_request", None, "must be a JSON object"),
        (b"[]", "invalid_request", None, "must be a JSON object"),
        (b'"x"', "invalid_request", None, "must be a JSON object"),
        (b'{"model":1,"input":"x"}', "invalid_request", "model", "string"),
        (b'{"model":"m","input":1}', "invalid_request", "input", "array"),
        (b'{"model":"m","input":"x","stream":"yes"}', "invalid_request", "stream", "bool"),
        (b'{"model":"m","input":"x","background":1}', "invalid_request", "background", "bool"),
    ],
)
async def test_a_body_that_is_no_request_is_told_what_is_wrong_with_it(
    where: str, body: bytes, code: str, param: str | None, text: str
) -> None:
    """As over the socket: a person who has written the client has to find the place."""
    answer = await asked("POST", PATH + where, body)

    assert answer.status_code == 400
    error = error_of(answer)
    assert (error["code"], error["param"]) == (code, param)
    assert text in error["message"]


@pytest.mark.parametrize("name", ["r" * 60_000, "%00", "%ff", "..%00", "%20", "%2e%2e", "é"])
@pytest.mark.parametrize("rest", ["", "/input_items?limit=x&order=zz&after=1"])
async def test_an_id_that_nobody_has_is_not_found_and_not_repeated_at_length(name: str, rest: str) -> None:
    answer = await asked("GET", f"{PATH}/{name}{rest}")

    assert answer.status_code == 404
    assert error_of(answer)["code"] in ("response_not_found", "not_found")


async def test_a_model_that_nobody_has_is_not_repeated_at_length() -> None:
    answer = await asked("GET", "/v1/models/" + "m" * 60_000)

    assert error_of(answer)["code"] == "model_not_found"


@pytest.mark.parametrize("path", [f"{PATH}/", f"{PATH}/resp_x", "/", "//v1/responses"])
async def test_a_socket_elsewhere_is_told_that_there_is_none(path: str) -> None:
    """A bare 403 would be taken for a wrong key."""
    async with MemorySocket(served(), path=path, headers=[KEY]) as ws:
        pass
    denial = ws.denial
    assert denial is not None
    assert (denial.status, json.loads(denial.body)["error"]["code"]) == (404, "not_found")


async def test_what_is_served_still_is() -> None:
    app = served()
    async with MemorySocket(app, headers=[KEY]) as ws:
        response_id = id_of(await ws.turn({"type": "response.create", "model": "m", "input": "hi"}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", headers=[KEY]) as http:
        head = await http.head(f"{PATH}/{response_id}")
        found = await http.get(f"{PATH}/{response_id}")
        deleted = await http.delete(f"{PATH}/{response_id}")
        gone = await http.get(f"{PATH}/{response_id}")
    assert [answer.status_code for answer in (head, found, deleted, gone)] == [200, 200, 200, 404]
