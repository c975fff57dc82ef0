"""The rendered-token cache: a chain's nodes keep what was rendered of them, and a turn renders what it adds.

*Cold* is a fresh rendering of the same records: their items, and the ids that were sampled for their output. Warm equals
cold, token for token.
"""

from msgspec import Struct

from ws_responses.rendering.rendered import Form, Rendered
from ws_responses.rendering.renderer import RenderSettings


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
