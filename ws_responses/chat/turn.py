"""One turn as a client sees it: a frame out, events in, and what they come to."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from msgspec import Struct, field

from ws_responses.chat.display import Display, TurnTimes
from ws_responses.protocol.events import COMPLETED, ERROR, FAILED, INCOMPLETE, ITEM_DONE
from ws_responses.protocol.items import CALLS

_TEXT: Final = frozenset({"response.output_text.delta", "response.refusal.delta"})
_REASONING: Final = frozenset(
    {"response.reasoning_text.delta", "response.reasoning_summary_text.delta", "response.reasoning.delta"}
)


class Outcome(Struct):
    """What has become of a turn.

    Attributes:
        response_id: Its response, if that can be continued.
        calls: What the model wants the client to do.
        code: Code of the error that ended it; None for none.
    """

    response_id: str | None = None
    calls: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    code: str | None = None

    @property
    def ok(self) -> bool:
        """Whether it was answered."""
        return self.code is None


class TurnReader:
    """Shows the events of a turn as they come.

    Args:
        display: Where.
    """

    def __init__(self, display: Display) -> None:
        self._display = display
        self._begun = time.perf_counter()
        self._times = TurnTimes()
        self._shown = False
        self._calls: list[Mapping[str, Any]] = []

    def read(self, event: Mapping[str, Any]) -> Outcome | None:
        """Take one event; return the outcome if it is the last."""
        self._times.total_s = time.perf_counter() - self._begun
        if self._times.first_s is None:
            self._times.first_s = self._times.total_s
        kind = event.get("type")
        if kind in _TEXT:
            self._display.text(str(event.get("delta")))
            self._shown = True
        elif kind in _REASONING:
            self._display.reasoning(str(event.get("delta")))
        elif kind == ITEM_DONE and _object(event.get("item")).get("type") in CALLS:
            self._calls.append(event["item"])
            self._display.call(event["item"])
        elif kind == ERROR:
            return self._failed(_object(event.get("error")) or event, status=event.get("status"))
        elif kind == FAILED:
            return self._failed(_object(_object(event.get("response")).get("error")))
        elif kind in {COMPLETED, INCOMPLETE}:
            return self._ended(_object(event.get("response")))
        return None

    def _ended(self, response: Mapping[str, Any]) -> Outcome:
        if not self._shown:
            for text in _texts(response.get("output") or ()):
                self._display.text(text)
        self._display.end_line()
        reason = _object(response.get("incomplete_details")).get("reason")
        if reason is not None:
            self._display.note(f"[cut off: {reason}]")
        self._display.summary(self._times, response.get("usage"))
        return Outcome(response_id=response.get("id"), calls=self._calls)

    def _failed(self, error: Mapping[str, Any], status: Any = None) -> Outcome:
        code = str(error.get("code") or error.get("type") or "unknown")
        of_status = "" if status is None else f", status {status}"
        retry_after = _object(error.get("headers")).get("retry-after")
        when = "" if retry_after is None else f"; try again in {retry_after} s"
        self._display.error(f"{error.get('message') or 'no message'} ({code}{of_status}){when}")
        return Outcome(code=code)


def _texts(output: Iterable[Any]) -> Iterable[str]:
    """Yield the texts of an answer that came whole."""
    for item in output:
        for part in _object(item).get("content") or ():
            text = _object(part).get("text") or _object(part).get("refusal")
            if _object(item).get("type") == "message" and isinstance(text, str):
                yield text


def _object(value: Any) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
