"""The server of the soak: uvicorn with a wrapped app that fails on demand, and what can be asked of the process.

``python -m tests.soak.server FD [SABOTAGE]`` serves on a listening socket that was handed down. A request says by its
``metadata.fault`` how the app is to behave; ``GET /figures`` tells the figures of the process.
"""

import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import psutil
import uvicorn

from ws_responses import Limits, ResponsesWebSocketMiddleware
from ws_responses._types import Receive, Scope, Send
from ws_responses.instrumentation import Fact, TurnFinished
from ws_responses.limits import MIB
from ws_responses.state.store import InProcessStore
from ws_responses.testing import ScriptedApp, ScriptedModel, steps
from ws_responses.testing.model import input_items

LIMITS: Final = Limits(
    max_event_bytes=MIB // 4,
    max_frame_bytes=MIB,
    max_connection_bytes=2 * MIB,
    max_process_bytes=64 * MIB,
    max_outgoing_bytes=64 * 1024,
    max_tenant_connections=None,
    first_event_timeout_s=8,
    event_timeout_s=8,
    send_timeout_s=2,
    disconnect_grace_s=0.05,
    trailing_timeout_s=0.5,
    abort_timeout_s=1,
    background_timeout_s=1,
    close_timeout_s=1,
    store_ttl_s=2,
)
"""Small and short, so that a soak of half a minute meets every one of them; but a busy machine must not reach them."""

BURST: Final = 400
"""Deltas of an answer of 200 kB, which its last events repeat four times."""

SABOTAGE: Final = ("leak", "lie")
"""What a test of the soak may break in the server: each must make the soak fail."""


async def _fall_over() -> None:
    # A new exception each time: one that is raised again keeps the frames of all earlier times.
    raise RuntimeError("soak")


FAULTS: Final[Mapping[str, Sequence[steps.Step]]] = {
    "raises": [steps.call(_fall_over)],
    "raises later": [steps.text("Hello", deltas=3), steps.call(_fall_over)],
    "says nothing": [steps.stall()],
    "stalls": [steps.text("Hello", deltas=3), steps.stall()],
    "truncates": [steps.text("Hello", deltas=5), steps.truncate(6)],
    "never ends its body": [steps.text("Hello"), steps.truncate(4, finish_body=False)],
    "garbage": [steps.created(), steps.raw_sse(b"data: {\xff\n\n", b"\n\n: \n\ndata: 7\n\n")],
    "endless event": [steps.raw_sse(b'data: {"type":"x","y":"', *[b"z" * 65536] * 16)],
    "429": [steps.status(429, headers=[(b"retry-after", b"1")])],
    "markup": [steps.status(502, b"<html><body>nginx</body></html>", content_type="text/html")],
    "no answer": [steps.status(204, b"")],
    "fails": [steps.text("Hello"), steps.fail("rate_limit_exceeded")],
    "lingers": [steps.text("Hello"), steps.complete(), steps.stall()],
    "json": [steps.model_answer(), steps.json_only()],
    "burst": [steps.text("x" * 500 * BURST, deltas=BURST)],
}
"""How the app may behave; what clients see of it stands in `clients.CLOSINGS`."""


def _said(body: Mapping[str, Any]) -> str:
    """Answer with what the client can check: how many items came, and whose they were."""
    items = input_items(body)
    owners = sorted({str(item["content"]).partition(" ")[0] for item in items if item.get("role") == "user"})
    return f"{len(items)} items of {','.join(owners)}"


class Soaked:
    """The app, its wrapping, and the figures of the process."""

    def __init__(self, sabotage: str | None = None) -> None:
        self.inner = ScriptedApp(ScriptedModel(text=_said), listen=True)
        self.inner.script(self._script)
        self.facts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.lag_s = 0.0
        self.middleware = ResponsesWebSocketMiddleware(self._app, limits=LIMITS, hooks=[self._note])
        self._sabotage = sabotage
        self._leaked: list[bytes] = []
        for name in ("", "uvicorn.error"):
            logging.getLogger(name).addHandler(_Errors(self.errors))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the figures, or the wrapped app."""
        if scope["type"] == "http" and scope["path"] == "/figures":
            body = json.dumps(self._figures()).encode()
            head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            await send({"type": "http.response.body", "body": body})
            return
        await self.middleware(scope, receive, send)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.inner(scope, receive, send)
        finally:
            # What the scripted app notes for tests would grow for ever.
            self.inner.requests.clear()
            self.inner.others.clear()

    def _script(self, body: dict[str, Any]) -> Sequence[steps.Step] | None:
        if self._sabotage == "leak":
            self._leaked.append(os.urandom(16384))
        elif self._sabotage == "lie":
            return [steps.text("7 items of nobody")]
        metadata: Any = body.get("metadata") or {}
        return FAULTS.get(metadata.get("fault", ""))

    def _note(self, fact: Fact) -> None:
        kind = type(fact).__name__
        self.facts[f"{kind} {fact.outcome}" if isinstance(fact, TurnFinished) else kind] += 1

    def _figures(self) -> dict[str, Any]:
        store = self.middleware.registry.chains.store
        assert isinstance(store, InProcessStore)
        store.expire()
        gc.collect()
        with contextlib.suppress(
            OSError, AttributeError
        ):  # glibc only: give free memory back, so that the rest is held
            ctypes.CDLL(None).malloc_trim(0)
        process = psutil.Process()
        return {
            "rss": process.memory_info().rss,
            "descriptors": process.num_fds(),
            "objects": len(gc.get_objects()),
            "tasks": len(asyncio.all_tasks()),
            "lag_ms": round(self.lag_s * 1000),
            "facts": dict(self.facts),
            "errors": self.errors[:10],
            "gauges": {
                "connections": self.middleware.connections,
                "running turns": self.middleware.running_turns,
                "bytes of history": self.middleware.history_bytes,
                "tenants": self.middleware.registry.ledger.tenants,
                "calls of the app": self.inner.running,
            },
        }

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Measure by how much the event loop is late at most."""
        watcher = asyncio.create_task(self._watch_lag())
        yield
        watcher.cancel()

    async def _watch_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.02)
            self.lag_s = max(self.lag_s, loop.time() - before - 0.02)


_EXPECTED: Final = ("turn %s: the app raised", "Invalid UTF-8 sequence received from client.")


class _Errors(logging.Handler):
    """Keeps what is logged as an error, unless it is about what the soak itself does."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        """Take one record."""
        if not str(record.msg).startswith(_EXPECTED) and len(self._errors) < 100:
            self._errors.append(self.format(record))


async def serve(descriptor: int, sabotage: str | None) -> None:
    """Serve until the process is told to end."""
    app = Soaked(sabotage)
    config = uvicorn.Config(
        app,
        ws="websockets-sansio",
        ws_max_size=2 * LIMITS.max_frame_bytes,
        ws_ping_interval=5,
        ws_ping_timeout=5,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=5,
        fd=descriptor,
    )
    async with app.watched():
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))
