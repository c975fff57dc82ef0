"""FastAPI and Starlette apps whose layers could be bypassed do not start."""
# ruff: noqa: E402 - the packages are optional

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from tests.conftest import require

for package in ("starlette", "fastapi"):
    require(package)

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import JSONResponse
from starlette.applications import Starlette

from ws_responses import ConfigurationError
from ws_responses.adapters.starlette import add_websocket_mode
from ws_responses.testing import MemorySocket, ScriptedModel

RIGHT = [(b"authorization", b"Bearer right")]


def answer(body: dict[str, Any]) -> dict[str, Any]:
    *_, last = ScriptedModel().events(body)
    return dict(last["response"])


async def check_key(request: Request, call_next: Callable[..., Any]) -> Response:
    if request.headers.get("authorization") != "Bearer right":
        return JSONResponse({"detail": "no"}, 401)
    given: Response = await call_next(request)
    return given


def app_with_key_check() -> FastAPI:
    api = FastAPI()
    api.post("/v1/responses")(answer)
    api.middleware("http")(check_key)
    return api


async def start(app: Any) -> dict[str, Any]:
    """Start an app as a server does; return its answer."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if sent:
            await anyio.sleep_forever()
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)
        scope.cancel()

    with anyio.CancelScope() as scope:
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    return sent[0]


async def test_added_last_it_serves_turns_and_the_key_is_checked() -> None:
    api = app_with_key_check()
    middleware = add_websocket_mode(api)

    assert (await start(api))["type"] == "lifespan.startup.complete"
    async with MemorySocket(api) as stranger:
        assert stranger.denial is not None
        assert stranger.denial.status == 401
    async with MemorySocket(api, headers=RIGHT) as ws:
        *_, last = await ws.turn({"model": "m", "input": "hi"})
        assert middleware.connections == 1
    assert last["type"] == "response.completed"


async def test_a_layer_that_is_added_later_stops_the_start_and_is_named() -> None:
    """Without this turns would be served without the key that every request needs, and nobody would notice."""
    api = FastAPI()
    add_websocket_mode(api)
    api.middleware("http")(check_key)
    api.add_middleware(GZipMiddleware)

    refusal = await start(api)

    assert refusal["type"] == "lifespan.startup.failed"
    assert "GZipMiddleware, check_key" in refusal["message"]
    assert "after all of them" in refusal["message"]


async def test_where_no_lifespan_is_run_nothing_is_served_either() -> None:
    """Without this a server that runs no lifespan would serve what must not start."""
    api = FastAPI()
    add_websocket_mode(api)
    api.middleware("http")(check_key)

    with pytest.raises(ConfigurationError, match="check_key"):
        async with MemorySocket(api):
            pass


async def test_layers_that_check_nobody_may_lie_outside() -> None:
    """Without this CORS, which must see everything first, could not be used."""
    api = app_with_key_check()
    add_websocket_mode(api, outside=[CORSMiddleware])
    api.add_middleware(CORSMiddleware, allow_origins=["*"])

    assert (await start(api))["type"] == "lifespan.startup.complete"


async def test_two_of_them_are_no_layers_in_the_way_of_each_other() -> None:
    """Without this an app with two paths of different options could not start."""
    api = app_with_key_check()
    add_websocket_mode(api)
    add_websocket_mode(api, path="/codex/responses", inner_path="/v1/responses")

    async with (
        MemorySocket(api, headers=RIGHT) as first,
        MemorySocket(api, path="/codex/responses", headers=RIGHT) as second,
    ):
        ends = [(await ws.turn({"model": "m", "input": "hi"}))[-1]["type"] for ws in (first, second)]
    assert ends == ["response.completed"] * 2


async def test_starlette_itself_is_served_and_options_are_checked() -> None:
    with pytest.raises(ConfigurationError):
        add_websocket_mode(Starlette(), history="everything")
    app = Starlette()
    add_websocket_mode(app, enabled=False)
    async with MemorySocket(app) as ws:
        assert ws.denial is not None
        assert ws.denial.status == 426
