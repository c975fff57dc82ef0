"""An in-memory ASGI WebSocket client which holds an app to the letter of the specification.

    async with MemorySocket(app, headers=[(b"authorization", b"Bearer k")]) as ws:
        events = await ws.turn({"model": "m", "input": "hi"})

Everything runs in one event loop, on asyncio or trio. Back-pressure is real: the app's `send`
waits while the test leaves too many frames unread.
"""

from __future__ import annotations

import enum
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias, cast
from urllib.parse import quote

import anyio
import anyio.abc

from ws_responses._types import ASGIApp, Message, Scope
from ws_responses.testing._signal import Signal

__all__ = [
    "OMIT",
    "TERMINAL_TYPES",
    "ClientGone",
    "Denial",
    "MemorySocket",
    "Omit",
    "ProtocolViolation",
    "SocketClosed",
]

Frame: TypeAlias = str | bytes

TERMINAL_TYPES: Final = frozenset({"response.completed", "response.failed", "response.incomplete", "error"})
"""Event types that end a turn on the wire."""


class Omit(enum.Enum):
    """Type of `OMIT`, the value that means "this key is not there"."""

    OMIT = "omit"


OMIT: Final = Omit.OMIT
"""As a value in `scope_overrides`: leave the key out of the scope."""

_ANY_LANE: Final = Omit.OMIT
_LANE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_MAX_REASON_BYTES = 123  # RFC 6455 section 5.5.1: a control frame has 125 bytes, 2 are the code.
_SENDABLE_CLOSE_CODES = frozenset({1000, 1001, 1002, 1003, *range(1007, 1015)})


class ProtocolViolation(AssertionError):
    """The app sent a message that ASGI does not allow at this point."""


class ClientGone(OSError):
    """Raised by the app's `send` after the client has left, as uvicorn does it."""


class SocketClosed(Exception):
    """The test wants a frame, or sends one, but the app has ended the connection.

    Attributes:
        code: the close code; 1006 if the app ended without closing.
        reason: the close reason.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"socket closed with {code} {reason!r}")
        self.code = code
        self.reason = reason


@dataclass(slots=True)
class Denial:
    """How the app refused the upgrade.

    Attributes:
        status: HTTP status; 403 for a `websocket.close` before accept.
        headers: response headers, as sent.
        body: the response body.
        complete: whether the last body message has been sent.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    complete: bool = False

    def json(self) -> Any:
        """Decode the body."""
        return json.loads(self.body)

    def header(self, name: bytes) -> bytes | None:
        """Return the first header with this name, whatever its case."""
        wanted = name.lower()
        return next((value for key, value in self.headers if key.lower() == wanted), None)


class MemorySocket:
    """One client connection to an ASGI app, used as an async context manager.

    Entering starts the app and waits until it has accepted or refused. Leaving disconnects (if
    the test has not), waits for the app to return, and raises whatever the app raised or broke.

    Args:
        app: the ASGI app.
        path: path of the upgrade request; a query may follow after `?`.
        headers: request headers; those of the upgrade itself are added.
        subprotocols: what the client offers.
        max_unread: number of unread frames from which on the app's `send` waits; None = no bound.
        extensions: the `extensions` of the scope; an empty mapping for a server without
            denial responses.
        state: lifespan state; None leaves the key out.
        scope_overrides: keys to replace in the scope, or, with the value `OMIT`, to leave out.
        swallow_after_gone: `send` after the client has left does nothing (hypercorn, granian,
            daphne) instead of raising `ClientGone` (uvicorn).
        both_keys: put `text` and `bytes` into each incoming message, one of them None (hypercorn).
        wait_handshake: False returns from `__aenter__` at once; then call `handshake()`.
        timeout: seconds after which any wait fails the test.

    Attributes:
        scope: the scope that the app was called with.
        messages: every ASGI message that the app sent, in order, legal ones only.
        frames: every data frame that the app sent, in order, read or not.
        sent: every data frame that the client sent, in order.
        violations: broken rules, in order; any of them fails the test when the block ends.
        accepted: whether the app accepted.
        accept_headers: headers of the accept.
        subprotocol: the one that the app selected.
        denial: how the app refused, or None.
        close_code: code of the app's close; 1006 if the app ended without one, None before.
        close_reason: reason of the app's close.
        app_error: what the app raised.
        cancelled_receives: how often a waiting `receive` of the app was cancelled.
    """

    def __init__(
        self,
        app: ASGIApp,
        path: str = "/v1/responses",
        headers: Iterable[tuple[bytes, bytes]] = (),
        *,
        subprotocols: Sequence[str] = (),
        max_unread: int | None = 16,
        extensions: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        scheme: str = "ws",
        root_path: str = "",
        client: tuple[str, int] | None = ("testclient", 50000),
        server: tuple[str, int | None] | None = ("testserver", 80),
        scope_overrides: Mapping[str, Any] | None = None,
        swallow_after_gone: bool = False,
        both_keys: bool = False,
        wait_handshake: bool = True,
        timeout: float = 5.0,
    ) -> None:
        self._app = app
        if extensions is None:
            extensions = {"websocket.http.response": {}}
        path, _, query = path.partition("?")
        self.scope: Scope = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.5"},
            "http_version": "1.1",
            "scheme": scheme,
            "path": path,
            "raw_path": quote(path, safe="/:@!$&'()*+,;=-._~").encode("ascii"),
            "query_string": query.encode("ascii"),
            "root_path": root_path,
            "headers": _with_upgrade_headers(headers, subprotocols),
            "client": client,
            "server": server,
            "subprotocols": list(subprotocols),
            "extensions": dict(extensions),
        }
        if state is not None:
            self.scope["state"] = dict(state)
        for key, value in (scope_overrides or {}).items():
            if value is OMIT:
                self.scope.pop(key, None)
            else:
                self.scope[key] = value
        self._max_unread = max_unread
        self._swallow_after_gone = swallow_after_gone
        self._both_keys = both_keys
        self._wait_handshake = wait_handshake
        self._timeout = timeout

        self.messages: list[Message] = []
        self.frames: list[Frame] = []
        self.sent: list[Frame] = []
        self.violations: list[ProtocolViolation] = []
        self.accepted = False
        self.accept_headers: list[tuple[bytes, bytes]] = []
        self.subprotocol: str | None = None
        self.denial: Denial | None = None
        self.close_code: int | None = None
        self.close_reason = ""
        self.app_error: Exception | None = None
        self.cancelled_receives = 0

        self._changed = Signal()
        self._inbox: deque[Message] = deque([{"type": "websocket.connect"}])
        self._unread: deque[Frame] = deque()
        self._set_aside: deque[dict[str, Any]] = deque()
        self._disconnect: Message | None = None
        self._client_left = False
        self._sending = False
        self._blocked = False
        self._receiving = 0
        self._returned = False
        self._tasks: anyio.abc.TaskGroup | None = None

    # -- life cycle ------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start the app and wait for its answer to the upgrade."""
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._run_app)
        if self._wait_handshake:
            try:
                await self.handshake()
            except BaseException as exc:
                await self._stop(exc)
                raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Disconnect, wait for the app, and raise what it raised unless the test failed anyway."""
        if not self._is_over():
            self._leave(1000, "")
        stuck = False
        if not _is_cancellation(exc):
            with anyio.move_on_after(self._timeout):
                await self._changed.wait_until(lambda: self._returned)
            stuck = not self._returned
        await self._stop(exc)
        failure = self._failure(stuck=stuck)
        if failure is None:
            return
        if exc is None:
            raise failure
        if failure is not exc:
            exc.add_note(f"the app also failed: {failure!r}")

    async def _stop(self, exc: BaseException | None) -> None:
        assert self._tasks is not None
        if not self._returned:
            self._tasks.cancel_scope.cancel()
        # Only a cancellation goes into the task group: it would wrap any other exception.
        if exc is not None and _is_cancellation(exc):
            await self._tasks.__aexit__(type(exc), exc, exc.__traceback__)
        else:
            await self._tasks.__aexit__(None, None, None)

    def _failure(self, *, stuck: bool) -> Exception | None:
        if self.app_error is not None:
            return self.app_error
        if self.violations:
            return self.violations[0]
        if stuck:
            return AssertionError(f"the app did not return within {self._timeout} s after the disconnect")
        return None

    async def _run_app(self) -> None:
        try:
            await self._app(self.scope, self._receive, self._send)
        except Exception as exc:  # noqa: BLE001 - given back when the block ends
            self.app_error = exc
        finally:
            self._returned = True
            if self.accepted and not self._is_over():
                self.close_code = 1006
            self._changed.notify()

    # -- what the app calls ----------------------------------------------------------------

    async def _receive(self) -> Message:
        self._receiving += 1
        self._changed.notify()
        try:
            await self._changed.wait_until(lambda: bool(self._inbox) or self._disconnect is not None)
        except anyio.get_cancelled_exc_class():
            self.cancelled_receives += 1
            raise
        finally:
            self._receiving -= 1
        if self._inbox:
            message = self._inbox.popleft()
            self._changed.notify()
            return message
        assert self._disconnect is not None
        return dict(self._disconnect)

    async def _send(self, message: Message) -> None:
        if self._sending:
            raise self._violation("send called while another send is waiting")
        kind = message.get("type")
        handler = self._SENDS.get(kind) if isinstance(kind, str) else None
        if handler is None:
            raise self._violation(f"unknown message type {kind!r}")
        deliver = handler(self, message)
        if self._client_left:
            self._after_gone()
            return
        self.messages.append(message)
        deliver()
        self._changed.notify()
        if kind == "websocket.send":
            await self._back_pressure()

    async def _back_pressure(self) -> None:
        if not self._is_full():
            return
        self._sending = self._blocked = True
        self._changed.notify()
        try:
            await self._changed.wait_until(lambda: not self._is_full() or self._client_left)
        finally:
            self._sending = self._blocked = False
            self._changed.notify()
        if self._client_left and self._is_full():
            self._after_gone()

    def _after_gone(self) -> None:
        if not self._swallow_after_gone:
            raise ClientGone("the client has disconnected")

    def _is_full(self) -> bool:
        return self._max_unread is not None and len(self._unread) > self._max_unread

    def _violation(self, text: str) -> ProtocolViolation:
        violation = ProtocolViolation(text)
        self.violations.append(violation)
        return violation

    # Each checks one message type and returns what to do with a legal message.

    def _on_accept(self, message: Message) -> Callable[[], None]:
        if self.accepted:
            raise self._violation("websocket.accept sent twice")
        self._expect_undecided("websocket.accept")
        subprotocol = message.get("subprotocol")
        if subprotocol is not None and subprotocol not in self.scope.get("subprotocols", ()):
            raise self._violation(f"subprotocol {subprotocol!r} was not offered")
        headers = self._headers(message)
        if any(name.lower() == b"sec-websocket-protocol" for name, _ in headers):
            raise self._violation("sec-websocket-protocol among the accept headers")

        def deliver() -> None:
            self.accepted = True
            self.accept_headers = headers
            self.subprotocol = subprotocol

        return deliver

    def _on_send(self, message: Message) -> Callable[[], None]:
        self._expect_open("websocket.send")
        text, data = message.get("text"), message.get("bytes")
        if (text is None) == (data is None):
            raise self._violation("websocket.send needs exactly one of text and bytes")
        frame = data if text is None else text
        if not isinstance(frame, bytes if text is None else str):
            raise self._violation(f"websocket.send with a {type(frame).__name__}")

        def deliver() -> None:
            self.frames.append(frame)
            self._unread.append(frame)

        return deliver

    def _on_close(self, message: Message) -> Callable[[], None]:
        if self.close_code is not None:
            raise self._violation("websocket.close sent twice")
        if self.denial is not None:
            raise self._violation("websocket.close after a denial")
        code, reason = message.get("code", 1000), message.get("reason") or ""
        self._check_close(code, reason)

        def deliver() -> None:
            if self.accepted:
                self.close_code, self.close_reason = code, reason
                self._end(code, reason)
            else:
                self.denial = Denial(403, [], complete=True)
                self._end(1006, "")

        return deliver

    def _check_close(self, code: object, reason: object) -> None:
        if not isinstance(code, int) or not (code in _SENDABLE_CLOSE_CODES or 3000 <= code <= 4999):
            raise self._violation(f"close code {code!r} may not be sent")
        if not isinstance(reason, str):
            raise self._violation(f"close reason is a {type(reason).__name__}")
        if len(reason.encode("utf-8", "surrogatepass")) > _MAX_REASON_BYTES:
            raise self._violation(f"close reason is longer than {_MAX_REASON_BYTES} bytes")

    def _on_denial_start(self, message: Message) -> Callable[[], None]:
        if "websocket.http.response" not in self.scope.get("extensions", {}):
            raise self._violation("denial response without the extension in the scope")
        if self.accepted:
            raise self._violation("denial response after accept")
        self._expect_undecided("websocket.http.response.start")
        status = message.get("status")
        if not isinstance(status, int) or not 200 <= status <= 599:
            raise self._violation(f"denial status {status!r}")
        headers = self._headers(message)

        def deliver() -> None:
            self.denial = Denial(status, headers)

        return deliver

    def _on_denial_body(self, message: Message) -> Callable[[], None]:
        denial = self.denial
        if denial is None:
            raise self._violation("denial body before its start")
        if denial.complete:
            raise self._violation("denial body after its end")
        body = message.get("body", b"")
        if not isinstance(body, bytes):
            raise self._violation(f"denial body is a {type(body).__name__}")

        def deliver() -> None:
            denial.body += body
            if not message.get("more_body", False):
                denial.complete = True
                self._end(1006, "")

        return deliver

    _SENDS: Final[dict[str, Callable[[MemorySocket, Message], Callable[[], None]]]] = {
        "websocket.accept": _on_accept,
        "websocket.send": _on_send,
        "websocket.close": _on_close,
        "websocket.http.response.start": _on_denial_start,
        "websocket.http.response.body": _on_denial_body,
    }

    def _expect_undecided(self, what: str) -> None:
        if self.denial is not None or self.close_code is not None:
            raise self._violation(f"{what} after the upgrade was refused")

    def _expect_open(self, what: str) -> None:
        if not self.accepted:
            raise self._violation(f"{what} before websocket.accept")
        if self.close_code is not None:
            raise self._violation(f"{what} after websocket.close")

    def _headers(self, message: Message) -> list[tuple[bytes, bytes]]:
        headers = [(name, value) for name, value in message.get("headers") or ()]
        if not all(isinstance(part, bytes) for pair in headers for part in pair):
            raise self._violation("header names and values must be bytes")
        return headers

    def _end(self, code: int, reason: str) -> None:
        self._disconnect = {"type": "websocket.disconnect", "code": code, "reason": reason}

    def _is_over(self) -> bool:
        return self._client_left or self._disconnect is not None or self.close_code is not None

    # -- the client's side -----------------------------------------------------------------

    async def handshake(self) -> None:
        """Wait until the app has accepted or refused; needed only with `wait_handshake=False`.

        Raises:
            AssertionError: the app did neither, within the time limit or at all.
        """
        await self._changed.expect(
            lambda: self.accepted or self._is_refused() or self._returned,
            self._timeout,
            lambda: "the app neither accepted nor refused the upgrade",
        )
        if self.accepted or self._is_refused() or self._client_left:
            return
        if self.app_error is not None:
            raise self.app_error
        raise AssertionError("the app returned without accepting or refusing the upgrade")

    def _is_refused(self) -> bool:
        return self.denial is not None and self.denial.complete

    async def send_json(self, value: Any) -> None:
        """Send one text frame with `value` as JSON."""
        await self.send_text(json.dumps(value))

    async def send_text(self, text: str) -> None:
        """Send one text frame, whatever its content; never waits."""
        self._put(text)

    async def send_bytes(self, data: bytes) -> None:
        """Send one binary frame; never waits."""
        self._put(data)

    def _put(self, frame: Frame) -> None:
        assert self.accepted, "the app has not accepted the upgrade"
        assert not self._client_left, "the client has already left"
        if self._is_over():
            raise self._closed()
        self.sent.append(frame)
        message: Message = {"type": "websocket.receive"}
        if self._both_keys:
            message.update(text=None, bytes=None)
        message["text" if isinstance(frame, str) else "bytes"] = frame
        self._inbox.append(message)
        self._changed.notify()

    async def receive(self) -> Frame:
        """Return the next data frame as it came, of any lane.

        Raises:
            SocketClosed: all frames are read, and the app has closed or returned.
            AssertionError: nothing came within the time limit.
        """
        await self._changed.expect(
            lambda: bool(self._unread) or self._is_over() or self._returned,
            self._timeout,
            self._why_no_frame,
        )
        return self._pop_unread()

    def _pop_unread(self) -> Frame:
        if not self._unread:
            raise self._closed()
        frame = self._unread.popleft()
        self._changed.notify()
        return frame

    def _why_no_frame(self) -> str:
        last = repr(self.frames[-1])[:200] if self.frames else "none"
        return f"no frame came ({len(self.frames)} so far, the last: {last})"

    def _closed(self) -> Exception:
        if self.app_error is not None:
            return self.app_error
        code = 1006 if self.close_code is None else self.close_code
        return SocketClosed(code, self.close_reason)

    async def receive_json(self) -> dict[str, Any]:
        """Return the next frame, decoded; it must be a JSON object in a text frame."""
        return await self._next_event(lambda _: True)

    async def _next_event(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            if (event := self._from_set_aside(wanted)) is not None:
                return event
            await self._changed.expect(
                lambda: bool(self._unread) or self._is_over() or self._returned or any(map(wanted, self._set_aside)),
                self._timeout,
                self._why_no_frame,
            )
            if self._unread or not any(map(wanted, self._set_aside)):
                self._set_aside.append(_decode(self._pop_unread()))
                self._changed.notify()

    def _from_set_aside(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
        for index, event in enumerate(self._set_aside):
            if wanted(event):
                del self._set_aside[index]
                return event
        return None

    async def collect(self, stream_id: str | Literal[Omit.OMIT] | None = _ANY_LANE) -> list[dict[str, Any]]:
        """Return the events up to and including the one that ends a turn.

        Args:
            stream_id: take only events of this lane (None: the default lane) and keep the
                others for other reads. Without it, events of all lanes are taken.
        """
        events: list[dict[str, Any]] = []
        while not events or events[-1].get("type") not in TERMINAL_TYPES:
            events.append(
                await self._next_event(lambda event: stream_id is _ANY_LANE or event.get("stream_id") == stream_id)
            )
        return events

    async def turn(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Send a `response.create` with this body and return the events of its turn."""
        await self.send_json({"type": "response.create", **body})
        lane = body.get("stream_id")
        # A bad lane name is answered without one.
        return await self.collect(lane if isinstance(lane, str) and _LANE_NAME.fullmatch(lane) else None)

    async def read_to_close(self) -> list[Frame]:
        """Return all remaining frames; ends when the app has closed the socket or returned."""
        frames: list[Frame] = []
        try:
            while True:
                frames.append(await self.receive())
        except SocketClosed:
            return frames

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Leave with a close frame: the app's `receive` gives `websocket.disconnect`."""
        self._leave(code, reason)

    async def abort(self) -> None:
        """Drop the connection without a close frame; frames not yet taken by the app are lost."""
        self._inbox = deque(m for m in self._inbox if m["type"] == "websocket.connect")
        self._leave(1006, "")

    def _leave(self, code: int, reason: str) -> None:
        if self._client_left:
            return
        self._client_left = True
        if self._disconnect is None:
            self._disconnect = {"type": "websocket.disconnect", "code": code, "reason": reason}
        self._changed.notify()

    async def wait_closed(self) -> int:
        """Wait until the app has closed the socket, or returned, and give the close code.

        Unread frames stay unread, so an app that is blocked by them never gets there: see
        `read_to_close`.
        """
        await self._changed.expect(
            lambda: self.close_code is not None or self._returned,
            self._timeout,
            lambda: f"the app did not close the socket ({len(self._unread)} frames unread)",
        )
        return 1006 if self.close_code is None else self.close_code

    async def wait_returned(self) -> None:
        """Wait until the app's call has ended, whatever its outcome."""
        await self._changed.expect(lambda: self._returned, self._timeout, lambda: "the app did not return")

    async def wait_blocked(self) -> None:
        """Wait until back-pressure holds up the app's `send`."""
        await self._changed.expect(lambda: self._blocked, self._timeout, lambda: "the app was not held up in send")

    async def wait_received(self) -> None:
        """Wait until the app has taken every frame sent so far and waits for more."""
        await self._changed.expect(
            lambda: self._receiving > 0 and not self._inbox,
            self._timeout,
            lambda: f"the app does not wait in receive ({len(self._inbox)} frames not taken)",
        )

    async def settle(self) -> int:
        """Wait until every task of the loop is blocked and return the number of unread frames.

        The way to show that something does *not* happen, without a sleep.
        """
        await anyio.wait_all_tasks_blocked()
        return self.unread

    @property
    def unread(self) -> int:
        """Number of frames that the test has not read."""
        return len(self._unread) + len(self._set_aside)

    @property
    def blocked(self) -> bool:
        """Whether back-pressure holds up the app's `send` now."""
        return self._blocked

    @property
    def receiving(self) -> bool:
        """Whether the app waits in `receive` now."""
        return self._receiving > 0

    @property
    def not_taken(self) -> int:
        """Number of messages that the app has not taken yet."""
        return len(self._inbox)

    @property
    def returned(self) -> bool:
        """Whether the app's call has ended."""
        return self._returned


def _decode(frame: Frame) -> dict[str, Any]:
    assert isinstance(frame, str), f"binary frame: {frame[:200]!r}"
    value: Any = json.loads(frame)
    assert isinstance(value, dict), f"not an object: {frame[:200]!r}"
    return cast("dict[str, Any]", value)


def _is_cancellation(exc: BaseException | None) -> bool:
    return isinstance(exc, anyio.get_cancelled_exc_class())


def _with_upgrade_headers(
    headers: Iterable[tuple[bytes, bytes]], subprotocols: Sequence[str]
) -> list[tuple[bytes, bytes]]:
    given = list(headers)
    upgrade = [
        (b"host", b"testserver"),
        (b"connection", b"Upgrade"),
        (b"upgrade", b"websocket"),
        (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ=="),
        (b"sec-websocket-version", b"13"),
    ]
    if subprotocols:
        upgrade.append((b"sec-websocket-protocol", ", ".join(subprotocols).encode("latin-1")))
    names = {name.lower() for name, _ in given}
    return [pair for pair in upgrade if pair[0] not in names] + given
