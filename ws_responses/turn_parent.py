"""Step 1 of a turn: the node that it continues, which is kept while the turn runs."""

from typing import TYPE_CHECKING

from ws_responses.errors import PreviousResponseNotFound
from ws_responses.protocol.turns import Turn
from ws_responses.state.node import ResponseNode

if TYPE_CHECKING:
    from ws_responses.connection import Connection


class TurnParent:
    """Finds the parent of one turn, and holds it.

    Args:
        connection: Whose turn it is.
    """

    __slots__ = ("_connection", "_held")

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._held: ResponseNode | None = None

    async def find(self, turn: Turn) -> ResponseNode | None:
        """Return the parent, from connection cache or store; None if there is none, or only the app knows it.

        Raises:
            PreviousResponseNotFound: Nobody can know it.
        """
        connection = self._connection
        parent_id = turn.create.previous_response_id
        pinned, turn.pin = turn.pin, None
        if parent_id is None:
            return None
        parent = pinned or await connection.resolve(parent_id, turn.create.lane)
        if parent is None and (connection.history != "forward" or self._is_refused(parent_id)):
            raise PreviousResponseNotFound(parent_id)
        return parent

    def hold(self, parent: ResponseNode) -> None:
        """Let the parent not be pushed out while the turn runs."""
        self._held = parent
        self._connection.cache.pin(parent.id)

    def let_go(self) -> None:
        """Hold it no longer."""
        if self._held is not None:
            self._connection.cache.unpin(self._held.id)

    def evict(self, lane: str | None) -> None:
        """Let nothing continue it any more, because its turn ran and failed; never another lane's."""
        if self._held is not None and self._held.lane == lane:
            self._connection.cache.fail(self._held.id)

    def _is_refused(self, parent_id: str) -> bool:
        """Whether nothing may go on from a response, although the app may know it."""
        connection = self._connection
        return connection.cache.has_failed(parent_id) or connection.registry.is_blocked(connection.tenant, parent_id)
