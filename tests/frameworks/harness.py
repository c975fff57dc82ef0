"""One framework's apps, each wrapped in one line, and a way to look inside over HTTP.

    FRAMEWORK=quart uvicorn tests.frameworks.harness:app

The header `x-app` says which app a request or a socket is for: one without any layer ("none"), one behind a check of the key
("key") or behind compression ("gzip"), the first mounted below `/api` of another app ("mounted"), or the first with a look at
what it is told ("watched").
"""

import asyncio
import gc
import importlib
import json
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, get_args
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.routing import Mount

from tests.frameworks import source
from ws_responses import Limits, ResponsesWebSocketMiddleware
from ws_responses._types import ASGIApp, Message, Receive, Scope, Send

PATHS: Final = (source.PATH, source.GUARDED, source.HELPED, source.WHOLE_PATH.removeprefix("/api"))
LIFESPAN: Final[Scope] = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}


class Life:
    """The lifespan of one app; an app that knows none is simply there."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._answers: asyncio.Queue[Message] = asyncio.Queue()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        with suppress(Exception):  # as servers do: "lifespan appears unsupported"
            await self._app(dict(LIFESPAN), self._messages.get, self._answers.put)

    async def tell(self, what: str) -> None:
        """Begin or end it, and wait for the answer."""
        self._messages.put_nowait({"type": f"lifespan.{what}"})
        answer = asyncio.create_task(self._answers.get())
        await asyncio.wait([answer, self._task], return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            assert answer.result()["type"] == f"lifespan.{what}.complete", answer.result()
        else:
            answer.cancel()


class Watched:
    """An app as it is, but that it is noted whether it is told of a client that has gone."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.heard = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def listen() -> Message:
            message = await receive()
            self.heard = self.heard or message["type"] == "http.disconnect"
            return message

        await self.app(scope, listen, send)


class Harness:
    """All apps of a framework."""

    def __init__(self, framework: str) -> None:
        build: Callable[[source.Layer], ASGIApp] = importlib.import_module(
            f"tests.frameworks.apps.{framework}_app"
        ).build
        # A close that the client does not answer ends soon: these clients do that on purpose.
        limits = Limits(close_timeout_s=0.5)
        inner: dict[str, ASGIApp] = {layer: build(layer) for layer in get_args(source.Layer)}
        self._watched = Watched(inner["none"])
        inner["watched"] = self._watched
        self._middlewares = {
            name: ResponsesWebSocketMiddleware(each, path=PATHS, limits=limits) for name, each in inner.items()
        }
        mounted = Starlette(routes=[Mount("/api", app=self._middlewares["none"])])
        self._apps: dict[str, ASGIApp] = {**self._middlewares, "mounted": mounted}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Route by the header."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["path"].startswith("/control/"):
            await self._control(scope, send)
        else:
            await self._apps[dict(scope["headers"])[b"x-app"].decode()](scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        lives = [Life(self._middlewares[layer]) for layer in get_args(source.Layer)]
        for what in ("startup", "shutdown"):
            await receive()
            for life in lives:
                await life.tell(what)
            await send({"type": f"lifespan.{what}.complete"})

    # -- control -------------------------------------------------------------------------------------------------------

    async def _control(self, scope: Scope, send: Send) -> None:
        # A framework that is cancelled where it hands on an event has left the generator behind it. What counts is that nobody
        # holds it; when the collector comes is a matter of chance.
        gc.collect()
        query = {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()}
        answer = getattr(self, scope["path"].rpartition("/")[2])(**query)
        body = json.dumps(answer).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def gauges(self) -> dict[str, int]:
        """What is open and running."""
        return {
            "seats": sum(each.registry.ledger.connections for each in self._middlewares.values()),
            "connections": sum(each.connections for each in self._middlewares.values()),
            "turns": sum(each.running_turns for each in self._middlewares.values()),
            "generators": len(source.open_calls),
        }

    def tasks(self) -> dict[str, int]:
        """How many tasks there are of each kind, but for the one that sse-starlette starts for good."""
        kinds = Counter(str(getattr(task.get_coro(), "__qualname__", task)) for task in asyncio.all_tasks())
        del kinds["_shutdown_watcher"]
        return kinds

    def turn(self, key: str) -> dict[str, Any]:
        """How the handler's generator of one turn fares: it is known once it has been asked for an event."""
        call = source.calls.get(key)
        if call is None:
            return {"known": False, "events": 0, "outcome": None}
        return {"known": True, "events": call.events, "outcome": call.outcome}

    def heard(self) -> bool:
        """Whether the watched app was told that a client has gone."""
        return self._watched.heard

    def forget(self) -> None:
        """Drop what was recorded."""
        source.calls.clear()
        self._watched.heard = False


app = Harness(os.environ["FRAMEWORK"])
