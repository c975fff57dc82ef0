"""The body for the app holds every item of the chain, byte for byte, whatever was forked, compacted or let go of."""

import json
import sys
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import Raw

from ws_responses.errors import RequestTooLarge
from ws_responses.protocol.calls import START
from ws_responses.protocol.items import split_items, user_message
from ws_responses.state import history as history_module
from ws_responses.state.history import join_items, member_pieces, request_body
from ws_responses.state.node import Record, ResponseNode
from ws_responses.testing.strategies import items, json_values


@st.composite
def spelled_items(draw: st.DrawFn, max_size: int = 3) -> list[bytes]:
    """Draw items as they may be spelled: any blanks inside, escaped or not."""
    drawn = draw(st.lists(items(), max_size=max_size))
    return [
        json.dumps(
            item,
            indent=draw(st.sampled_from([None, None, 1, "\t"])),
            ensure_ascii=draw(st.booleans()),
            separators=draw(st.sampled_from([None, (" , ", " : "), (",", ":")])),
        ).encode()
        for item in drawn
    ]


def make_record(
    given_items: list[bytes], output: list[bytes] | None = None, *, base: bool = False, cut: int | None = None
) -> Record:
    """Make a record; ``cut`` is the index of the first output item that later turns see."""
    out = output or []
    joined = b",".join([*given_items, *out])
    output_at = len(joined) - len(b",".join(out))
    history_at = 0 if cut is None else output_at + sum(len(item) + 1 for item in out[:cut])
    return Record(
        id="resp",
        parent_id=None,
        model="m",
        store=False,
        items=joined,
        output_at=output_at,
        history_at=history_at,
        base=base or cut is not None,
        calls=START,
        generated=True,
        status="completed",
    )


# -- nodes ---------------------------------------------------------------------------------------------------------------


@dataclass
class Held:
    node: ResponseNode
    pieces: list[list[bytes]]
    """What the model thinks that later turns see: the items of each node that has some."""


class NodeMachine(RuleBasedStateMachine):
    """Nodes share one list of pieces along a line; lines fork, and end in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Held] = []

    @rule(data=st.data(), given_items=spelled_items(), output=spelled_items(), kind=st.integers(0, 9))
    def make(self, data: st.DataObject, given_items: list[bytes], output: list[bytes], kind: int) -> None:
        parent = data.draw(st.sampled_from([None, *self.held, *self.held[-2:]]))
        cut = data.draw(st.integers(0, len(output) - 1)) if kind == 0 and output else None
        base = kind == 1
        node = ResponseNode(
            make_record(given_items, output, base=base, cut=cut),
            None if parent is None else parent.node,
            tenant="t",
            lane=None,
        )
        seen = output[cut:] if cut is not None else [*given_items, *output]
        before = [] if parent is None or base or cut is not None else parent.pieces
        self.held.append(Held(node, [*before, seen] if seen else list(before)))
        assert node.record.input_items() == given_items
        assert node.record.output_items() == output

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        self.held.remove(data.draw(st.sampled_from(self.held)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def let_the_newest_go(self, data: st.DataObject) -> None:
        del self.held[-1]

    @invariant()
    def each_node_sees_its_own_history(self) -> None:
        for held in self.held:
            pieces = held.node.pieces()
            assert pieces == [b",".join(piece) for piece in held.pieces]
            assert held.node.history_bytes == len(b",".join(pieces))
            assert [split_items(piece) for piece in pieces] == held.pieces

    @invariant()
    def the_rest_after_an_ancestor_is_what_is_missing(self) -> None:
        for held in self.held:
            for ancestor in held.node.joined():
                whole = held.node.pieces()
                rest = held.node.pieces(after=ancestor)
                assert ancestor.pieces() + rest == whole


TestNodes = NodeMachine.TestCase
TestNodes.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


def chain_of(size: int) -> ResponseNode:
    node = None
    for _ in range(size):
        node = ResponseNode(make_record([b'{"a":1}']), node, tenant="t", lane=None)
    assert node is not None
    return node


def test_a_long_chain_is_freed_without_recursion() -> None:
    """An hour of tool calls is a chain of thousands; to free it by recursion would overflow the C stack."""
    head = chain_of(100_000)
    root = list(head.joined())[-1].record
    assert len(head.pieces()) == 100_000
    references = sys.getrefcount(root)
    del head
    assert sys.getrefcount(root) < references


@pytest.mark.parametrize("sibling", [False, True])
def test_what_is_dropped_gives_its_items_back(sibling: bool) -> None:
    """An evicted leaf whose items live on in its line's list is charged to nobody and freed by nobody."""
    parent = chain_of(2)
    other = ResponseNode(make_record([b"[1]"]), parent, tenant="t", lane=None) if sibling else None
    dropped = ResponseNode(make_record([b"[2]"]), parent, tenant="t", lane=None)
    own_items = dropped.record.items
    held = sys.getrefcount(own_items)
    del dropped
    assert sys.getrefcount(own_items) == held - 2  # the record's, and the piece
    assert len(parent.pieces()) == 2
    assert other is None or len(other.pieces()) == 3


def test_a_new_base_keeps_nothing_older_alive() -> None:
    """Rule 9: what is not joined any more must be free to go, or compaction saves no memory here."""
    old = chain_of(3)
    record = old.record
    before = sys.getrefcount(record)
    compacted = ResponseNode(make_record([b'{"type":"compaction"}'], base=True), old, tenant="t", lane=None)
    assert compacted.parent is None
    del old
    assert sys.getrefcount(record) < before
    assert compacted.pieces() == [b'{"type":"compaction"}']


# -- bodies --------------------------------------------------------------------------------------------------------------


def raws(values: dict[str, Any]) -> dict[str, Raw | bytes]:
    return {name: Raw(json.dumps(value).encode()) for name, value in values.items()}


MEMBERS = st.dictionaries(
    st.one_of(st.sampled_from(["model", "tools", "metadata"]), st.text(max_size=5)).filter(
        lambda name: name not in ("input", "stream")
    ),
    json_values(max_leaves=4),
    max_size=4,
)
BIG = 1 << 30


@given(MEMBERS, st.lists(spelled_items().filter(bool), max_size=4), spelled_items(), st.booleans())
def test_the_input_is_the_whole_history_and_the_delta_byte_for_byte(
    members: dict[str, Any], history: list[list[bytes]], delta: list[bytes], has_input: bool
) -> None:
    """An item that is lost, doubled or changed breaks the agent's loop, or its prompt cache."""
    pieces = [b",".join(piece) for piece in history]
    body = request_body(
        raws(members), pieces, b",".join(delta), None, has_input=has_input or bool(delta), max_bytes=BIG
    )
    wanted = [item for piece in [*history, delta] for item in piece]
    decoded = json.loads(body)
    if wanted or has_input:
        got = msgspec.json.decode(body, type=dict[str, Raw])
        assert [bytes(item) for item in msgspec.json.decode(got["input"], type=list[Raw])] == wanted
        del decoded["input"]
    assert decoded == {**members, "stream": True}
    assert list(decoded) == [*members, "stream"]


@given(MEMBERS, st.text(), st.lists(spelled_items(max_size=2).filter(bool), max_size=2))
def test_a_string_input_stays_one_until_there_is_history(
    members: dict[str, Any], text: str, history: list[list[bytes]]
) -> None:
    """The app gets what the client sent; beside other items a string is a user's message."""
    raw = Raw(json.dumps(text).encode())
    body = request_body(
        raws(members),
        [b",".join(piece) for piece in history],
        join_items((), raw),
        raw,
        has_input=True,
        max_bytes=BIG,
    )
    given_input = json.loads(body)["input"]
    if not history:
        assert given_input == text
    else:
        assert given_input[-1] == {"type": "message", "role": "user", "content": text}
        assert given_input[:-1] == [json.loads(item) for piece in history for item in piece]


@pytest.mark.parametrize("over", [-1, 0, 1])
@pytest.mark.parametrize(
    ("history", "delta", "text"),
    [
        ([], b"", None),
        ([], b'{"a":"\xc3\xa9"}', None),
        ([b'{"a":1}', b'{"b":2}'], b'{"c":3}', None),
        ([b'{"a":1}', b'{"b":2}'], b"", None),
        ([], b"", '"\u20ac"'),
        ([b'{"a":1}'], b"", '"\u20ac"'),
    ],
)
def test_the_size_is_bounded_to_the_byte(over: int, history: list[bytes], delta: bytes, text: str | None) -> None:
    """Rule 10: n - 1 and n pass, n + 1 is refused (B028)."""
    raw = None if text is None else Raw(text.encode())
    own = join_items([Raw(delta)] if delta else [], raw)

    def body(max_bytes: int) -> bytes:
        return request_body({"model": b'"m"'}, list(history), own, raw, has_input=True, max_bytes=max_bytes)

    size = len(body(BIG))
    if over > 0:
        with pytest.raises(RequestTooLarge) as refused:
            body(size - over)
        # The app was not called, and the client's way out is to compact what the parent holds: so it must stay.
        assert (refused.value.status, refused.value.code, refused.value.ran) == (413, "request_too_large", False)
        assert str(size) in refused.value.message
        assert str(size - over) in refused.value.message
    else:
        assert len(body(size - over)) == size


def test_the_bound_holds_without_any_input_too() -> None:
    """Parameters alone may be too much."""
    with pytest.raises(RequestTooLarge):
        request_body({"x": b"1" * 100}, [], b"", None, has_input=False, max_bytes=100)


@pytest.mark.parametrize(("has_input", "wanted"), [(False, {"stream": True}), (True, {"input": [], "stream": True})])
def test_an_absent_input_stays_absent_and_an_empty_one_empty(has_input: bool, wanted: Any) -> None:
    """``prompt`` may carry the whole request."""
    assert json.loads(request_body({}, [], b"", None, has_input=has_input, max_bytes=BIG)) == wanted


def test_names_of_any_kind_are_encoded() -> None:
    """A quote in a name must not break the body."""
    names = ['"', "\\", "\n", "\u2028", "é", "", "a" * 300]
    body = b"{" + b"".join(map(bytes, member_pieces(dict.fromkeys(names, b"1")))).removesuffix(b",") + b"}"
    assert json.loads(body) == dict.fromkeys(names, 1)


def test_long_names_of_clients_are_not_remembered() -> None:
    """The spelled names are shared by all connections; a client must not fill that with its own."""
    before = history_module._short_key.cache_info().currsize
    for number in range(50):
        member_pieces({f"{number}" + "x" * 1000: b"1"})
    assert history_module._short_key.cache_info().currsize == before


def test_a_string_becomes_a_message() -> None:
    """The form is the reference's easy input message, with a type."""
    assert json.loads(user_message(b'"a\\u0062"')) == {"type": "message", "role": "user", "content": "ab"}
    assert join_items([Raw(b"{ }"), b"[1]"], None) == b"{ },[1]"
    assert split_items(b"") == []
