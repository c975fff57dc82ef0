"""The rendered-token cache: a chain's nodes keep what was rendered of them, and a turn renders what it adds.

*Cold* is a fresh rendering of the same records: their items, and the ids that were sampled for their output. Warm equals
cold, token for token.
"""

from collections.abc import Mapping
from sys import getsizeof
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from ws_responses.rendering.rendered import Form, Rendered
from ws_responses.rendering.renderer import RenderSettings
from ws_responses.state.node import Carried

if TYPE_CHECKING:
    from ws_responses.routing import Route


class RenderKey(Struct, frozen=True):
    """Under what a state was rendered; it can be continued under an equal one only.

    Attributes:
        renderer: The renderer's name.
        form: Encoded form that is kept beside the ids.
        settings: What stands before the conversation.
    """

    renderer: str
    form: Form
    settings: RenderSettings


class Rendering(Struct, frozen=True, kw_only=True):
    """The result of a turn's rendering.

    Attributes:
        key: Under what.
        state: After the turn's input.
        hit: The parent's state was continued; else all was rendered anew.
        rendered: Tokens (or messages) rendered for this turn.
        rewound: Tokens (or messages) of the parent's state that were dropped, and in part rendered again.
    """

    key: RenderKey
    state: Rendered
    hit: bool
    rendered: int
    rewound: int


KEPT_BYTES: Final = 240
"""Charged for what is kept for the next turn beside what was rendered; measured on 64-bit CPython."""


class Kept(Struct, frozen=True, kw_only=True):
    """What is kept of a turn's work for the next one; made anew from the records where it is missing.

    Attributes:
        key: Under what the conversation was rendered; None if it was not.
        state: The conversation as rendered, the answer included.
        route: The model as resolved.
        resolved: Input items as the resolver made them, by their place in the turn's input.
    """

    key: RenderKey | None = None
    state: Rendered | None = None
    route: "Route | None" = None
    resolved: Mapping[int, bytes] = {}

    def bytes_since(self, parent: Carried | None) -> int:
        """Return the bytes of memory that this keeps alive and the parent's does not."""
        size = KEPT_BYTES + sum(map(getsizeof, self.resolved.values()))
        if self.state is not None:
            size += self.state.bytes_since(parent.state if isinstance(parent, Kept) else None)
        return size
