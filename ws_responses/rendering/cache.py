"""The rendered-token cache: a chain's nodes keep what was rendered of them, and a turn renders what it adds.

*Cold* is a fresh rendering of the same records: their items, and the ids that were sampled for their output. Warm equals
cold, token for token.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from sys import getsizeof
from typing import TYPE_CHECKING, Final

from anyio import to_thread
from msgspec import Struct

from ws_responses.protocol.items import split_items
from ws_responses.protocol.withheld import withheld
from ws_responses.rendering.rendered import Form, Rendered
from ws_responses.rendering.renderer import CannotRender, Renderer, RenderSettings
from ws_responses.state.node import Carried, ResponseNode

if TYPE_CHECKING:
    from ws_responses.routing import Route

THREAD_BYTES: Final = 64 * 1024
"""Items above this many bytes are rendered in a thread: that takes milliseconds, and encoding lets other threads run."""

_NOTHING: Final[Mapping[int, bytes]] = {}

Readable = Callable[[Sequence[bytes]], Sequence[bytes]]
"""Gives items as a model is to see them, where an item stands for others."""


def _as_they_are(items: Sequence[bytes]) -> Sequence[bytes]:
    return items


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

    __repr__ = withheld


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

    __repr__ = withheld


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

    __repr__ = withheld

    def bytes_since(self, parent: Carried | None) -> int:
        """Return the bytes of memory that this keeps alive and the parent's does not."""
        size = KEPT_BYTES + sum(map(getsizeof, self.resolved.values()))
        if self.state is not None:
            size += self.state.bytes_since(parent.state if isinstance(parent, Kept) else None)
        return size


async def render(
    renderer: Renderer,
    key: RenderKey,
    parent: ResponseNode | None,
    delta: Sequence[bytes],
    *,
    resolved: Mapping[int, bytes] = _NOTHING,
    readable: Readable = _as_they_are,
    readable_history: Readable = _as_they_are,
) -> Rendering:
    """Render a conversation up to and with a turn's input.

    Continues what the parent keeps, if that was rendered under an equal key: then the work is that of the delta. Else all
    records are rendered anew. Much of it is done in a thread.

    Args:
        renderer: Must be the one that ``key`` names.
        key: Under what.
        parent: What the turn continues; None if nothing, or if the delta starts a new base.
        delta: The turn's input items, encoded.
        resolved: Input items as the resolver made them, by their place in ``delta``.
        readable: Gives the items of ``delta`` as they are to be rendered.
        readable_history: Gives older items likewise.

    Raises:
        CannotRender: A setting or an item has no form; ``index`` counts in what ``readable`` gives, and is None for what is older.
    """
    items = readable(_applied(delta, resolved))
    size = sum(map(len, items))
    known = _known_state(parent, key)
    if known is not None:
        state = await _run(partial(renderer.extend, known, items), size)
        shared = state.common(known)
        return Rendering(key=key, state=state, hit=True, rendered=state.end - shared, rewound=known.end - shared)
    nodes = [] if parent is None else list(parent.joined())
    nodes.reverse()
    size += 0 if parent is None else parent.history_bytes
    state = await _run(partial(_render_anew, renderer, key, nodes, items, readable_history), size)
    return Rendering(key=key, state=state, hit=False, rendered=state.end, rewound=0)


async def _run(work: Callable[[], Rendered], size: int) -> Rendered:
    # Rendering is pure: a thread whose turn was aborted may end its work unheard.
    return work() if size <= THREAD_BYTES else await to_thread.run_sync(work, abandon_on_cancel=True)


def _known_state(parent: ResponseNode | None, key: RenderKey) -> Rendered | None:
    """Return the parent's state, if it can be continued."""
    kept = None if parent is None else parent.kept
    if parent is None or not isinstance(kept, Kept) or kept.key != key:
        return None
    # After a compaction within an answer the state still holds what the answer has put out of sight.
    return None if parent.record.history_at else kept.state


def _applied(items: Sequence[bytes], resolved: Mapping[int, bytes]) -> Sequence[bytes]:
    return [resolved.get(index, item) for index, item in enumerate(items)] if resolved else items


# -- cold ----------------------------------------------------------------------------------------------------------------


def _render_anew(
    renderer: Renderer, key: RenderKey, nodes: Iterable[ResponseNode], items: Sequence[bytes], readable: Readable
) -> Rendered:
    state = renderer.begin(key.settings, key.form)
    try:
        for node in nodes:
            state = _with_node(renderer, state, node, readable)
    except CannotRender as error:
        raise CannotRender(f"An earlier item of this conversation: {error}") from None
    return renderer.extend(state, items)


def _with_node(renderer: Renderer, state: Rendered, node: ResponseNode, readable: Readable) -> Rendered:
    """Return the state after a node: its input, and its answer as it was sampled, if that is known."""
    record = node.record
    if record.history_at:
        return renderer.extend(state, readable(split_items(record.items[record.history_at :])))
    resolved = node.kept.resolved if isinstance(node.kept, Kept) else _NOTHING
    state = renderer.extend(state, readable(_applied(record.input_items(), resolved)))
    sampled = record.sampled
    if sampled is not None and sampled.vocabulary == renderer.name:
        return renderer.answered(state, sampled.ids)
    return renderer.extend(state, record.output_items())
