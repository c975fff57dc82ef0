"""The parents of turns that wait: another lane's completed node survives that lane's eviction."""

from ws_responses.protocol.turns import Turn
from ws_responses.state.cache import ConnectionCache


def pin_fork(cache: ConnectionCache, turn: Turn) -> None:
    """Keep the parent of a turn that is to run, if it is another lane's node."""
    parent_id = turn.create.previous_response_id
    node = cache.get(parent_id) if parent_id is not None else None
    if node is not None and node.lane != turn.create.lane:
        turn.pin = node
        cache.pin(node.id)


def unpin_fork(cache: ConnectionCache, turn: Turn, *, keep: bool = False) -> None:
    """Keep it no longer for the turn.

    Args:
        cache: The nodes of the connection.
        turn: That was to run.
        keep: It runs: the node stays its parent.
    """
    if turn.pin is not None:
        cache.unpin(turn.pin.id)
        if not keep:
            turn.pin = None
