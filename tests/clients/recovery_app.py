"""Apps from which clients must recover: their tool waits for the test, and what keeps a loop together is lost meanwhile.
They serve the path of the pi coding agent, too.

`cat gate` blocks until the test opens the pipe of that name in the folder where the client runs its tools (see `gate.py`).
"""

from examples import fastapi_app
from ws_responses import Limits, ResponsesApp, ResponsesWebSocketMiddleware
from ws_responses._types import ASGIApp, Message, Receive, Scope, Send
from ws_responses.testing.model import ARGUMENTS, ScriptedModel

from .engine_app import engine_with

WAITS = {
    **ARGUMENTS,
    "exec_command": {"cmd": "cat gate", "yield_time_ms": 30_000},  # Codex; by default it goes on after 10 s
    "bash": {"command": "cat gate"},
    "run_commands": {"commands": ["cat gate"]},
}
PATHS = ("/v1/responses", "/v1/codex/responses")
OLD_SOON = Limits(max_connection_age_s=2.0)
OLD_AND_STRICT = Limits(max_connection_age_s=2.0, age_grace_s=0.1)
KEEPS_NOTHING = Limits(max_connection_bytes=1)

fastapi_app.model = ScriptedModel(arguments=WAITS)
_engine = engine_with(WAITS)


class FirstSocket:
    """One app for the first socket, another one for all the rest."""

    def __init__(self, first: ASGIApp, rest: ASGIApp) -> None:
        self._first = first
        self._rest = rest
        self._taken = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = scope["type"] == "websocket" and not self._taken
        self._taken = self._taken or first
        await (self._first if first else self._rest)(scope, receive, send)


class StallsOnce:
    """An app that never answers the first tool output that it is given: who has passed that on is to be killed meanwhile."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._stalled = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or self._stalled:
            await self._app(scope, receive, send)
            return
        body, message = b"", await receive()
        while body := body + message.get("body", b""):
            if not message.get("more_body"):
                break
            message = await receive()
        if b"function_call_output" in body:
            self._stalled = True
            while message["type"] != "http.disconnect":
                message = await receive()
            return
        whole = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, again, send)


class CutsOff:
    """A socket that is closed where its second frame should be answered, as by a server that is started anew."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        frames = 0

        async def cut() -> Message:
            nonlocal frames
            message = await receive()
            frames += message["type"] == "websocket.receive"
            if frames < 2:
                return message
            await send({"type": "websocket.close", "code": 1012})
            return {"type": "websocket.disconnect", "code": 1012}

        await self._app(scope, cut, send)


def _wrapped(limits: Limits, api: ASGIApp = fastapi_app.api) -> ASGIApp:
    return ResponsesWebSocketMiddleware(api, path=PATHS, inner_path=PATHS[0], limits=limits)


def _engine_app(limits: Limits) -> ASGIApp:
    return ResponsesApp(_engine, authorize="open", path=PATHS, limits=limits)


wrapped = _wrapped(Limits())
engine = _engine_app(Limits())
wrapped_ageing = FirstSocket(_wrapped(OLD_SOON), wrapped)
engine_ageing = FirstSocket(_engine_app(OLD_SOON), engine)
engine_cut_off = FirstSocket(CutsOff(engine), engine)
wrapped_cut_off = FirstSocket(CutsOff(wrapped), wrapped)
wrapped_too_old = FirstSocket(_wrapped(OLD_AND_STRICT, StallsOnce(fastapi_app.api)), wrapped)
wrapped_forgetful = _wrapped(KEEPS_NOTHING)
engine_forgetful = _engine_app(KEEPS_NOTHING)
wrapped_stalling = StallsOnce(wrapped)
