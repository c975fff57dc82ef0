"""The rendered-token cache: warm equals cold over any chains and forks, and a warm turn looks at its delta only."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.rendering.conversations import conversations, encoded, texts
from tests.rendering.test_template import BARE, renderer_of
from tests.rendering.vocabularies import BORDERS, TAGS, plain, tagged
from tests.state.drive import drive
from ws_responses.protocol.calls import START
from ws_responses.rendering.cache import THREAD_BYTES, Kept, Rendering, RenderKey, render
from ws_responses.rendering.chat import ChatRenderer
from ws_responses.rendering.chatml import ChatMLRenderer
from ws_responses.rendering.harmony import HarmonyRenderer
from ws_responses.rendering.rendered import Rendered
from ws_responses.rendering.renderer import AUTO, CannotRender, Renderer, RenderSettings, Tool, ToolSet
from ws_responses.state.node import Record, ResponseNode, Sampled

Item = dict[str, Any]

RENDERERS: dict[str, Renderer] = {
    "chat": ChatRenderer(reasoning_field="reasoning"),
    "chatml": ChatMLRenderer(plain()),
    "chatml with tags": ChatMLRenderer(tagged(), thinking="prompt"),
    "harmony": HarmonyRenderer(),
    "harmony until final": HarmonyRenderer(analysis="until_final"),
    "template": renderer_of(BARE, specials=BORDERS[:2] + TAGS),
}
SETTINGS = (
    RenderSettings(),
    RenderSettings(instructions="Be brief."),
    RenderSettings(instructions="Be brief.", tools=ToolSet(tools=(Tool(kind="function", name="find"),), raw=b"[1]")),
    RenderSettings(tools=ToolSet(tools=(Tool(kind="custom", name="patch"),), raw=b"[2]"), reasoning_effort="none"),
)


def key_of(renderer: Renderer, known: RenderSettings = SETTINGS[0]) -> RenderKey:
    return RenderKey(renderer.name, "json" if renderer.produces == "tokens" else None, known)


def record_of(
    items: Sequence[bytes], output: Sequence[bytes] = (), *, sampled: Sampled | None = None, cut: int | None = None
) -> Record:
    """Make a record; ``cut`` is the index of the first output item that later turns see."""
    joined = b",".join([*items, *output])
    output_at = len(joined) - len(b",".join(output))
    return Record(
        id="resp",
        parent_id=None,
        model="m",
        store=False,
        items=joined,
        output_at=output_at,
        history_at=0 if cut is None else output_at + sum(len(item) + 1 for item in output[:cut]),
        base=cut is not None,
        calls=START,
        generated=True,
        status="completed",
        sampled=sampled,
    )


def node_of(record: Record, parent: ResponseNode | None = None, kept: Kept | None = None) -> ResponseNode:
    return ResponseNode(record, parent, tenant="t", kept=kept)


def run(
    renderer: Renderer,
    parent: ResponseNode | None,
    delta: Sequence[bytes],
    known: RenderSettings = SETTINGS[0],
    **more: Any,
) -> Rendering:
    """Render without an event loop: small work must not wait for anything."""
    return drive(render(renderer, key_of(renderer, known), parent, delta, **more))


def tokens(state: Rendered) -> Any:
    return state.ids().tolist(), state.json_array()


# -- warm equals cold ----------------------------------------------------------------------------------------------------


@dataclass
class Twin:
    """A node, and one of the same records for which nothing was kept."""

    warm: ResponseNode | None = None
    cold: ResponseNode | None = None


@dataclass
class World:
    """Chains of turns as an engine makes them.

    Attributes:
        renderer: Of all turns.
        data: Draws.
        twins: All nodes so far.
    """

    renderer: Renderer
    data: st.DataObject
    twins: list[Twin] = field(default_factory=lambda: [Twin()])

    def turn(self) -> None:
        draw: Any = self.data.draw
        parent = draw(st.sampled_from([*self.twins, *self.twins[-2:]]))
        known = draw(st.sampled_from([*SETTINGS, *SETTINGS[1:2] * 4]))
        items = draw(conversations(max_steps=2))
        delta = encoded(items)
        if draw(st.integers(0, 9)) == 0:
            parent = Twin()  # a new base
        messages = [index for index, item in enumerate(items) if item.get("role") == "user"]
        resolved = {index: b'{"role":"user","content":"resolved"}' for index in messages if draw(st.booleans())}

        warm = run(self.renderer, parent.warm, delta, known, resolved=resolved)
        cold = run(self.renderer, parent.cold, delta, known, resolved=resolved)
        assert tokens(warm.state) == tokens(cold.state)
        assert not cold.hit
        self.check_counts(warm, parent.warm)
        self.commit(parent, known, delta, resolved, warm)

    def check_counts(self, warm: Rendering, parent: ResponseNode | None) -> None:
        kept = None if parent is None else parent.kept
        if not warm.hit:
            assert (warm.rendered, warm.rewound) == (warm.state.end, 0)
            return
        assert isinstance(kept, Kept)
        assert kept.state is not None
        shared = kept.state.end - warm.rewound
        assert warm.state.end == shared + warm.rendered
        assert warm.state.ids()[:shared] == kept.state.ids()[:shared]

    def commit(
        self, parent: Twin, known: RenderSettings, delta: list[bytes], resolved: dict[int, bytes], rendering: Rendering
    ) -> None:
        draw = self.data.draw
        output, sampled, state = self.answer(known, rendering.state)
        record = record_of(delta, output, sampled=sampled)
        kept = Kept(key=rendering.key, state=state, resolved=resolved)
        if draw(st.integers(0, 5)) == 0:
            kept = Kept(resolved=resolved)  # the state was not kept
        self.twins.append(
            Twin(node_of(record, parent.warm, kept), node_of(record, parent.cold, Kept(resolved=resolved)))
        )

    def answer(self, known: RenderSettings, state: Rendered) -> tuple[list[bytes], Sampled | None, Rendered]:
        """Return output items, sampled ids and state of an answer: a warm-up, of sampled ids, or of items only."""
        draw, renderer = self.data.draw, self.renderer
        kind = draw(st.sampled_from(["warm-up", "sampled", "sampled", "foreign", "items"]))
        if kind == "warm-up":
            return [], None, state
        output = encoded(draw(conversations(max_steps=2)))
        if kind == "sampled" and renderer.produces == "tokens":
            answer = renderer.answer(state, AUTO, known)
            ids = [*answer.prefill, *tagged().encode(draw(texts(3))), *draw(st.sampled_from([(), answer.stop_ids[:1]]))]
            return output, Sampled.of(renderer.name, ids), renderer.answered(state, ids)
        foreign = Sampled.of("another vocabulary", [1, 2, 3]) if kind == "foreign" else None
        return output, foreign, renderer.extend(state, output)


@pytest.mark.parametrize("renderer", RENDERERS.values(), ids=RENDERERS)
@settings(max_examples=40)
@given(data=st.data(), turns=st.integers(1, 5))
def test_warm_equals_cold(renderer: Renderer, data: st.DataObject, turns: int) -> None:
    """Without this a model's answer would depend on what the cache happened to hold.

    Over forks, changed tools and instructions, warm-ups, new bases, answers with and without sampled ids, lost states.
    """
    world = World(renderer, data)
    for _ in range(turns):
        world.turn()


# -- what a warm turn costs ----------------------------------------------------------------------------------------------


class Spy:
    """A renderer that says what it was asked for."""

    name = "spy"
    produces: Literal["chat"] = "chat"

    def __init__(self, *, refuses: bytes = b"\x00") -> None:
        self.began = 0
        self.seen: list[list[bytes]] = []
        self.threads: set[int] = set()
        self._refuses = refuses

    def begin(self, settings: RenderSettings, form: Any) -> Rendered:
        self.began += 1
        return Rendered.of_messages(())

    def extend(self, state: Rendered, items: Iterable[bytes]) -> Rendered:
        found = list(items)
        self.seen.append(found)
        self.threads.add(threading.get_ident())
        for index, item in enumerate(found):
            if self._refuses in item:
                raise CannotRender("refused", index=index, param="type")
        return state.with_messages(found)

    def answer(self, state: Rendered, choice: Any, settings: RenderSettings) -> Any:
        raise NotImplementedError

    def answered(self, state: Rendered, sampled_ids: Sequence[int]) -> Rendered:
        return state.with_messages([msgspec.json.encode(list(sampled_ids))])


def chain_of(renderer: Renderer, length: int, *, keep: bool = True) -> ResponseNode:
    node: ResponseNode | None = None
    for number in range(length):
        delta = encoded([{"role": "user", "content": str(number)}])
        rendering = run(renderer, node, delta)
        kept = Kept(key=rendering.key, state=rendering.state) if keep else None
        node = node_of(record_of(delta), node, kept)
    assert node is not None
    return node


class Untouchable(ResponseNode):
    """A node whose older ones must not be looked at."""

    __slots__ = ()

    def joined(self) -> Any:
        raise AssertionError("the history was walked")


def test_a_warm_turn_looks_at_its_delta_only() -> None:
    """Without this a turn would cost the more the longer the conversation is."""
    spy = Spy()
    parent = chain_of(spy, 50)
    parent.__class__ = Untouchable
    spy.seen.clear()
    delta = encoded([{"role": "user", "content": "new"}])

    rendering = run(spy, parent, delta)

    assert spy.seen == [delta]
    assert (rendering.hit, rendering.rendered, rendering.rewound) == (True, 1, 0)
    assert rendering.state.end == 51


@pytest.mark.parametrize(
    "other",
    [
        {"settings": SETTINGS[1]},
        {"form": "msgpack"},
        {"renderer": "another"},
    ],
)
def test_another_key_renders_all_anew(other: dict[str, Any]) -> None:
    """Without this a conversation would go on behind instructions that are not its own."""
    spy = Spy()
    parent = chain_of(spy, 3)
    spy.began = 0
    key = RenderKey(spy.name, None, SETTINGS[0])

    assert drive(render(spy, key, parent, [])).hit
    rendering = drive(render(spy, replace(key, **other), parent, []))

    assert (rendering.hit, rendering.rendered, spy.began) == (False, 3, 1)


def test_equal_tools_of_other_objects_are_a_hit() -> None:
    spy = Spy()
    first, second = (replace(SETTINGS[2], tools=ToolSet(tools=SETTINGS[2].tools.tools, raw=b"[1]")) for _ in range(2))  # type: ignore[union-attr]
    node = node_of(record_of([]), None, Kept(key=key_of(spy, first), state=Rendered.of_messages(())))

    assert run(spy, node, [], second).hit


def test_what_an_answer_compacted_is_not_rendered() -> None:
    """Without this a compacted conversation would come back in full."""
    spy = Spy()
    old = chain_of(spy, 2)
    output = encoded([{"n": 1}, {"n": 2}, {"n": 3}])
    kept = old.kept
    assert isinstance(kept, Kept)
    compacted = node_of(record_of(encoded([{"n": 0}]), output, cut=1, sampled=Sampled.of("spy", [7])), old, kept)
    spy.seen.clear()

    rendering = run(spy, compacted, encoded([{"n": 4}]))

    assert spy.seen == [output[1:], encoded([{"n": 4}])]
    assert (rendering.hit, rendering.state.end) == (False, 3)


def test_sampled_ids_of_another_vocabulary_are_not_taken() -> None:
    """Without this ids would be read in a vocabulary in which they mean something else."""
    spy = Spy()
    mine = node_of(record_of([], encoded([{"n": 1}]), sampled=Sampled.of("spy", [7])))
    foreign = node_of(record_of([], encoded([{"n": 2}]), sampled=Sampled.of("other", [8])), mine)

    assert run(spy, foreign, []).state.json_array() == b'[[7],{"n":2}]'


def test_resolved_items_stand_in_for_what_came() -> None:
    """Without this an image would be fetched, and then not be used; or used in one turn and lost in the next."""
    spy = Spy()
    resolved = {1: b'"resolved"'}
    delta = [b'"a"', b'"b"']

    rendering = run(spy, None, delta, resolved=resolved)
    node = node_of(record_of(delta), None, Kept(resolved=resolved))

    assert rendering.state.json_array() == b'["a","resolved"]'
    assert run(spy, node, []).state.json_array() == b'["a","resolved"]'


def test_an_item_of_the_delta_is_named_and_an_older_one_is_not() -> None:
    """Without this the client would be told of an input item that it has not sent with this turn."""
    spy = Spy(refuses=b"bad")

    with pytest.raises(CannotRender) as fresh:
        run(spy, chain_of(spy, 2), [b'"good"', b'"bad"'])
    with pytest.raises(CannotRender, match="An earlier item of this conversation: refused") as older:
        run(spy, node_of(record_of([b'"bad"'])), [b'"good"'])

    assert (fresh.value.index, fresh.value.param) == (1, "type")
    assert (older.value.index, older.value.param) == (None, None)


# -- threads -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("too_much", [0, 1])
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
async def test_much_is_rendered_in_a_thread(too_much: int, warm: bool) -> None:
    """Without this a long conversation would hold up all others of the process while it is encoded."""
    spy = Spy()
    items = [b'"%s"' % (b"x" * (THREAD_BYTES - 2 + too_much))]
    node = node_of(record_of([] if warm else items), None, Kept(key=key_of(spy), state=Rendered.of_messages(())))
    parent = node if warm else node_of(node.record)

    rendering = await render(spy, key_of(spy), parent, items if warm else [])

    assert rendering.hit is warm
    assert (spy.threads == {threading.get_ident()}) is not bool(too_much)


async def test_a_refusal_comes_out_of_the_thread() -> None:
    spy = Spy(refuses=b"xx")

    with pytest.raises(CannotRender) as caught:
        await render(spy, key_of(spy), None, [b"", b"x" * (2 * THREAD_BYTES)])

    assert caught.value.index == 1


async def test_an_aborted_turn_does_not_wait_for_its_thread() -> None:
    """Without this a client that hangs up would keep its turn until the thread is done."""
    started, release = threading.Event(), threading.Event()

    class Slow(Spy):
        def extend(self, state: Rendered, items: Iterable[bytes]) -> Rendered:
            started.set()
            assert release.wait(30)
            return super().extend(state, items)

    spy = Slow()
    async with anyio.create_task_group() as group:
        group.start_soon(render, spy, key_of(spy), None, [b"x" * (2 * THREAD_BYTES)])
        await anyio.to_thread.run_sync(started.wait)
        group.cancel_scope.cancel()
    release.set()

    assert started.is_set()
