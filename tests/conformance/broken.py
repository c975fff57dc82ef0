"""A server that follows the protocol, and does one thing wrong when the URL asks for it (``?fault=...``)."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

import uvicorn

from ws_responses import ResponsesApp, ResponsesEngine
from ws_responses._types import ASGIApp, Message, Receive, Scope, Send
from ws_responses.protocol.profiles import Profile
from ws_responses.testing.backends import ScriptedBackend

Frame = dict[str, Any]

CLOSE = "close"
"""What a fault does to a frame beside changing it: the socket is closed with 1011."""


class Fault:
    """One thing that goes wrong, on one socket.

    A hook returns the frame as it goes on, None to lose it, or several; what it says to the client directly goes into
    ``says``.
    """

    def __init__(self) -> None:
        self.says: list[Frame] = []
        self.running = 0
        self.seen = 0
        self.id = "resp_same"

    def received(self, frame: Frame) -> Frame | str | None:
        return frame

    def sent(self, frame: Frame) -> Any:
        return frame

    def text(self, text: str) -> str | bytes:
        return text

    def raw(self, text: str) -> str | None:
        """A frame of the client that is no JSON object."""
        return text


def error(code: str, **members: Any) -> Frame:
    return {
        "type": "error",
        "status": 400,
        "error": {"type": "invalid_request_error", "code": code, "message": "No."} | members,
    }


def sending(change: Callable[[Frame], Any]) -> type[Fault]:
    class Sending(Fault):
        def sent(self, frame: Frame) -> Any:
            return change(frame)

    return Sending


def receiving(change: Callable[[Frame], Frame | str | None]) -> type[Fault]:
    class Receiving(Fault):
        def received(self, frame: Frame) -> Frame | str | None:
            return change(frame)

    return Receiving


def texting(change: Callable[[str], str | bytes]) -> type[Fault]:
    class Texting(Fault):
        def text(self, text: str) -> str | bytes:
            return change(text)

    return Texting


def on(kind: str, change: Callable[[Frame], Any]) -> type[Fault]:
    """A fault in the events of one kind."""
    return sending(lambda frame: change(frame) if frame["type"] == kind else frame)


def response(**members: Any) -> Callable[[Frame], Frame]:
    return lambda frame: frame | {"response": frame["response"] | members}


def without(name: str) -> Callable[[Frame], Frame]:
    return lambda frame: {key: value for key, value in frame.items() if key != name}


def is_answer(frame: Frame) -> bool:
    items = frame.get("input")
    return isinstance(items, list) and any(item.get("type") == "function_call_output" for item in items)


class Refusing(Fault):
    """Refuses a create while another runs."""

    def received(self, frame: Frame) -> Frame | str | None:
        if self.running:
            lane = {name: value for name, value in frame.items() if name == "stream_id"}
            self.says.append(error("response_already_in_flight") | lane)
            return None
        self.running += 1
        return frame

    def sent(self, frame: Frame) -> Any:
        if frame["type"] in {"response.completed", "error"}:
            self.running -= 1
        return frame


class RefusingLanes(Refusing):
    """Refuses a create on a named lane while another runs."""

    def received(self, frame: Frame) -> Frame | str | None:
        return super().received(frame) if "stream_id" in frame else frame


class Ids(Fault):
    """Gives all responses of a socket one id."""

    def sent(self, frame: Frame) -> Any:
        return response(id=self.id)(frame) if "response" in frame else frame


class ClosingAfter(Fault):
    """Closes after the first turn."""

    def sent(self, frame: Frame) -> Any:
        return [frame, CLOSE] if frame["type"] == "response.completed" else frame


class LosingTenth(Fault):
    """Loses a create."""

    def received(self, frame: Frame) -> Frame | str | None:
        self.seen += 1
        return None if self.seen == 10 else frame


class Forgiving(Fault):
    """Refuses an unknown call by itself, so that the parent stays."""

    def received(self, frame: Frame) -> Frame | str | None:
        if is_answer(frame):
            self.says.append(error("tool_call_not_found"))
            return None
        return frame


class Shuffled(Fault):
    """Answers something else than was asked."""

    def received(self, frame: Frame) -> Frame | str | None:
        number = frame.get("metadata", {}).get("turn")
        return frame if number is None else frame | {"metadata": {"turn": str(2 - int(number))}}


class Deaf(Fault):
    """Does not answer what is no create."""

    def received(self, frame: Frame) -> Frame | str | None:
        return frame if frame.get("type") == "response.create" else None


class Touchy(Fault):
    """Closes when it cannot read a frame."""

    def raw(self, text: str) -> str | None:
        return CLOSE if len(text) < 100 else text


class Huffy(Fault):
    """Closes after a frame that was wrong."""

    def sent(self, frame: Frame) -> Any:
        return [frame, CLOSE] if frame["type"] == "error" else frame


class Overwhelmed(Fault):
    """Closes with an internal error when a frame is large."""

    def received(self, frame: Frame) -> Frame | str | None:
        return CLOSE if len(str(frame.get("input"))) > 1_000_000 else frame


class Again(Fault):
    """Announces a response twice."""

    def sent(self, frame: Frame) -> Any:
        self.seen += 1
        if frame["type"] == "response.created":
            return [frame, frame | {"sequence_number": 0.5}]
        return frame


class TwoErrors(Fault):
    """Says the same error twice."""

    def sent(self, frame: Frame) -> Any:
        return [frame, frame] if frame["type"] == "error" else frame


def strip(*names: str) -> Callable[[Frame], Frame]:
    return lambda frame: {key: value for key, value in frame.items() if key not in names}


def later(number: int) -> Callable[[Frame], Frame]:
    return lambda frame: frame | {"sequence_number": frame["sequence_number"] + number}


def recoded(code: str) -> Callable[[Frame], Frame]:
    return lambda frame: frame | {"error": frame["error"] | {"code": code}}


class Forgetting(Fault):
    """Accepts a steer, and forgets it."""

    def received(self, frame: Frame) -> Frame | str | None:
        if frame.get("type") != "response.steer":
            return frame
        told = {"id": "steer_1", "previous_response_id": frame["previous_response_id"]}
        self.says.append({"type": "response.steer.accepted", "sequence_number": 9, "steer": told})
        return None


def refusing_steers(**members: Any) -> type[Fault]:
    """A fault in what comes back of a steer."""
    return on("response.steer.failed", lambda frame: frame | {"steer": frame["steer"] | members})


FAULTS: Mapping[str, type[Fault]] = {
    "none": Fault,
    # frames
    "binary": texting(str.encode),
    "sse": texting(lambda text: f"event: x\ndata: {text}\n\n"),
    "no-json": texting(lambda text: text[:-1]),
    "a-list": texting(lambda text: f"[{text}]"),
    "no-type": sending(strip("type")),
    # turns
    "no-created": on("response.created", lambda _: None),
    "no-numbers": on("response.output_text.delta", strip("sequence_number")),
    "same-numbers": on("response.in_progress", lambda frame: frame | {"sequence_number": 0}),
    "late-numbers": sending(later(1)),
    "twice-created": Again,
    "other-id": on("response.completed", response(id="resp_other")),
    "wrong-status": on("response.completed", response(status="in_progress")),
    "empty-output": on("response.completed", response(output=[])),
    "no-output": on("response.completed", lambda frame: frame | {"response": strip("output")(frame["response"])}),
    "never-added": on("response.output_item.added", lambda _: None),
    "never-ends": on("response.completed", lambda _: None),
    "labelled": sending(lambda frame: frame | {"stream_id": "x"} if frame["type"] == "response.completed" else frame),
    "other-parent": on("response.completed", response(previous_response_id="resp_other")),
    "same-ids": Ids,
    "closing-after": ClosingAfter,
    "refusing": Refusing,
    "shuffled": Shuffled,
    "losing": LosingTenth,
    "no-items": receiving(lambda frame: frame | {"input": 5} if isinstance(frame.get("input"), list) else frame),
    "no-stream": receiving(lambda frame: frame | {"input": 5} if "stream" in frame else frame),
    "processed-is-unknown": receiving(
        lambda frame: frame | {"type": "x"} if frame.get("type") == "response.processed" else frame
    ),
    "generates": receiving(strip("generate")),
    "overwhelmed": Overwhelmed,
    # chains
    "forgetful": receiving(
        lambda frame: frame | {"previous_response_id": "resp_x"} if frame.get("previous_response_id") else frame
    ),
    "null-is-wrong": receiving(
        lambda frame: frame | {"previous_response_id": 5} if frame.get("previous_response_id", 1) is None else frame
    ),
    "no-chains": receiving(strip("previous_response_id")),
    "other-code": on("error", recoded("not_found")),
    "no-param": on("error", lambda frame: frame | {"error": frame["error"] | {"param": None}}),
    "other-status": on("error", lambda frame: frame | {"status": 404}),
    "no-status": on("error", strip("status")),
    "null-code": on("error", lambda frame: frame | {"error": frame["error"] | {"code": None}}),
    "no-message": on("error", lambda frame: frame | {"error": strip("message")(frame["error"])}),
    "flat-error": on("error", lambda frame: {**frame["error"], "type": "error", "sequence_number": 0}),
    "huffy": Huffy,
    "unstored": type(
        "Unstored",
        (receiving(lambda frame: frame | {"store": False}), on("error", recoded("gone"))),
        {
            "received": lambda self, frame: frame | {"store": False},
            "sent": lambda self, frame: recoded("gone")(frame) if frame["type"] == "error" else frame,
        },
    ),
    "any-call": receiving(lambda frame: frame | {"input": "x"} if is_answer(frame) else frame),
    "forgiving": Forgiving,
    "both": receiving(strip("conversation")),
    # lanes
    "no-labels": sending(strip("stream_id")),
    "no-last-label": on("response.completed", strip("stream_id")),
    "one-lane-at-a-time": RefusingLanes,
    "no-forks": receiving(
        lambda frame: (
            frame | {"previous_response_id": "resp_x"}
            if "stream_id" in frame and "previous_response_id" in frame
            else frame
        )
    ),
    "forks-evict": receiving(lambda frame: strip("stream_id")(frame) if is_answer(frame) else frame),
    "any-name": receiving(
        lambda frame: frame if str(frame.get("stream_id", "x")).isalnum() else frame | {"stream_id": "x"}
    ),
    "labels-errors": on("error", lambda frame: frame | {"stream_id": ""}),
    # steering
    "no-steering": receiving(lambda frame: frame | {"type": "x"} if frame.get("type") == "response.steer" else frame),
    "steers-forgotten": Forgetting,
    "steers-swallowed": receiving(lambda frame: None if frame.get("type") == "response.steer" else frame),
    "steers-not-returned": refusing_steers(input=None),
    "steers-of-another": refusing_steers(previous_response_id="resp_other"),
    "steer-code": on("response.steer.failed", recoded("gone")),
    "steer-without-code": on("response.steer.failed", lambda frame: frame | {"error": {}}),
    # frames that are wrong
    "touchy": Touchy,
    "deaf": Deaf,
    "no-background": receiving(strip("background")),
    "two-errors": TwoErrors,
    # Open Responses
    "poor": on("response.completed", response(temperature=None)),
    "true-number": on("response.completed", response(top_logprobs=True)),
    "reasoning": on("response.output_text.delta", lambda frame: frame | {"type": "response.reasoning_text.delta"}),
    "unknown": on("response.in_progress", lambda frame: {**frame, "type": "response.thinking", "response": None}),
}


class Broken:
    """An app around another one, wrong on purpose."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._upgrades: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        name = parse_qs(scope["query_string"].decode()).get("fault", ["none"])[0]
        if scope["type"] == "http":
            await _HTTP.get(name, self._app)(scope, receive, send)
            return
        self._upgrades[name] = self._upgrades.get(name, 0) + 1
        if name == "closed" or (name == "third-closed" and self._upgrades[name] > 2):
            await receive()
            await send({"type": "websocket.close"})
            return
        await _talk(self._app, FAULTS.get(name, Fault)(), scope, receive, send)


async def _talk(app: ASGIApp, fault: Fault, scope: Scope, receive: Receive, send: Send) -> None:
    closed = False

    async def close() -> None:
        nonlocal closed
        if not closed:
            closed = True
            await send({"type": "websocket.close", "code": 1011})

    async def say(frame: Any) -> None:
        if frame == CLOSE:
            await close()
        elif frame is not None and not closed:
            text = fault.text(json.dumps(frame))
            await send({"type": "websocket.send", "text" if isinstance(text, str) else "bytes": text})

    async def receive_broken() -> Message:
        while True:
            message = await receive()
            if message["type"] != "websocket.receive":
                return message
            text = message["text"]
            try:
                frame = json.loads(text)
            except ValueError:
                frame = None
            changed = fault.received(frame) if isinstance(frame, dict) else fault.raw(text)
            for said in fault.says:
                await say(said)
            fault.says = []
            if changed == CLOSE:
                await close()
            elif changed is not None:
                return {**message, "text": changed if isinstance(changed, str) else json.dumps(changed)}

    async def send_broken(message: Message) -> None:
        if message["type"] != "websocket.send":
            if not closed:
                await send(message)
            return
        changed = fault.sent(json.loads(message["text"]))
        for frame in changed if isinstance(changed, list) else [changed]:
            await say(frame)

    await app(scope, receive_broken, send_broken)


def _answering(status: int, body: Any) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    return app


_COMPACTED: dict[str, Any] = {
    "object": "response.compaction",
    "output": [{"type": "compaction", "encrypted_content": "x"}],
}
_HTTP: Mapping[str, ASGIApp] = {
    "compact-fails": _answering(500, {}),
    "compact-is-a-response": _answering(200, _COMPACTED | {"object": "response"}),
    "compact-gives-no-item": _answering(200, _COMPACTED | {"output": [{"type": "message"}]}),
    "compact-gives-nothing": _answering(200, {"object": "response.compaction"}),
    "compact-is-refused": _answering(200, _COMPACTED),
    "no-compact": _answering(404, {}),
}


def engine_app(profile: Profile = "openai", **options: Any) -> ResponsesApp:
    """The engine's app, as it should be."""
    engine = ResponsesEngine(ScriptedBackend(text="Hello to you", piece=4))
    given: dict[str, Any] = {"authorize": "open", **options}
    return ResponsesApp(engine, profile=profile, **given)


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[str]:
    """Serve an app over real sockets; give the URL of its socket. Frames of any size reach it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            app, ws="websockets-sansio", ws_max_size=1 << 26, log_config=None, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve(sockets=[listener]))
        try:
            yield f"ws://127.0.0.1:{listener.getsockname()[1]}/v1/responses"
        finally:
            server.should_exit = True
            await serving
