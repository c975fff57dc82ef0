"""What comes together is read together, and handed on as one."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.adapters.cerebras.fake import DONE, LAST, LAST_TOKENS, ROLE, chat, completion, sse
from ws_responses.adapters import _joining
from ws_responses.adapters._cerebras_stream import AnswerReader, TokenReader
from ws_responses.adapters._chunks import ChunkReader
from ws_responses.adapters._joining import joined, json_list
from ws_responses.adapters.chat_completions import ChatReader
from ws_responses.backends import Delta, ToolCallDelta, Usage
from ws_responses.errors import StreamTruncated, WireError

# --- deltas -----------------------------------------------------------------------------------------------------------

words = st.text("ab ", min_size=1, max_size=3)
calls = st.builds(
    ToolCallDelta,
    index=st.integers(0, 1),
    id=st.none() | st.just("call_0"),
    name=st.none() | st.just("f"),
    arguments=st.text("{}", max_size=2),
)
deltas = st.one_of(
    st.builds(Delta, text=words),
    st.builds(Delta, reasoning=words),
    st.builds(Delta, text=words | st.just(""), token_ids=st.lists(st.integers(0, 9), min_size=1, max_size=3)),
    st.builds(Delta, text=words, ids_lost=st.just(True)),
    st.builds(Delta, text=words, reasoning=words),
    st.builds(Delta, refusal=words),
    st.builds(Delta, tool_calls=st.lists(calls, min_size=1, max_size=2).map(tuple)),
    st.builds(Delta, text=words, usage=st.just(Usage(output_tokens=1)), service_tier=st.just("flex")),
    st.builds(Delta, finish=st.sampled_from(["stop", "length"])),
)


def told(delta: Delta) -> Iterator[tuple[str, Any]]:
    """What a delta tells, in pieces that cannot be cut further."""
    kind = "ids" if delta.token_ids else "text"
    yield from (("token", one) for one in delta.token_ids)
    yield from ((kind, letter) for letter in delta.text)
    yield from (("lost", True) for _ in range(delta.ids_lost))
    yield from (("reasoning", letter) for letter in delta.reasoning)
    yield from (("refusal", letter) for letter in delta.refusal)
    for call in delta.tool_calls:
        if call.id or call.name:
            yield "call", (call.index, call.id, call.name)
        yield from ((f"arguments{call.index}", letter) for letter in call.arguments)
    yield from ((name, value) for name in ("usage", "finish", "service_tier") if (value := getattr(delta, name)))


def streams_of(told_pieces: Sequence[tuple[str, Any]]) -> list[tuple[str, list[Any]]]:
    """The pieces, neighbours of a kind in one list; ids and the text that comes with them are two lists of one kind."""
    runs: list[tuple[str, list[Any]]] = []
    for kind, value in told_pieces:
        family = "ids" if kind == "token" else kind
        if not runs or runs[-1][0] != family:
            runs.append((family, []))
        runs[-1][1].append((kind, value))
    return [(family, sorted(run, key=lambda one: one[0])) for family, run in runs]


@given(st.lists(deltas, max_size=12))
def test_joining_loses_nothing_and_keeps_the_order(given_deltas: list[Delta]) -> None:
    """Without this text would move past a call, ids would come without their order, or an end before what came before it."""
    together = list(joined(given_deltas))
    before = [piece for delta in given_deltas for piece in told(delta)]
    after = [piece for delta in together for piece in told(delta)]
    assert streams_of(after) == streams_of(before)


@given(st.lists(deltas, max_size=12))
def test_neighbours_of_a_kind_are_one(given_deltas: list[Delta]) -> None:
    """Without this nothing would be saved."""
    kinds = [_joining._kind(delta) for delta in joined(given_deltas)]
    assert all(kind is None or kind != after for kind, after in pairwise(kinds))


def test_an_error_comes_after_what_came_before_it() -> None:
    """Without this a client would miss the tokens that came in the same piece as the failure."""

    def failing() -> Iterator[Delta]:
        yield Delta(text="a")
        yield Delta(text="b")
        raise StreamTruncated

    seen: list[Delta] = []
    with pytest.raises(StreamTruncated):
        seen.extend(joined(failing()))
    assert seen == [Delta(text="ab")]


# --- events -----------------------------------------------------------------------------------------------------------

plain_chat = st.builds(lambda word: chat({"content": word}), words)
thoughts = st.builds(lambda name, word: chat({name: word}), st.sampled_from(["reasoning", "reasoning_content"]), words)
tiered = st.builds(lambda tier: chat({"content": "a"}, service_tier=tier), st.sampled_from(["flex", "priority", None]))
plain_ids = st.builds(completion, words, st.lists(st.integers(0, 9), min_size=1, max_size=2))
odd = st.sampled_from(
    [
        ROLE,
        LAST,
        LAST_TOKENS,
        DONE,
        chat({"content": "a", "reasoning": "b"}),
        chat({"content": "a", "refusal": "c"}),
        chat({"content": "a", "tool_calls": [{"index": 0, "id": "x", "function": {"name": "f", "arguments": "{"}}]}),
        chat({"content": "a"}, "length"),
        completion("a", None),
        completion("a", [1], "stop"),
        completion(None, [2]),
        sse({"choices": []}),
        sse({"error": {"message": "boom", "type": "server_error", "code": "internal"}, "status_code": 500}),
        sse({"choices": [{"delta": {"content": "\n\ndata: {}"}, "text": "\n\ndata: ", "tokens": [1]}]}),
        b"data: 5\n\n",
        b"data: {not json}\n\n",
        b"data: {},{}\n\n",
        b"data: [\n\n",
        b"data: \n\n",
        b": comment\n\n",
        b"data: {}\r\n\r\n",
        b"data: {}\ndata: \n\n",
        b"\n\n",
    ]
)


def chat_reader() -> ChunkReader:
    return ChatReader()


def token_reader() -> ChunkReader:
    return TokenReader(expects_ids=True, stop_ids=(7,))


def outcome(reader: AnswerReader, bodies: Sequence[bytes]) -> tuple[Any, ...]:
    """What is told in the end, however it is divided, with the error that ends it."""
    deltas: list[Delta] = []
    error = None
    try:
        for body in bodies:
            deltas.extend(reader.feed(body))  # keeps what came before an error
        deltas.append(reader.end())
    except WireError as caught:
        error = (caught.status, caught.code, caught.message)
    pieces = [piece for delta in deltas for piece in told(delta)]
    return streams_of(pieces), error, reader.cut, reader.sampled


@pytest.mark.parametrize("chunks", [chat_reader, token_reader])
@given(
    st.lists(
        st.lists(st.one_of(plain_chat, plain_ids, thoughts, tiered, odd), min_size=1, max_size=3).flatmap(
            lambda some: st.just(some) | st.just(some[:1] * 4)
        ),
        max_size=6,
    )
)
@example([[chat({"content": "a"}), chat({"content": "b"}, "length")], [LAST]])
@example([[completion("a", [1]), completion("b", [7])], [completion("c", [8]), completion("d", [9])]])
@example([[completion("a", [1]), completion(None, [2]), completion("c", [3])], [LAST_TOKENS]])
@example([[chat({"reasoning": "a"}), chat({"reasoning": "b"})], [chat({"content": "a"}), chat({"content": "b"})]])
@example([[chat({"content": "a"}, service_tier="flex"), chat({"content": "b"})], [LAST]])
def test_what_is_read_together_says_the_same(chunks: Any, bodies: list[list[bytes]]) -> None:
    """Without this an answer would depend on how fast it comes."""
    pieces = [b"".join(body) for body in bodies]
    together = outcome(AnswerReader(chunks(), 2_000_000, joins=True), pieces)
    assert together == outcome(AnswerReader(chunks(), 2_000_000), pieces)


@pytest.mark.parametrize(
    ("chunks", "body", "delta"),
    [
        (chat_reader, [chat({"content": word}) for word in "abc"], Delta(text="abc")),
        (chat_reader, [chat({"reasoning": word}) for word in "abc"], Delta(reasoning="abc")),
        (
            token_reader,
            [completion("a", [1]), completion("", [2]), completion("c", [3])],
            Delta(text="ac", token_ids=[1, 2, 3]),
        ),
    ],
    ids=["text", "reasoning", "ids"],
)
def test_pieces_of_one_kind_are_decoded_at_once(
    chunks: Any, body: list[bytes], delta: Delta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this each chunk of a fast answer costs as much as one that comes alone."""
    reader = chunks()
    monkeypatch.setattr(type(reader), "read", None)
    assert list(AnswerReader(reader, 2_000_000, joins=True).feed(b"".join(body))) == [delta]


@given(st.lists(st.recursive(st.none() | st.text(max_size=5), st.lists, max_leaves=3), min_size=1, max_size=5))
def test_events_as_a_list(events: list[Any]) -> None:
    """Without this two events could become one, or a text that looks like a border two."""
    body = b"".join(map(sse, events))
    listed = json_list(body)
    assert listed is not None
    assert (msgspec.json.decode(listed[0]), listed[1]) == (events, len(events))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\n\n",
        b"data: 1\n",
        b"data:1\n\n",
        b"data: 1\r\n\r\n",
        b"data: 1\ndata: 2\n\n",
        b": c\n\ndata: 1\n\n",
        b"data: 1\n\n\n\n",
        b"data: 1\n\nda",
        b"event: e\ndata: 1\n\n",
        b"data: 1\n\nevent: e\ndata: 2\n\n",
    ],
    ids=repr,
)
def test_other_forms_are_left_to_the_decoder(body: bytes) -> None:
    """Without this what the specification of event streams allows would be read in another way."""
    assert json_list(body) is None
