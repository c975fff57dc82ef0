import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from time import thread_time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ws_responses.errors import EventTooLarge
from ws_responses.upstreams.sse import SSEDecoder, single_event

LIMIT = 1 << 20
BOM = "\ufeff".encode()
# Characters at which `splitlines()` of str or of bytes breaks and a stream does not.
FALSE_LINE_ENDS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


def decode(chunks: Iterable[bytes | bytearray | memoryview], *, limit: int = LIMIT) -> list[bytes]:
    decoder = SSEDecoder(max_event_bytes=limit)
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return events + decoder.end()


def feed_for_ever(decoder: SSEDecoder, chunk: bytes) -> None:
    for _ in range(100_000):
        assert decoder.feed(chunk) == []
    pytest.fail("no limit")


def reference(body: bytes) -> list[bytes]:
    """Follow the text of the specification, one character at a time, with the whole stream at hand."""
    text = body.decode().removeprefix("\ufeff")
    lines, line, position = [], "", 0
    while position < len(text):
        if text[position] in "\r\n":
            position += 2 if text[position : position + 2] == "\r\n" else 1
            lines.append(line)
            line = ""
        else:
            line += text[position]
            position += 1
    # Ours, not the specification's: the end of the body ends the last line and the last event.
    events, data = [], ""
    for field in [*lines, line, ""]:
        if field == "":
            if data != "":
                events.append(data.removesuffix("\n").encode())
            data = ""
            continue
        name, _, value = field.partition(":")
        if name == "data":
            data += value.removeprefix(" ") + "\n"
    return events


def cut(body: bytes, places: Iterable[int]) -> list[bytes]:
    borders = [0, *sorted(place % (len(body) + 1) for place in places), len(body)]
    return [body[a:b] for a, b in pairwise(borders)]


line_ends = st.sampled_from(["\n", "\r\n", "\r"])
texts = st.text(
    st.one_of(st.sampled_from(FALSE_LINE_ENDS + "é😀 :\ufeff\0"), st.characters(codec="utf-8")), max_size=12
).map(lambda text: text.replace("\r", "").replace("\n", ""))
lines = st.one_of(
    st.sampled_from(["", "data: 1", "data:"]),
    st.builds("data: {}".format, texts),
    st.builds("data:{}".format, texts),
    st.sampled_from(["data", "data ", "data : x", "Data: x", " data: x", "dat", "datum: 1", "retry: 10", ":", "id"]),
    st.builds("event: {}".format, texts),
    st.builds("id:{}".format, texts),
    st.builds(": {}".format, texts),
    texts,
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Streams with any mixture of lines and line ends, the last line perhaps unfinished."""
    body = "".join(line + draw(line_ends) for line in draw(st.lists(lines, max_size=12)))
    body = draw(st.sampled_from(["", "\ufeff"])) + body + draw(st.one_of(st.just(""), lines))
    return body.encode()


class TestLineEnds:
    @pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
    def test_each_kind_ends_lines_and_events(self, end: bytes) -> None:
        body = end.join([b"event: a", b"data: 1", b"", b"data: 2", b"data: 3", b"", b""])
        assert decode([body]) == [b"1", b"2\n3"]
        assert decode(cut(body, range(len(body)))) == [b"1", b"2\n3"]

    def test_kinds_may_be_mixed(self) -> None:
        assert decode([b"data: 1\rdata: 2\ndata: 3\r\n\rdata: 4\n\r\n"]) == [b"1\n2\n3", b"4"]

    def test_cr_and_lf_in_different_chunks_are_one_line_end(self) -> None:
        assert decode([b"data: 1\r", b"\ndata: 2\r\n\r", b"\n"]) == [b"1\n2"]

    def test_cr_and_lf_are_one_line_end_with_an_empty_chunk_between(self) -> None:
        assert decode([b"data: 1\r", b"", b"\ndata: 2\n\n"]) == [b"1\n2"]

    def test_only_one_lf_belongs_to_a_cr(self) -> None:
        assert decode([b"data: 1\r", b"\n", b"\n", b"data: 2\n\n"]) == [b"1", b"2"]

    def test_final_cr_ends_the_event_without_waiting_for_an_lf(self) -> None:
        decoder = SSEDecoder(max_event_bytes=LIMIT)
        assert decoder.feed(b"data: 1\r\n\r") == [b"1"]
        assert decoder.feed(b"\n") == []
        assert decoder.feed(b"\n") == []
        assert decoder.feed(b"data: 2\n\n") == [b"2"]

    @pytest.mark.parametrize("character", FALSE_LINE_ENDS)
    def test_other_line_separators_of_unicode_are_data(self, character: str) -> None:
        data = f'{{"delta":"a{character}b"}}'.encode()
        body = b"data: " + data + b"\n\n"
        assert decode([body]) == [data]
        assert decode(cut(body, range(len(body)))) == [data]
        assert single_event(body) == data


class TestLines:
    @pytest.mark.parametrize(
        ("body", "events"),
        [
            (b"data: x\n\n", [b"x"]),
            (b"data:x\n\n", [b"x"]),
            (b"data:  x \n\n", [b" x "]),
            (b"data:\n\n", [b""]),
            (b"data\n\n", [b""]),
            (b"data\ndata\n\n", [b"\n"]),
            (b"data: {\ndata:  1\ndata: }\n\n", [b"{\n 1\n}"]),
            (b"data: a: b\n\n", [b"a: b"]),
            (b"data: [DONE]\n\n", [b"[DONE]"]),
            (b": ping\n\n", []),
            (b": ping\ndata: x\n: ping\ndata: y\n\n", [b"x\ny"]),
            (b"event: x\nid: 1\nretry: 3\n\n", []),
            (b"data : x\nDATA: x\n data: x\ndatax: x\nfoo\n\n", []),
            (b"\n\n\ndata: x\n\n\n\n", [b"x"]),
            (b"", []),
        ],
    )
    def test_data_of_events(self, body: bytes, events: list[bytes]) -> None:
        assert decode([body]) == events
        assert decode(cut(body, range(len(body)))) == events

    def test_code_point_cut_at_each_byte(self) -> None:
        body = 'data: {"delta":"é😀"}\n\n'.encode()
        for place in range(len(body) + 1):
            assert decode(cut(body, [place])) == ['{"delta":"é😀"}'.encode()]

    def test_bom_is_dropped_at_the_start_only(self) -> None:
        assert decode([BOM + b"data: 1\n\n" + BOM + b"data: 2\n\ndata: 3\n\n"]) == [b"1", b"3"]
        assert decode([BOM + b"data: 1\n\n", BOM + b"data: 2\n\n", b"data: 3\n\n"]) == [b"1", b"3"]
        assert decode([BOM + BOM + b"data: 1\n\n"]) == []

    def test_bom_cut_between_chunks(self) -> None:
        assert decode([BOM[:1], BOM[1:2], BOM[2:] + b"data: 1\n\n"]) == [b"1"]


class TestEnd:
    @pytest.mark.parametrize("tail", [b"", b"\n", b"\r", b"\r\n"])
    def test_last_event_without_blank_line_counts(self, tail: bytes) -> None:
        assert decode([b"data: 1\n\ndata: 2" + tail]) == [b"1", b"2"]

    @pytest.mark.parametrize("tail", [b"", b"\n", b": ping", b"event: x", b"event: x\n", b"dat"])
    def test_nothing_without_data(self, tail: bytes) -> None:
        assert decode([b"data: 1\n\n" + tail]) == [b"1"]

    def test_unfinished_lines_join(self) -> None:
        assert decode([b"data: 1\ndata: 2"]) == [b"1\n2"]

    def test_bom_alone(self) -> None:
        assert decode([BOM]) == []
        assert decode([BOM + b"data: 1"]) == [b"1"]

    def test_second_end_gives_nothing(self) -> None:
        decoder = SSEDecoder(max_event_bytes=LIMIT)
        assert decoder.feed(b"data: 1") == []
        assert decoder.end() == [b"1"]
        assert decoder.end() == []


class TestBuffers:
    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    @pytest.mark.parametrize("chunks", [[b"data: 1\n\n"], [b"da", b"ta: 1", b"\n\n"], [b"data: 1"]])
    def test_every_kind_of_buffer_gives_own_bytes(
        self, kind: Callable[[bytes], bytes | bytearray | memoryview], chunks: list[bytes]
    ) -> None:
        events = decode(kind(chunk) for chunk in chunks)
        assert events == [b"1"]
        assert type(events[0]) is bytes

    def test_buffer_may_be_used_again(self) -> None:
        decoder = SSEDecoder(max_event_bytes=LIMIT)
        buffer = bytearray(b"data: 1\n\ndata: 2")
        events = decoder.feed(memoryview(buffer))
        buffer[:] = b"x" * len(buffer)
        assert events + decoder.end() == [b"1", b"2"]

    def test_view_with_a_step(self) -> None:
        assert decode([memoryview(b"d-a-t-a-:-1-\n-\n")[::2]]) == [b"1"]

    @pytest.mark.parametrize("kind", [bytearray, memoryview])
    def test_single_event_leaves_other_buffers_to_the_decoder(self, kind: Callable[[bytes], bytes]) -> None:
        assert single_event(kind(b"data: 1\n\n")) is None


class TestLimit:
    def test_pending_counts_data_and_unfinished_line(self) -> None:
        decoder = SSEDecoder(max_event_bytes=LIMIT)
        pending = []
        for chunk in (b"data: 12\n", b"data: 3", b"\n", b"event: x\n", b"\n", b"event: x\n", b": p", b"ing\n"):
            decoder.feed(chunk)
            pending.append(decoder.pending)
        assert pending == [3, 10, 5, 5, 0, 0, 3, 0]

    def test_pending_tells_an_empty_data_line_from_none(self) -> None:
        decoder = SSEDecoder(max_event_bytes=LIMIT)
        decoder.feed(b"data:\n")
        assert decoder.pending == 1

    @pytest.mark.parametrize("chunk", [b"data: xxxx", b"xxxx", b"::::", b"data:x\n", b"data:\n", b"data\r"])
    def test_endless_event_is_bounded(self, chunk: bytes) -> None:
        decoder = SSEDecoder(max_event_bytes=1000)
        with pytest.raises(EventTooLarge):
            feed_for_ever(decoder, chunk)

    def test_endless_comments_are_no_event(self) -> None:
        decoder = SSEDecoder(max_event_bytes=100)
        for _ in range(1000):
            assert decoder.feed(b": ping\n\n: ping\n") == []

    @pytest.mark.parametrize("places", [[], [50], [50, 106], [106, 107], range(108)])
    @pytest.mark.parametrize("before", [b"", b"\n", b"data: x\n\n"])
    def test_line_at_and_above_the_limit(self, before: bytes, places: Sequence[int]) -> None:
        body = before + b"data: " + b"x" * 100 + b"\n\n"
        assert decode(cut(body, places), limit=106)[-1] == b"x" * 100
        with pytest.raises(EventTooLarge):
            decode(cut(body, places), limit=105)

    def test_events_before_the_large_one_come_first(self) -> None:
        decoder = SSEDecoder(max_event_bytes=20)
        assert decoder.feed(b"data: 1\n\ndata: 2\n\ndata: " + b"x" * 20) == [b"1", b"2"]
        assert decoder.pending > 0, "what follows must not go past the decoder"
        for _ in range(2):
            with pytest.raises(EventTooLarge):
                decoder.feed(b"data: 3\n\n")
        with pytest.raises(EventTooLarge):
            decoder.end()

    def test_memory_stays_flat(self) -> None:
        decoder = SSEDecoder(max_event_bytes=100_000)
        chunk = b"data:ab\n" * 1000
        tracemalloc.start()
        try:
            with pytest.raises(EventTooLarge):
                feed_for_ever(decoder, chunk)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 400_000


class TestSingleEvent:
    @pytest.mark.parametrize("end", [b"\n", b"\r\n"])
    @pytest.mark.parametrize(
        ("before", "data_line", "data"),
        [
            ([], b"data: {}", b"{}"),
            ([], b"data:{}", b"{}"),
            ([], b"data:  {}", b" {}"),
            ([], b"data:", b""),
            ([], b"data: ", b""),
            ([b"event: response.created"], b"data: {}", b"{}"),
            ([b"id: 1"], b"data: {}", b"{}"),
            ([b"id: 1", b"event: x"], b"data: {}", b"{}"),
            ([b"event:x", b"id:1"], b"data: {}", b"{}"),
            ([b"event: x"], b"data:" + b" x" * 500, b"x" + b" x" * 499),
        ],
    )
    def test_usual_forms(self, end: bytes, before: list[bytes], data_line: bytes, data: bytes) -> None:
        chunk = end.join([*before, data_line, b"", b""])
        assert single_event(chunk) == data
        assert decode([chunk]) == [data]

    @pytest.mark.parametrize(
        "chunk",
        [
            b"",
            b"\n",
            b"\n\n",
            b"\r\n\r\n",
            b"data",
            b"data\n\n",
            b"data: x",
            b"data: x\n",
            b"data: x\r\n",
            b"\ndata: x\n\n",
            b"data: x\n\n\n",
            b"data: x\n\ndata: y\n\n",
            b"data: x\ndata: y\n\n",
            b"data: x\nevent: y\n\n",
            b"data: x\n: ping\n\n",
            b": ping\n\n",
            b": ping\ndata: x\n\n",
            b"event: x\n\n",
            b"event: x\n\ndata: y\n\n",
            b"event: x",
            b"id: 1\n" * 4 + b"data: x\n\n",
            b"id: 1\r\n" * 4 + b"data: x\r\n\r\n",
            b"data:x\ry\n\n",
            b"data:x\ny\r\n\r\n",
            b"retry: 1\ndata: x\n\n",
            b"data : x\n\n",
            b"data: x\ry\n\n",
            b"data: x\r\r",
            b"data: x\n\r\n",
            b"data: x\r\n\n",
            b"event: x\ndata: x\r\n\r\n",
            b"event: x\ny\r\ndata: x\r\n\r\n",
            b"data:x\ry\r\n\r\n",
            b"event: x\ry\r\ndata: x\r\n\r\n",
            b"event: x\r\n\r\n",
            b"data: x\ry\r\n\r\n",
            b"data: x\ny\r\n\r\n",
            b"data: x\r\ndata: y\r\n\r\n",
            b"data: x\r\n\r\ndata: y\r\n\r\n",
            BOM + b"data: x\n\n",
        ],
    )
    def test_anything_else_is_left_to_the_decoder(self, chunk: bytes) -> None:
        assert single_event(chunk) is None


@given(bodies(), st.lists(st.integers(min_value=0), max_size=20))
@example(b"data: a\r\n\r\n", [8, 9, 10])
def test_events_are_those_of_the_reference_wherever_the_cuts(body: bytes, places: list[int]) -> None:
    assert decode(cut(body, places)) == reference(body)


@given(bodies())
def test_cut_at_each_byte(body: bytes) -> None:
    assert decode(cut(body, range(len(body)))) == reference(body)


@given(bodies(), st.lists(st.integers(min_value=0), max_size=20), st.integers(1, 40))
def test_limit_strikes_at_the_same_event_wherever_the_cuts(body: bytes, places: list[int], limit: int) -> None:
    def outcome(chunks: list[bytes]) -> tuple[list[bytes], bool]:
        decoder = SSEDecoder(max_event_bytes=limit)
        events: list[bytes] = []
        try:
            for chunk in chunks:
                events += decoder.feed(chunk)
                assert decoder.pending <= limit
            return events + decoder.end(), False
        except EventTooLarge:
            return events, True

    assert outcome(cut(body, places)) == outcome([body])


@given(st.one_of(bodies(), st.binary(max_size=30), st.text("dat: evni\r\n", max_size=20).map(str.encode)))
def test_single_event_agrees_with_the_decoder(chunk: bytes) -> None:
    data = single_event(chunk)
    if data is not None:
        assert type(data) is bytes
        decoder = SSEDecoder(max_event_bytes=LIMIT)
        assert decoder.feed(chunk) == [data]
        assert decoder.pending == 0
        assert decoder.end() == []


@given(
    st.lists(st.builds("{}: {}".format, st.sampled_from(["event", "id"]), texts), max_size=3),
    texts,
    st.sampled_from(["\n", "\r\n"]),
)
def test_single_event_takes_every_event_in_the_usual_form(before: list[str], data: str, end: str) -> None:
    chunk = end.join([*before, f"data: {data}", "", ""]).encode()
    assert single_event(chunk) == data.encode()


pieces = st.sampled_from(
    [
        b"data: 1\n\n",
        b"event: x\r\ndata: 2\r\n\r\n",
        b"data: 3\n",
        b"data:\r",
        b"\r",
        b"\n",
        b": ping\n\n",
        b"event: x\n",
        b"da",
    ]
)


@given(st.sampled_from([b"", BOM]), st.lists(pieces, max_size=12))
def test_single_event_may_go_past_a_decoder_that_holds_nothing(start: bytes, chunks: list[bytes]) -> None:
    decoder = SSEDecoder(max_event_bytes=LIMIT)
    events: list[bytes] = []
    for chunk in [start, *chunks]:
        data = None if decoder.pending else single_event(chunk)
        events += decoder.feed(chunk) if data is None else [data]
    assert events + decoder.end() == reference(start + b"".join(chunks))


def best_time(action: Callable[[], object], repeat: int = 3) -> float:
    times = []
    for _ in range(repeat):
        start = thread_time()
        action()
        times.append(thread_time() - start)
    return min(times)


@pytest.mark.slow  # a ratio of two times: not for a machine that does other things as well
@pytest.mark.parametrize(
    ("stream", "size"),
    [
        # Large already at first, as buffers which fit the caches would flatter the small one.
        pytest.param(lambda size: [b"data: ", *[b"x" * 4096] * (size // 4096), b"\n\n"], 1 << 22, id="one long line"),
        pytest.param(lambda size: [b"data: xyz\n" * 10] * (size // 100), 1 << 17, id="many data lines"),
        pytest.param(lambda size: [(b"data: " + b"x" * 200 + b"\n\n") * (size // 208)], 1 << 19, id="many events"),
        pytest.param(lambda size: [b"\r\n" * (size // 2)], 1 << 17, id="blank lines"),
    ],
)
def test_time_grows_with_the_size_and_not_faster(stream: Callable[[int], list[bytes]], size: int) -> None:
    small, large = stream(size), stream(8 * size)
    # Quadratic work would take 64 times as long, linear work 8 times; between them is room for a noisy machine.
    assert best_time(lambda: decode(large, limit=1 << 26)) < 32 * best_time(lambda: decode(small, limit=1 << 26))
