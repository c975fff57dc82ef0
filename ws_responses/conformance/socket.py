"""The client's side of a socket: creates out, turns in, and every frame judged on its way."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import anyio
from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from ws_responses.conformance.check import Failed, Target, expect
from ws_responses.conformance.rules import Event, as_object, judge_error, judge_text, judge_turn
from ws_responses.protocol import events
from ws_responses.serve.access import is_local_name


class Turn(Struct, frozen=True):
    """A turn to its end.

    Attributes:
        events: All of them.
    """

    events: list[Event]

    @property
    def last(self) -> Event:
        """Its closing event."""
        return self.events[-1]

    @property
    def id(self) -> str:
        """Id of its response.

        Raises:
            Failed: It was not answered.
        """
        expect(self.code is None, f"a turn failed: {self.code}: {self._error.get('message')}")
        return str(as_object(self.last.get("response")).get("id"))

    @property
    def response(self) -> Event:
        """Its response as it is in the end.

        Raises:
            Failed: It was not answered.
        """
        expect(self.id, "the response has no id")
        return as_object(self.last["response"])

    @property
    def code(self) -> str | None:
        """Code of the error that ended it; None for none."""
        if self.last["type"] in {events.COMPLETED, events.INCOMPLETE}:
            return None
        return str(self._error.get("code"))

    @property
    def status(self) -> int | None:
        """Status of the ``error`` frame that ended it; None if something else did."""
        return self.last.get("status") if self.last["type"] == events.ERROR else None

    @property
    def param(self) -> object:
        """Member at fault, as its error says."""
        return self._error.get("param")

    @property
    def _error(self) -> Event:
        told = self.last if self.last["type"] == events.ERROR else as_object(self.last.get("response"))
        return as_object(told.get("error"))


class Socket:
    """An open socket.

    Args:
        connection: Of the package websockets.
        target: What is checked.
    """

    def __init__(self, connection: ClientConnection, target: Target) -> None:
        self._connection = connection
        self._target = target
        self._kept: list[Event] = []

    # -- out ---------------------------------------------------------------------------------------------------------

    async def send(self, text: str) -> None:
        """Send a text frame."""
        try:
            await self._connection.send(text)
        except ConnectionClosed as closed:
            raise Failed(f"the server closed the socket: {_why(closed)}") from None

    async def create(self, input: Any = "Say hello.", **members: Any) -> None:  # noqa: A002 - the wire's word
        """Send a ``response.create``: not stored, unless ``members`` say otherwise."""
        frame = {"type": events.CREATE, "store": False, **self._target.fields, "input": input, **members}
        await self.send(json.dumps(frame))

    async def turn(self, input: Any = "Say hello.", **members: Any) -> Turn:  # noqa: A002
        """Have one turn answered."""
        await self.create(input, **members)
        return await self.collect(members.get("stream_id"), previous=members.get("previous_response_id"))

    async def ping(self) -> None:
        """Wait until the server has answered a ping."""
        with anyio.move_on_after(self._target.timeout_s):
            await (await self._connection.ping())
            return
        raise Failed(f"no pong within {self._target.timeout_s:g} s")

    # -- in ----------------------------------------------------------------------------------------------------------

    async def next(self) -> Event:
        """Return the next frame."""
        frame: str | bytes | None = None
        with anyio.move_on_after(self._target.timeout_s):
            try:
                frame = await self._connection.recv()
            except ConnectionClosed as closed:
                raise Failed(f"the server closed the socket: {_why(closed)}") from None
        if frame is None:
            raise Failed(f"nothing came for {self._target.timeout_s:g} s")
        try:
            value: object = json.loads(judge_text(frame))
        except ValueError:
            raise Failed(f"a frame is no JSON: {str(frame)[:60]!r}") from None
        event = as_object(value)
        expect(isinstance(event.get("type"), str), f"a frame has no 'type': {str(frame)[:60]!r}")
        return event

    async def collect(self, lane: str | None = None, *, previous: str | None = None) -> Turn:
        """Return the next turn of a lane; the events of other lanes are kept for later."""
        turn: list[Event] = []
        others: list[Event] = []
        try:
            while not turn or turn[-1]["type"] not in {*events.TERMINAL, events.ERROR}:
                event = self._kept.pop(0) if self._kept else await self.next()
                told = event.get("stream_id")
                (turn if told == lane or (event["type"] == events.ERROR and told is None) else others).append(event)
        finally:
            self._kept = others + self._kept
        if turn[-1]["type"] == events.ERROR:
            expect(len(turn) == 1, "an 'error' ends a response that has begun; 'response.failed' does")
            judge_error(turn[0])
        else:
            judge_turn(turn, lane=lane, previous=previous, profile=self._target.profile)
        return Turn(turn)

    async def refusal(self) -> Turn:
        """Return the error that answers the last frame, when nothing else is to come.

        Raises:
            Failed: It was answered otherwise.
        """
        event = self._kept.pop(0) if self._kept else await self.next()
        expect(event["type"] == events.ERROR, f"the frame is answered by {event['type']!r}, not by an error")
        judge_error(event)
        return Turn([event])

    async def rest(self, first: Event) -> Turn:
        """Return the turn of the default lane of which one event was taken already."""
        self._kept.insert(0, first)
        return await self.collect()

    async def beside(self) -> Turn:
        """Return the turn of the default lane beside which an error for something else comes, before or within it."""
        turn: list[Event] = []
        errors: list[Event] = []
        while not errors or not turn or turn[-1]["type"] not in events.TERMINAL:
            event = await self.next()
            (errors if event["type"] == events.ERROR else turn).append(event)
        expect(len(errors) == 1, f"{len(errors)} errors came, not one")
        judge_error(errors[0])
        judge_turn(turn, lane=None, previous=None, profile=self._target.profile)
        return Turn(turn)

    async def oversized(self, text: str) -> int | None:
        """Send a frame that is too large; return the code by which the server closes, None if it answers by an error."""
        with anyio.move_on_after(self._target.timeout_s):
            try:
                await self._connection.send(text)
                judge_error(as_object(json.loads(judge_text(await self._connection.recv()))))
            except ConnectionClosed as closed:
                return closed.rcvd.code if closed.rcvd is not None else 1006
            return None
        raise Failed(f"nothing came for {self._target.timeout_s:g} s")


@asynccontextmanager
async def connected(target: Target, *, api_key: str | None = None) -> AsyncGenerator[Socket]:
    """Open a socket.

    Args:
        target: What is checked.
        api_key: Shown in place of the target's.

    Raises:
        Failed: The server does not let us in.
    """
    key = api_key or target.api_key
    headers: Mapping[str, str] = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        connection = await connect(
            target.url,
            additional_headers=headers,
            proxy=None if is_local_name(urlsplit(target.url).hostname or "") else True,
            max_size=None,
            open_timeout=target.timeout_s,
            close_timeout=2.0,
        )
    except InvalidStatus as refusal:
        raise UpgradeRefused(refusal.response.status_code) from None
    except (OSError, InvalidHandshake, TimeoutError) as error:
        raise Failed(f"cannot connect: {str(error) or type(error).__name__}") from None
    try:
        yield Socket(connection, target)
    finally:
        with anyio.move_on_after(3.0, shield=True), suppress(OSError, ConnectionClosed):
            await connection.close()


class UpgradeRefused(Failed):
    """The upgrade was answered by something else than 101."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the upgrade is answered by {status}")
        self.status = status


def _why(closed: ConnectionClosed) -> str:
    received = closed.rcvd
    if received is None:
        return "without a close frame"
    return f"{received.code} {received.reason}".strip()
