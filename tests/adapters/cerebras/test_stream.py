"""The readers of Cerebras' streams, without I/O."""

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.adapters.cerebras.fake import DONE, LAST, LAST_TOKENS, ROLE, USAGE, chat, completion, said, sse, text_of
from ws_responses.adapters._cerebras_stream import AnswerReader, TokenReader
from ws_responses.adapters.chat_completions import ChatReader
from ws_responses.backends import Delta, ToolCallDelta, Usage
from ws_responses.errors import EventTooLarge, StreamTruncated, WireError

Reader = Callable[[], AnswerReader]

MAX_EVENT_BYTES = 2_000_000


def chat_reader() -> AnswerReader:
    return AnswerReader(ChatReader(), MAX_EVENT_BYTES)


def token_reader(*stop_ids: int, expects_ids: bool = True) -> AnswerReader:
    return AnswerReader(TokenReader(expects_ids=expects_ids, stop_ids=stop_ids), MAX_EVENT_BYTES)


def read(reader: AnswerReader, pieces: Iterable[bytes]) -> list[Delta]:
    deltas: list[Delta] = []
    for piece in pieces:
        deltas += reader.feed(piece)
        if reader.done:
            break
    return [*deltas, reader.end()]


def outcome(make: Reader, pieces: Iterable[bytes]) -> tuple[list[Delta], tuple[int, str] | None]:
    """What comes out, up to an error, and that."""
    reader, deltas = make(), list[Delta]()
    try:
        for piece in pieces:
            for delta in reader.feed(piece):
                deltas.append(delta)
        deltas.append(reader.end())
    except WireError as error:
        return deltas, (error.status, error.code)
    return deltas, None


def cut(body: bytes, places: Sequence[int]) -> list[bytes]:
    borders = [0, *sorted(place % (len(body) + 1) for place in places), len(body)]
    return [body[begin:end] for begin, end in pairwise(borders)]


# --- any stream, cut anywhere -----------------------------------------------------------------------------------------

texts = st.text(max_size=12)
calls = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": st.fixed_dictionaries({}, optional={"name": texts, "arguments": texts}),
        },
        optional={"index": st.integers(0, 3), "id": texts},
    ),
    min_size=1,
    max_size=3,
)
usages = st.sampled_from([None, USAGE, {"prompt_tokens": 1}, {"completion_tokens_details": None}])
finishes = st.sampled_from([None, None, None, "stop", "length", "tool_calls", "content_filter", "done"])
messages = st.fixed_dictionaries({}, optional={"content": texts | st.none(), "reasoning": texts, "tool_calls": calls})
chat_events = st.builds(lambda delta, finish, usage: chat(delta, finish, usage=usage), messages, finishes, usages)
ids = st.lists(st.integers(0, 2**18), max_size=3)
token_events = st.builds(
    lambda text, tokens, finish, usage: completion(text, tokens, finish, usage=usage),
    texts | st.none(),
    ids | st.none(),
    finishes,
    usages,
)
others = st.sampled_from(
    [
        b": comment\n\n",
        b"event: message\n\n",
        sse({"usage": USAGE}),
        sse({"choices": [], "usage": USAGE, "service_tier_used": "flex"}),
        sse({"choices": None}),
        sse({"error": {"message": "boom", "type": "server_error", "code": "internal"}, "status_code": 500}),
        b"data: {not json}\n\n",
        DONE,
    ]
)


def bodies(events: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    ends = st.sampled_from([b"\n", b"\r\n"])
    parts = st.lists(st.one_of(events, events, events, others), max_size=8)
    return st.builds(lambda parts, end: b"".join(parts).replace(b"\n", end), parts, ends)


@given(bodies(chat_events), st.lists(st.integers(0, 10_000), max_size=12))
def test_where_the_body_of_chat_is_cut_changes_nothing(body: bytes, places: list[int]) -> None:
    """Without this an answer would depend on how TCP cuts it: text lost or doubled, an error before what came before it."""
    assert outcome(chat_reader, cut(body, places)) == outcome(chat_reader, [body])


@given(bodies(token_events), st.lists(st.integers(0, 10_000), max_size=12), st.sets(st.integers(0, 2**18), max_size=2))
def test_where_the_body_of_completions_is_cut_changes_nothing(body: bytes, places: list[int], stops: set[int]) -> None:
    def make() -> AnswerReader:
        return token_reader(*stops)

    assert outcome(make, cut(body, places)) == outcome(make, [body])


@given(st.lists(texts, max_size=8), st.integers(1, 40))
def test_all_text_arrives_in_order(words: list[str], size: int) -> None:
    body = b"".join(said(*words))
    deltas = read(chat_reader(), [body[at : at + size] for at in range(0, len(body), size)])

    assert [delta.text for delta in deltas[:-1]] == [word for word in words if word]
    assert deltas[-1].finish == "stop"


def test_a_text_that_looks_like_an_event() -> None:
    """Cut where that text begins, the rest of the event has the form of a whole one."""
    event = chat({"content": "data: {}"})
    for place in range(len(event)):
        deltas = read(chat_reader(), [ROLE, event[:place], event[place:], LAST, DONE])
        assert text_of(deltas) == "data: {}"


# --- what events mean -------------------------------------------------------------------------------------------------


def test_an_answer_ends_with_why_and_what_it_used() -> None:
    """Without this the engine would bill nothing, or end a turn twice."""
    *deltas, last = read(chat_reader(), said("Hel", "lo"))

    assert text_of(deltas) == "Hello"
    assert not any(delta.finish or delta.usage for delta in deltas)
    assert last == Delta(
        finish="stop", usage=Usage(input_tokens=100, cached_tokens=64, output_tokens=7, reasoning_tokens=3)
    )


def test_what_the_service_does_not_tell_is_unknown_not_zero() -> None:
    last = read(chat_reader(), [chat({}, "stop", usage={"prompt_tokens": 5}), DONE])[-1]
    assert last.usage == Usage(input_tokens=5)
    assert read(chat_reader(), [chat({}, "stop"), DONE])[-1].usage is None


def test_usage_may_come_after_the_finish() -> None:
    late = sse({"choices": [], "usage": USAGE, "service_tier": "default"})
    last = read(chat_reader(), [chat({}, "length"), late, DONE])[-1]
    assert (last.finish, last.usage and last.usage.output_tokens, last.service_tier) == ("length", 7, "default")


def test_reasoning_and_text() -> None:
    deltas = read(chat_reader(), [chat({"reasoning": "hm"}), chat({"reasoning": "!", "content": "a"}), LAST, DONE])
    assert deltas[:2] == [Delta(reasoning="hm"), Delta(reasoning="!", text="a")]


def test_pieces_of_tool_calls() -> None:
    first = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
    second = {"index": 1, "id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}}
    more = {"index": 0, "function": {"arguments": '{"a":'}}
    deltas = read(
        chat_reader(), [chat({"tool_calls": [first, second]}), chat({"tool_calls": [more]}, "tool_calls"), DONE]
    )

    assert deltas[0].tool_calls == (
        ToolCallDelta(index=0, id="call_1", name="f"),
        ToolCallDelta(index=1, id="call_2", name="g", arguments="{}"),
    )
    assert deltas[1].tool_calls == (ToolCallDelta(index=0, arguments='{"a":'),)
    assert deltas[2].finish == "tool_calls"


def test_calls_without_an_index_are_told_apart_by_their_ids() -> None:
    """Cerebras may leave the index out (SDK types); without this two calls would become one."""
    one = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    two = {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{"}}
    rest = {"type": "function", "function": {"arguments": "}"}}
    deltas = read(chat_reader(), [chat({"tool_calls": [one, two]}), chat({"tool_calls": [rest]}), LAST, DONE])

    assert [call.index for delta in deltas for call in delta.tool_calls] == [0, 1, 1]


def test_token_ids() -> None:
    deltas = read(token_reader(), [completion("", [1, 2]), completion(None, [3], "stop", usage=USAGE), DONE])
    assert [list(delta.token_ids) for delta in deltas] == [[1, 2], [3], []]
    assert not any(delta.ids_lost for delta in deltas)
    assert (deltas[-1].finish, deltas[-1].usage and deltas[-1].usage.cached_tokens) == ("stop", 64)


def test_text_without_ids_is_said_to_have_lost_them() -> None:
    """Without this the next turn would go on from ids that lack a part of the answer."""
    deltas = read(token_reader(), [completion("a", [1]), completion("b", None), LAST_TOKENS, DONE])
    assert [delta.ids_lost for delta in deltas[:2]] == [False, True]


def test_where_no_ids_were_asked_for_none_are_lost() -> None:
    deltas = read(token_reader(expects_ids=False), [completion("a", None), LAST_TOKENS, DONE])
    assert (text_of(deltas), deltas[0].ids_lost) == ("a", False)


def test_an_answer_is_cut_after_a_stop_id_that_the_service_does_not_know() -> None:
    reader = token_reader(7)
    deltas = read(reader, [completion("", [1, 7, 9]), completion("", [4]), completion("", [5]), DONE])

    assert [list(delta.token_ids) for delta in deltas] == [[1, 7], []]
    assert deltas[-1].finish == "stop"
    assert reader.cut


def test_a_stop_id_at_which_the_service_ends_too_keeps_its_usage() -> None:
    reader = token_reader(7)
    deltas = read(reader, [completion("", [1, 7]), LAST_TOKENS, DONE])

    assert [list(delta.token_ids) for delta in deltas] == [[1, 7], []]
    assert deltas[-1].usage is not None
    assert not reader.cut


@pytest.mark.parametrize(
    "event", [b"data: {}\n\n", sse({"choices": None}), sse({"choices": []}), sse({"choices": [{}]})]
)
def test_events_without_a_choice_mean_nothing(event: bytes) -> None:
    assert text_of(read(chat_reader(), [ROLE, event, *said("x")])) == "x"


def test_a_lone_surrogate_becomes_a_replacement_character() -> None:
    event = b'data: {"choices":[{"delta":{"content":"a\\ud83db"}}]}\n\n'
    assert text_of(read(chat_reader(), [event, LAST, DONE])) == "a\ufffdb"


def test_a_large_answer_in_one_event() -> None:
    arguments = json.dumps({"text": "x" * 1_000_000})
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    deltas = read(chat_reader(), cut(b"".join([chat({"tool_calls": [call]}), LAST, DONE]), range(0, 10**6, 16384)))
    assert deltas[0].tool_calls[0].arguments == arguments


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "status", "code"),
    [
        ({"error": {"message": "boom", "type": "server_error", "code": "x"}, "status_code": 500}, 500, "server_error"),
        ({"error": {"message": "slow", "code": "queue_exceeded"}, "status_code": 429}, 429, "rate_limit_exceeded"),
        ({"error": {"message": "busy"}, "status_code": 503}, 503, "server_is_overloaded"),
        ({"message": "slow", "type": "too_many_requests_error", "status_code": 429}, 429, "rate_limit_exceeded"),
        ({"error": "boom"}, 500, "server_error"),
        ({"choices": "none", "error": {"message": "boom"}, "status_code": 503}, 503, "server_is_overloaded"),
    ],
)
def test_an_error_inside_the_stream_comes_after_what_was_sampled(event: Any, status: int, code: str) -> None:
    """Without this half an answer would be told as a whole one."""
    deltas, error = outcome(chat_reader, [b"".join([chat({"content": "a"}), sse(event), DONE])])
    assert text_of(deltas) == "a"
    assert error == (status, code)


@pytest.mark.parametrize(
    "event", [b"data: {not json}\n\n", b"data: []\n\n", b'data: {"choices":"x"}\n\n', b"data: \xff\n\n"]
)
def test_nonsense_is_an_error(event: bytes) -> None:
    assert outcome(chat_reader, [ROLE, event]) == ([], (502, "upstream_error"))


@pytest.mark.parametrize("body", [[], [ROLE], [chat({"content": "a"})]])
def test_a_stream_that_never_says_that_it_ended_is_broken_off(body: list[bytes]) -> None:
    with pytest.raises(StreamTruncated):
        read(chat_reader(), body)


def test_what_comes_after_the_end_is_not_part_of_the_answer() -> None:
    reader = chat_reader()
    assert text_of(reader.feed(b"".join([*said("a"), chat({"content": "b"}), sse({"error": "late"})]))) == "a"
    assert reader.done


@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_an_event_has_a_bound(excess: int) -> None:
    line = b'data: {"a":"' + b"x" * (MAX_EVENT_BYTES + excess - 14) + b'"}'
    assert len(line) == MAX_EVENT_BYTES + excess
    reader = chat_reader()
    if excess <= 0:
        assert list(reader.feed(line + b"\n\n")) == []
        return
    with pytest.raises(EventTooLarge):
        list(reader.feed(line + b"\n\n"))
