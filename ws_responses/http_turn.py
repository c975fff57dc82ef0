"""One turn over HTTP: a POST is served as a connection of a single create, so that both ways run on the same code.

What the connection sends becomes an event stream, or the one JSON object that a client without ``stream`` waits for.
"""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import anyio
import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ws_responses._types import Message, Receive, Scope, Send
from ws_responses.clock import Clock
from ws_responses.errors import BodyTooSlow, InvalidRequest, WireError, meaning_of
from ws_responses.limits import Limits
from ws_responses.protocol import events
from ws_responses.protocol.events import encode
from ws_responses.protocol.frames import fault_of

_KIND: Final = re.compile(r'\{"type":"([^"\\]+)"').match
_END_OF_STREAM: Final = b"data: [DONE]\n\n"
"""Open Responses, HTTP streaming: the terminal event is followed by this."""

_SSE_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_SOCKET_ONLY: Final = ("stream_id", "generate")


class _Head(Struct):
    """What decides about the shape of the answer; the rest is read by the session."""

    stream: bool | None = None
    background: bool | None = None
    stream_id: Raw | UnsetType = UNSET
    generate: Raw | UnsetType = UNSET


_decode_head = msgspec.json.Decoder(_Head).decode


class Closing(Struct):
    """The closing event of a turn."""

    type: str
    response: Raw | UnsetType = UNSET
    status: int = 500
    error: Raw | UnsetType = UNSET
    headers: dict[str, str] = {}


_decode_closing = msgspec.json.Decoder(Closing).decode
_decode_error = msgspec.json.Decoder(dict[str, Any]).decode


class _ResponseError(Struct):
    code: str = ""
    message: str = ""


class _Failed(Struct):
    error: _ResponseError | None = None


_decode_failed = msgspec.json.Decoder(_Failed).decode


async def read_body(scope: Scope, receive: Receive, limits: Limits, clock: Clock) -> bytes | None:
    """Return the body of a request; None if the client left before its end.

    Raises:
        BodyTooSlow: It did not come in time.
        InvalidRequest: It is larger than a frame may be.
    """
    limit_s = math.inf if limits.body_timeout_s is None else limits.body_timeout_s
    body: bytes | None = None
    came = False
    with clock.move_on_after(limit_s):
        body = await _whole_body(receive, limits.max_frame_bytes)
        came = True
    if came:
        return body
    # RFC 9110, 15.5.9: nobody waits for the rest. In HTTP/2 there is no such header (RFC 9113, 8.2.2).
    closes = str(scope.get("http_version") or "1.1").startswith("1")
    raise BodyTooSlow(limit_s, headers={"connection": "close"} if closes else None)


async def _whole_body(receive: Receive, max_bytes: int) -> bytes | None:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise InvalidRequest(f"The body has more than {max_bytes} bytes.", status=413, code="request_too_large")
        if not message.get("more_body"):
            return bytes(body)


class HttpTurn:
    """The peer of a connection that serves one POST.

    Args:
        body: The create request.
        receive: Of the HTTP request, from behind its body on.
        send: Of the HTTP request.
        tail: End of the frame, behind its type; members there win.
        streams: Whether the answer may be a stream.

    Attributes:
        send_http: Of the HTTP request.

    Raises:
        InvalidRequest: The body is no JSON object, or asks for what HTTP has not.
    """

    def __init__(self, body: bytes, receive: Receive, send: Send, *, tail: str = "}", streams: bool = True) -> None:
        head = _read_head(body)
        self._streams = streams and bool(head.stream)
        # Duplicate keys: the last one wins, so a "type" of the client's own means nothing.
        self._frame: str | None = _as_frame(body, tail)
        self._receive = receive
        self.send_http = send
        self._started = False
        self._over = anyio.Event()
        self._gone = False

    @property
    def in_whole(self) -> bool:
        """Whether the client waits for one object, and is told nothing before it."""
        return not self._streams

    # -- the connection's side ---------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """Give the one frame, then wait for the end."""
        if self._frame is not None:
            frame, self._frame = self._frame, None
            return {"type": "websocket.receive", "text": frame}
        await self._over.wait()
        return {"type": "websocket.disconnect", "code": 1006 if self._gone else 1000}

    async def send(self, message: Message) -> None:
        """Take what the connection sends."""
        if message["type"] == "websocket.close":
            self._over.set()
            return
        text: str = message["text"]
        if self._over.is_set():
            return
        found = _KIND(text)
        kind = found[1] if found else msgspec.json.decode(text, type=Closing).type
        try:
            if kind in events.TERMINAL or kind == events.ERROR:
                await self._close(kind, text)
            elif self._streams:
                await self._write(kind, text)
        except Exception:
            self._over.set()  # nothing more can be told
            raise

    async def watch(self) -> None:
        """Wait until the client has gone, or for ever."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = not self._over.is_set()
        self._over.set()

    # -- the client's side -------------------------------------------------------------------------------------------

    async def _write(self, kind: str, text: str) -> None:
        if not self._started:
            self._started = True
            await self.send_http({"type": "http.response.start", "status": 200, "headers": _SSE_HEADERS})
        if "\n" in text or "\r" in text:
            # Line ends of JSON stand between its tokens (a client's own tools are repeated as it has laid them out).
            text = text.replace("\r", " ").replace("\n", " ")
        body = f"event: {kind}\ndata: {text}\n\n".encode()
        await self.send_http({"type": "http.response.body", "body": body, "more_body": True})

    async def _close(self, kind: str, text: str) -> None:
        if self._started or (self._streams and kind != events.ERROR):
            await self._write(kind, text)
            await self.send_http({"type": "http.response.body", "body": _END_OF_STREAM, "more_body": False})
        else:
            await self.answer(_decode_closing(text))
        self._over.set()

    async def answer(self, closing: Closing) -> None:
        """Send the one object that a client without ``stream`` waits for, or an error."""
        if closing.type == events.ERROR:
            assert closing.error is not UNSET
            error = _decode_error(closing.error)
            error.pop("headers", None)
            await send_json(self.send_http, closing.status, {"error": error}, closing.headers)
            return
        assert closing.response is not UNSET
        if closing.type == events.FAILED:
            await self._answer_failure(closing.response)
            return
        await send_json(self.send_http, 200, closing.response)

    async def _answer_failure(self, response: Raw) -> None:
        """Answer a failed response of an app: nothing has been told yet, so the status can tell of it, as far as the code does."""
        error = _decode_failed(response).error or _ResponseError()
        status, kind = meaning_of(error.code)
        body = {"type": kind, "code": error.code or "server_error", "message": error.message, "param": None}
        await send_json(self.send_http, status, {"error": body})


def _read_head(body: bytes) -> _Head:
    try:
        head = _decode_head(body)
    except msgspec.ValidationError as error:
        raise _not_a_request(error) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {fault_of(error)}", code="invalid_json") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.", code="invalid_json") from None
    for name in _SOCKET_ONLY:
        if getattr(head, name) is not UNSET:
            raise InvalidRequest(
                f"The field '{name}' is for WebSocket mode only.", param=name, code="unknown_parameter"
            )
    if head.background:
        raise InvalidRequest("Background responses are not available here.", param="background")
    return head


def _not_a_request(error: msgspec.ValidationError) -> InvalidRequest:
    what, _, path = str(error).partition(" - at `$.")
    if not path:
        return InvalidRequest("The body must be a JSON object.")
    name = path.rstrip("`")
    return InvalidRequest(f"The field '{name}' is wrong: {what}.", param=name)


def _as_frame(body: bytes, tail: str) -> str:
    members = body.strip()[1:-1].strip()
    try:
        text = members.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not valid UTF-8.", code="invalid_json") from None
    return "{" + text + ("," if text else "") + '"type":"response.create"' + tail


async def send_json(send: Send, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
    """Send one JSON answer."""
    body = encode(value)
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if headers is not None:
        fields += [(name.encode("latin-1"), given.encode("latin-1")) for name, given in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: WireError) -> None:
    """Send an error in the API's form; nobody may be there any more to hear it."""
    body = {"type": error.type, "code": error.code, "message": error.message, "param": error.param}
    with suppress(OSError):
        await send_json(send, error.status, {"error": {**error.extra, **body}}, error.headers)
