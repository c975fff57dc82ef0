"""Strategies for input that was right once, and how many examples are drawn of it."""

import itertools
import os
from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ws_responses.testing.builder import Event
from ws_responses.testing.strategies import json_values

EXAMPLES: Final = int(os.environ.get("FUZZ_EXAMPLES", "500"))
"""Examples of each test: what `make slow` has time for; `make fuzz` draws many more."""

many = settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

_TOKENS: Final = (
    *(
        b"\xff",
        b"\x00",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"\xf0\x9f",
        b"\\ud800",
        b"\\udc00\\ud800",
        b"\\u0000",
        b"\\",
    ),
    *(b'"', b"{", b"}", b"[", b"]", b",", b":", b"{}", b"[]", b'""', b"null", b"true", b"NaN", b"-", b"1e999", b"1.5"),
    *(
        b"99999999999999999999999",
        b"-1",
        b"0",
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"data:",
        b"data: ",
        b"event: x\n",
        b": x\n",
    ),
    *(b"[DONE]", b'"type":"error",', b'"type":7,', b'"output_index":null,', b'"sequence_number":"1",', b'"id":{},'),
    *(b'"response":null,', b'"item":[],', b'"stream_id":"a",', b"[" * 2000, b"\xe2\x80\xa8", b"\x85", b"\x0b"),
)
"""What is worth inserting: the edges of JSON, of UTF-8 and of event streams, and members of a wrong kind."""


@st.composite
def _mutated_once(draw: st.DrawFn, data: bytes) -> bytes:
    begin = draw(st.integers(0, len(data)))
    end = min(len(data), begin + draw(st.integers(0, 40)))
    how = draw(st.sampled_from(["insert", "insert", "replace", "delete", "repeat", "move", "flip", "cut"]))
    if how == "insert":
        return data[:begin] + draw(st.sampled_from(_TOKENS)) + data[begin:]
    if how == "replace":
        return data[:begin] + draw(st.sampled_from(_TOKENS)) + data[end:]
    if how == "delete":
        return data[:begin] + data[end:]
    if how == "repeat":
        return data[:end] + data[begin:]
    if how == "move":
        rest = data[:begin] + data[end:]
        target = draw(st.integers(0, len(rest)))
        return rest[:target] + data[begin:end] + rest[target:]
    if how == "flip" and begin < len(data):
        return data[:begin] + bytes([data[begin] ^ (1 << draw(st.integers(0, 7)))]) + data[begin + 1 :]
    return data[:begin]


def mutated(valid: SearchStrategy[bytes], *, most: int = 3) -> SearchStrategy[bytes]:
    """Return valid data after up to so many changes, and now and then random bytes."""

    def changed(data: bytes, times: int) -> SearchStrategy[bytes]:
        strategy: SearchStrategy[bytes] = st.just(data)
        for _ in range(times):
            strategy = strategy.flatmap(_mutated_once)
        return strategy

    noise = st.lists(st.one_of(st.sampled_from(_TOKENS), st.binary(max_size=20)), max_size=20).map(b"".join)
    wrong = st.builds(lambda data, times: (data, times), valid, st.integers(0, most)).flatmap(
        lambda pair: changed(*pair)
    )
    return st.one_of(wrong, wrong, wrong, noise)


@st.composite
def rearranged(draw: st.DrawFn, events: SearchStrategy[list[Event]]) -> list[Event]:
    """Draw the events of a stream that is legal JSON but not a legal stream: events and members lost, moved, doubled, changed."""
    stream = list(draw(events))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(0, len(stream) - 1)))
        how = draw(st.sampled_from(["drop", "double", "move", "lose", "lose", "change", "change", "swap"]))
        if not stream:
            break
        if how == "drop":
            del stream[at]
        elif how == "double":
            stream.insert(draw(st.integers(0, len(stream))), stream[at])
        elif how == "move":
            stream.insert(draw(st.integers(0, len(stream) - 1)), stream.pop(at))
        elif how == "swap":
            other = draw(st.integers(0, len(stream) - 1))
            name = draw(st.sampled_from(["type", "output_index", "item_id", "item", "response", "delta"]))
            if name in stream[other]:
                stream[at] = {**stream[at], name: stream[other][name]}
        else:
            stream[at] = draw(_with_a_wrong_member(stream[at], lose=how == "lose"))
    return stream


@st.composite
def _with_a_wrong_member(draw: st.DrawFn, value: Event, *, lose: bool) -> Event:
    names = sorted(value)
    if not names:
        return value
    name = draw(st.sampled_from(names))
    inner: Any = value[name]
    if isinstance(inner, dict) and inner and draw(st.booleans()):
        return {**value, name: draw(_with_a_wrong_member(inner, lose=lose))}
    if lose:
        return {each: value[each] for each in value if each != name}
    odd: list[Any] = [None, "", 0, -1, 2**63, 2**70, 1.5, [], {}, [{}], "response.completed", "x" * 3000]
    return {**value, name: draw(st.one_of(st.sampled_from(odd), json_values(max_leaves=4, surrogates=True)))}


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """Draw the pieces of some data, cut anywhere."""
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    borders = [0, *places, len(data)]
    return [data[a:b] for a, b in itertools.pairwise(borders)]
