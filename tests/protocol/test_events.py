"""Frames are read as the protocol says, byte-exact, and nothing that a peer sends raises anything but its own refusal."""

import json
import tracemalloc
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.protocol.reference import Create, Ignored, Injecting, Refusal, Steering, read_frame
from ws_responses.errors import InvalidRequest, MalformedFrame, WireError
from ws_responses.limits import Limits
from ws_responses.protocol import events
from ws_responses.protocol.actions import Actions, Close, Send, StartTurn
from ws_responses.protocol.creates import ResponseCreate, parse_create
from ws_responses.protocol.events import encode_error
from ws_responses.protocol.frames import decode_members, lane_of
from ws_responses.protocol.phases import SessionPhase
from ws_responses.protocol.session import Session
from ws_responses.testing.strategies import client_frames, json_values

GOOD = '{"type":"response.create","model":"m","input":"hi"}'
DEEP = "[" * 100_000 + "]" * 100_000  # the decoder gives up at 1000 levels on Python 3.11, at 10,000 on 3.13


def make_session(limits: Limits | None = None, *, accept_wrapped: bool = False) -> Session:
    ids = iter(range(1_000_000))
    return Session(limits or Limits(), now=0.0, turn_ids=lambda: f"turn_{next(ids)}", accept_wrapped=accept_wrapped)


def parsed(frame: str | bytes) -> ResponseCreate:
    members = decode_members(frame)
    return parse_create(members, lane_of(members), len(frame))


def started(actions: Actions) -> ResponseCreate:
    (action,) = actions
    assert isinstance(action, StartTurn), action
    return action.turn.create


def refusal(actions: Actions) -> Refusal:
    (action,) = actions
    assert isinstance(action, Send), action
    frame = json.loads(action.frame)
    return Refusal(frame["error"]["code"], frame["error"]["param"], frame.get("stream_id"))


def values(create: ResponseCreate) -> dict[str, Any]:
    return {name: json.loads(bytes(raw)) for name, raw in create.body.items()}


def given_input(create: ResponseCreate) -> Any:
    if create.text_input is not None:
        return json.loads(bytes(create.text_input))
    return [json.loads(bytes(item)) for item in create.items()] if create.has_input else None


# -- what a frame means --------------------------------------------------------------------------------------------------


@given(client_frames())
@example("[" * 5000)
@example('{"type":"response.create","temperature":1e999}')
@example('{"type":"response.create","top_p":-1E+400}')
@example('{"type":"response.create","stream_id":"a","model":7}')
def test_a_frame_means_what_the_protocol_says(frame: str) -> None:
    """A frame read differently is answered by the wrong error, runs the wrong turn, or on the wrong lane."""
    expected = read_frame(frame)
    actions = make_session().frame_received(frame, 1.0)
    if isinstance(expected, Ignored):
        assert actions == ()
    elif isinstance(expected, Create):
        create = started(actions)
        assert expected == Create(
            lane=create.lane,
            previous_response_id=create.previous_response_id,
            warm_up=create.warm_up,
            store=create.store,
            model=create.model,
            input=given_input(create),
            body=values(create),
        )
        assert list(expected.body) == list(create.body)
    elif isinstance(expected, Steering):
        (action,) = actions
        assert isinstance(action, Send)
        told = json.loads(action.frame)
        assert told["error"]["code"] == ("response_not_found" if expected.good else "invalid_input")
        assert told["steer"] == {"previous_response_id": expected.target, "input": expected.input}
    elif isinstance(expected, Injecting):
        (action,) = actions
        assert isinstance(action, Send)
        told = json.loads(action.frame)
        assert told["type"] == "response.inject.failed"
        assert told["error"].keys() == {"code", "message"}
        assert told["error"]["code"] == "response_not_found"
        assert (told["response_id"], told["input"]) == (expected.target, expected.input)
    elif frame.strip(" \t\r\n").startswith("{"):
        assert refusal(actions) == expected
    else:  # what is no object need not be read to its end
        assert refusal(actions) in (Refusal("invalid_json"), Refusal("invalid_request"))


@given(st.one_of(st.text(), st.binary(), client_frames().map(str.encode), client_frames(), st.text().map(json.dumps)))
@example(b"\xed\xa0\x80")
@example("\ud800")
@example('{"type":"response.create","model":"\ud800"}')
@example('{"type":"\\ud800"}')
@example('{"type":"response.create","stream_id":"\\udfff"}')
@example('{"\\ud800":1}')
@example(b'{"type":"response.create","input":"\xff"}')
def test_garbage_is_one_error_frame(frame: str | bytes) -> None:
    """An exception here ends the reader, and with it the connection of an innocent lane."""
    session = make_session()
    assert len(session.frame_received(frame, 1.0)) <= 1
    assert session.phase is SessionPhase.OPEN
    started(session.frame_received(GOOD.replace("hi", "again").replace("}", ',"stream_id":"other"}'), 2.0))


@given(st.one_of(st.text(), st.binary(), client_frames()))
@example("\ud800")
@example('{"a":"\ud800"}')
def test_garbage_is_a_malformed_frame(frame: str | bytes) -> None:
    """Callers of the decoder catch wire errors only."""
    with suppress(MalformedFrame):
        decode_members(frame)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("", "invalid_json"),
        ("  \n", "invalid_json"),
        ("\ufeff" + GOOD, "invalid_json"),
        ("{", "invalid_json"),
        (GOOD + "x", "invalid_json"),
        ('{"type":"response.create","input":NaN}', "invalid_json"),
        ('{"type":"response.create","input":[Infinity]}', "invalid_json"),
        ('{"type":"response.create","input":-Infinity}', "invalid_json"),
        ('{"type":"response.create","temperature":1e999}', "invalid_request"),
        ('{"type":"response.create","input":"\\ud83d"}', "invalid_json"),
        ('{"type":"response.create","input":"\\ude00\\ud83d"}', "invalid_json"),
        (DEEP, "invalid_request"),
        ('{"type":"response.create","input":' + DEEP + "}", "invalid_json"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "invalid_json"),
        ("[]", "invalid_request"),
        ("null", "invalid_request"),
        ("7", "invalid_request"),
        ('"response.create"', "invalid_request"),
        ("{}", "unknown_event_type"),
        ('{"type":7}', "unknown_event_type"),
        ('{"type":null}', "unknown_event_type"),
        ('{"type":"response.creat"}', "unknown_event_type"),
        ('{"type":"response.cancel"}', "unknown_event_type"),
        ('{"type":"response.append","input":[]}', "unknown_event_type"),
        ('{"type":"response.create","response":{"model":"m"}}', "invalid_request"),
        ('{"type":"response.create","background":true}', "invalid_request"),
        ('{"type":"response.create","previous_response_id":"r","conversation":"c"}', "invalid_request"),
        (b"\xff\xfe", "invalid_json"),
        (b'{"type":"response.create","input":"\xff"}', "invalid_json"),
        (b'{"type":"response.create","input":"\xed\xa0\x80"}', "invalid_json"),
    ],
)
def test_each_bad_frame_is_a_400_and_the_next_one_is_served(frame: str | bytes, code: str) -> None:
    """One odd frame must not hang, close or crash the connection (and silence would make the client wait for ever)."""
    session = make_session()
    (action,) = session.frame_received(frame, 1.0)
    assert isinstance(action, Send)
    told = json.loads(action.frame)
    assert (told["type"], told["status"], told["error"]["code"]) == ("error", 400, code)
    started(session.frame_received(GOOD, 2.0))


def test_binary_frames_are_taken_if_they_are_json() -> None:
    """Some proxies and clients send JSON in binary frames."""
    assert values(started(make_session().frame_received(GOOD.encode(), 1.0))) == {"model": "m"}


@pytest.mark.parametrize("frame", ['{"type":"response.processed","response_id":"r"}', b'{"type":"response.processed"}'])
def test_an_acknowledgement_changes_nothing(frame: str | bytes) -> None:
    """Codex drops the whole session if its acknowledgement is answered by an error."""
    session = make_session()
    assert session.frame_received(frame, 1.0) == ()
    assert session.frame_received('{"type":"response.processed","stream_id":"no name!"}', 1.0) == ()
    assert list(session.lanes.by_name) == []


@pytest.mark.parametrize(
    "name", ['""', '"' + "x" * 257 + '"', '"a b"', "7", "null", '"\\u00e9"', '"a\\n"', "true", "[]"]
)
def test_bad_stream_ids_are_not_echoed(name: str) -> None:
    """A client that gets its bad name back on a frame files it under a lane that does not exist."""
    frame = f'{{"type":"response.create","model":"m","stream_id":{name}}}'
    assert refusal(make_session().frame_received(frame, 1.0)) == Refusal("invalid_stream_id", "stream_id")


@pytest.mark.parametrize("name", ["a", "x" * 256, "A-Z_0.9", "-", "...", "0"])
def test_good_stream_ids_name_their_lane(name: str) -> None:
    """The alphabet and the length are the guide's."""
    frame = json.dumps({"type": "response.create", "stream_id": name})
    assert started(make_session().frame_received(frame, 1.0)).lane == name


# -- byte-exactness ------------------------------------------------------------------------------------------------------

BLANKS = st.sampled_from(["", "", " ", "\n", " \t\r\n"])


@st.composite
def spelled(draw: st.DrawFn) -> tuple[list[tuple[str, str]], str]:
    """Draw an object as (name, spelling of its value) pairs, names not distinct, and its text."""
    names = st.one_of(st.text(max_size=6), st.sampled_from(["model", "metadata", "x", "tools"]))
    pairs = []
    for name in draw(st.lists(names, max_size=6)):
        value = draw(json_values())
        spelling = json.dumps(
            value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])), allow_nan=False
        )
        if isinstance(value, float) and draw(st.booleans()):
            spelling = f"{value:.17e}"
        pairs.append((name, spelling))
    between = draw(BLANKS)
    members = [
        between + json.dumps(name, ensure_ascii=draw(st.booleans())) + draw(BLANKS) + ":" + draw(BLANKS) + spelling
        for name, spelling in pairs
    ]
    return pairs, "{" + ("," + between).join(members) + between + "}"


@given(spelled(), st.booleans())
def test_members_are_kept_byte_exact_and_in_order_and_the_last_of_equals_wins(
    drawn: tuple[list[tuple[str, str]], str], binary: bool
) -> None:
    """What the decoder changes is a field that the app gets wrong, and a prompt cache that misses."""
    pairs, text = drawn
    members = decode_members(text.encode() if binary else text)
    assert {name: bytes(raw).decode() for name, raw in members.items()} == dict(pairs)
    assert list(members) == list(dict(pairs))


def test_duplicate_keys_of_the_socket_count_as_the_last_says() -> None:
    """The rule must be the app's own (json.loads: last wins), or the two see different requests."""
    create = parsed(
        '{"type":"x","model":"a","stream_id":"","generate":false,"input":"no","type":"response.create","model":"b",'
        '"stream_id":"s","generate":true,"input":["yes"],"previous_response_id":"r","previous_response_id":null}'
    )
    assert (create.model, create.lane, create.warm_up, create.previous_response_id) == ("b", "s", False, None)
    assert given_input(create) == ["yes"]
    assert values(create) == {"model": "b"}


def test_fields_of_the_socket_stay_here_and_all_others_reach_the_app() -> None:
    """Apps refuse unknown parameters such as ``generate``; clients rely on their own (Codex: client_metadata)."""
    frame = {
        "type": "response.create",
        "stream_id": "s",
        "generate": True,
        "stream": True,
        "stream_options": {"include_obfuscation": False},
        "background": False,
        "previous_response_id": "r",
        "input": [],
        "model": "m",
        "store": False,
        "client_metadata": {"a": "b"},
        "prompt_cache_key": "k",
        "made_up": [1, {"x": None}],
    }
    assert values(parsed(json.dumps(frame))) == {
        "model": "m",
        "store": False,
        "client_metadata": {"a": "b"},
        "prompt_cache_key": "k",
        "made_up": [1, {"x": None}],
    }


@given(st.lists(json_values(), max_size=4))
def test_items_are_split_byte_exact(drawn: list[Any]) -> None:
    """An item that changes on its way misses every cache keyed by its bytes."""
    spellings = [json.dumps(item, indent=2, ensure_ascii=False) for item in drawn]
    create = parsed('{"input": [ ' + " , ".join(spellings) + " ] }")
    assert [bytes(item).decode() for item in create.items()] == spellings
    assert create.has_input


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("{}", (False, None)),
        ('{"input":null}', (False, None)),
        ('{"input":[]}', (True, [])),
        ('{"input":""}', (True, "")),
        ('{"input" : "a\\u0062" }', (True, "ab")),
    ],
)
def test_input_may_be_absent_empty_or_a_string(frame: str, expected: tuple[bool, Any]) -> None:
    """Codex sends an empty list after its warm-up; that is not an absent input."""
    create = parsed(frame)
    assert (create.has_input, given_input(create)) == expected


@pytest.mark.parametrize(
    ("frame", "warm_up"),
    [
        ("{}", False),
        ('{"generate":true}', False),
        ('{"generate":null}', False),
        ('{"generate":false}', True),
        ('{"prompt_cache_options":{"prewarm":true}}', True),
        ('{"generate":true,"prompt_cache_options":{"prewarm":true}}', True),
        ('{"prompt_cache_options":{"prewarm":false}}', False),
        ('{"prompt_cache_options":{"mode":"explicit"}}', False),
        ('{"prompt_cache_options":null}', False),
        ('{"prompt_cache_options":7}', False),
    ],
)
def test_warm_ups(frame: str, warm_up: bool) -> None:
    """A warm-up that is not seen runs and is billed; prewarm overrides generate."""
    assert parsed(frame).warm_up is warm_up


def test_prewarm_reaches_the_app() -> None:
    """``prompt_cache_options`` is a field of the request, not of the socket."""
    assert values(parsed('{"prompt_cache_options":{"prewarm":false}}')) == {"prompt_cache_options": {"prewarm": False}}


@pytest.mark.parametrize(("length", "good"), [(2047, True), (2048, True), (2049, False), (1 << 20, False)])
def test_long_response_ids(length: int, good: bool) -> None:
    """Some gateways' ids have hundreds of characters; megabytes would be echoed in errors and kept."""
    frame = json.dumps({"type": "response.create", "previous_response_id": "r" * length})
    actions = make_session().frame_received(frame, 1.0)
    if good:
        assert started(actions).previous_response_id == "r" * length
    else:
        assert refusal(actions) == Refusal("invalid_request", "previous_response_id")


@pytest.mark.parametrize("nothing", ['""', "null"])
def test_an_empty_parent_is_none(nothing: str) -> None:
    """Clients that fill a struct send the empty string for what they do not have."""
    assert parsed(f'{{"previous_response_id":{nothing}}}').previous_response_id is None


@pytest.mark.parametrize(("store", "stored"), [("true", True), ("null", True), ("false", False)])
def test_store_is_true_unless_it_says_otherwise(store: str, stored: bool) -> None:
    """The API's default."""
    assert parsed(f'{{"store":{store}}}').stored is stored
    assert parsed("{}").stored


@pytest.mark.parametrize("number", ["1e308", "-1.7976931348623157e308", "1" * 300, "1e-999", "0", "-0.0"])
def test_numbers_within_range_pass_as_they_are(number: str) -> None:
    """Only what no double can hold is refused."""
    assert bytes(parsed(f'{{"temperature":{number}}}').body["temperature"]) == number.encode()


@pytest.mark.parametrize(("members", "good"), [(1023, True), (1024, True), (1025, False)])
def test_the_number_of_members_is_bounded(members: int, good: bool) -> None:
    """Half a million tiny ones would take twenty times their bytes while the create waits."""
    frame = {"type": "response.create", **{str(number): 1 for number in range(members - 1)}}
    actions = make_session().frame_received(json.dumps(frame), 1.0)
    if good:
        assert len(started(actions).body) == members - 1
    else:
        assert refusal(actions) == Refusal("invalid_request")


def test_a_waiting_create_takes_not_much_more_than_its_bytes() -> None:
    """The bound of the queue is one of memory: many tiny items must not take thirty times what it says."""
    text = '{"type":"response.create","input":[' + "1," * 100_000 + "1]}"
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    create = parsed(text)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert used < len(text) / 10
    assert len(create.items()) == 100_001


# -- wrapped frames ------------------------------------------------------------------------------------------------------


def test_wrapped_frames_are_taken_if_asked_for() -> None:
    """LiteLLM's clients send the Realtime form."""
    frame = '{"type":"response.create","response":{"model":"m","input":[{"role":"user","content":"x"}],"store":false}}'
    create = started(make_session(accept_wrapped=True).frame_received(frame, 1.0))
    assert (create.model, create.store, values(create)) == ("m", False, {"model": "m", "store": False})
    assert given_input(create) == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    "frame",
    [
        '{"type":"response.create","stream_id":"s","generate":false,"response":{"model":"m"}}',
        '{"type":"response.create","response":{"model":"m","stream_id":"s","generate":false,"type":"x"}}',
    ],
)
def test_fields_of_the_socket_count_inside_and_beside_a_wrapped_request(frame: str) -> None:
    """A ``stream_id`` that is dropped in silence puts the turn on another lane than the client waits on."""
    create = started(make_session(accept_wrapped=True).frame_received(frame, 1.0))
    assert (create.lane, create.warm_up, values(create)) == ("s", True, {"model": "m"})


def test_a_bad_stream_id_inside_a_wrapped_request_is_refused() -> None:
    """It is judged like one beside it."""
    frame = '{"type":"response.create","response":{"model":"m","stream_id":""}}'
    actions = make_session(accept_wrapped=True).frame_received(frame, 1.0)
    assert refusal(actions) == Refusal("invalid_stream_id", "stream_id")


@pytest.mark.parametrize(
    ("frame", "param"),
    [
        ('{"type":"response.create","model":"m","response":{"model":"m"}}', "model"),
        ('{"type":"response.create","input":"a","response":{}}', "input"),
        ('{"type":"response.create","response":7}', "response"),
        ('{"type":"response.create","response":null}', "response"),
        ('{"type":"response.create","response":[]}', "response"),
    ],
)
def test_frames_of_both_shapes_are_refused(frame: str, param: str) -> None:
    """Which of two models runs must not depend on who reads the frame."""
    assert refusal(make_session(accept_wrapped=True).frame_received(frame, 1.0)) == Refusal("invalid_request", param)


# -- sizes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filler", ["a", "é", "€", "𝄞"])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("over", [-1, 0, 1])
def test_the_frame_limit_counts_bytes(filler: str, binary: bool, over: int) -> None:
    """A limit that counts characters is four times too wide for some texts; one that rounds refuses what is promised."""
    prefix = '{"type":"response.create","input":"'
    text = prefix + filler * 1000 + '"}'
    session = make_session(Limits(max_frame_bytes=len(text.encode()) - over))
    actions = session.frame_received(text.encode() if binary else text, 1.0)
    if over > 0:
        assert [type(action) for action in actions] == [Close]
        assert isinstance(actions[0], Close)
        assert actions[0].code == 1009
    else:
        started(actions)


def test_the_size_of_a_create_is_its_bytes() -> None:
    """The bound of queued bytes adds these up."""
    text = GOOD.replace("hi", "𝄞" * 10)
    assert started(make_session().frame_received(text, 1.0)).size == len(text.encode())


# -- error frames --------------------------------------------------------------------------------------------------------

ERROR_FRAME: dict[str, Any] = {
    "type": "error",
    "status": 400,
    "sequence_number": 0,
    "error": {"type": "invalid_request_error", "code": "invalid_request", "message": "m", "param": "input[0]"},
}


def told(error: WireError, **options: Any) -> dict[str, Any]:
    frame: dict[str, Any] = json.loads(encode_error(error, **options))
    return frame


def test_error_frames_have_what_each_client_needs() -> None:
    """Codex ignores a frame without status, the AI SDK one without sequence_number, pydantic-ai a flat one."""
    assert told(InvalidRequest("m", param="input[0]")) == ERROR_FRAME


def test_error_frames_name_their_lane() -> None:
    """Without it a client of several lanes cannot tell whose turn failed; on the default lane the key is absent."""
    assert told(InvalidRequest("m", param="input[0]"), stream_id="s") == {**ERROR_FRAME, "stream_id": "s"}


def test_headers_are_where_each_client_looks() -> None:
    """Codex and opencode read them on top, pydantic-ai inside."""
    frame = told(WireError("m", headers={"retry-after": "1"}))
    assert frame["headers"] == frame["error"]["headers"] == {"retry-after": "1"}


def test_an_apps_own_members_are_kept_but_do_not_replace_ours() -> None:
    """``plan_type`` and its like are read by clients; a null code would break the strict ones."""
    frame = told(WireError("m", code="c", extra={"plan_type": "pro", "code": None, "message": "x"}))
    assert frame["error"] == {"plan_type": "pro", "type": "server_error", "code": "c", "message": "m", "param": None}


@given(st.text(max_size=200))
def test_unknown_types_are_named_in_short(kind: str) -> None:
    """The message helps to find the typo; a megabyte of it would not."""
    error = events.not_an_event(kind)
    assert error.param == "type"
    assert len(error.message) < 800
    msgspec.json.decode(encode_error(error))


def test_messages_do_not_repeat_long_input() -> None:
    """A refusal must cost less than what provoked it."""
    huge = "x" * 100_000
    for frame in (
        json.dumps({"type": huge}),
        json.dumps({"type": "response.create", "model": 7, huge: 1}),
        json.dumps({"type": "response.create", "stream_id": huge}),
        json.dumps({"type": "response.create", "previous_response_id": huge}),
        json.dumps({"type": "response.create", "response": {}, huge: 1}),
        f'{{"type":"response.create","{huge}":1e999}}',
    ):
        (action,) = make_session(accept_wrapped=True).frame_received(frame, 1.0)
        assert isinstance(action, Send)
        assert len(action.frame) < 1000
