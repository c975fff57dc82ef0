"""The inner body of a turn, by history mode."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec
from msgspec import Raw

from ws_responses.protocol.events import encode, invalid
from ws_responses.state.history import request_body
from ws_responses.state.node import ResponseNode
from ws_responses.upstreams.base import CurrentTurn

History = Literal["replay", "forward", "turn"]
"""What the app is given: the whole conversation; its own parent id and the rest; or the delta alone."""

AppStore = Literal["keep", "never"]
"""Whether ``store`` reaches the app as sent, or as false."""

Prepare = Callable[[dict[str, Any], CurrentTurn], dict[str, Any] | None]
"""Edits an inner body: gets its members, decoded, ``input`` aside (see the turn's ``delta`` and ``history``); changes
them in place or returns others. An ``input`` among them replaces ours."""


class Bodies:
    """Builds inner bodies.

    Args:
        history: The mode.
        app_store: See :data:`AppStore`.
        drop_fields: Members that never reach the app.
        prepare: See :data:`Prepare`.
        max_bytes: Bound of a body.
    """

    def __init__(
        self,
        history: History = "replay",
        *,
        app_store: AppStore = "keep",
        drop_fields: Iterable[str] = (),
        prepare: Prepare | None = None,
        max_bytes: int = 1 << 26,
    ) -> None:
        self._history = history
        self._app_store = app_store
        self._drop_fields = tuple(drop_fields)
        self._prepare = prepare
        self._max_bytes = max_bytes

    def build(self, turn: CurrentTurn) -> bytes:
        """Return the body for ``turn``.

        Raises:
            RequestTooLarge: It would exceed the bound.
        """
        create = turn.create
        members: dict[str, Raw | bytes] = dict(create.body)
        for name in self._drop_fields:
            members.pop(name, None)
        if self._app_store == "never" or turn.unjudged:
            members["store"] = b"false"
        history, turn.forwarded = self._past(turn)
        if turn.forwarded is not None:
            members["previous_response_id"] = encode(turn.forwarded)
        if self._prepare is not None:
            members = self._prepared(members, turn)
        if "input" in members:  # of ``prepare``, in place of ours
            return request_body(members, [], b"", None, has_input=False, max_bytes=self._max_bytes)
        return request_body(
            members,
            history,
            turn.encoded_delta,
            create.text_input,
            has_input=create.has_input,
            max_bytes=self._max_bytes,
        )

    def _past(self, turn: CurrentTurn) -> tuple[list[bytes], str | None]:
        """Return the items to be joined, and the id to be forwarded."""
        if self._history == "turn" or turn.base:
            return [], None
        if turn.parent is None:
            return [], turn.previous_response_id if self._history == "forward" else None
        if self._history == "replay":
            return turn.parent.pieces(), None
        known, app_id = _known_to_app(turn.parent)
        return turn.parent.pieces(known), app_id

    def _prepared(self, members: dict[str, Raw | bytes], turn: CurrentTurn) -> dict[str, Raw | bytes]:
        assert self._prepare is not None
        body = {name: _decoded(name, value) for name, value in members.items()}
        changed = self._prepare(body, turn)
        return {name: encode(value) for name, value in (body if changed is None else changed).items()}


def _decoded(name: str, value: Raw | bytes) -> Any:
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:  # the frame was read: all that is left is a number beyond all ranges, somewhere inside
        raise invalid("A number in the frame is out of range.", name) from None


def _known_to_app(parent: ResponseNode) -> tuple[ResponseNode | None, str | None]:
    """Return the nearest node that the app itself produced and stored, and what the app is to go on from.

    Where there is no such node, the chain may still continue a response that the app alone knows.
    """
    node = parent
    for node in parent.joined():
        if node.record.known_to_app:
            return node, node.record.app_id or node.id
    return None, node.record.app_parent_id
