"""The end of a turn, as its upstream gave it."""

from msgspec import Struct

from ws_responses.protocol.withheld import withheld


class TurnEnd(Struct, frozen=True):
    """How the upstream ended a turn.

    Attributes:
        frame: The terminal event, ready to be written.
        kind: Its type.
        response_id: Id by which the client can go on.
        items: Output items, in order, byte-exact.
        base_at: Index of the newest compaction item: later turns see nothing that is older. None if there is none.
        usage: Raw JSON of the usage, None if it is unknown.
        status: Status of the response.
        own_id: The app itself has given the id, or ``app_id``.
        app_id: What the app calls it, if that is not ``response_id``.
    """

    frame: bytes
    kind: str
    response_id: str
    items: list[bytes]
    base_at: int | None
    usage: bytes | None
    status: str
    own_id: bool
    app_id: str | None = None

    __repr__ = withheld
