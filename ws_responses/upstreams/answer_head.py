"""The head of an app's answer: its status, and what its headers say of the body."""

from ws_responses._types import Message


class AnswerHead:
    """What an ``http.response.start`` tells.

    Attributes:
        status: Of the answer.
        headers: With lower-case names.
        succeeded: The status is 2xx.
        encoding: Of the body; None if it has none.
    """

    __slots__ = ("encoding", "headers", "status", "succeeded")

    def __init__(self, message: Message) -> None:
        self.status: int = message["status"]
        self.headers = [(bytes(name).lower(), bytes(value)) for name, value in message.get("headers", ())]
        self.succeeded = 200 <= self.status < 300
        self.encoding = next(
            (
                value
                for name, value in self.headers
                if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity")
            ),
            None,
        )

    @property
    def is_stream(self) -> bool:
        """Whether it is labelled as a stream of events that can be read as it comes."""
        return (
            self.succeeded
            and self.encoding is None
            and any(name == b"content-type" and b"text/event-stream" in value.lower() for name, value in self.headers)
        )
