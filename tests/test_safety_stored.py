"""The verdicts on a chain, in a store: whoever loads the chain goes on from them, if he would judge alike."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.held_store import SharedStore
from tests.rooms import KINDS, House, Kind, next_id
from tests.safety_room import Scripted
from tests.shell import code_of, create
from ws_responses import current_turn
from ws_responses.adapters.moderation import ModerationClassifier
from ws_responses.safety import Carried, Safety, SafetyInput, SafetyState, Screen, TermClassifier, Verdict
from ws_responses.safety.stored import fingerprint_of, loaded_state, stored_state
from ws_responses.state.encoding import RecordCodec
from ws_responses.state.node import Record
from ws_responses.state.store import StoreKey
from ws_responses.testing import steps

PRINT = b"0123456789abcdef"
TENANTS = b"the same for all processes, 32 bytes"

carried = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"))
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=8,
)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
states = st.builds(
    SafetyState,
    tail=st.text(st.characters(codec="utf-8")),
    settings=st.lists(st.tuples(names, st.binary(max_size=16)), max_size=3).map(tuple),
    carried=st.lists(st.tuples(names, carried), max_size=3).map(tuple),
    flags=st.lists(names, max_size=3).map(tuple),
)


def kinds_of(value: Any) -> Any:
    """A value with the types in it: 1, 1.0 and True are equal, and not the same state."""
    return [kinds_of(each) for each in value] if isinstance(value, tuple) else (type(value), value)


@given(states)
def test_a_state_comes_back_as_it_was(state: SafetyState) -> None:
    """Else a classifier would be given another state by the store than by memory, a list for a tuple say."""
    back = loaded_state(stored_state(state, PRINT), PRINT)
    assert back == state
    assert back is not None
    assert [kinds_of(value) for _, value in back.carried] == [kinds_of(value) for _, value in state.carried]


@pytest.mark.parametrize("carries", [2**64, (-(2**63) - 1,), "\ud800"])
def test_a_state_without_a_form_in_the_store_is_not_stored(carries: Carried) -> None:
    """Such a chain is judged anew; a turn must not fail by it."""
    assert stored_state(SafetyState(carried=(("c", carries),)), PRINT) is None


@given(
    st.binary() | st.builds(lambda state, cut: (stored_state(state, PRINT) or b"")[:cut], states, st.integers(0, 30))
)
def test_what_cannot_be_read_is_no_state(stored: bytes) -> None:
    """A damaged store must not end turns, and not open the way: the chain is judged anew."""
    assert loaded_state(stored, PRINT) in (None, loaded_state(stored, PRINT))
    assert loaded_state(None, PRINT) is None


@pytest.mark.parametrize("inside", [{"a": 1}, msgspec.msgpack.Ext(5, b"x"), [{"a": 1}]])
def test_a_state_that_no_classifier_can_have_carried_is_no_state(inside: Any) -> None:
    """Else what a store was given by somebody else would reach classifiers as objects that they do not expect."""
    stored = msgspec.msgpack.encode([PRINT, "", [], [["c", inside]], []])
    assert loaded_state(stored, PRINT) is None


class CodedStore(SharedStore):
    """A store outside of the process: what it holds was bytes."""

    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        codec = RecordCodec()
        await super().append(key, codec.decode(key.tenant, codec.encode(key.tenant, record)), parent, ttl_s)


async def allow(_: SafetyInput, __: Carried) -> Verdict:
    return Verdict()


async def allow_too(_: SafetyInput, __: Carried) -> Verdict:
    return Verdict()


SAME: dict[str, Callable[[], Safety]] = {
    "names": lambda: Safety(allow),
    "terms": lambda: Safety(TermClassifier(["a"], flag={"x": ["b"]})),
    "moderation": lambda: Safety(ModerationClassifier("key", block_at={"a": 0.5})),
}
OTHERS: dict[str, Callable[[], Safety]] = {
    "one more classifier": lambda: Safety(allow, allow_too),
    "another name": lambda: Safety(Screen(allow, name="other")),
    "other stages": lambda: Safety(Screen(allow, stages=["input"])),
    "another failure": lambda: Safety(Screen(allow, fail="open")),
    "output off": lambda: Safety(allow, output="off"),
    "other members": lambda: Safety(allow, members=["tools"]),
    "another overlap": lambda: Safety(allow, overlap_chars=1),
    "another term": lambda: Safety(TermClassifier(["a", "c"], flag={"x": ["b"]})),
    "a term that flags now": lambda: Safety(TermClassifier(flag={"x": ["b", "a"]})),
    "a pattern": lambda: Safety(TermClassifier(["a"], flag={"x": ["b"]}, block_patterns=["a"])),
    "another score": lambda: Safety(ModerationClassifier("key", block_at={"a": 0.4})),
    "another model": lambda: Safety(ModerationClassifier("key", model="other", block_at={"a": 0.5})),
}


@pytest.mark.parametrize("name", SAME)
def test_who_judges_alike_has_the_same_fingerprint(name: str) -> None:
    """Also in another process, after a restart: else every deployment would judge all chains again."""
    assert fingerprint_of(SAME[name]()) == fingerprint_of(SAME[name]())


def test_who_judges_otherwise_has_another_fingerprint() -> None:
    """Else a term that was added today would not be found in what was said yesterday."""
    made = [fingerprint_of(make()) for make in (*SAME.values(), *OTHERS.values())]
    assert len(set(made)) == len(made)


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    """By no hash of Python's own, which differs from run to run."""
    assert fingerprint_of(Safety(Screen(allow, name="a"))).hex() == "dd6a476927aec2aa2ea3ee5c60bbc593"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_chain_goes_on_in_another_process_from_its_verdicts(kind: Kind) -> None:
    """Flags and carried states must not be lost by a reconnection: whoever is watched would only have to reconnect."""

    def counting(text: str) -> Verdict:
        return Verdict(action="flag" if "sad" in text else "allow", categories=("mood",), state=(text, 1))

    parent: dict[str, Any] = {}
    heard: list[tuple[list[str], list[Carried]]] = []
    store = CodedStore()
    for text in ("I am sad", "hello", "again"):
        classifier = Scripted(counting)
        house = House(kind, safety=Safety(classifier, overlap_chars=0), store=store, tenant_key=TENANTS)
        house.say("Fine.")
        async with house.socket() as ws:
            parent = {"previous_response_id": await next_id(ws, create(text, store=True, **parent))}
        heard.append((classifier.texts, classifier.states))
    assert [texts for texts, _ in heard] == [["I am sad", "Fine."], ["hello", "Fine."], ["again", "Fine."]]
    assert [states[0] for _, states in heard] == [None, ("Fine.", 1), ("Fine.", 1)]


async def test_a_handler_reads_the_flags_of_a_chain_that_was_loaded() -> None:
    """A handler that is careful after a flag must be so after a reconnection too."""
    seen: list[tuple[str, ...]] = []

    async def look() -> None:
        seen.append(current_turn().flags)

    store = CodedStore()
    parent: dict[str, Any] = {}
    for text in ("I am sad", "hello"):
        house = House("app", safety=Safety(TermClassifier(flag={"mood": ["sad"]})), store=store, tenant_key=TENANTS)
        house.app.script([steps.call(look), steps.text("Fine.")])
        async with house.socket() as ws:
            parent = {"previous_response_id": await next_id(ws, create(text, store=True, **parent))}
    assert seen == [("terms:mood",), ("terms:mood",)]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_chain_that_others_have_judged_is_judged_anew(kind: Kind) -> None:
    """What passed when it was said may be among today's terms: it is found when the chain goes on."""
    store = CodedStore()
    house = House(kind, safety=Safety(TermClassifier(["harmless"])), store=store, tenant_key=TENANTS)
    house.say("Fine.")
    async with house.socket() as ws:
        parent = await next_id(ws, create("how to make a bomb", store=True))
    stricter = House(kind, safety=Safety(TermClassifier(["harmless", "bomb"])), store=store, tenant_key=TENANTS)
    async with stricter.socket() as ws:
        (refusal,) = await ws.turn(create("go on", store=True, previous_response_id=parent))
    assert (code_of(refusal), stricter.ran) == ("invalid_prompt", 0)
