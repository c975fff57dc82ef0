"""A rendered conversation is a persistent list: whatever is done with one state, the others stay as they are."""

import gc
import sys
from array import array
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.rendering.reachable import bytes_since
from ws_responses.rendering.rendered import Form, Rendered, encode_ids

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=20)
OWN_IDS = st.lists(st.integers(128, 2**32 - 1), max_size=20)
"""Ids whose encoded form has more than one byte: CPython keeps strings of one byte once, so they are nobody's."""
FORMS: list[Form] = [None, "json", "msgpack"]


# -- one state -----------------------------------------------------------------------------------------------------------


@given(pieces=st.lists(IDS, min_size=1, max_size=5), form=st.sampled_from(FORMS))
def test_the_encoded_forms_are_those_of_all_ids(pieces: list[list[int]], form: Form) -> None:
    """Without this a backend would be sent an array with a comma too much, or with the wrong length."""
    state = Rendered.of_tokens(pieces[0], form)
    for piece in pieces[1:]:
        state = state.with_tokens(piece)
    ids = [token for piece in pieces for token in piece]

    assert state.ids().tolist() == ids
    assert state.end == len(ids)
    assert msgspec.json.decode(state.json_ids()) == ids
    assert msgspec.msgpack.decode(state.msgpack_ids()) == ids


@pytest.mark.parametrize("count", [0, 15, 16, (1 << 16) - 1, 1 << 16])
def test_a_msgpack_array_has_the_head_of_its_length(count: int) -> None:
    """The head has one, three or five bytes; each border is a place to go wrong."""
    ids = [7] * count

    assert msgspec.msgpack.decode(Rendered.of_tokens(ids, "msgpack").msgpack_ids()) == ids
    assert msgspec.msgpack.decode(Rendered.of_tokens(ids[:1], "msgpack").with_tokens(ids[1:]).msgpack_ids()) == ids
    assert encode_ids(ids, None) == b""


@given(pieces=st.lists(st.lists(st.integers(0, 99).map(msgspec.json.encode), max_size=3), min_size=1, max_size=4))
def test_messages_are_joined_to_one_array(pieces: list[list[bytes]]) -> None:
    state = Rendered.of_messages(pieces[0])
    for piece in pieces[1:]:
        state = state.with_messages(piece)

    messages = [msgspec.json.decode(message) for piece in pieces for message in piece]
    assert msgspec.json.decode(state.json_array()) == messages
    assert state.end == len(messages)


def test_messages_are_cut_between_links_only() -> None:
    """A link of messages is one piece of JSON: half of it would be no message."""
    state = Rendered.of_messages([b"1", b"2"]).with_messages([b"3", b"4"], "notes")

    assert state.cut(2).json_array() == b"[1,2]"
    assert state.cut(4, "other").memo == "other"
    assert state.cut(0).json_array() == b"[]"
    with pytest.raises(ValueError, match="between links only"):
        state.cut(3)


@pytest.mark.parametrize("end", [-1, 4])
def test_a_cut_must_be_within(end: int) -> None:
    with pytest.raises(ValueError, match="cannot cut"):
        Rendered.of_tokens([1, 2, 3], None).cut(end)


def test_a_link_is_charged_what_it_takes() -> None:
    """Without this a change of the class would make every chain larger than what its budgets are charged."""
    state = Rendered.of_tokens([1], "json")
    ids = list(range(1000))
    gc.collect()
    before = state
    sizes = []
    for _ in range(3):
        after = before.with_tokens(ids)
        own = [after, after.own_ids, after.encoded]
        sizes.append(sum(map(sys.getsizeof, own)) + 16)  # the collector's head
        before = after

    charged = before.bytes_since(state)
    assert sum(sizes) <= charged <= sum(sizes) * 1.05


# -- many states ---------------------------------------------------------------------------------------------------------


@dataclass
class Held:
    """A state and what it must be.

    Attributes:
        state: The state.
        whole: Its ids without a detour.
        detour: Where its detour ends, and what stands in place of what is before.
        takes: Whether the detour counts.
        parent: What it was made of, by growing or by a cut.
    """

    state: Rendered
    whole: list[int]
    detour: tuple[int, list[int]] | None
    takes: bool
    parent: "Held | None"

    @property
    def seen(self) -> list[int]:
        if self.takes and self.detour is not None:
            return [*self.detour[1], *self.whole[self.detour[0] :]]
        return self.whole


class RenderedMachine(RuleBasedStateMachine):
    """States grow, are cut back, fork, and get a second beginning; in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Held] = []

    def pick(self, data: st.DataObject) -> Held:
        return data.draw(st.sampled_from([*self.held, *self.held[-2:]]))

    def keep(self, state: Rendered, old: Held, whole: list[int], **changes: Any) -> None:
        held = Held(state, whole, **{"detour": old.detour, "takes": old.takes, "parent": old, **changes})
        if held.detour is None:
            held.takes = False
        self.held.append(held)

    @precondition(lambda self: not self.held)
    @rule(ids=OWN_IDS, form=st.sampled_from(FORMS))
    def begin(self, ids: list[int], form: Form) -> None:
        self.held.append(Held(Rendered.of_tokens(ids, form), ids, None, False, None))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), ids=OWN_IDS, takes=st.sampled_from([None, False, True]))
    def grow(self, data: st.DataObject, ids: list[int], takes: bool | None) -> None:
        old = self.pick(data)
        state = old.state.with_tokens(ids, "notes", takes_detour=takes)
        self.keep(state, old, old.whole + ids, takes=old.takes if takes is None else takes)
        assert state.memo == "notes"
        if ids:
            assert state.before is old.state  # forks share their links

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def note(self, data: st.DataObject) -> None:
        old = self.pick(data)
        self.keep(old.state.with_memo(("other",)), old, old.whole)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def add_again(self, data: st.DataObject) -> None:
        """What a line holds is put behind a cut of it, as when something between is left out."""
        old = self.pick(data)
        links = [link for link in old.state.links() if link.own_ids]
        if not links or old.detour is not None:
            return
        link = data.draw(st.sampled_from(links))
        end = data.draw(st.integers(0, link.place - len(link.own_ids)))
        state = link.behind(old.state.cut(end), "again")
        assert state.own_ids is link.own_ids
        self.keep(state, old, old.whole[:end] + link.own_ids.tolist())

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        old = self.pick(data)
        end = data.draw(st.integers(0, len(old.seen)))
        state = old.state.cut(end, "cut")
        assert state.memo == "cut"
        if old.takes and old.detour is not None:
            place, instead = old.detour
            if end <= len(instead):
                # It is a state of the other beginning: what it shares with its parent is not looked for.
                self.keep(state, old, instead[:end], detour=None, parent=None)
                return
            end += place - len(instead)
        stays = old.detour is not None and end >= old.detour[0]
        self.keep(state, old, old.whole[:end], detour=old.detour if stays else None)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), ids=OWN_IDS, takes=st.booleans())
    def tell_the_beginning_in_another_way(self, data: st.DataObject, ids: list[int], takes: bool) -> None:
        old = self.pick(data)
        if old.detour is not None or not old.whole:
            return
        end = data.draw(st.integers(0, len(old.whole)))
        instead = old.state.cut(end).with_tokens(ids)
        state = old.state.with_detour(instead, takes_detour=takes)
        self.keep(state, old, old.whole, detour=(len(old.whole), old.whole[:end] + ids), takes=takes)

    @invariant()
    def each_state_is_what_it_was_made(self) -> None:
        for held in self.held:
            seen = held.seen
            assert held.state.ids().tolist() == seen
            assert held.state.end == len(seen)
            assert held.state.json_ids() == msgspec.json.encode(seen)
            assert held.state.msgpack_ids() == msgspec.msgpack.encode(seen)

    @invariant()
    def what_is_charged_is_what_is_kept_alive(self) -> None:
        """Else the budgets of a connection would drift away from its memory, turn by turn."""
        for held in self.held:
            assert held.state.bytes_since(None) == bytes_since(held.state, None)
            if held.parent is not None:
                assert held.state.bytes_since(held.parent.state) == bytes_since(held.state, held.parent.state)

    @invariant()
    def what_two_states_have_in_common_is_the_same_in_both(self) -> None:
        for held in self.held[-3:]:
            for other in self.held[-3:]:
                common = held.state.common(other.state)
                assert held.seen[:common] == other.seen[:common]
                if held.state.continues(other.state):
                    assert common == len(other.seen)


TestRenderedMachine = RenderedMachine.TestCase
TestRenderedMachine.settings = settings(max_examples=60, stateful_step_count=12)


def test_what_remains_after_a_rewind_is_counted_to_the_token() -> None:
    """Without this rewinds would be told larger than they are, wherever a link is cut in its middle."""
    state = Rendered.of_tokens([1, 2, 3], "json").with_tokens([4, 5, 6])
    longer = state.with_tokens([7])
    again = longer.cut(5).with_tokens([9, 7])

    assert longer.continues(state)
    assert longer.common(state) == 6
    assert not again.continues(longer)
    assert again.common(longer) == longer.common(again) == 5


def test_a_state_that_takes_another_beginning_does_not_continue_the_one_that_does_not() -> None:
    whole = Rendered.of_tokens([1, 2, 3], None).with_tokens([4, 5])
    lean = whole.cut(3).with_tokens([5])
    both = whole.with_detour(lean, takes_detour=True)
    back = both.with_tokens([6], takes_detour=False)

    assert both.ids() == array("I", [1, 2, 3, 5])
    assert back.ids() == array("I", [1, 2, 3, 4, 5, 6])
    assert both.with_tokens([6]).continues(both)
    assert not back.continues(both)
    assert back.common(both) == 3


def test_what_is_cut_to_before_a_detour_has_none() -> None:
    """Else what goes on from there would lose its beginning as soon as it takes the detour."""
    whole = Rendered.of_tokens([1, 2, 3], None).with_tokens([4, 5])
    both = whole.with_detour(whole.cut(3), takes_detour=False).with_tokens([6])

    assert both.cut(5).with_tokens([7], takes_detour=True).ids() == array("I", [1, 2, 3, 7])
    assert both.cut(4).with_tokens([7], takes_detour=True).ids() == array("I", [1, 2, 3, 4, 7])
