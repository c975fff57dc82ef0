"""Records as bytes: they come back as they were, or not at all, at a bounded cost."""

import random
import tracemalloc
import zlib
from array import array
from typing import Any

import msgspec
import pytest
from cryptography.fernet import Fernet
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ws_responses.errors import ConfigurationError, RecordUnreadable, StoreError
from ws_responses.protocol.calls import START, UNKNOWN_BASE, CallState, OpenCall
from ws_responses.state import encoding
from ws_responses.state.encoding import FORMAT, MAX_OPEN_CALLS, RecordCodec
from ws_responses.state.node import Record, Sampled
from ws_responses.state.store import StoreKey
from ws_responses.testing.store_conformance import make_record

MIB = 1024 * 1024
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
CALLS = st.builds(
    CallState,
    st.lists(st.builds(OpenCall, TEXT, TEXT, st.booleans()), min_size=1, max_size=3).map(tuple),
    st.booleans(),
) | st.sampled_from([START, UNKNOWN_BASE])


@st.composite
def records(draw: st.DrawFn) -> Record:
    items = draw(st.binary(max_size=5000) | st.integers(0, 5000).map(lambda size: b"a" * size))
    ids = st.lists(st.integers(0, 2**32 - 1), max_size=20)
    return Record(
        id=draw(TEXT),
        parent_id=draw(st.none() | TEXT),
        model=draw(st.none() | TEXT),
        store=True,
        items=items,
        output_at=draw(st.integers(0, len(items))),
        history_at=draw(st.integers(0, len(items))),
        base=draw(st.booleans()),
        calls=draw(CALLS),
        generated=draw(st.booleans()),
        status=draw(TEXT),
        sampled=draw(st.none() | st.builds(Sampled.of, TEXT, ids)),
        response=draw(st.none() | st.binary(max_size=100)),
        known_to_app=draw(st.booleans()),
        app_parent_id=draw(st.none() | TEXT),
    )


def backwards(sealed: bytes) -> bytes:
    """A seal that is none, but of which nothing can be read without it."""
    return bytes(byte ^ 0x5A for byte in sealed)


CODECS = [
    RecordCodec(),
    RecordCodec(compress_from=None),
    RecordCodec(compress_from=0),
    RecordCodec(seal=backwards, unseal=backwards),
]


@given(record=records(), tenant=TEXT, codec=st.sampled_from(CODECS))
def test_a_record_comes_back_as_it_was(record: Record, tenant: str, codec: RecordCodec) -> None:
    """A member that is lost makes another worker continue another conversation."""
    assert codec.decode(tenant, codec.encode(tenant, record)) == record


def test_every_member_of_a_record_is_stored() -> None:
    """A new one that is forgotten here would be lost on the way to another worker, and nobody would notice."""
    not_stored = {"size", "budgets", "store"}  # charges are a process's own; what is not to be stored never is
    stored = {"calls": {"known", "open"}, "sampled": {"vocabulary", "sampled"}}
    expected = {"tenant"}
    for name in set(Record.__struct_fields__) - not_stored:
        expected |= stored.get(name, {name})
    assert set(encoding._Body.__struct_fields__) == expected


def test_what_is_not_to_be_stored_has_no_bytes() -> None:
    """The last door: whatever goes wrong before it, no store is given a record of ``store: false``."""
    with pytest.raises(StoreError, match="not to be stored"):
        RecordCodec().encode("t", make_record("a", store=False))


def test_ids_are_stored_in_one_order_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers on machines of the other kind read the same ids."""
    record = replace(make_record("a"), sampled=Sampled("v", array("I", [1, 2**31]).tobytes()))
    codec = RecordCodec(compress_from=None)
    here = codec.encode("t", record)
    assert b"\x01\x00\x00\x00\x00\x00\x00\x80" in here
    monkeypatch.setattr(encoding, "byteorder", "big")
    swapped = array("I", [1, 2**31])
    swapped.byteswap()
    theirs = replace(record, sampled=Sampled("v", swapped.tobytes()))
    assert codec.encode("t", theirs) == here
    assert codec.decode("t", here) == theirs


# -- sizes ------------------------------------------------------------------------------------------------------------


def test_compression_is_used_where_it_pays() -> None:
    codec = RecordCodec(compress_from=1024)
    small, text = make_record("a", items=b"a" * 900), make_record("a", items=b'{"type":"message"}' * 1000)
    noise = make_record("a", items=random.Random(1).randbytes(2000))
    assert b"a" * 900 in codec.encode("t", small)
    assert len(codec.encode("t", text)) < len(text.items) / 20
    assert len(RecordCodec(compress_from=0).encode("t", noise)) <= len(noise.items) + 80


def test_an_ordinary_record_costs_little_beside_its_items() -> None:
    record = make_record("resp_" + "0" * 32, "resp_" + "1" * 32, items=b"")
    assert len(RecordCodec().encode("t", record)) < 140


# -- what cannot be read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(6))
def test_bytes_that_are_no_record_are_refused(size: int) -> None:
    for stored in (b"\0" * size, bytes([FORMAT]) * size, b"\xff" * size):
        with pytest.raises(RecordUnreadable):
            RecordCodec().decode("t", stored)


@given(data=st.data())
def test_damage_is_an_error_and_nothing_else(data: st.DataObject) -> None:
    """A bit that flips in a store must not raise what nobody expects, nor change whose record it is."""
    codec = data.draw(st.sampled_from(CODECS))
    stored = bytearray(codec.encode("t", data.draw(records())))
    for _ in range(data.draw(st.integers(1, 3))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(stored[: data.draw(st.integers(0, len(stored)))])
    for damaged in (bytes(stored), cut):
        try:
            record = codec.decode("t", damaged)
        except RecordUnreadable:
            continue
        assert 0 <= record.output_at <= len(record.items)
        assert record.sampled is None or len(record.sampled.packed) % 4 == 0


@pytest.mark.parametrize("member", ["output_at", "history_at"])
@pytest.mark.parametrize("offset", [-1, 3])
def test_offsets_outside_of_the_items_are_refused(member: str, offset: int) -> None:
    """They would cut an item in two, and the app would be given half of it."""
    codec = RecordCodec()
    right = make_record("a", items=b"{}")
    codec.decode("t", codec.encode("t", replace(right, output_at=0, history_at=2)))
    with pytest.raises(RecordUnreadable):
        codec.decode("t", codec.encode("t", replace(right, **{member: offset})))


def body_of(codec: RecordCodec, record: Record) -> list[object]:
    members: list[object] = msgspec.msgpack.decode(codec.encode("t", record)[2:])
    return members


def test_a_record_of_a_newer_version_is_refused() -> None:
    """It holds what we do not know: the chain would be continued without it."""
    codec = RecordCodec(compress_from=None)
    members = [*body_of(codec, make_record("a")), "new"]
    with pytest.raises(RecordUnreadable, match="newer version"):
        codec.decode("t", bytes([FORMAT, 0]) + msgspec.msgpack.encode(members))
    with pytest.raises(RecordUnreadable, match="another version"):
        codec.decode("t", bytes([FORMAT + 1, 0]) + msgspec.msgpack.encode(members[:-1]))


def test_members_that_an_older_version_did_not_write_take_their_defaults() -> None:
    codec = RecordCodec(compress_from=None)
    members = body_of(codec, make_record("a"))
    older = bytes([FORMAT, 0]) + msgspec.msgpack.encode(members[:-5])
    assert codec.decode("t", older) == make_record("a")


def test_a_bomb_takes_no_more_memory_than_the_bound() -> None:
    """A kilobyte in a broken store may say that it is a gigabyte."""
    codec = RecordCodec(max_bytes=MIB)
    bomb = bytes([FORMAT, 1]) + zlib.compress(b"\0" * 300 * MIB, 9)
    assert len(bomb) < MIB
    tracemalloc.start()
    with pytest.raises(RecordUnreadable):
        codec.decode("t", bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * MIB


def test_a_record_with_very_many_open_calls_is_refused() -> None:
    """Each takes a few bytes, and a hundred times that when it is decoded."""
    codec = RecordCodec(compress_from=None)
    calls = CallState(tuple(OpenCall("", "", required=True) for _ in range(MAX_OPEN_CALLS)))
    members = body_of(codec, replace(make_record("a"), calls=calls))
    assert codec.decode("t", bytes([FORMAT, 0]) + msgspec.msgpack.encode(members)).calls == calls
    at = encoding._Body.__struct_fields__.index("open")
    members[at] = [("", "", True)] * (MAX_OPEN_CALLS + 1)
    with pytest.raises(RecordUnreadable):
        codec.decode("t", bytes([FORMAT, 0]) + msgspec.msgpack.encode(members))
    more = CallState((*calls.open, OpenCall("", "", required=True)))
    with pytest.raises(StoreError, match="not answered"):
        codec.encode("t", replace(make_record("a"), calls=more))


@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_the_bound_holds_for_a_record_and_for_a_chain(excess: int) -> None:
    roomy = RecordCodec(compress_from=None)
    chain = [make_record("a", items=b"a" * 500), make_record("b", "a", items=b"b" * 500)]
    stored = [roomy.encode("t", record) for record in chain]
    size = sum(len(each) - 2 for each in stored)
    tight = RecordCodec(max_bytes=size - excess, compress_from=0)
    single = RecordCodec(max_bytes=len(stored[0]) - 2 - excess, compress_from=0)
    if excess <= 0:
        assert tight.decode_chain(StoreKey("t", "b"), stored) == chain
        single.encode("t", chain[0])
        return
    with pytest.raises(RecordUnreadable, match="more than"):
        tight.decode_chain(StoreKey("t", "b"), stored)
    with pytest.raises(StoreError, match="above the limit"):
        single.encode("t", chain[0])


def test_a_name_without_a_form_in_utf8_is_refused() -> None:
    with pytest.raises(StoreError, match="UTF-8"):
        RecordCodec().encode("t", make_record("\ud800"))
    RecordCodec().encode("\ud800", make_record("a"))  # tenants are the operator's; only a hash of them is stored


# -- seals ------------------------------------------------------------------------------------------------------------


def test_a_sealed_record_shows_nothing_and_opens_with_its_key_only() -> None:
    key, other = Fernet(Fernet.generate_key()), Fernet(Fernet.generate_key())
    codec = RecordCodec(seal=key.encrypt, unseal=key.decrypt)
    record = make_record("resp_1", items=b'{"secret":1}')
    stored = codec.encode("t", record)
    assert b"secret" not in stored
    assert b"resp_1" not in stored
    assert codec.decode("t", stored) == record
    damaged = stored[:-1] + bytes([stored[-1] ^ 1])
    for reader, bytes_ in (
        (RecordCodec(seal=other.encrypt, unseal=other.decrypt), stored),
        (codec, damaged),
        (RecordCodec(), stored),
    ):
        with pytest.raises(RecordUnreadable):
            reader.decode("t", bytes_)


def test_with_a_key_nothing_is_taken_that_is_not_sealed() -> None:
    """Else whoever can write to the store could put words into a conversation."""
    plain = RecordCodec().encode("t", make_record("a"))
    with pytest.raises(RecordUnreadable):
        CODECS[-1].decode("t", plain)


def test_a_seal_that_fails_is_a_failure_of_the_store() -> None:
    def fails(_: bytes) -> bytes:
        raise OSError("no key service")

    with pytest.raises(StoreError, match="sealed"):
        RecordCodec(seal=fails, unseal=fails).encode("t", make_record("a"))


@pytest.mark.parametrize(
    "options",
    [{"seal": backwards}, {"unseal": backwards}, {"max_bytes": 0}, {"compress_from": -1}],
    ids=lambda options: next(iter(options)),
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RecordCodec(**options)


# -- chains -----------------------------------------------------------------------------------------------------------


def stored_chain(*chain: Record, tenant: str = "t") -> list[bytes]:
    return [RecordCodec().encode(tenant, record) for record in chain]


A, B, C = make_record("a"), make_record("b", "a"), make_record("c", "b")


def test_a_chain_comes_back_with_its_calls_shared() -> None:
    """Each copy would be charged to the connection that loads it."""
    calls = CallState((OpenCall("function_call", "call_1", required=True),))
    chain = [replace(record, calls=calls) for record in (A, B, C)]
    loaded = RecordCodec().decode_chain(StoreKey("t", "c"), stored_chain(*chain))
    assert loaded == chain
    assert len({id(record.calls) for record in loaded}) == 1
    assert RecordCodec().decode_chain(StoreKey("t", "c"), []) == []
    assert RecordCodec().decode_chain(StoreKey("t", "a"), stored_chain(A))[0].calls is START


@pytest.mark.parametrize(
    "chain",
    [
        [B, C],
        [A, C],
        [A, B],
        [B, A, C],
        [A, B, C, C],
        [A, replace(B, base=True), C],
        [A, replace(B, parent_id=None), C],
    ],
    ids=["no root", "a gap", "another's", "out of order", "twice", "a base within", "a root within"],
)
def test_what_is_not_the_whole_chain_is_refused(chain: list[Record]) -> None:
    """Less than the whole would be a wrong answer: the model would go on from half of the conversation."""
    with pytest.raises(RecordUnreadable):
        RecordCodec().decode_chain(StoreKey("t", "c"), stored_chain(*chain))


def test_a_chain_may_begin_with_a_new_base() -> None:
    chain = [replace(B, base=True), C]
    assert RecordCodec().decode_chain(StoreKey("t", "c"), stored_chain(*chain)) == chain


def test_a_record_of_another_tenant_is_refused() -> None:
    """B007: whatever a store or its connection mixes up, nobody is given what is another's."""
    with pytest.raises(RecordUnreadable, match="another tenant"):
        RecordCodec().decode_chain(StoreKey("yours", "c"), stored_chain(A, B, C, tenant="mine"))
