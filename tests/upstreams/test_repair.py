import copy
import json
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec import Raw

from tests.upstreams.wire import Event, assert_legal, compact, decoded, is_placed, play, played
from ws_responses.errors import UpstreamError, WireError
from ws_responses.testing import ResponseBuilder, counting_ids, numbered
from ws_responses.testing.strategies import event_streams
from ws_responses.upstreams.repair import TurnStream

OURS = "resp_ours"


def stream(**options: Any) -> TurnStream:
    return TurnStream(OURS, **options)


def text_turn(text: str = "Hello", *, deltas: int = 2, response_id: str = "resp_1") -> list[Event]:
    builder = ResponseBuilder({"model": "m"}, response_id=response_id, id_factory=counting_ids(), created_at=1)
    return list(numbered([*builder.start(), *builder.message(text, deltas=deltas), *builder.complete()]))


def without(events: list[Event], *paths: str, kinds: str | None = None) -> list[Event]:
    """Return copies without these members."""
    changed = copy.deepcopy(events)
    for event in changed:
        if kinds is None or event["type"] == kinds:
            for path in paths:
                at: Any = event
                *parents, name = path.split(".")
                for parent in parents:
                    at = at.get(parent, {})
                at.pop(name, None)
    return changed


def only(events: list[Event], *kinds: str) -> list[Event]:
    """Return the events whose type ends in one of these."""
    return [event for event in events if event["type"].endswith(kinds)]


# -- nothing is missing ------------------------------------------------------------------------------------------------


@st.composite
def payloads_of(draw: st.DrawFn, events: st.SearchStrategy[list[Event]]) -> tuple[list[Event], list[bytes]]:
    """Events, and the JSON of them as different apps write it."""
    drawn = draw(events)
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " : ")]))
    ensure_ascii, sort_keys = draw(st.booleans()), draw(st.booleans())
    indent = draw(st.sampled_from([None, None, 1]))
    texts = [
        json.dumps(event, separators=separators, ensure_ascii=ensure_ascii, sort_keys=sort_keys, indent=indent)
        for event in drawn
    ]
    return drawn, [text.encode() for text in texts]


class TestNothingMissing:
    @given(payloads_of(event_streams()))
    def test_default_lane_is_byte_exact(self, drawn: tuple[list[Event], list[bytes]]) -> None:
        # A relay that writes events anew costs twice the CPU and loses what it does not know.
        _, payloads = drawn
        assert play(payloads, stream()) == payloads

    @given(payloads_of(event_streams()))
    def test_named_lane_differs_by_its_label_alone(self, drawn: tuple[list[Event], list[bytes]]) -> None:
        _, payloads = drawn
        frames = play(payloads, stream(stream_id="a.b"))
        assert [frame.replace(b'"stream_id":"a.b",', b"", 1) for frame in frames] == payloads

    @given(event_streams())
    def test_with_a_parent_only_lifecycle_events_change(self, events: list[Event]) -> None:
        frames = played(events, stream(previous_response_id="resp_0"))
        for event, frame in zip(events, frames, strict=True):
            if "response" in event:
                assert frame == event | {"response": event["response"] | {"previous_response_id": "resp_0"}}
            else:
                assert frame == event

    @given(event_streams())
    def test_end_tells_what_the_stream_said(self, events: list[Event]) -> None:
        # The node is made of this: what it lacks, the next turn lacks.
        turn = stream()
        played(events, turn)
        last = events[-1]
        assert turn.end is not None
        assert [json.loads(item) for item in turn.end.items] == last["response"]["output"]
        assert (turn.end.response_id, turn.end.own_id) == (last["response"]["id"], True)
        assert turn.end.usage is not None
        assert json.loads(turn.end.usage) == last["response"]["usage"]
        assert turn.end.kind == last["type"] == f"response.{turn.end.status}"
        assert turn.repaired_surrogates == 0

    def test_20_kb_of_echoed_tools_pass_untouched(self) -> None:
        # Codex gets its 20 kB of tools echoed in each lifecycle event.
        tools = [{"type": "function", "name": f"f{i}", "description": "x" * 100} for i in range(150)]
        events = text_turn()
        for event in events:
            if "response" in event:
                event["response"]["tools"] = tools
        payloads = [compact(event) for event in events]
        assert play(payloads, stream()) == payloads

    def test_a_gap_in_the_numbers_is_none_of_our_business(self) -> None:
        events = [event | {"sequence_number": 3 * index + 2} for index, event in enumerate(text_turn())]
        assert played(events, stream()) == events

    def test_our_own_spelling_of_the_parent_is_not_forced_on_the_app(self) -> None:
        # `json.dumps` escapes what is not ASCII: an equal id written otherwise is no reason to encode 20 kB anew.
        event = text_turn()[0]
        event["response"]["previous_response_id"] = "resp_é"
        payload = json.dumps(event).encode()
        assert stream(previous_response_id="resp_é").feed(payload) == [payload]


# -- the hot path and the other one agree ------------------------------------------------------------------------------


def _spoil(event: Event, name: str, value: Any) -> Event:
    if name == "drop":
        return {key: member for key, member in event.items() if key != value}
    return event | {name: value}


_SPOILS = st.one_of(
    st.tuples(st.just("drop"), st.sampled_from(["sequence_number", "item_id", "output_index", "content_index"])),
    st.tuples(st.sampled_from(["sequence_number", "output_index", "content_index"]), st.sampled_from([None, 0, 7, -1])),
    st.tuples(st.sampled_from(["sequence_number", "output_index", "item_id"]), st.sampled_from([1.5, "1", True, {}])),
    st.tuples(st.just("item_id"), st.sampled_from([None, "", "msg_other"])),
    st.tuples(st.just("stream_id"), st.sampled_from(["other", None, 5])),
    st.tuples(st.just("type"), st.sampled_from(["response.output_text.delta", "codex.rate_limits", "a:b", "x\n"])),
)


@st.composite
def spoiled_payloads(draw: st.DrawFn, *, alike: bool) -> list[bytes]:
    """Streams in which any event may lack anything, come twice, or not be what it should.

    Args:
        draw: given by Hypothesis.
        alike: events of one type lack the same, as in an app that does not know better.
    """
    payloads: list[bytes] = []
    spoils: dict[str, list[tuple[str, Any]]] = {}
    for event in draw(event_streams()):
        spoil = spoils.get(event["type"]) if alike else None
        if spoil is None:
            spoil = draw(st.lists(_SPOILS, max_size=2)) if draw(st.integers(0, 3)) == 0 else []
            spoils[event["type"]] = spoil
        changed = event
        for name, value in spoil:
            changed = _spoil(changed, name, value)
        payload = draw(st.sampled_from([b"", b"", b"", b" ", b"\n"])) + compact(changed)
        if draw(st.integers(0, 15)) == 0:
            payload = payload.replace(
                b"}", draw(st.sampled_from([b',"x":"\xff"}', b',"x":"\\ud800"}', b',"x":1e999}'])), 1
            )
        payloads += [payload] * draw(st.sampled_from([1, 1, 1, 1, 0, 2]))
    return payloads


def _fed(turn: TurnStream, payload: bytes) -> list[bytes] | None:
    try:
        return turn.feed(payload)
    except WireError:
        return None


class TestPlain:
    @given(spoiled_payloads(alike=True), st.sampled_from([None, "lane"]))
    def test_all_ways_through_give_the_same(self, payloads: list[bytes], lane: str | None) -> None:
        # Deltas take three ways, by what came before them; nobody may see which.
        hot, cold = stream(stream_id=lane), stream(stream_id=lane)
        frames: list[bytes] = []
        for payload in payloads:
            fed = _fed(cold, payload)
            frames += [cold.fail(UpstreamError("x"))] if fed is None else fed
            if fed is None:
                break
            if cold.end is not None:
                frames.append(cold.end.frame)
                break
        got = play(payloads, hot)
        assert got[:-1] == frames[:-1]
        assert hot.end == cold.end
        assert hot.repaired_surrogates == cold.repaired_surrogates
        if cold.end is not None:
            assert got == frames

    @given(spoiled_payloads(alike=False), st.sampled_from([None, "lane"]))
    def test_gives_what_feed_gives_or_nothing(self, payloads: list[bytes], lane: str | None) -> None:
        # Which of the two an event takes depends on chance (who is hot); nobody may see a difference.
        hot, cold = stream(stream_id=lane), stream(stream_id=lane)
        for payload in payloads:
            frame = hot.plain(payload)
            frames = _fed(cold, payload)
            assert frames == (_fed(hot, payload) if frame is None else [frame])
            if frames is None:
                break
            if cold.end is not None:
                assert hot.end == cold.end
                return
            assert hot.events == cold.events

    def test_takes_the_usual_deltas(self) -> None:
        # Without this the property above would hold for a hot path that takes nothing.
        turn = stream()
        *start, delta, _ = [compact(event) for event in text_turn()[:6]]
        play(start, turn)
        assert turn.plain(delta) == delta

    def test_nesting_beyond_all_limits_is_no_event_for_it(self) -> None:
        turn = stream()
        play([compact(event) for event in text_turn()[:4]], turn)
        payload = compact(text_turn()[4])[:-1] + b',"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        assert turn.plain(payload) is None
        with pytest.raises(UpstreamError):
            turn.feed(payload)


# -- something is missing ----------------------------------------------------------------------------------------------

_PLACES = ("item_id", "output_index", "content_index")
_DROPPED_EVENTS: tuple[str, ...] = (
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.output_item.done",
)
_TERMINAL_OUTPUT: tuple[str, ...] = ("whole", "missing", "null", "empty", "cut", "poorer")


def _poorer(output: list[Event], how: str) -> Any:
    if how == "null":
        return None
    if how == "empty":
        return []
    if how == "cut":
        return output[:-1]
    return [
        {key: [] if key in {"content", "summary"} else "" if key in {"arguments", "input"} and isinstance(value, str) else value
         for key, value in item.items()}
        for item in output
    ]  # fmt: skip


@st.composite
def lacking(draw: st.DrawFn) -> tuple[list[Event], list[Event], set[str], str]:
    """A stream, what an app makes of it, which events that app leaves out, and how its terminal output is."""
    whole = draw(event_streams(ends=("completed", "incomplete")))
    events = copy.deepcopy(whole)
    kinds = sorted({event["type"] for event in events})
    for name in draw(st.sets(st.sampled_from((*_PLACES, "sequence_number")))):
        # An app that leaves something out does so in all events of a type; the hot path counts on it.
        here = draw(st.one_of(st.just(set(kinds)), st.sets(st.sampled_from(kinds))))
        if name == "output_index" and len(here) < len(kinds):
            here = {kind for kind in here if not kind.startswith("response.output_item.")}
        null = draw(st.integers(0, 4)) == 0
        for event in events:
            if name in event and event["type"] in here:
                if null:
                    event[name] = None
                else:
                    del event[name]
    dropped = draw(st.sets(st.sampled_from(_DROPPED_EVENTS)))
    how = draw(st.sampled_from(_TERMINAL_OUTPUT))
    # Nobody can finish items that are finished nowhere.
    assume(how == "whole" or "response.output_item.done" not in dropped)
    response = events[-1]["response"]
    if how == "missing":
        del response["output"]
    elif how != "whole":
        response["output"] = _poorer(response["output"], how)
    return whole, [event for event in events if event["type"] not in dropped], dropped, how


class TestSomethingMissing:
    @given(lacking(), st.sampled_from([None, "lane"]), st.sampled_from([None, "resp_0"]))
    def test_becomes_a_legal_stream_with_all_items(
        self, drawn: tuple[list[Event], list[Event], set[str], str], lane: str | None, previous: str | None
    ) -> None:
        whole, events, _, _ = drawn
        turn = stream(stream_id=lane, previous_response_id=previous)
        frames = played(events, turn)
        assert_legal(frames, stream_id=lane, previous_response_id=previous)
        assert frames[-1]["response"]["output"] == whole[-1]["response"]["output"]
        assert turn.end is not None
        assert [json.loads(item) for item in turn.end.items] == whole[-1]["response"]["output"]

    @given(lacking())
    def test_what_the_app_says_goes_on_untouched(self, drawn: tuple[list[Event], list[Event], set[str], str]) -> None:
        # A repair adds; it never takes away or changes what was there.
        _, events, _, _ = drawn
        frames = played(events, stream())
        left = [frame for frame in frames if "response" not in frame]
        for event in events:
            if "response" in event:
                continue
            said = {name: value for name, value in event.items() if name != "sequence_number" and value is not None}
            match = next(frame for frame in left if _says(frame, said))
            left.remove(match)

    @pytest.mark.parametrize("drop", ["item_id", "output_index", "content_index", "sequence_number"])
    @pytest.mark.parametrize("how", ["missing", "null"])
    def test_each_member_comes_back_as_it_was(self, drop: str, how: str) -> None:
        events = text_turn()
        lacks = without(events, drop) if how == "missing" else [
            event | ({drop: None} if drop in event else {}) for event in events
        ]  # fmt: skip
        assert played(lacks, stream()) == events

    def test_parallel_calls_without_index_find_their_items_by_id(self) -> None:
        # Two calls stream at once; by "the latest item" the first would get the arguments of the second.
        added = [_call("fc_1", "a"), _call("fc_2", "b")]
        events: list[Event] = [
            {"type": "response.output_item.added", "item": item | {"arguments": ""}} for item in added
        ]
        events += [
            {"type": "response.function_call_arguments.delta", "item_id": item_id, "delta": "1"}
            for item_id in ("fc_1", "fc_2", "fc_1", "fc_2")
        ]
        events += [{"type": "response.output_item.done", "item": item} for item in added]
        frames = played([*text_turn()[:2], *events, _completed(added)], stream())
        assert_legal(frames)
        places = [frame["output_index"] for frame in frames if "output_index" in frame]
        assert places == [0, 1, 0, 1, 0, 1, 0, 1]

    def test_parts_without_index_are_counted(self) -> None:
        parts = [{"type": "output_text", "text": text, "annotations": []} for text in "ab"]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": parts}
        events: list[Event] = [{"type": "response.output_item.added", "item": item | {"content": []}}]
        for part in parts:
            events.append({"type": "response.content_part.added", "part": part | {"text": ""}})
            events.append({"type": "response.output_text.delta", "delta": part["text"]})
            events.append({"type": "response.content_part.done", "part": part})
        events.append({"type": "response.output_item.done", "item": item})
        frames = played([text_turn()[0], *events, _completed([item])], stream())
        assert_legal(frames)
        assert [frame["content_index"] for frame in frames if "content_index" in frame] == [0, 0, 0, 1, 1, 1]

    def test_arguments_of_an_unannounced_call_wait_for_it(self) -> None:
        # The name of the call comes with the finished item only; inventing one would call a wrong tool.
        events = text_turn()[:2]
        for delta in ("1", "2"):
            events.append(
                {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": 0, "delta": delta}
            )
        turn = stream()
        assert [frame["type"] for frame in played(events, turn)] == ["response.created", "response.in_progress"]
        call = _call("fc_1", "12")
        frames = played(
            [{"type": "response.output_item.done", "output_index": 0, "item": call}, _completed([call])], turn
        )
        assert [frame["type"].removeprefix("response.") for frame in frames] == [
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.delta",
            "output_item.done",
            "completed",
        ]
        assert frames[0]["item"] == call | {"arguments": "", "status": "in_progress"}
        assert [frame["delta"] for frame in frames[1:3]] == ["1", "2"]

    def test_arguments_wait_until_the_terminal_event_brings_the_call(self) -> None:
        delta = {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "delta": "1"}
        frames = played([text_turn()[0], delta, _completed([_call("fc_1", "1")])], stream())
        assert_legal(frames)
        assert [frame["type"] for frame in frames[1:-1]] == [
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.output_item.done",
        ]

    def test_what_waits_is_bounded(self) -> None:
        # Deltas of a call that is never announced must not fill the memory.
        turn = stream(max_output_bytes=1000)
        turn.feed(compact(text_turn()[0]))
        delta = {"type": "response.function_call_arguments.delta", "item_id": "f", "delta": "x" * 50}
        (failed,) = played([delta] * 100, turn)
        assert (failed["type"], failed["response"]["error"]["code"]) == ("response.failed", "upstream_error")

    def test_finished_items_are_bounded(self) -> None:
        turn = stream(max_output_bytes=1000)
        played(text_turn()[:2], turn)
        event = {"type": "response.output_item.done", "output_index": 0, "item": _call("fc_1", "x" * 1000)}
        with pytest.raises(UpstreamError, match="1000 bytes"):
            turn.feed(compact(event))

    @pytest.mark.parametrize(
        ("kind", "part_event", "item_type"),
        [
            ("response.output_text.delta", "response.content_part.added", "message"),
            ("response.refusal.delta", "response.content_part.added", "message"),
            ("response.reasoning_text.delta", "response.content_part.added", "reasoning"),
            ("response.reasoning_summary_text.delta", "response.reasoning_summary_part.added", "reasoning"),
        ],
    )
    def test_text_of_an_unannounced_item_streams_at_once(self, kind: str, part_event: str, item_type: str) -> None:
        # open-responses-server sends no output_item events at all; its text must not wait for the end.
        frames = played([text_turn()[0], {"type": kind, "item_id": "i_1", "delta": "x"}], stream())
        assert [frame["type"] for frame in frames[1:]] == ["response.output_item.added", part_event, kind]
        assert (frames[1]["item"]["type"], frames[1]["item"]["id"]) == (item_type, "i_1")
        assert {frame["item_id"] for frame in frames[2:]} == {"i_1"}

    def test_a_part_tells_which_item_it_needs(self) -> None:
        part = {"type": "reasoning_text", "text": ""}
        frames = played(
            [text_turn()[0], {"type": "response.content_part.added", "item_id": "rs_1", "part": part}], stream()
        )
        assert frames[1]["item"] == {"id": "rs_1", "type": "reasoning", "summary": []}

    def test_deltas_and_a_bare_end_are_enough(self) -> None:
        # The smallest app: its text must be in the output, or the next turn's history lacks the answer.
        events: list[Event] = [
            {"type": "response.output_text.delta", "delta": "Hel"},
            {"type": "response.output_text.delta", "delta": "lo"},
            {"type": "response.completed", "response": {}},
        ]
        turn = stream()
        frames = played(events, turn)
        assert_legal(frames)
        (item,) = frames[-1]["response"]["output"]
        assert item["content"][0]["text"] == "Hello"
        assert (item["role"], item["status"]) == ("assistant", "completed")
        assert turn.end is not None
        assert (turn.end.response_id, turn.end.own_id, turn.end.usage) == (OURS, False, None)

    def test_an_item_that_comes_late_is_announced_once(self) -> None:
        events = text_turn()
        late = [*events[:2], events[4], events[2], *events[5:]]
        frames = played(late, stream())
        assert_legal(frames)

    def test_items_of_one_index_are_all_kept(self) -> None:
        # An app that numbers nothing (index 0 for all) must not lose a call from its chain.
        items = [_call("fc_1", "1"), _call("fc_2", "2")]
        events = [{"type": "response.output_item.done", "output_index": 0, "item": item} for item in items]
        turn = stream()
        played([text_turn()[0], *events, _completed([])], turn)
        assert turn.end is not None
        assert [json.loads(item)["id"] for item in turn.end.items] == ["fc_1", "fc_2"]

    def test_an_announced_item_keeps_the_kind_of_its_members(self) -> None:
        # tool_search_call has an object as arguments: an empty text there breaks typed clients.
        item = {
            "type": "tool_search_call",
            "id": "ts_1",
            "call_id": "c",
            "execution": "client",
            "arguments": {"q": "x"},
        }
        frames = played(
            [text_turn()[0], {"type": "response.output_item.done", "output_index": 0, "item": item}], stream()
        )
        assert frames[1]["item"] == item

    def test_annotations_and_hosted_calls_are_placed_too(self) -> None:
        # The reference gives item_id and output_index to these as well.
        item = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
        events: list[Event] = [
            {"type": "response.output_item.added", "item": item | {"status": "in_progress"}},
            {"type": "response.web_search_call.searching"},
            {"type": "response.output_item.done", "item": item},
            {
                "type": "response.output_text.annotation.added",
                "item_id": "msg_9",
                "annotation_index": 0,
                "annotation": {},
            },
        ]
        frames = played([text_turn()[0], *events], stream())
        assert frames[2] | {"item_id": "ws_1", "output_index": 0} == frames[2]
        assert frames[-1] | {"output_index": 1, "content_index": 0, "item_id": "msg_9"} == frames[-1]

    def test_numbers_rise_even_if_the_app_repeats_them(self) -> None:
        events = [event | {"sequence_number": 0} for event in text_turn()]
        assert [frame["sequence_number"] for frame in played(events, stream())] == list(range(len(events)))

    def test_a_number_inside_the_event_is_not_ours(self) -> None:
        # The first match of the name may be in an item; only the event's own number may change.
        event = {"type": "slug:x", "sequence_number": 0, "data": {"sequence_number": 0}}
        turn = stream()
        frames = [decoded(turn.feed(compact(event))[0]) for _ in range(2)]
        assert frames[1] == event | {"sequence_number": 1}

    @pytest.mark.parametrize("value", ["1", 1.0, True, {}, [1]])
    def test_a_number_that_is_none_counts_as_absent(self, value: Any) -> None:
        events = text_turn()
        events[3]["sequence_number"] = value
        assert played(events, stream()) == text_turn()

    def test_members_of_unknown_events_are_their_own(self) -> None:
        # An extension may use our names for other things; only what is ours is repaired.
        event = {"type": "slug:x", "item_id": {"a": 1}, "output_index": "x", "sequence_number": None}
        (frame,) = stream().feed(compact(event))
        assert decoded(frame) == event | {"sequence_number": 0}


def _says(frame: Event, said: Event) -> bool:
    return all(name in frame and frame[name] == value for name, value in said.items())


def _call(item_id: str, arguments: str) -> Event:
    call = {"type": "function_call", "id": item_id, "call_id": f"call_{item_id}", "name": "f"}
    return {**call, "arguments": arguments, "status": "completed"}


def _completed(output: list[Any], **members: Any) -> Event:
    return {
        "type": "response.completed",
        "response": {"id": "resp_1", "status": "completed", "output": output} | members,
    }


# -- terminal output ---------------------------------------------------------------------------------------------------


class TestTerminalOutput:
    def _merged(self, streamed: list[Event], snapshot: list[Event]) -> list[Event]:
        turn = stream()
        events = [
            {"type": "response.output_item.done", "output_index": i, "item": item} for i, item in enumerate(streamed)
        ]
        frames = played([text_turn()[0], *events, _completed(snapshot)], turn)
        assert turn.end is not None
        assert [json.loads(item) for item in turn.end.items] == frames[-1]["response"]["output"]
        output: list[Event] = frames[-1]["response"]["output"]
        return output

    def test_a_custom_call_survives_an_empty_output(self) -> None:
        # B097: else the tool output of the next turn answers a call that nobody knows.
        call = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "f", "input": "x"}
        assert self._merged([call], []) == [call]

    def test_a_poorer_item_of_the_same_id_loses(self) -> None:
        call = _call("fc_1", '{"a":1}')
        assert self._merged([call], [call | {"arguments": ""}]) == [call]

    def test_a_richer_item_wins(self) -> None:
        call = _call("fc_1", "{}")
        richer = call | {"extra": "x"}
        assert self._merged([call], [richer]) == [richer]

    def test_another_item_wins_though_it_is_shorter(self) -> None:
        assert self._merged([_call("fc_1", "long long")], [_call("fc_2", "")]) == [_call("fc_2", "")]

    def test_items_beyond_the_streamed_ones_are_kept(self) -> None:
        items = [_call("fc_1", "1"), _call("fc_2", "2")]
        assert self._merged(items[:1], items) == items

    def test_escapes_and_spaces_make_no_item_richer(self) -> None:
        # `json.dumps` in the one place and a compact encoder in the other: equal is equal, and the event stays as it is.
        item = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "é" * 50}]}
        done = json.dumps({"type": "response.output_item.done", "sequence_number": 2, "output_index": 0, "item": item})
        added = {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": item}
        end = compact(_completed([item], usage=None) | {"sequence_number": 3})
        frames = play([compact(text_turn()[0]), compact(added), done.encode(), end], stream())
        assert frames[-1] == end

    def test_numbers_beyond_all_ranges_can_be_compared(self) -> None:
        event = b'{"type":"response.output_item.done","output_index":0,"item":{"type":"x","id":"x","n":1e999}}'
        end = b'{"type":"response.completed","response":{"id":"resp_1","output":[{"type":"x","id":"x","n":1e99}]}}'
        frames = play([compact(text_turn()[0]), event, end], stream())
        assert b"1e999" in frames[-1]

    @pytest.mark.parametrize("output", ["x", {}, 5, None, "missing"])
    def test_an_output_that_is_no_list_is_set(self, output: Any) -> None:
        end = _completed([]) | {"response": {"id": "resp_1"} | ({} if output == "missing" else {"output": output})}
        frames = played([text_turn()[0], end], stream())
        assert frames[-1]["response"]["output"] == []

    @pytest.mark.parametrize("thing", [None, 5, "x", [1]])
    def test_what_is_no_item_fails_the_turn(self, thing: Any) -> None:
        # As history it would make every later request of the chain invalid.
        frames = played([text_turn()[0], _completed([thing])], stream())
        assert (frames[-1]["type"], frames[-1]["response"]["error"]["code"]) == ("response.failed", "upstream_error")
        done = {"type": "response.output_item.done", "output_index": 0, "item": thing}
        assert played([text_turn()[0], done], stream())[-1]["type"] == "response.failed"
        added = {"type": "response.output_item.added", "output_index": 0, "item": thing}
        assert played([text_turn()[0], added], stream())[-1]["type"] == "response.failed"

    def test_failed_keeps_what_was_finished(self) -> None:
        call = _call("fc_1", "1")
        failed = {"type": "response.failed", "response": {"id": "resp_1", "status": "failed", "error": {"code": "x"}}}
        done = {"type": "response.output_item.done", "output_index": 0, "item": call}
        frames = played([text_turn()[0], done, failed], stream())
        assert frames[-1]["response"]["output"] == [call]
        assert frames[-1]["response"]["error"] == {"code": "x"}

    @pytest.mark.parametrize("kind", ["response.completed", "response.incomplete", "response.failed"])
    def test_a_terminal_event_without_a_response_gets_one(self, kind: str) -> None:
        # B133: nothing is known but that it is over; the output is what was streamed, the usage is unknown.
        events = text_turn()
        turn = stream()
        frames = played([*events[:-1], {"type": kind}], turn)
        assert_legal(frames)
        response = frames[-1]["response"]
        assert response["status"] == kind.removeprefix("response.")
        assert response["output"] == events[-1]["response"]["output"]
        assert response["usage"] is None
        assert (response["error"] is None) == (kind != "response.failed")
        assert turn.end is not None
        assert turn.end.usage is None

    @pytest.mark.parametrize(("items", "base_at"), [([0], 0), ([1, 0], 1), ([0, 1], 0), ([0, 1, 0], 2), ([1], None)])
    def test_compaction_in_the_output_is_found(self, items: list[int], base_at: int | None) -> None:
        # Also as the first item, which is where the API puts it.
        output = [
            {"type": "compaction", "id": f"cmp_{i}", "encrypted_content": "x"} if item == 0 else _call(f"fc_{i}", "1")
            for i, item in enumerate(items)
        ]
        turn = stream()
        played([text_turn()[0], _completed(output)], turn)
        assert turn.end is not None
        assert turn.end.base_at == base_at


# -- ids ---------------------------------------------------------------------------------------------------------------


class TestIds:
    @pytest.mark.parametrize("value", [None, 5, "", {"a": 1}, "x" * 2049, "missing"])
    def test_an_id_that_is_none_becomes_ours_everywhere(self, value: Any) -> None:
        events = text_turn()
        for event in events:
            if "response" in event:
                event["response"]["id"] = value
                if value == "missing":
                    del event["response"]["id"]
        turn = stream()
        frames = played(events, turn)
        assert_legal(frames)
        assert frames[0]["response"]["id"] == OURS
        assert turn.end is not None
        assert not turn.end.own_id

    def test_441_characters_are_an_id(self) -> None:
        # LiteLLM's ids are that long.
        turn = stream()
        played(text_turn(response_id="x" * 441), turn)
        assert turn.end is not None
        assert (turn.end.response_id, turn.end.own_id) == ("x" * 441, True)

    def test_a_live_id_becomes_ours(self) -> None:
        # An app that calls all its responses "resp_1" must not overwrite the chain.
        turn = stream(is_live=lambda response_id: response_id == "resp_1")
        frames = played(text_turn(), turn)
        assert_legal(frames)
        assert frames[0]["response"]["id"] == OURS
        assert turn.end is not None
        assert not turn.end.own_id

    def test_the_first_id_holds(self) -> None:
        events = text_turn()
        events[1]["response"]["id"] = "resp_2"
        del events[-1]["response"]["id"]
        frames = played(events, stream())
        assert_legal(frames)
        assert {frame["response"]["id"] for frame in frames if "response" in frame} == {"resp_1"}

    def test_an_id_that_comes_after_our_own_was_told_is_replaced(self) -> None:
        events = text_turn()
        frames = played(events[2:], stream())
        assert_legal(frames)
        assert frames[-1]["response"]["id"] == OURS

    def test_our_own_id_is_not_the_apps(self) -> None:
        # A warm-up is answered with our id; in history mode "forward" the app must never be asked for it.
        turn = stream()
        played(text_turn(response_id=OURS), turn)
        assert turn.end is not None
        assert not turn.end.own_id


# -- response.created --------------------------------------------------------------------------------------------------


class TestCreated:
    def test_is_made_from_a_later_snapshot(self) -> None:
        events = text_turn()
        (created, *_) = played(events[-1:], stream())
        expected = events[-1]["response"] | {"status": "in_progress", "output": [], "usage": None, "completed_at": None}
        assert created == {"type": "response.created", "sequence_number": 0, "response": expected}

    def test_a_second_one_is_left_out(self) -> None:
        events = text_turn()
        frames = played([events[0], *events], stream())
        assert_legal(frames)

    def test_one_without_a_response_is_replaced(self) -> None:
        frames = played([{"type": "response.created"}, *text_turn()[1:]], stream(model="m"))
        assert_legal(frames)
        assert frames[0]["response"] | {"id": OURS, "model": "m", "status": "in_progress"} == frames[0]["response"]

    def test_in_progress_without_a_response_is_left_out(self) -> None:
        events = text_turn()
        frames = played([events[0], {"type": "response.in_progress"}, *events[2:]], stream())
        assert [frame["type"] for frame in frames] == [event["type"] for event in events if event != events[1]]

    def test_events_outside_a_response_may_come_before_it(self) -> None:
        # Codex's backend sends codex.rate_limits first: it is no part of the response.
        event = {"type": "codex.rate_limits", "sequence_number": 0, "plan": "pro"}
        frames = played([event, *text_turn()], stream(stream_id="a"))
        assert frames[0] == event | {"stream_id": "a"}
        assert_legal(frames, stream_id="a")

    def test_a_queued_response_begins_by_created(self) -> None:
        events = text_turn()
        queued = {"type": "response.queued", "response": events[0]["response"] | {"status": "queued"}}
        frames = played([queued, *events], stream())
        assert [frame["type"] for frame in frames[:3]] == [
            "response.created",
            "response.queued",
            "response.in_progress",
        ]
        assert frames[0]["response"]["status"] == "in_progress"


# -- lanes -------------------------------------------------------------------------------------------------------------


class TestLanes:
    @pytest.mark.parametrize("value", ["other", None, 5, {"a": 1}])
    def test_a_label_of_the_app_never_passes(self, value: Any) -> None:
        # It would put the events of one lane into another.
        events = [event | {"stream_id": value} for event in text_turn()]
        assert played(events, stream()) == text_turn()
        assert_legal(played(events, stream(stream_id="lane")), stream_id="lane")

    def test_errors_bear_the_label(self) -> None:
        assert decoded(stream(stream_id="lane").fail(UpstreamError("x")))["stream_id"] == "lane"


# -- errors ------------------------------------------------------------------------------------------------------------

_NESTED = {
    "type": "error",
    "error": {"type": "rate_limit_error", "code": "rate_limit_exceeded", "message": "Slow down."},
}
_FLAT = {"type": "error", "sequence_number": 2, "code": "rate_limit_exceeded", "message": "Slow down.", "param": None}
_STATUS_CODE = {"type": "error", "error": {"code": "429", "message": "Slow down."}}


class TestErrors:
    @pytest.mark.parametrize("event", [_NESTED, _FLAT, _STATUS_CODE], ids=["nested", "flat", "code is a status"])
    def test_before_created_is_one_error_frame(self, event: Event) -> None:
        (frame,) = played([event], stream())
        assert (frame["type"], frame["status"], frame["sequence_number"]) == ("error", 429, 0)
        assert (frame["error"]["code"], frame["error"]["message"]) == ("rate_limit_exceeded", "Slow down.")
        assert frame["error"]["type"] == "rate_limit_error"

    @pytest.mark.parametrize("event", [_NESTED, _FLAT, _STATUS_CODE], ids=["nested", "flat", "code is a status"])
    def test_after_created_is_one_failed_response(self, event: Event) -> None:
        frames = played([*text_turn()[:4], event], stream(previous_response_id="resp_0"))
        assert_legal(frames, previous_response_id="resp_0")
        response = frames[-1]["response"]
        assert (response["status"], response["error"]["code"]) == ("failed", "rate_limit_exceeded")
        assert response["error"]["message"] == "Slow down."

    def test_an_error_and_then_failed_is_closed_once(self) -> None:
        # fastresponses sends both: the second would end the turn after it.
        failed = {"type": "response.failed", "response": {"id": "resp_1", "error": {"code": "x"}}}
        frames = played([*text_turn()[:2], _NESTED, failed], stream())
        assert_legal(frames)

    def test_done_marker_after_an_error_hides_nothing(self) -> None:
        (frame,) = play([compact(_NESTED), b"[DONE]"], stream())
        assert decoded(frame)["error"]["code"] == "rate_limit_exceeded"

    @pytest.mark.parametrize("marker", [b"[DONE]", b" [DONE]\n"])
    def test_done_marker_is_no_event(self, marker: bytes) -> None:
        turn = stream()
        assert turn.feed(marker) == []
        assert turn.end is None

    def test_failed_of_the_app_keeps_its_code(self) -> None:
        # B042: clients decide by the code whether they try again.
        builder = ResponseBuilder({}, id_factory=counting_ids(), created_at=1)
        events = list(numbered([*builder.start(), *builder.fail("rate_limit_exceeded", "Slow down.")]))
        assert played(events, stream()) == events

    def test_fail_before_created(self) -> None:
        frame = decoded(stream().fail(UpstreamError("x", headers={"retry-after": "3"})))
        assert frame == {
            "type": "error",
            "status": 502,
            "sequence_number": 0,
            "headers": {"retry-after": "3"},
            "error": {
                "type": "server_error",
                "code": "upstream_error",
                "message": "x",
                "param": None,
                "headers": {"retry-after": "3"},
            },
        }

    def test_fail_after_created_keeps_the_real_id_and_the_finished_items(self) -> None:
        # B127: a truncated stream fails under its own id.
        events = text_turn()
        turn = stream()
        frames = played(events[:-1], turn)
        frames.append(decoded(turn.fail(UpstreamError("x"))))
        assert_legal(frames)
        response = frames[-1]["response"]
        assert response["id"] == "resp_1"
        assert response["error"] == {"code": "upstream_error", "message": "x"}
        assert response["output"] == events[-1]["response"]["output"]
        assert response["usage"] is None

    @pytest.mark.parametrize(
        "payload",
        [b"", b"{", b"[]", b"5", b"null", b'"x"', b"{}", b'{"type":5}', b'{"type":null}', b"<html>", b'{"type":"a"} x',
         b'{"type":"response.completed"', b'{"type":"error","error":{"n":1e999}}', b'{"type":"a","x":NaN}',
         b'{"type":"a","x":"\n"}', b'{"type":"a","x":' + b"[" * 100_000 + b"}"],
    )  # fmt: skip
    def test_what_is_no_event_fails_the_turn(self, payload: bytes) -> None:
        with pytest.raises(UpstreamError) as caught:
            stream().feed(payload)
        assert (caught.value.status, caught.value.code) == (502, "upstream_error")

    @pytest.mark.parametrize("kind", ["a\n", "a\n\ndata: {}", "", "a b", "x" * 129, "é", "a\u2028"])
    def test_a_type_that_is_no_token_fails_the_turn(self, kind: str) -> None:
        # B046: whoever writes the events out as lines again would let one event become two.
        with pytest.raises(UpstreamError, match="type"):
            stream().feed(compact({"type": kind}))

    def test_an_item_event_without_an_item_fails_the_turn(self) -> None:
        with pytest.raises(UpstreamError, match="without an item"):
            stream().feed(compact({"type": "response.output_item.done", "output_index": 0}))


# -- text --------------------------------------------------------------------------------------------------------------


def _delta(text: bytes) -> bytes:
    return b'{"type":"response.output_text.delta","sequence_number":5,"item_id":"msg_2","output_index":0,"content_index":0,"delta":"' + text + b'"}'  # fmt: skip


class TestText:
    def _passed(self, text: bytes) -> tuple[bytes, int]:
        turn = stream()
        play([compact(event) for event in text_turn()[:4]], turn)
        (frame,) = play([_delta(text)], turn)
        return frame, turn.repaired_surrogates

    @pytest.mark.parametrize(
        ("text", "mended"),
        [
            (rb"\ud800", "\ufffd"),
            (rb"a\udfffb", "a\ufffdb"),
            (rb"\uD83D", "\ufffd"),
            (rb"\ud83d\u0041", "\ufffdA"),
            (rb"\ud83d\ud83d\ude00", "\ufffd😀"),
            (rb"\ude00\ud83d", "\ufffd\ufffd"),
            (rb"\\\ud800", "\\\ufffd"),
            (rb"\\ud800\ud800", "\\ud800\ufffd"),
            (b"\xff", "\ufffd"),
            (b"\xc3", "\ufffd"),
            (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
        ],
    )
    def test_what_is_no_character_becomes_the_replacement_character(self, text: bytes, mended: str) -> None:
        # Codex's JSON parser ends the session at a lone surrogate; a text frame that is not UTF-8 ends the socket.
        frame, repaired = self._passed(text)
        assert decoded(frame)["delta"] == mended
        assert repaired == 1

    @pytest.mark.parametrize(
        "text", [rb"\ud83d\ude00", rb"\\ud800", rb"\\\\ud800", rb"\u00e9", "é😀".encode(), rb"\\\\"]
    )
    def test_proper_characters_stay_as_they_are(self, text: bytes) -> None:
        frame, repaired = self._passed(text)
        assert frame == _delta(text)
        assert repaired == 0

    @given(st.lists(st.sampled_from([r"\ud83d", r"\ude00", r"\\", r"\n", "a", "u", "é", r"\u0041"]), max_size=8))
    @example([r"\\", r"\ud83d", r"\ude00"])
    def test_equals_a_decoder_that_replaces_lone_surrogates(self, pieces: list[str]) -> None:
        text = "".join(pieces)
        expected = json.loads(f'"{text}"')
        expected = "".join("\ufffd" if 0xD800 <= ord(character) <= 0xDFFF else character for character in expected)
        frame, _ = self._passed(text.encode())
        assert decoded(frame)["delta"] == expected

    def test_finished_items_are_kept_mended(self) -> None:
        # The item is sent to the app again with the next turn.
        item = rb'{"type":"message","id":"m","content":[{"type":"output_text","text":"\ud800"}]}'
        turn = stream()
        play([b'{"type":"response.output_item.done","output_index":0,"item":' + item + b"}"], turn)
        play([b'{"type":"response.completed","response":{"id":"r","output":[' + item + b"]}}"], turn)
        assert turn.end is not None
        assert turn.end.items == [item.replace(rb"\ud800", rb"\ufffd")]
        assert turn.repaired_surrogates == 2


# -- complete_response -------------------------------------------------------------------------------------------------

_FILL = {"object": Raw(b'"response"'), "usage": Raw(b"null"), "tools": Raw(b"[]"), "store": Raw(b"false")}


class TestComplete:
    @pytest.mark.parametrize(
        ("kind", "status"),
        [
            ("response.created", "in_progress"),
            ("response.in_progress", "in_progress"),
            ("response.queued", "queued"),
            ("response.completed", "completed"),
            ("response.incomplete", "incomplete"),
            ("response.failed", "failed"),
        ],
    )
    def test_fills_what_is_missing_in_each_snapshot(self, kind: str, status: str) -> None:
        # The Open Responses suite stops at the first member that a response object lacks.
        frames = played([{"type": kind, "response": {"id": "resp_1", "store": True}}], stream(complete=_FILL))
        response = frames[-1]["response"]
        created_at = response.pop("created_at")
        assert type(created_at) is int
        assert response == {
            "id": "resp_1",
            "object": "response",
            "store": True,
            "status": status,
            "output": [],
            "usage": None,
            "tools": [],
        }

    def test_the_time_is_the_same_in_all_of_them(self) -> None:
        events = without(text_turn(), "response.created_at")
        frames = played(events, stream(complete=_FILL))
        assert len({frame["response"]["created_at"] for frame in frames if "response" in frame}) == 1

    def test_nothing_is_filled_unless_asked(self) -> None:
        event = {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1"}}
        assert stream().feed(compact(event)) == [compact(event)]

    def test_closing_frame_of_a_failure_is_complete_too(self) -> None:
        turn = stream(complete=_FILL)
        turn.feed(compact({"type": "response.created", "response": {"id": "resp_1"}}))
        assert decoded(turn.fail(UpstreamError("x")))["response"].keys() >= _FILL.keys()

    @pytest.mark.parametrize("status", ["in_progress", None, 5, "requires_action"])
    def test_a_status_that_the_app_gives_is_the_apps(self, status: Any) -> None:
        # Wrong is not missing; the type of the event says how the turn ended.
        end = _completed([], status=status) | {"sequence_number": 2}
        turn = stream()
        frames = played([*text_turn()[:2], end], turn)
        assert frames[-1] == end
        assert turn.end is not None
        assert turn.end.status == "completed"


# -- keep-alive --------------------------------------------------------------------------------------------------------


class TestKeepAlive:
    def test_nothing_before_created(self) -> None:
        # B051: an invented id would be a phantom response in the client.
        assert stream().keep_alive() is None

    def test_takes_a_number_and_the_others_move_up(self) -> None:
        turn = stream(stream_id="a")
        events = text_turn()
        frames = played(events[:3], turn)
        alive = turn.keep_alive()
        assert alive is not None
        frames += [decoded(alive), *played(events[3:], turn)]
        assert_legal(frames, stream_id="a")
        assert frames[3] == {"type": "ws_responses:keepalive", "sequence_number": 3, "stream_id": "a"}


def test_types_used_here_are_those_of_the_reference() -> None:
    # The checks above look at what `is_placed` names; the builder must not have moved on.
    kinds = {event["type"] for event in text_turn()}
    assert {kind for kind in kinds if is_placed(kind)} == {
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
    }
