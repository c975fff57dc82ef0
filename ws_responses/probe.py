"""The probe: an inner GET at the upgrade, which asks the app's outer layers whether they refuse the client."""

import logging

import anyio
from anyio.lowlevel import checkpoint

from ws_responses._types import ASGIApp, Message
from ws_responses.cancellation import parted
from ws_responses.clock import Clock
from ws_responses.errors import Refused
from ws_responses.upstreams.scope import InnerScope

logger = logging.getLogger("ws_responses.connection")

_BODY_BYTES = 65536
_REFUSALS = (401, 403)
_ROUNDS = 16
"""Django's listener ends in a few; cancelled at once it leaves an exception that nobody awaits."""
_YIELD_EVERY = 64
"""Messages after which an app that never waits lets others run, the one included who ends it."""
_KEPT_OF_REFUSAL = (b"www-authenticate", b"content-type", b"retry-after")


class AppRefusal(Refused):
    """The app's own answer to the probe: passed on as it is."""

    code = "app_refused"

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        super().__init__("The app refused the client.", status=status)
        self.raw_headers = headers
        self.body = body


class _Probe:
    """The client's side of the inner GET at the upgrade: stops the app as soon as the answer is known."""

    def __init__(self) -> None:
        self.scope: anyio.CancelScope
        self.refusal: tuple[int, list[tuple[bytes, bytes]], bytes] | None = None
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = b""
        self._asked = False
        self._messages = 0
        self.over = anyio.Event()

    async def receive(self) -> Message:
        if self._asked:
            # The client stays until it has the answer: an app that listens would else stop before it gives one.
            await self.over.wait()
            return {"type": "http.disconnect"}
        self._asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: Message) -> None:
        self._messages += 1
        if not self._messages % _YIELD_EVERY:
            await checkpoint()
        if self.over.is_set():
            return
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = [
                (bytes(name).lower(), bytes(value))
                for name, value in message.get("headers", ())
                if bytes(name).lower() in _KEPT_OF_REFUSAL
            ]
            if self._status not in _REFUSALS:
                await self._end()
        elif message["type"] == "http.response.body" and self._status in _REFUSALS:
            self._body += bytes(message.get("body", b""))
            if not message.get("more_body") or len(self._body) > _BODY_BYTES:
                self.refusal = (self._status, self._headers, self._body[:_BODY_BYTES])
                await self._end()

    async def _end(self) -> None:
        """End the call: tell the app first, and give what listens for that a few rounds of the loop to end in order."""
        self.over.set()
        for _ in range(_ROUNDS):
            await checkpoint()
        self.scope.cancel()


async def ask_app(app: ASGIApp, inner: InnerScope, clock: Clock, timeout_s: float) -> None:
    """Ask the app's outer layers whether they refuse the client.

    Args:
        app: The app.
        inner: Makes the request.
        clock: Of the time limit.
        timeout_s: Time for the answer; without one the client is let in.

    Raises:
        AppRefusal: They do.
    """
    probe = _Probe()
    try:
        with clock.move_on_after(timeout_s) as probe.scope:
            # In a task, and so in a context, of its own: what the app sets in it must not reach the turns.
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_call, app, inner, probe)
    finally:
        probe.over.set()  # a task that the framework has left in `receive` would wait for ever
    if probe.refusal is not None:
        # Not made before: an exception that is kept keeps the frames that it went through, and with them itself.
        raise AppRefusal(*probe.refusal)


async def _call(app: ASGIApp, inner: InnerScope, probe: _Probe) -> None:
    try:
        await app(inner.request(0, method="GET"), probe.receive, probe.send)
    except Exception as error:  # noqa: BLE001 - only a refusal counts; the turns will tell what is broken
        logger.debug("the probe at the upgrade failed: %s", type(error).__name__)
    except BaseExceptionGroup as group:
        goes_on, failure = parted(group)
        logger.debug("the probe at the upgrade failed: %s", type(failure).__name__)
        raise goes_on from None
