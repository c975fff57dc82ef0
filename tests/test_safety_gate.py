"""The gate without its tasks: what leaves, when, and what a block leaves behind."""

import json
import re
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.safety_room import (
    ABOUT,
    TimelessClock,
    builder,
    decoded,
    encoded,
    kinds,
    message_stream,
    options,
    snapshot_texts,
    texts_of,
)
from tests.state.drive import drive
from ws_responses.errors import UpstreamError
from ws_responses.safety import (
    Judge,
    Judgement,
    OutputGate,
    OutputTooLarge,
    Piece,
    Safety,
    SafetyInput,
    SafetyState,
    TermClassifier,
)
from ws_responses.safety.text import unescaped
from ws_responses.testing.builder import Event

TERM = "bad word"
JUDGE = Judge(Safety(TermClassifier([TERM])), TimelessClock())
EMPTY = SafetyState()


def judge(window: SafetyInput, state: SafetyState) -> Judgement:
    return drive(JUDGE.judge(window, state))


def leaving(gate: OutputGate) -> list[bytes | str]:
    """All that may leave now."""
    out: list[bytes | str] = []
    while (payload := gate.leaving()) is not None:
        out.append(payload)
    return out


def take_all(gate: OutputGate, stream: list[bytes]) -> None:
    for payload in stream:
        gate.take(payload)


def pass_all(gate: OutputGate, stream: list[bytes]) -> None:
    """As a turn does whose classifiers find nothing."""
    for payload in stream:
        gate.take(payload)
        while gate.is_due():
            if gate.window() is not None:
                gate.passed(passed())
        while gate.leaving() is not None:
            pass


def passed(state: SafetyState = EMPTY) -> Judgement:
    return Judgement(action="allow", state=state)


# -- single steps ------------------------------------------------------------------------------------------------------


def test_what_has_no_text_leaves_at_once_and_text_waits_for_its_verdict() -> None:
    gate = OutputGate(options(), ABOUT, EMPTY)
    stream = message_stream("Hello there ", deltas=2)
    for payload in stream[:5]:
        gate.take(payload)

    assert kinds(leaving(gate)) == ["created", "in_progress", "output_item.added", "content_part.added"]
    window = gate.window()
    assert window is not None
    assert leaving(gate) == []
    gate.passed(passed())
    assert kinds(leaving(gate)) == ["output_text.delta"]


def test_a_window_ends_with_a_whole_word_and_the_event_of_the_rest_waits() -> None:
    """Half of a word may mean something else: a classifier would judge what nobody wrote."""
    gate = OutputGate(options(), ABOUT, EMPTY)
    build = builder()
    text = "a scunthorpe"
    stream = encoded([*build.start(), *build.message(text, deltas=3)])
    for payload in stream[:6]:
        gate.take(payload)

    assert text[:8] == "a scunth"
    window = gate.window()
    assert window is not None
    assert window.new_text == "a "
    gate.passed(passed())
    assert kinds(leaving(gate))[-1] == "content_part.added", "the first delta holds the beginning of the word"
    gate.take(stream[6])
    gate.take(stream[7])
    last = gate.window()
    assert last is not None
    assert (last.pieces[0].before, last.new_text) == ("a ", "scunthorpe")


def test_a_finished_text_is_judged_although_it_fills_no_window() -> None:
    """Else it would wait for as long as a tool takes that comes after it."""
    gate = OutputGate(options(window_chars=1000), ABOUT, EMPTY)
    for payload in message_stream("Hello", deltas=2)[:6]:
        gate.take(payload)
    assert gate.window() is None
    gate.take(message_stream("Hello", deltas=2)[6])

    window = gate.window()
    assert window is not None
    assert (window.new_text, window.final, window.pieces[0].open) == ("Hello", False, False)


@pytest.mark.parametrize("size", [9, 10, 11])
def test_a_window_is_due_from_its_size_on(size: int) -> None:
    gate = OutputGate(options(window_chars=10), ABOUT, EMPTY)
    build = builder()
    stream = encoded([*build.start(), *build.message("x" * (size - 1) + " ", deltas=1)])
    for payload in stream[:5]:
        gate.take(payload)

    assert gate.is_due() is (size >= 10)


def test_held_bytes_above_the_bound_make_a_window_due() -> None:
    """Else an upstream that is paused because too much is held would wait for a window that it cannot fill."""
    gate = OutputGate(options(window_chars=10**6, max_held_bytes=10_000), ABOUT, EMPTY)
    stream = message_stream("word " * 100, deltas=100)
    taken = 0
    while not gate.full:
        gate.take(stream[taken])
        leaving(gate)
        taken += 1

    assert gate.is_due()
    assert gate.window() is not None
    gate.passed(passed())
    leaving(gate)
    assert gate.held_bytes == 0


def test_what_is_held_back_leaves_when_too_much_is_held() -> None:
    """Else the upstream would be paused for the sake of a window that it cannot give."""
    gate = OutputGate(options(hold_back_chars=10, max_held_bytes=3000), ABOUT, EMPTY)
    for payload in message_stream("some words ", deltas=1)[:5]:
        gate.take(payload)
    assert gate.window() is not None
    gate.passed(passed())
    leaving(gate)
    assert gate.held_bytes > 0
    gate.take(b'{"type":"response.image_generation_call.partial_image","partial_image_b64":"%b"}' % (b"x" * 3000))
    assert gate.full
    assert not gate.is_due()
    assert len(leaving(gate)) == 2
    assert gate.held_bytes == 0


def test_nothing_leaves_before_the_input_has_passed() -> None:
    gate = OutputGate(options(output="off"), ABOUT, None)
    stream = message_stream("Hello")
    for payload in stream:
        gate.take(payload)
    assert leaving(gate) == []
    assert gate.window() is None

    gate.open(EMPTY)
    assert leaving(gate) == stream
    assert gate.transparent


def test_as_a_whole_only_the_beginning_leaves_before_the_last_verdict() -> None:
    gate = OutputGate(options(output="whole"), ABOUT, EMPTY)
    stream = message_stream("Hello there")
    for payload in stream[:-1]:
        gate.take(payload)
        assert gate.window() is None
    assert kinds(leaving(gate)) == ["created", "in_progress"]

    gate.take(stream[-1])
    window = gate.window()
    assert window is not None
    assert (window.new_text, window.final) == ("Hello there", True)
    gate.passed(passed())
    assert leaving(gate) == stream[2:]


def test_as_a_whole_more_than_may_be_held_is_an_error() -> None:
    """Else the upstream would be paused before the end that everything waits for."""
    gate = OutputGate(options(output="whole", max_held_bytes=5000), ABOUT, EMPTY)
    with pytest.raises(OutputTooLarge, match="5000"):
        take_all(gate, message_stream("word " * 100, deltas=100))


@pytest.mark.parametrize("letter", ["x", "\N{HIRAGANA LETTER A}"])
@pytest.mark.parametrize("size", [99, 100, 101])
def test_the_text_of_a_response_is_bounded(size: int, letter: str) -> None:
    """In bytes, as it is called: a text in another script must not take three times as much."""
    gate = OutputGate(options(max_output_bytes=100), ABOUT, EMPTY)
    letters, rest = divmod(size, len(letter.encode()))
    stream = message_stream(letter * letters + "." * rest, deltas=1)
    if size <= 100:
        take_all(gate, stream)
        return
    with pytest.raises(OutputTooLarge, match="100"):
        take_all(gate, stream)


def test_a_text_takes_little_more_memory_than_its_characters() -> None:
    """A string for each delta takes nine times as much: hundreds of long answers at a time would fill a machine."""
    deltas = 4_000
    gate = OutputGate(options(window_chars=256), ABOUT, EMPTY)
    stream = message_stream("lorem i " * deltas, deltas=deltas)
    pass_all(gate, stream[:4])
    tracemalloc.start()
    try:
        pass_all(gate, stream[4 : 4 + deltas])
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Once to know what is new in the finished item, once for the closing event of an answer that is cut off.
    assert kept < 2.5 * 8 * deltas


def test_text_that_was_never_streamed_is_judged_where_it_comes() -> None:
    """An app may send its text in finished items or in the last snapshot only."""
    build = builder()
    whole = encoded([*build.start(), *build.message("in the item"), *build.complete()])
    for last in ("response.output_item.done", "response.completed"):
        gate = OutputGate(options(), ABOUT, EMPTY)
        for payload, kind in zip(whole, kinds(whole), strict=True):
            if f"response.{kind}" in (last, "response.created"):
                gate.take(payload)
        window = gate.window()
        assert window is not None
        assert window.new_text == "in the item"
        assert kinds(leaving(gate)) == ["created"]


def test_a_text_is_judged_once_however_often_it_is_repeated() -> None:
    """A stream tells each text four times: its deltas, the part, the item, the snapshot."""
    gate = OutputGate(options(), ABOUT, EMPTY)
    seen: list[str] = []
    for payload in message_stream("One two three", deltas=3):
        gate.take(payload)
        window = gate.window()
        if window is not None:
            seen.append(window.new_text)
            gate.passed(passed())
        leaving(gate)

    assert "".join(seen) == "One two three"
    assert gate.idle


def test_a_snapshot_that_says_something_else_is_judged_anew() -> None:
    """What was streamed is not what the client keeps."""
    stream = message_stream("good")
    last = json.loads(stream[-1])
    last["response"]["output"][0]["content"][0]["text"] = TERM
    gate = OutputGate(options(), ABOUT, EMPTY)
    window = None
    for payload in [*stream[:-1], json.dumps(last).encode()]:
        gate.take(payload)
        window = gate.window()
        if window is not None and not judge(window, EMPTY).blocked:
            gate.passed(passed())
    assert window is not None
    assert TERM in window.new_text


def test_unknown_events_have_text_too() -> None:
    gate = OutputGate(options(), ABOUT, EMPTY)
    gate.take(b'{"type":"vendor:aside","sequence_number":0,"note":{"words":["psst"]}}')
    window = gate.window()
    assert window is not None
    assert window.new_text == "psst"


@pytest.mark.parametrize(
    "payload",
    [b"", b"[1]", b'"text"', b"{", b"\xff", *(b'{"a":' + b"[" * deep + b"]" * deep + b"}" for deep in (128, 5000))],
)
def test_what_cannot_be_read_does_not_pass(payload: bytes) -> None:
    """Unread it would be unjudged."""
    gate = OutputGate(options(), ABOUT, EMPTY)
    with pytest.raises(UpstreamError):
        gate.take(payload)
    assert leaving(gate) == []


@pytest.mark.parametrize("payload", [b"[DONE]", b" [DONE]\n", b'{"type":1,"delta":5}'])
def test_what_is_no_event_and_has_no_text_passes_to_who_knows_it(payload: bytes) -> None:
    gate = OutputGate(options(), ABOUT, EMPTY)
    gate.take(payload)
    assert leaving(gate) == [payload]


@pytest.mark.parametrize(
    "delta", [rb"a \ud800bad word", b"a bad word \xff", rb"a \ud800 b\u0061d word", b'a bad word","x":1e999,"y":"']
)
@pytest.mark.parametrize("whole", [False, True])
def test_what_is_mended_on_its_way_is_judged(delta: bytes, whole: bool) -> None:
    """Lone surrogates and bytes that are no UTF-8 become U+FFFD further down: what the fast decoder refuses still gets there."""
    place = b'"output_index":0,"content_index":0,"item_id":"m"'
    text = b'{"type":"response.output_text.delta",%b,"delta":"%b"}' % (place, delta)
    if whole:
        item = b'{"type":"message","content":[{"type":"output_text","text":"%b"}]}' % delta
        text = b'{"type":"response.output_item.done","output_index":0,"item":%b}' % item
    gate = OutputGate(options(), ABOUT, EMPTY)
    gate.take(text)
    gate.finish()
    window = gate.window()
    assert window is not None
    assert judge(window, EMPTY).blocked
    assert "\ud800" not in window.text


def test_the_escapes_of_arguments_are_read_also_where_a_window_cuts_them() -> None:
    r"""``b\u0061d word`` is what the tool would read as the term."""
    build = builder()
    written = json.dumps({"x": "bAd\nword"}).replace("A", "\\u0061")
    stream = encoded([*build.start(), *build.tool_call("run", written, deltas=len(written)), *build.complete()])
    gate = OutputGate(options(), ABOUT, EMPTY)
    for payload in stream:
        gate.take(payload)
        window = gate.window()
        if window is not None:
            judgement = judge(window, gate.state or EMPTY)
            if judgement.blocked:
                break
            gate.passed(judgement)
        leaving(gate)
    else:
        pytest.fail("not found")


def test_the_overlap_of_the_first_window_is_the_end_of_the_input() -> None:
    gate = OutputGate(options(), ABOUT, SafetyState(tail="the question"))
    for payload in message_stream("Answer", deltas=1):
        gate.take(payload)
    window = gate.window()
    assert window is not None
    assert window.text == "the question\nAnswer"


# -- a block -----------------------------------------------------------------------------------------------------------


def closing_of(stream: list[bytes], **changes: Any) -> tuple[list[bytes | str], Event | None]:
    """What leaves of a stream, and the closing event if it is blocked."""
    gate = OutputGate(options(**changes), ABOUT, EMPTY)
    sent: list[bytes | str] = []
    for payload in stream:
        gate.take(payload)
        while gate.is_due():
            window = gate.window()
            if window is None:
                continue
            judgement = judge(window, gate.state or EMPTY)
            if judgement.blocked:
                sent += leaving(gate)
                closing = gate.block()
                assert leaving(gate) == []
                gate.take(stream[-1])
                assert leaving(gate) == []
                return sent, json.loads(closing)
            gate.passed(judgement)
        sent += leaving(gate)
    assert gate.idle
    return sent, None


def test_the_closing_event_holds_what_was_sent_and_nothing_else() -> None:
    build = builder()
    stream = encoded(
        [
            *build.start(),
            *build.reasoning("Thinking about it. ", deltas=2),
            *build.message("First this. ", deltas=2),
            *build.message(f"Then one {TERM} here. ", deltas=20),
            *build.complete(),
        ]
    )
    sent, closing = closing_of(stream)

    assert closing is not None
    assert closing["type"] == "response.incomplete"
    assert closing["sequence_number"] == len(sent)
    response = closing["response"]
    assert response["id"] == json.loads(stream[0])["response"]["id"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "content_filter"})
    assert response["usage"] is None
    assert [item["status"] for item in response["output"][1:]] == ["completed", "incomplete"]
    assert snapshot_texts(response) == ["Thinking about it. ", "First this. ", "Then one bad "]
    assert TERM not in json.dumps([decoded(sent), closing])


def test_a_block_of_all_that_was_sent_leaves_an_empty_output() -> None:
    _, closing = closing_of(message_stream(f"{TERM} at once", deltas=1), output="whole")
    assert closing is not None
    assert closing["response"]["output"] == []
    assert closing["response"]["usage"]["output_tokens"] == 1, "the whole answer was generated"


def test_a_call_is_cut_off_where_its_arguments_were() -> None:
    build = builder()
    stream = encoded([*build.start(), *build.tool_call("run", f'{{"a": "ok {TERM}"}}', deltas=8), *build.complete()])
    _, closing = closing_of(stream)
    assert closing is not None
    (call,) = closing["response"]["output"]
    assert (call["type"], call["name"], call["status"]) == ("function_call", "run", "incomplete")
    assert f'{{"a": "ok {TERM}"}}'.startswith(call["arguments"])
    assert call["arguments"]


def test_a_text_that_was_finished_is_in_the_closing_event_once() -> None:
    """Its deltas and its ``done`` say the same."""
    part = {"item_id": "m", "output_index": 0}
    stream = encoded(
        [
            *builder().start(),
            {
                "type": "response.output_item.added",
                "output_index": 0,
                "item": {"type": "message", "id": "m", "content": []},
            },
            {"type": "response.output_text.delta", **part, "content_index": 0, "delta": "One. "},
            {"type": "response.output_text.done", **part, "content_index": 0, "text": "One. "},
            {"type": "response.output_text.delta", **part, "content_index": 1, "delta": f"A {TERM}. "},
            {"type": "response.output_text.done", **part, "content_index": 1, "text": f"A {TERM}. "},
        ]
    )
    _, closing = closing_of(stream)
    assert closing is not None
    assert snapshot_texts(closing["response"]) == ["One. "]


def test_what_is_held_back_has_not_begun_to_leave() -> None:
    """Without it the first half of a secret leaves before the second half tells that it is one."""
    stream = message_stream(f"Some words first, then a {TERM} here.", deltas=40)
    for hold_back, begun in ((0, True), (16, False)):
        sent, closing = closing_of(stream, hold_back_chars=hold_back)
        assert closing is not None
        assert (snapshot_texts(closing["response"])[0].endswith("bad ")) is begun
        assert texts_of(decoded(sent)) == {(0, "output_text", 0): snapshot_texts(closing["response"])[0]}


# -- properties --------------------------------------------------------------------------------------------------------

WORDS = st.lists(st.sampled_from(["bad", "word", "good", "a", "…", "bad word", "\n", "  ", "wordy"]), max_size=12)
ITEMS = st.lists(
    st.tuples(st.sampled_from(["message", "reasoning", "call", "custom"]), WORDS.map(" ".join), st.integers(1, 30)),
    min_size=1,
    max_size=4,
)


def built(items: list[tuple[str, str, int]]) -> list[bytes]:
    build = builder()
    stream: list[Event] = [*build.start()]
    for kind, text, deltas in items:
        if kind == "message":
            stream += build.message(text, deltas=deltas)
        elif kind == "reasoning":
            stream += build.reasoning(text, deltas=deltas)
        elif kind == "call":
            stream += build.tool_call("run", json.dumps({"x": text}), deltas=deltas)
        else:
            stream += build.tool_call("run", text, kind="custom", deltas=deltas)
    return encoded([*stream, *build.complete()])


@given(
    items=ITEMS,
    window_chars=st.sampled_from([1, 3, 10, 1000]),
    hold_back_chars=st.sampled_from([0, 5, 20]),
    output=st.sampled_from(["windows", "whole"]),
)
def test_however_it_is_cut_the_verdict_is_that_on_the_whole(
    items: list[tuple[str, str, int]], window_chars: int, hold_back_chars: int, output: str
) -> None:
    """A term across two deltas or windows would else pass; a good text must come out as it went in."""
    stream = built(items)
    sent, closing = closing_of(
        stream, window_chars=window_chars, hold_back_chars=hold_back_chars, output=output, overlap_chars=32
    )
    pieces = [unescaped(json.dumps({"x": text})) if kind == "call" else text for kind, text, _ in items]
    verdict = drive(JUDGE.judge(SafetyInput(stage="output", pieces=_pieces(pieces), about=ABOUT), EMPTY))

    assert (closing is not None) is verdict.blocked, pieces
    if closing is None:
        assert sent == stream
        return
    assert sent == stream[: len(sent)]
    texts = [text for text in snapshot_texts(closing["response"]) if text]
    assert texts == list(texts_of(decoded(sent)).values())
    for (index, _, _), text in texts_of(decoded(sent)).items():
        kind, whole, _ = items[index]
        found = re.search(r"\bbad\s+word\b", whole)
        if found is not None and kind != "call":
            assert whole.startswith(text)
            assert len(text) < found.end(), "the whole of the term has left"


def _pieces(texts: list[str]) -> Any:
    return tuple(Piece(text=text) for text in texts)


@given(data=st.data(), items=ITEMS, window_chars=st.sampled_from([1, 5, 50]))
def test_what_leaves_was_judged_whoever_is_faster(
    data: st.DataObject, items: list[tuple[str, str, int]], window_chars: int
) -> None:
    """The upstream and the classifiers run beside each other: no order of their steps may let text out early, or mix it up."""
    stream = built(items)
    gate = OutputGate(options(window_chars=window_chars), ABOUT, EMPTY)
    waiting = list(stream)
    window: SafetyInput | None = None
    sent: list[bytes | str] = []
    judged = ""
    while waiting or window is not None or gate.is_due():
        step = data.draw(st.sampled_from(["take", "judge"]))
        if step == "take" and waiting:
            gate.take(waiting.pop(0))
            window = window or gate.window()
        elif window is not None:
            judged += window.new_text
            gate.passed(passed())
            window = gate.window()
        sent += leaving(gate)
        for place, text in texts_of(decoded(sent)).items():
            if not place[1].startswith("function"):
                assert _without_spaces(text) in _without_spaces(judged)
    assert sent == stream


def _without_spaces(text: str) -> str:
    return "".join(text.split())
