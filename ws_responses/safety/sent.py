"""What of an answer has been sent, for the closing event of one that is cut off."""

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from ws_responses.protocol import events
from ws_responses.protocol.events import encode
from ws_responses.safety.output import Heard, Place, Said
from ws_responses.safety.text import GrowingText, as_list

REASON: Final = "content_filter"
"""``incomplete_details.reason`` of a response that was cut off (API reference, the response object)."""


class _ItemEvent(Struct, gc=False):
    item: Raw


_decode_item_event = msgspec.json.Decoder(_ItemEvent).decode


class _Text:
    __slots__ = ("kind", "sent")

    def __init__(self, said: Said) -> None:
        self.kind = said.kind
        self.sent = GrowingText()


class SentOutput:
    """Keeps what the client has been given."""

    __slots__ = ("_created", "_finished", "_number", "_texts", "_unfinished")

    def __init__(self) -> None:
        self._created: dict[str, Any] | None = None
        self._number: int | None = None
        self._unfinished: dict[int, dict[str, Any]] = {}
        self._finished: dict[int, Raw] = {}
        self._texts: dict[int, dict[Place, _Text]] = {}

    def note(self, heard: Heard, payload: bytes | str) -> None:
        """Note an event that is sent."""
        if heard.number is not None:
            self._number = heard.number
        if heard.response is not None and self._created is None:
            self._created = heard.response
        index = heard.at
        if index is not None and heard.item is not None:
            if heard.type == events.ITEM_DONE:
                self._finish(index, payload)
                return
            if index not in self._finished:
                self._unfinished[index] = heard.item
                self._texts[index] = {}
        for said in heard.said:
            at = said.place.item
            if type(at) is int and at in self._unfinished:
                text = self._texts[at].setdefault(said.place, _Text(said))
                if said.whole:
                    text.sent.become(said.text)
                else:
                    text.sent.add(said.text)

    def _finish(self, index: int, payload: bytes | str) -> None:
        self._finished[index] = _decode_item_event(payload).item.copy()
        self._unfinished.pop(index, None)
        self._texts.pop(index, None)

    def closing(self, usage: Any) -> bytes:
        """Return the terminal event for what was sent; the repairs announce the response if nothing was.

        Args:
            usage: Of the whole answer if it is known; else it stays unknown.
        """
        response = dict(self._created or {"object": "response"})
        response |= {
            "status": "incomplete",
            "incomplete_details": {"reason": REASON},
            "error": None,
            "output": self._output(),
            "usage": usage,
        }
        event: dict[str, Any] = {"type": events.INCOMPLETE}
        if self._number is not None:
            event["sequence_number"] = self._number + 1
        return encode({**event, "response": response})

    def _output(self) -> list[Any]:
        items: dict[int, Any] = {index: self._cut_off(index, item) for index, item in self._unfinished.items()}
        items |= self._finished
        return [item for _, item in sorted(items.items())]

    def _cut_off(self, index: int, item: dict[str, Any]) -> dict[str, Any]:
        """Return an item as far as it was sent."""
        item = {**item, "status": "incomplete"} if "status" in item or item.get("type") == "message" else dict(item)
        for place, text in sorted(self._texts[index].items(), key=lambda entry: entry[0].nth):
            sent = str(text.sent)
            if place.member in ("content", "summary"):
                parts = list(as_list(item.get(place.member)))
                # Where it was announced with its text, that part is replaced.
                parts[place.nth : place.nth + 1] = [_part(text, sent, place)]
                item[place.member] = parts
            elif place.member in ("arguments", "input", "code"):
                item[place.member] = sent
        return item


def _part(text: _Text, sent: str, place: Place) -> dict[str, Any]:
    if place.member == "summary":
        return {"type": "summary_text", "text": sent}
    if text.kind == "refusal":
        return {"type": "refusal", "refusal": sent}
    if text.kind == "reasoning":
        return {"type": "reasoning_text", "text": sent}
    return {"type": "output_text", "text": sent, "annotations": [], "logprobs": []}
