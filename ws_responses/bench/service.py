"""A service that streams at a steady pace, as one that serves models does: one token to the chunk, one chunk to the packet.

It has a process and blocking sockets of its own, because timers of event loops count in milliseconds: at 4,000 chunks a second
they would send four at once. ``python -m ws_responses.bench.service FD RATE CHUNKS`` runs it.
"""

import socket
import sys
import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from ws_responses.bench.loop import ToolOutputs
from ws_responses.protocol.events import encode
from ws_responses.rendering.harmony_tokens import RETURN
from ws_responses.rendering.vocabulary import load_encoding

MODEL: Final = "gpt-oss-120b"
_CREATED: Final = 1_796_018_000
_BEHIND_S: Final = 0.1
"""One that is so late does not catch up: that would be another pace."""


class PacedService:
    """Answers each POST by the same stream; chat completions and completions as Cerebras has them (API reference).

    Args:
        rate: Chunks per second.
        chunks: Chunks of one answer that carry text.
    """

    def __init__(self, rate: float, chunks: int) -> None:
        self._rate = rate
        tokens = list(islice(_tokens(), chunks))
        self._bodies = {b"/v1/chat/completions": list(_chat(tokens)), b"/v1/completions": list(_completion(tokens))}

    def serve(self, listener: socket.socket) -> None:
        """Take connections for ever, a thread for each."""
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._converse, args=[connection], daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as requests:
            try:
                while path := _request(requests):
                    self._answer(connection, self._bodies[path])
            except ConnectionError:
                return  # the client has gone

    def _answer(self, connection: socket.socket, pieces: list[bytes]) -> None:
        connection.sendall(_HEAD)
        due = time.perf_counter()
        for piece in pieces:
            wait = due - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            elif wait < -_BEHIND_S:
                due -= wait
            due += 1 / self._rate
            connection.sendall(piece)
        connection.sendall(b"0\r\n\r\n")


_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def _request(requests: Any) -> bytes | None:
    """Read a request; return its path, None at the end of the connection."""
    first = requests.readline()
    if not first:
        return None
    length = 0
    while (line := requests.readline()) != b"\r\n":
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    requests.read(length)
    path: bytes = first.split(b" ")[1]
    return path


# --- what it says -------------------------------------------------------------------------------------------------------


def text_of(chunks: int) -> str:
    """Return the text of an answer of so many chunks."""
    return "".join(text for text, _ in islice(_tokens(), chunks))


def _tokens() -> Iterator[tuple[str, int]]:
    """Yield tokens of some text, for ever."""
    encoding = load_encoding("o200k_harmony")
    outputs = ToolOutputs()
    while True:
        for token in encoding.encode_ordinary(outputs.next(4_000)):
            yield encoding.decode([token]), token


def _chat(tokens: list[tuple[str, int]]) -> Iterator[bytes]:
    yield _chunk("chat.completion.chunk", {"index": 0, "delta": {"role": "assistant", "content": ""}})
    for text, _ in tokens:
        yield _chunk("chat.completion.chunk", {"index": 0, "delta": {"content": text}, "finish_reason": None})
    yield _chunk("chat.completion.chunk", {"index": 0, "delta": {}, "finish_reason": "stop"}, len(tokens))
    yield _sse(b"[DONE]")


def _completion(tokens: list[tuple[str, int]]) -> Iterator[bytes]:
    encoding = load_encoding("o200k_harmony")
    begin = encoding.encode("<|channel|>final<|message|>", allowed_special="all")
    yield _chunk("text_completion", {"index": 0, "text": "final", "tokens": begin, "finish_reason": None})
    for text, token in tokens:
        yield _chunk("text_completion", {"index": 0, "text": text, "tokens": [token], "finish_reason": None})
    yield _chunk("text_completion", {"index": 0, "text": "", "tokens": [RETURN], "finish_reason": None})
    yield _chunk("text_completion", {"index": 0, "text": "", "tokens": [], "finish_reason": "stop"}, len(tokens))
    yield _sse(b"[DONE]")


def _chunk(kind: str, choice: dict[str, Any], used: int | None = None) -> bytes:
    event: dict[str, Any] = {
        "id": "chatcmpl-292e278f-514e-4186-9010-91ce6a14168b",
        "choices": [choice],
        "created": _CREATED,
        "model": MODEL,
        "system_fingerprint": "fp_70185065a4",
        "object": kind,
    }
    if used is not None:
        event["usage"] = {"prompt_tokens": 100, "completion_tokens": used, "total_tokens": 100 + used}
        event["time_info"] = {"queue_time": 7.3e-5, "prompt_time": 0.001, "completion_time": 1.0, "total_time": 1.0}
    return _sse(encode(event))


def _sse(data: bytes) -> bytes:
    event = b"data: %b\n\n" % data
    return b"%x\r\n%b\r\n" % (len(event), event)


if __name__ == "__main__":
    descriptor, rate, chunks = sys.argv[1:]
    PacedService(float(rate), int(chunks)).serve(socket.socket(fileno=int(descriptor)))
