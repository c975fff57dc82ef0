"""The app that every server runs: middlewares with different options, and a way to look inside over HTTP.

    uvicorn tests.servers.apps:app

`/{name}/v1/responses` is the socket of the middleware of that name, `/v1/responses` that of "plain". What a turn does
stands in its own `metadata`: `do` names the script, `key` the turn for later questions. "engine" and "engine-keys" are no wrapped apps:
there an engine answers, over HTTP as well.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs

import anyio

from tests.servers.backend import Backend
from ws_responses import Limits, ResponsesApp, ResponsesEngine, ResponsesWebSocketMiddleware
from ws_responses._types import Receive, Scope, Send
from ws_responses.errors import Forbidden
from ws_responses.handshake import Handshake
from ws_responses.instrumentation import ConnectionClosed, Fact
from ws_responses.testing import ScriptedApp, ScriptedModel, steps
from ws_responses.testing.scripted import Request
from ws_responses.testing.steps import Step
from ws_responses.upstreams.base import Principal

KEY: Final = "good"
"""The credential that "authorize" and "probe" let in."""

SMALL_FRAME: Final = 65536
"""Bytes of the largest frame that "small" takes."""

HEADER: Final = ("x-served-by", "ws-responses")
"""What "headers" adds to the 101."""


def check_key(handshake: Handshake, model: str | None) -> Principal | None:
    """Let the right key in; a "banned" one gets another status than a wrong one."""
    if handshake.bearer_token == "banned":
        raise Forbidden("This key is banned.")
    return Principal(id="them", tenant="theirs") if handshake.bearer_token == KEY else None


class _Reporting:
    """Says on the standard output how the calls of turns with a key end: nobody can be asked when a server has stopped."""

    def __init__(self, app: ScriptedApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            for request in self._app.requests:
                if request.scope is scope and _key(request) is not None:
                    print(f"turn {_key(request)}: {request.outcome}", flush=True)


def _key(request: Request) -> str | None:
    return (request.body.get("metadata") or {}).get("key")


class Harness:
    """All middlewares, each around a `ScriptedApp` of its own."""

    def __init__(self) -> None:
        self.apps: dict[str, ScriptedApp] = {}
        self.middlewares: dict[str, ResponsesWebSocketMiddleware] = {}
        self._gates: dict[str, anyio.Event] = {}
        self._closed: list[list[Any]] = []
        # A close that the client does not answer, or cannot be given, ends soon: these clients do that on purpose.
        brisk = partial(Limits, close_timeout_s=0.5)
        self._add("plain", limits=brisk())
        self._add("deaf", listen=False, limits=brisk())
        self._add("disabled", enabled=False)
        self._add("authorize", authorize=check_key)
        self._add("probe", auth=KEY)
        self._add("one", limits=Limits(max_connections=1))
        self._add("beside")
        self._add("small", limits=brisk(max_frame_bytes=SMALL_FRAME))
        self._add("impatient", limits=brisk(send_timeout_s=1.0, first_event_timeout_s=1.0))
        self._add("idle", limits=brisk(idle_timeout_s=0.5))
        self._add("headers", handshake_headers=lambda _: [HEADER])
        self._add("named", tenant=lambda handshake: handshake.bearer_token)
        self._lifespan = self.apps["plain"]
        self.backend = Backend(self._gate)
        self._add_engine("engine", "open", limits=brisk(send_timeout_s=30.0))
        self._add_engine("engine-keys", check_key)

    def _add(
        self, name: str, *, listen: bool = True, auth: str | None = None, limits: Limits | None = None, **options: Any
    ) -> None:
        # Held turns wait for a test in another process, so that the app's own patience is the test's.
        inner = ScriptedApp(ScriptedModel(tool_calls=4), listen=listen, auth=auth)
        inner.script(self._steps)
        self.apps[name] = inner
        path = "/v1/responses" if name == "plain" else f"/{name}/v1/responses"
        self.middlewares[name] = ResponsesWebSocketMiddleware(
            _Reporting(inner), path=path, limits=limits, hooks=[self._hear], **options
        )

    def _add_engine(self, name: str, authorize: Any, **options: Any) -> None:
        engine = ResponsesEngine(self.backend)
        path = f"/{name}/v1/responses"
        served = ResponsesApp(engine, authorize=authorize, path=path, hooks=[self._hear], **options)
        self.middlewares[name] = served.middleware  # serves HTTP as well: the app's routes are what it wraps

    def _add_example(self) -> None:
        # When it is asked for: most tests start a server without it sooner.
        from examples.fastapi_app import api

        self.middlewares["fastapi"] = ResponsesWebSocketMiddleware(
            api, path="/fastapi/v1/responses", inner_path="/v1/responses"
        )

    def _hear(self, fact: Fact) -> None:
        if isinstance(fact, ConnectionClosed):
            self._closed.append([fact.code, fact.by_client])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Route by the first segment of the path."""
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        first = scope["path"].split("/")[1]
        if first == "control":
            await self._control(scope, receive, send)
            return
        if first == "fastapi" and first not in self.middlewares:
            self._add_example()
        await self.middlewares["plain" if first == "v1" else first](scope, receive, send)

    # -- scripts -------------------------------------------------------------------------------------------------------

    def _steps(self, body: dict[str, Any]) -> Sequence[Step] | None:
        metadata = body.get("metadata") or {}
        script: Callable[[dict[str, Any]], Sequence[Step]] | None = _SCRIPTS.get(metadata.get("do"))
        if script is not None:
            return script(metadata)
        if metadata.get("do") == "hold":
            return [steps.text("begun"), steps.wait_for(self._gate(metadata["key"])), steps.text("done")]
        return None

    def _gate(self, key: str) -> anyio.Event:
        return self._gates.setdefault(key, anyio.Event())

    # -- control -------------------------------------------------------------------------------------------------------

    async def _control(self, scope: Scope, receive: Receive, send: Send) -> None:
        action = scope["path"].rpartition("/")[2]
        query = {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()}
        answer = await _ACTIONS[action](self, query)
        body = json.dumps(answer).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def gauges(self, query: dict[str, str]) -> dict[str, int]:
        """What is open and running, over all middlewares."""
        return {
            "seats": sum(each.registry.ledger.connections for each in self.middlewares.values()),
            "connections": sum(each.connections for each in self.middlewares.values()),
            "turns": sum(each.running_turns for each in self.middlewares.values()),
            "calls": sum(each.running for each in self.apps.values()) + self.backend.running,
        }

    async def turn(self, query: dict[str, str]) -> dict[str, Any]:
        """How the app's call of one turn goes: it is known when its body has arrived."""
        generation = self.backend.generations.get(query["key"])
        if generation is not None:
            return {"known": True, "events": generation.events, "outcome": generation.outcome}
        request = self._request(query["key"])
        if request is None:
            return {"known": False, "events": 0, "outcome": None}
        return {"known": True, "events": len(request.events), "outcome": request.outcome}

    async def release(self, query: dict[str, str]) -> dict[str, Any]:
        """Let a held turn go on."""
        self._gate(query["key"]).set()
        return {}

    async def drain(self, query: dict[str, str]) -> dict[str, Any]:
        """Begin to drain a middleware, as a pre-stop hook does."""
        return {"ended": await self.middlewares[query["name"]].drain(0)}

    async def disconnect(self, query: dict[str, str]) -> dict[str, Any]:
        """End the connections of a tenant of "named"."""
        return {"ended": self.middlewares["named"].disconnect(query["tenant"], query["reason"])}

    async def forget(self, query: dict[str, str]) -> dict[str, Any]:
        """Drop what was recorded."""
        for each in self.apps.values():
            each.requests.clear()
        self._gates.clear()
        self.backend.generations.clear()
        self._closed.clear()
        return {}

    async def closed(self, query: dict[str, str]) -> dict[str, Any]:
        """Return the close codes that the connections were told, and whether it was the client's doing."""
        return {"closed": self._closed}

    def _request(self, key: str) -> Request | None:
        for each in self.apps.values():
            for request in each.requests:
                if _key(request) == key:
                    return request
        return None


def _stream(metadata: dict[str, Any]) -> Sequence[Step]:
    """Many deltas of the given size, without a pause."""
    delta = {
        "type": "response.output_text.delta",
        "output_index": 0,
        "content_index": 0,
        "delta": "x" * metadata["size"],
    }
    return [steps.text("begun", finish=False), *[steps.event(delta)] * metadata["count"], steps.complete()]


_SCRIPTS: Final[dict[Any, Callable[[dict[str, Any]], Sequence[Step]]]] = {
    "say": lambda metadata: [steps.text(metadata["text"])],
    "silence": lambda _: [steps.stall()],
    "stall": lambda _: [steps.text("begun"), steps.stall()],
    "stream": _stream,
}

_ACTIONS: Final[dict[str, Callable[[Harness, dict[str, str]], Awaitable[dict[str, Any]]]]] = {
    "gauges": Harness.gauges,
    "turn": Harness.turn,
    "release": Harness.release,
    "drain": Harness.drain,
    "disconnect": Harness.disconnect,
    "forget": Harness.forget,
    "closed": Harness.closed,
}

app = Harness()
