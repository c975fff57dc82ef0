"""The response objects of one turn: all of one id and one parent, whatever the app calls them."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Raw

from ws_responses.protocol import events
from ws_responses.protocol.events import encode
from ws_responses.protocol.frames import MAX_ID_CHARS
from ws_responses.upstreams import strict as open_responses
from ws_responses.upstreams.reading import text_of

_STATUS: Final = {events.CREATED: "in_progress", events.IN_PROGRESS: "in_progress"}


class Snapshots:
    """Makes response objects, and sets in the app's own what must be true of them.

    Args:
        response_id: Our id, used if the app gives none or one that is live already.
        previous_response_id: The parent's id.
        model: As the frame said, for objects that the app does not send.
        is_live: Whether an id is in use by another response of the tenant.
        complete: Fill the members that strict clients demand, from these.
        strict: Fill what is inside of them as well, by the schema of Open Responses.

    Attributes:
        response_id: Id of the response; settled by the first object.
        own_id: It is the app's own.
    """

    __slots__ = (
        "_complete",
        "_created_at",
        "_is_live",
        "_model",
        "_previous",
        "_settled",
        "_strict",
        "own_id",
        "response_id",
    )

    def __init__(
        self,
        response_id: str,
        previous_response_id: str | None,
        model: str | None,
        is_live: Callable[[str], bool],
        complete: Mapping[str, Raw] | None,
        *,
        strict: bool = False,
    ) -> None:
        self.response_id = response_id
        self.own_id = False
        self._previous = previous_response_id
        self._model = model
        self._is_live = is_live
        self._complete = complete
        self._strict = strict
        self._settled = False
        self._created_at: int | None = None

    def rewrite(self, response: dict[str, Raw], kind: str) -> bool:
        """Set what must be true of every response object of the turn; return whether something changed.

        Args:
            response: The object, in an event of the app.
            kind: Type of the event.
        """
        must = self._identity(response)
        changed = {name: value for name, value in must.items() if text_of(response.get(name)) != value}
        for name, value in changed.items():
            response[name] = Raw(encode(value))
        return self._fill(response, kind) or bool(changed)

    def begun(self, response: Mapping[str, Raw]) -> dict[str, Raw]:
        """Return the object of a ``response.created`` that the app has not sent, from what a later one tells."""
        begun: dict[str, Any] = {"id": self.response_id, "object": "response", "created_at": self._now()}
        begun |= {"model": self._model, **response}
        begun |= {"status": "in_progress", "output": [], "error": None, "incomplete_details": None, "usage": None}
        if "completed_at" in begun:
            begun["completed_at"] = None
        created = {name: value if isinstance(value, Raw) else Raw(encode(value)) for name, value in begun.items()}
        self.rewrite(created, events.CREATED)
        return created

    def closing(self, created: Mapping[str, Raw] | None, status: str) -> dict[str, Raw]:
        """Return the object for a terminal event that has none, from the one that announced the response."""
        response = dict(created or self.begun({}))
        response["status"] = Raw(encode(status))
        response.pop("output", None)
        if status == "failed":
            error = {"code": "server_error", "message": "The upstream failed without a reason."}
            response["error"] = Raw(encode(error))
        return response

    def _fill(self, response: dict[str, Raw], kind: str) -> bool:
        if self._complete is None:
            return False
        known: dict[str, Any] = {
            "status": _STATUS.get(kind, kind.removeprefix("response.")),
            "created_at": self._now(),
            "output": [],
        }
        missing = [name for name in (*known, *self._complete) if name not in response]
        for name in missing:
            response[name] = self._complete[name] if name in self._complete else Raw(encode(known[name]))
        better = open_responses.completed(response, self._complete) if self._strict else {}
        response.update(better)
        return bool(missing or better)

    def _identity(self, response: Mapping[str, Raw]) -> dict[str, str]:
        """Return the ids that the response objects of the turn have; the first of them may bring the app's own."""
        if not self._settled:
            self._settled = True
            given = text_of(response.get("id"))
            if given and given != self.response_id and len(given) <= MAX_ID_CHARS and not self._is_live(given):
                self.response_id, self.own_id = given, True
        if self._previous is None:
            return {"id": self.response_id}
        return {"id": self.response_id, "previous_response_id": self._previous}

    def _now(self) -> int:
        if self._created_at is None:
            self._created_at = int(time.time())
        return self._created_at
