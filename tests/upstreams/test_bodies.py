import json
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upstreams.wire import decoded
from ws_responses.errors import RequestTooLarge
from ws_responses.protocol.calls import START
from ws_responses.protocol.creates import parse_create
from ws_responses.protocol.frames import decode_members
from ws_responses.state.history import join_items
from ws_responses.state.node import Record, ResponseNode
from ws_responses.testing.strategies import items, texts
from ws_responses.upstreams.base import CurrentTurn
from ws_responses.upstreams.bodies import Bodies, History, Prepare
from ws_responses.validation import heads_of, starts_base

MODES: list[History] = ["replay", "forward", "turn"]
SPACED = b'{ "type" : "message","role":"user", "content":"a\\u00e9\\/" }'
"""An item as no encoder of ours would write it."""


def turn(frame: bytes | dict[str, Any], parent: ResponseNode | None = None) -> CurrentTurn:
    """Return the turn of a frame, as far as it is known when its body is built."""
    text = frame if isinstance(frame, bytes) else json.dumps({"type": "response.create", **frame}).encode()
    create = parse_create(decode_members(text), None, len(text))
    info = CurrentTurn("turn_1", create, "tenant", None)
    info.parent = parent
    info.base = starts_base(heads_of(create.items()))
    info.encoded_delta = join_items(create.items(), create.text_input)
    return info


def node(
    parts: Sequence[bytes], parent: ResponseNode | None = None, *, known: bool = False, base_at: int | None = None
) -> ResponseNode:
    """Return a node with these items, the first of them input; ``base_at`` is where its history begins."""
    whole = b",".join(parts)
    number = 1 if parent is None else int(parent.id[-1]) + 1
    record = Record(
        id=f"resp_{number}",
        parent_id=None if parent is None else parent.id,
        model="m",
        store=True,
        items=whole,
        output_at=len(parts[0]) + 1 if len(parts) > 1 else len(whole),
        history_at=0 if base_at is None else len(b",".join(parts[:base_at])) + (1 if base_at else 0),
        base=base_at is not None,
        calls=START,
        generated=True,
        status="completed",
        known_to_app=known,
    )
    return ResponseNode(record, parent, tenant="tenant")


def item(name: str) -> bytes:
    return b'{"type":"x", "name":"%b"}' % name.encode()


def built(info: CurrentTurn, mode: History = "replay", **options: Any) -> dict[str, Any]:
    return decoded(Bodies(mode, **options).build(info))


def names(body: dict[str, Any]) -> list[str]:
    return [one["name"] for one in body["input"]]


class TestInput:
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (b'"hi \\u00e9"', b'"hi \\u00e9"'),
            (b"[" + SPACED + b" ]", b"[" + SPACED + b"]"),
            (b"[ ]", b"[]"),
            (b"null", None),
            (None, None),
        ],
    )
    def test_of_a_first_turn_is_what_the_client_sent(
        self, mode: History, given: bytes | None, expected: bytes | None
    ) -> None:
        # A string stays a string: some apps take nothing else; absent stays absent: `prompt` may bring the input.
        frame = b'{"type":"response.create","model":"m"' + (b"" if given is None else b',"input":' + given) + b"}"
        body = Bodies(mode).build(turn(frame))
        assert (
            body == b'{"model":"m",' + (b"" if expected is None else b'"input":' + expected + b",") + b'"stream":true}'
        )

    def test_replay_joins_all_items_to_the_byte(self) -> None:
        parent = node([item("c"), SPACED], node([item("a"), item("b")]))
        frame = b'{"type":"response.create","previous_response_id":"resp_2","input":[' + item("d") + b"]}"
        expected = b",".join([item("a"), item("b"), item("c"), SPACED, item("d")])
        assert Bodies().build(turn(frame, parent)) == b'{"input":[' + expected + b'],"stream":true}'

    def test_a_later_string_becomes_a_message(self) -> None:
        frame = b'{"type":"response.create","previous_response_id":"resp_1","input":"\\u00e9\\/"}'
        expected = item("a") + b',{"type":"message","role":"user","content":"\\u00e9\\/"}'
        assert Bodies().build(turn(frame, node([item("a")]))) == b'{"input":[' + expected + b'],"stream":true}'

    @pytest.mark.parametrize("given", [{}, {"input": None}, {"input": []}])
    def test_nothing_new_on_top_of_a_history(self, given: dict[str, Any]) -> None:
        # Codex generates from a warm-up by an empty input.
        assert names(built(turn(given, node([item("a"), item("b")])))) == ["a", "b"]

    @given(st.lists(st.lists(items(bases=False), min_size=1, max_size=3), min_size=1, max_size=4), st.booleans())
    def test_replay_is_the_concatenation(self, turns: list[list[Any]], ensure_ascii: bool) -> None:
        written = [[json.dumps(one, ensure_ascii=ensure_ascii).encode() for one in items] for items in turns]
        parent = None
        for parts in written[:-1]:
            parent = node(parts, parent)
        frame = b'{"type":"response.create","input":[' + b",".join(written[-1]) + b"]}"
        body = Bodies().build(turn(frame, parent))
        assert body == b'{"input":[' + b",".join(chain.from_iterable(written)) + b'],"stream":true}'

    @given(texts())
    def test_any_text_makes_a_message(self, text: str) -> None:
        body = built(turn({"input": text}, node([item("a")])))
        assert body["input"][1] == {"type": "message", "role": "user", "content": text}


class TestModes:
    def test_replay_names_no_parent(self) -> None:
        # The app would join its own history to the whole one that it is given.
        assert "previous_response_id" not in built(
            turn({"previous_response_id": "resp_1"}, node([item("a")], known=True))
        )

    def test_turn_gives_the_delta_alone(self) -> None:
        body = built(turn({"previous_response_id": "resp_1", "input": "hi"}, node([item("a")], known=True)), "turn")
        assert body == {"input": "hi", "stream": True}

    def test_forward_names_what_the_app_stored(self) -> None:
        body = built(turn({"input": [{"type": "x", "name": "b"}]}, node([item("a")], known=True)), "forward")
        assert (body["previous_response_id"], names(body)) == ("resp_1", ["b"])

    def test_forward_goes_from_the_nearest_ancestor_that_the_app_knows(self) -> None:
        parent = node([item("a")], known=True)
        for name, known in (("b", True), ("c", False), ("d", False)):
            parent = node([item(name)], parent, known=known)
        body = built(turn({"input": [{"type": "x", "name": "e"}]}, parent), "forward")
        assert (body["previous_response_id"], names(body)) == ("resp_2", ["c", "d", "e"])

    def test_forward_replays_what_the_app_does_not_know(self) -> None:
        body = built(turn({"input": "hi"}, node([item("a")])), "forward")
        assert "previous_response_id" not in body
        assert len(body["input"]) == 2

    def test_forward_with_nothing_new(self) -> None:
        body = built(turn({"input": []}, node([item("a")], known=True)), "forward")
        assert body == {"previous_response_id": "resp_1", "input": [], "stream": True}
        body = built(turn({"input": "hi"}, node([item("a")], known=True)), "forward")
        assert body == {"previous_response_id": "resp_1", "input": "hi", "stream": True}

    def test_forward_asks_the_app_for_an_id_that_is_unknown_here(self) -> None:
        # Made over plain HTTP, or before a restart.
        body = built(turn({"previous_response_id": "resp_http", "input": "hi"}), "forward")
        assert body == {"previous_response_id": "resp_http", "input": "hi", "stream": True}

    @pytest.mark.parametrize("mode", MODES)
    def test_compaction_in_the_input_starts_anew(self, mode: History) -> None:
        # B111: nothing older comes back, neither as items nor by an id.
        given = [{"type": "compaction", "encrypted_content": "x", "name": "c"}, {"type": "x", "name": "d"}]
        body = built(turn({"previous_response_id": "resp_1", "input": given}, node([item("a")], known=True)), mode)
        assert names(body) == ["c", "d"]
        assert "previous_response_id" not in body

    def test_compaction_in_the_output_ends_the_history(self) -> None:
        old = node([item("a")], known=True)
        parent = node([item("b"), item("c"), item("d")], old, base_at=1)
        body = built(turn({"input": [{"type": "x", "name": "e"}]}, parent))
        assert names(body) == ["c", "d", "e"]
        body = built(turn({"input": [{"type": "x", "name": "e"}]}, parent), "forward")
        assert ("previous_response_id" in body, names(body)) == (False, ["c", "d", "e"])


class TestMembers:
    @pytest.mark.parametrize("mode", MODES)
    def test_of_the_socket_never_reach_the_app(self, mode: History) -> None:
        # B106: apps answer "unknown parameter", or run what was to be a warm-up.
        frame = {
            "stream_id": "a",
            "generate": True,
            "stream": False,
            "stream_options": {},
            "background": False,
            "model": "m",
        }
        assert built(turn(frame), mode) == {"model": "m", "stream": True}

    def test_others_pass_untouched_and_in_order(self) -> None:
        frame = (
            b'{"type":"response.create","z":1.50,"model":"m","a":{"b":[ 1 ]},"metadata":{"k":"\\u00e9"},"input":"x"}'
        )
        expected = b'{"z":1.50,"model":"m","a":{"b":[ 1 ]},"metadata":{"k":"\\u00e9"},"input":"x","stream":true}'
        assert Bodies().build(turn(frame)) == expected

    def test_of_duplicates_the_last_one_wins(self) -> None:
        frame = b'{"type":"response.create","model":"a","model":"b","input":"x"}'
        assert Bodies().build(turn(frame)) == b'{"model":"b","input":"x","stream":true}'

    def test_drop_fields(self) -> None:
        body = built(
            turn({"model": "m", "client_metadata": {}, "user": "u"}), drop_fields=("client_metadata", "nothing")
        )
        assert body == {"model": "m", "user": "u", "stream": True}

    @pytest.mark.parametrize("given", [{}, {"store": True}, {"store": None}, {"store": False}])
    def test_app_store_never(self, given: dict[str, Any]) -> None:
        # A replayed conversation would be saved again with every turn.
        assert built(turn(given), app_store="never") == {"store": False, "stream": True}

    @pytest.mark.parametrize("given", [{}, {"store": True}, {"store": None}, {"store": False}])
    def test_app_store_keep(self, given: dict[str, Any]) -> None:
        # B096: what must not be stored is not stored by the app either.
        assert built(turn(given)) == given | {"stream": True}


def _change(body: dict[str, Any], info: CurrentTurn) -> None:
    body["model"] = body["model"] + "!"
    body["added"] = info.id
    del body["user"]


def _replace(body: dict[str, Any], _: CurrentTurn) -> dict[str, Any]:
    return {"model": body["model"], "only": True}


def _rewrite_input(body: dict[str, Any], info: CurrentTurn) -> None:
    body["input"] = [json.loads(one) for one in info.history()] + ["and", *map(json.loads, info.delta)]


class TestPrepare:
    def _built(self, prepare: Prepare, mode: History = "replay") -> dict[str, Any]:
        frame = {"model": "m", "user": "u", "input": [{"type": "x", "name": "b"}]}
        return built(turn(frame, node([item("a")])), mode, prepare=prepare)

    def test_may_change_the_members(self) -> None:
        body = self._built(_change)
        assert (body["model"], body["added"], "user" in body, names(body)) == ("m!", "turn_1", False, ["a", "b"])

    def test_may_give_others(self) -> None:
        body = self._built(_replace)
        assert body.keys() == {"model", "only", "input", "stream"}

    @pytest.mark.parametrize("mode", MODES)
    def test_an_input_of_its_own_replaces_ours(self, mode: History) -> None:
        # Twice in the body, each reader would take another one.
        body = self._built(_rewrite_input, mode)
        assert body["input"] == [{"type": "x", "name": "a"}, "and", {"type": "x", "name": "b"}]

    def test_an_input_for_a_turn_that_has_none(self) -> None:
        def prepare(body: dict[str, Any], _: CurrentTurn) -> None:
            body["input"] = "given"

        assert built(turn({"model": "m"}), prepare=prepare) == {"model": "m", "input": "given", "stream": True}
        assert built(turn({"input": "sent"}), prepare=prepare) == {"input": "given", "stream": True}

    def test_sees_the_forwarded_id(self) -> None:
        def prepare(body: dict[str, Any], _: CurrentTurn) -> None:
            body["thread"] = body.pop("previous_response_id")

        body = built(turn({"input": []}, node([item("a")], known=True)), "forward", prepare=prepare)
        assert body == {"thread": "resp_1", "input": [], "stream": True}

    def test_comes_after_the_other_options(self) -> None:
        def prepare(body: dict[str, Any], _: CurrentTurn) -> None:
            assert body == {"store": False}

        built(turn({"user": "u"}), prepare=prepare, app_store="never", drop_fields=["user"])


class TestBound:
    @pytest.mark.parametrize(("beyond", "fits"), [(-1, True), (0, True), (1, False)])
    @pytest.mark.parametrize("with_history", [False, True])
    def test_is_exact(self, beyond: int, fits: bool, with_history: bool) -> None:
        # B028: the delta may fit where the rebuilt request does not.
        def info() -> CurrentTurn:
            return turn({"input": [{"type": "x", "name": "b"}]}, node([item("a")]) if with_history else None)

        limit = len(Bodies().build(info())) - beyond
        if fits:
            assert len(Bodies(max_bytes=limit).build(info())) == limit + beyond
            return
        with pytest.raises(RequestTooLarge) as caught:
            Bodies(max_bytes=limit).build(info())
        assert (caught.value.status, caught.value.code, caught.value.param) == (413, "request_too_large", "input")
        assert str(limit) in caught.value.message

    def test_holds_for_what_prepare_gives(self) -> None:
        def prepare(body: dict[str, Any], _: CurrentTurn) -> None:
            body["input"] = "x" * 1000

        with pytest.raises(RequestTooLarge):
            Bodies(max_bytes=1000, prepare=prepare).build(turn({"input": "hi"}))


def test_the_delta_belongs_to_whoever_asked_for_it() -> None:
    """It is split once for all: what a handler does with its list must not change what is judged or rendered."""
    info = turn({"input": [{"type": "message", "role": "user", "content": "a"}, {"type": "message", "content": "b"}]})
    given = info.delta
    given.clear()
    assert len(info.delta) == 2
    info.encoded_delta = b""
    assert info.delta == []
