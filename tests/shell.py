"""What the tests of the socket side share: frames, readings of events, a hook that keeps facts."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

import anyio
import pytest

from ws_responses import Handshake, Limits, Principal, ResponsesWebSocketMiddleware
from ws_responses._types import ASGIApp
from ws_responses.instrumentation import Fact, TurnFinished
from ws_responses.testing import FakeClock, MemorySocket, settle

F = TypeVar("F", bound=Fact)

Event = Mapping[str, Any]

KEY = (b"authorization", b"Bearer key-1")
OTHER_KEY = (b"authorization", b"Bearer key-2")


def create(input: Any = "hi", **fields: Any) -> dict[str, Any]:  # noqa: A002 - the wire's word
    """A `response.create` frame."""
    return {"type": "response.create", "model": "m", "input": input, **fields}


def kinds(events: Iterable[Event]) -> list[str]:
    """The types of events, without the prefix."""
    return [event["type"].removeprefix("response.") for event in events]


def error_of(event: Event) -> Mapping[str, Any]:
    """The error object of an `error` frame or of a `response.failed`."""
    error: Mapping[str, Any] = event["error"] if event["type"] == "error" else event["response"]["error"]
    return error


def code_of(event: Event) -> str:
    """The code of the error that an event tells."""
    return str(error_of(event)["code"])


def id_of(events: list[Any]) -> str:
    """The response id of a turn's events."""
    return str(events[-1]["response"]["id"])


def text_of(event: Event) -> str:
    """The text of a terminal event's message."""
    return "".join(
        part["text"] for item in event["response"]["output"] if item["type"] == "message" for part in item["content"]
    )


def types_of(body: Mapping[str, Any]) -> list[str]:
    """What an inner body's input consists of: roles of messages, types of other items."""
    return [item.get("role") or item["type"] for item in body["input"]]


def answer(call_id: str, output: str = "done") -> dict[str, Any]:
    """The output item for a function call."""
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def frames_of(ws: MemorySocket) -> list[dict[str, Any]]:
    """All frames that the app has sent so far, read or not."""
    return [json.loads(frame) for frame in ws.frames]


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What this package has logged. Others log when they like: asyncio of a process that an earlier test has left, say."""
    return [record for record in caplog.records if record.name.startswith("ws_responses.")]


class Facts(list[Fact]):
    """A hook that keeps what it is told."""

    def __call__(self, fact: Fact) -> None:
        self.append(fact)

    def of(self, kind: type[F]) -> list[F]:
        """The facts of one kind, in order."""
        return [fact for fact in self if isinstance(fact, kind)]

    @property
    def outcomes(self) -> list[tuple[str, str | None]]:
        """Outcome and code of each finished turn, in order."""
        return [(fact.outcome, fact.code) for fact in self.of(TurnFinished)]


class StoppableClock(FakeClock):
    """A fake clock that stops holding anybody up once a test has failed: else the failed test would hang."""

    freed = False

    def move_on_after(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        return super().move_on_after(0 if self.freed else seconds)

    def free(self) -> None:
        self.freed = True
        self.jump(1e9)


class Client(MemorySocket):
    """A socket whose middleware looks at a fake clock."""

    clock: StoppableClock

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        stuck = False
        if exc is None:
            if self.close_code is None:
                await self.close()
            await settle()
            stuck = not self.returned
        if exc is not None or stuck:
            self.clock.free()
        await super().__aexit__(exc_type, exc, traceback)
        assert not stuck, "the app waited for time to pass when the test ended"


class Shell:
    """A middleware whose clock and facts the test holds.

    Args:
        app: What it wraps.
        limits: Those that are not the default.
        options: Further options of the middleware.
    """

    def __init__(self, app: ASGIApp, limits: Mapping[str, Any] | None = None, **options: Any) -> None:
        self.clock = StoppableClock()
        self.facts = Facts()
        hooks = (self.facts, *options.pop("hooks", ()))
        options.setdefault("tenant_key", b"of all workers that the tests start")
        self.middleware = ResponsesWebSocketMiddleware(
            app, limits=Limits(**(limits or {})), clock=self.clock, hooks=hooks, **options
        )

    def socket(self, *headers: tuple[bytes, bytes], **options: Any) -> Client:
        """Return a client with these headers."""
        client = Client(self.middleware, headers=headers, **options)
        client.clock = self.clock
        return client


def by_bearer(tenants: Mapping[str, str | None]) -> Callable[[Handshake, str | None], Principal | None]:
    """An `authorize` that knows these tokens; the mapping may change while sockets are open."""

    def authorize(handshake: Handshake, model: str | None) -> Principal | None:
        token = handshake.bearer_token
        if token is None or token not in tenants:
            return None
        return Principal(id=token, tenant=tenants[token])

    return authorize
