"""Where the middleware may be mounted in each framework, and what happens elsewhere."""

from collections.abc import Callable
from typing import Annotated, Any

import pytest

from tests.conftest import require
from ws_responses import ResponsesWebSocketMiddleware
from ws_responses.testing import MemorySocket, ScriptedModel


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Most frameworks stand on asyncio."""
    return "asyncio", {"use_uvloop": False}


def answer(body: dict[str, Any]) -> dict[str, Any]:
    *_, last = ScriptedModel().events(body)
    return dict(last["response"])


def with_fastapi(*order: str) -> Any:
    """Add a check of the key and the middleware to a FastAPI app, in this order; the last one is outermost."""
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import JSONResponse

    async def check_key(request: Request, call_next: Callable[..., Any]) -> Response:
        if request.headers.get("authorization") != "Bearer right":
            return JSONResponse({"detail": "no"}, 401)
        given: Response = await call_next(request)
        return given

    api = FastAPI()
    api.post("/v1/responses")(answer)
    add: dict[str, Callable[[], object]] = {
        "key": lambda: api.middleware("http")(check_key),
        "ours": lambda: api.add_middleware(ResponsesWebSocketMiddleware),
    }
    for name in order:
        add[name]()
    return api


async def test_fastapi_checks_the_key_when_ours_is_added_last() -> None:
    """Without this the documented order could be the wrong one."""
    async with MemorySocket(with_fastapi("key", "ours")) as ws:
        assert ws.denial is not None
        assert ws.denial.status == 401


async def test_fastapi_checks_nothing_when_ours_is_added_first() -> None:
    """Without this the warning of the documentation could be of something that does not happen."""
    async with MemorySocket(with_fastapi("ours", "key")) as ws:
        *_, last = await ws.turn({"model": "m", "input": "hi"})
    assert last["type"] == "response.completed"


async def test_litestar_never_shows_a_socket_to_its_middleware() -> None:
    """Without this somebody would look for the mistake in vain: the router refuses the socket before that."""
    require("litestar")
    from litestar import Litestar, post
    from litestar.middleware import DefineMiddleware
    from litestar.params import Body

    @post("/v1/responses", status_code=200)
    async def create_response(data: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        return answer(data)

    ours: Any = ResponsesWebSocketMiddleware
    inside: Any = Litestar([create_response], middleware=[DefineMiddleware(ours)], logging_config=None)
    async with MemorySocket(inside) as ws:
        assert not ws.accepted
    async with MemorySocket(ResponsesWebSocketMiddleware(Litestar([create_response], logging_config=None))) as ws:
        *_, last = await ws.turn({"model": "m", "input": "hi"})
    assert last["type"] == "response.completed"


async def test_quart_keeps_its_object_when_its_asgi_app_is_wrapped() -> None:
    """Without this its own documented way could miss the socket, or its hooks."""
    require("quart")
    from quart import Quart, Response, request

    api: Any = Quart("api")

    @api.post("/v1/responses")  # type: ignore[untyped-decorator]
    async def create_response() -> dict[str, Any]:
        return answer(await request.get_json())

    @api.before_request  # type: ignore[untyped-decorator]
    async def check_key() -> Response | None:
        return None if request.headers.get("authorization") == "Bearer right" else Response("no", 401)

    api.asgi_app = ResponsesWebSocketMiddleware(api.asgi_app)
    async with MemorySocket(api) as ws:
        assert ws.denial is not None
        assert ws.denial.status == 401
    async with MemorySocket(api, headers=[(b"authorization", b"Bearer right")]) as ws:
        *_, last = await ws.turn({"model": "m", "input": "hi"})
    assert last["type"] == "response.completed"
    over_http = await api.test_client().post(
        "/v1/responses", json={"input": "hi"}, headers={"authorization": "Bearer right"}
    )
    assert (await over_http.get_json())["status"] == "completed"


def test_falcon_refuses_it_as_one_of_its_own() -> None:
    """Without this it could be added there without a word, and do nothing."""
    require("falcon")
    from falcon.asgi import App

    ours: Any = ResponsesWebSocketMiddleware
    with pytest.raises(TypeError):
        App(middleware=[ours])
