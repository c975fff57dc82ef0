"""Step 2 of a turn: its input is checked, and what is kept of the frame is copied."""

from typing import TYPE_CHECKING

from msgspec import Raw

from ws_responses.protocol.steering import BLOCKING_FIELDS
from ws_responses.state.history import join_items
from ws_responses.state.interning import Interned
from ws_responses.state.node import ResponseNode
from ws_responses.upstreams.base import CurrentTurn
from ws_responses.validation import CallState, check_input, heads_of, starts_base

if TYPE_CHECKING:
    from ws_responses.connection import Connection


def read_input(connection: "Connection", info: CurrentTurn, parent: ResponseNode | None, *, shares: bool) -> CallState:
    """Check the delta, with what the parent's state carries, and keep it.

    Args:
        connection: Whose turn it is.
        info: The turn, which is told.
        parent: What it continues.
        shares: What comes with every turn is kept once for all of them.

    Returns:
        The calls that are open.

    Raises:
        WireError: It is not valid.
    """
    create = info.create
    items = create.items()
    heads = heads_of(items)
    calls = check_input(
        create,
        parent.record.calls if parent is not None else None,
        heads,
        base_known=parent is not None or create.previous_response_id is None,
        open_calls=connection.settings.open_calls,
    )
    info.base = starts_base(heads)
    info.encoded_delta = join_items(items, create.text_input)
    if create.warm_up:
        settings = (create.body.get(name, b"") for name in ("tools", "instructions"))
        connection.charges.count_warm_up(len(info.encoded_delta) + sum(len(bytes(raw)) for raw in settings))
    info.keep(connection.charges.interner.intern if shares else _keep_alone)
    return calls


def inherited_body(info: CurrentTurn) -> dict[str, Raw] | None:
    """Return what a successor of the response would have of its create; None if it cannot have one."""
    create = info.create
    if create.warm_up or any(bytes(create.body.get(name, b"null")) != b"null" for name in BLOCKING_FIELDS):
        return None
    return kept_body(info)


def kept_body(info: CurrentTurn) -> dict[str, Raw]:
    """Return the members of the create for the app, as they may be kept: copied, since the frame is not."""
    kept = {"tools": info.interned_tools, "instructions": info.interned_instructions}
    return {
        name: Raw(bytes(raw) if (interned := kept.get(name)) is None else interned.raw)
        for name, raw in info.create.body.items()
    }


def _keep_alone(raw: bytes) -> Interned:
    """Keep a value for one turn; nobody is charged for it."""
    return Interned(raw)
