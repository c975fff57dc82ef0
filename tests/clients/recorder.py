"""What passes the door of the app under test: an ASGI layer around it which writes a line of JSON for each thing seen.

uvicorn imports `app` from here. The app to wrap and the file to write come from the environment, so that the app itself
stays as its users would copy it:

    RECORDER_APP=examples.fastapi_app:app RECORDER_LOG=/tmp/log python -m uvicorn tests.clients.recorder:app

`Recording` reads such a file.
"""

import importlib
import itertools
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ws_responses._types import ASGIApp, Message, Receive, Scope, Send

APP = "RECORDER_APP"
LOG = "RECORDER_LOG"

Json = dict[str, Any]


class Recorder:
    def __init__(self, app: ASGIApp, log: Path) -> None:
        self._app = app
        self._log = log.open("a", encoding="utf-8", buffering=1)
        # With the process: one that is started anew writes into the same file.
        self._numbers = (f"{os.getpid()}.{number}" for number in itertools.count(1))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        number = next(self._numbers)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        method = scope.get("method", "")
        self._write(number, "open", kind=scope["type"], method=method, path=scope["path"], headers=headers)

        async def recorded_receive() -> Message:
            message = await receive()
            self._write_message(number, message)
            return message

        async def recorded_send(message: Message) -> None:
            # Before it is sent: what a client has seen is then on record.
            self._write_message(number, message)
            await send(message)

        await self._app(scope, recorded_receive, recorded_send)

    def _write_message(self, number: str, message: Message) -> None:
        match message["type"]:
            case "websocket.receive" | "websocket.send" as kind:
                text = message.get("text")
                what = "frame" if kind == "websocket.receive" else "event"
                self._write(number, what, binary=text is None, body=json.loads(text or message["bytes"]))
            case "websocket.accept":
                self._write(number, "status", status=101)
            case "websocket.http.response.start" | "http.response.start":
                self._write(number, "status", status=message["status"])
            case "websocket.disconnect" | "websocket.close" as kind:
                by = "client" if kind == "websocket.disconnect" else "server"
                self._write(number, "close", by=by, code=message.get("code"))

    def _write(self, number: str, what: str, **values: Any) -> None:
        self._log.write(json.dumps({"number": number, "what": what, **values}) + "\n")


@dataclass
class Exchange:
    """One HTTP request or one socket."""

    kind: str
    method: str
    path: str
    headers: dict[str, str]
    status: int | None = None
    frames: list[Json] = field(default_factory=list)
    events: list[Json] = field(default_factory=list)
    binary: int = 0
    close: Json | None = None

    @property
    def creates(self) -> list[Json]:
        return [frame for frame in self.frames if frame["type"] == "response.create"]

    @property
    def finished(self) -> list[Json]:
        """The response objects of the turns that were completed, in order."""
        return [event["response"] for event in self.events if event["type"] == "response.completed"]

    def conversation(self, turns: int) -> list[Json]:
        """The items that a chain of this socket's first turns amounts to, with the input of the last one and no output."""
        items = list(self.creates[0]["input"])
        for create, parent in zip(self.creates[1:turns], self.finished, strict=False):
            items += [*parent["output"], *create["input"]]
        return items

    @property
    def errors(self) -> list[Json]:
        bad = {"error", "response.failed", "response.incomplete"}
        return [event for event in self.events if event["type"] in bad]


class Recording:
    """The exchanges in the file of a recorder, in the order in which they began."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def exchanges(self) -> list[Exchange]:
        seen: dict[str, Exchange] = {}
        for line in self._lines():
            number, what = line.pop("number"), line.pop("what")
            if what == "open":
                seen[number] = Exchange(**line)
                continue
            exchange = seen[number]
            match what:
                case "frame":
                    exchange.frames.append(line["body"])
                    exchange.binary += line["binary"]
                case "event":
                    exchange.events.append(line["body"])
                    exchange.binary += line["binary"]
                case "status":
                    exchange.status = line["status"]
                case "close":
                    exchange.close = line
        return list(seen.values())

    @property
    def sockets(self) -> list[Exchange]:
        return [exchange for exchange in self.exchanges() if exchange.kind == "websocket"]

    @property
    def posts(self) -> list[Exchange]:
        return [exchange for exchange in self.exchanges() if exchange.method == "POST"]

    @property
    def only_socket(self) -> Exchange:
        """The one socket of a client that needs no other; fails when there were none or more, or a POST beside it."""
        sockets, posts = self.sockets, self.posts
        assert [post.path for post in posts] == []
        assert len(sockets) == 1
        assert sockets[0].status == 101
        return sockets[0]

    def _lines(self) -> Iterator[Json]:
        if not self._log.exists():
            return
        with self._log.open(encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)


def _recorded() -> ASGIApp:
    """The app that uvicorn asks for, with logging that lets the root logger's errors be seen, too."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    module, _, name = os.environ[APP].partition(":")
    return Recorder(getattr(importlib.import_module(module), name), Path(os.environ[LOG]))


def __getattr__(name: str) -> ASGIApp:
    # On demand: the tests import this module as well, without an app to wrap.
    if name == "app":
        return _recorded()
    raise AttributeError(name)
