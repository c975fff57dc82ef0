"""A chain of turns over a socket that may be gone when the next one begins."""

import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.protocol import State
from websockets.sync.client import ClientConnection, connect

from ws_responses.chat.display import Display
from ws_responses.chat.turn import Outcome, TurnReader
from ws_responses.serve.access import is_local_name

_OPEN_S: Final = 15.0
_CLOSE_S: Final = 1.0
_LOST: Final = Outcome(code="connection_lost")
_UNREACHABLE: Final = Outcome(code="cannot_connect")


class Conversation:
    """Turns over one socket, each continuing the one before.

    Args:
        url: Of the socket.
        display: Where all is shown.
        fields: Members of every create.
        api_key: Shown at the upgrade, None for none.
        tls: Knows the authority of the server's certificate; None for the usual ones.
        silence_s: Longest silence of a turn.
    """

    def __init__(
        self,
        url: str,
        display: Display,
        *,
        fields: Mapping[str, Any],
        api_key: str | None = None,
        tls: ssl.SSLContext | None = None,
        silence_s: float = 600.0,
    ) -> None:
        self._url = url
        self._display = display
        self._fields = dict(fields)
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._tls = tls
        self._silence_s = silence_s
        self._socket: ClientConnection | None = None
        self._previous: str | None = None

    def connect(self) -> bool:
        """Open a socket if there is none; return whether there is one now, and show why not."""
        if self._socket is not None and self._socket.state is State.OPEN:
            return True
        if self._socket is not None:
            self._display.note("[the connection was closed meanwhile: a new one is opened]")
            self.close()
        host = urlsplit(self._url).hostname or ""
        try:
            self._socket = connect(
                self._url,
                additional_headers=self._headers,
                ssl=self._tls,
                proxy=None if is_local_name(host) else True,
                max_size=None,
                open_timeout=_OPEN_S,
                close_timeout=_CLOSE_S,
            )
        except InvalidStatus as refusal:
            self._display.error(f"the server refused the connection: {_told(refusal)}")
        except (OSError, InvalidHandshake, TimeoutError) as error:
            self._display.error(f"cannot connect to {self._url}: {str(error) or type(error).__name__}")
        return self._socket is not None

    def new(self) -> None:
        """Forget the chain."""
        self._previous = None

    def close(self) -> None:
        """Close the socket; a turn that runs is stopped by that."""
        if self._socket is not None:
            socket, self._socket = self._socket, None
            with suppress(OSError, ConnectionClosed):
                socket.close()

    def turn(self, items: Sequence[Mapping[str, Any]], *, is_answer: bool = False) -> Outcome:
        """Have one turn answered and show it.

        Args:
            items: The new input items.
            is_answer: They answer calls of the turn before, and mean nothing without it.
        """
        outcome = self._turn(items)
        if outcome.code == "websocket_connection_limit_reached":
            self._display.note("[the connection was too old: once more on a new one]")
            self.close()
            outcome = self._turn(items)
        if outcome.code == "previous_response_not_found" and self._previous is not None:
            self._previous = None
            if is_answer:
                self._display.note("[the server no longer knows this conversation: say something to begin a new one]")
                return outcome
            self._display.note("[the server no longer knows this conversation: a new one begins]")
            outcome = self._turn(items)
        return outcome

    def _turn(self, items: Sequence[Mapping[str, Any]]) -> Outcome:
        if not self.connect():
            return _UNREACHABLE
        assert self._socket is not None
        frame = {"type": "response.create", **self._fields, "input": items}
        if self._previous is not None:
            frame["previous_response_id"] = self._previous
        try:
            outcome = self._exchange(self._socket, msgspec.json.encode(frame).decode())
        except ConnectionClosed as closed:
            self.close()
            self._display.error(f"the connection broke off: {_why(closed)}; this turn is lost")
            return _LOST
        except TimeoutError:
            self.close()
            self._display.error(f"nothing came for {self._silence_s:g} s; this turn is given up")
            return _LOST
        except KeyboardInterrupt:
            self.close()
            self._display.note("[stopped]")
            raise
        self._previous = outcome.response_id or self._previous
        return outcome

    def _exchange(self, socket: ClientConnection, frame: str) -> Outcome:
        reader = TurnReader(self._display)
        socket.send(frame)
        while True:
            outcome = reader.read(msgspec.json.decode(socket.recv(self._silence_s)))
            if outcome is not None:
                return outcome


def _told(refusal: InvalidStatus) -> str:
    response = refusal.response
    try:
        message = msgspec.json.decode(response.body or b"")["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        message = response.reason_phrase
    return f"{message} (status {response.status_code})"


def _why(closed: ConnectionClosed) -> str:
    close = closed.rcvd or closed.sent
    return "without a word" if close is None else f"{close.code} {close.reason}".strip()
