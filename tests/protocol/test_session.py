"""Single moves of a connection: lanes, queues, time limits, endings. The machine beside this file mixes them all."""

import ast
import json
import sys
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ws_responses
from ws_responses.errors import LocalProtocolError, Unavailable, UpstreamTimeout, WireError
from ws_responses.limits import Limits
from ws_responses.protocol.actions import (
    AbortTurn,
    Action,
    Actions,
    Close,
    DropTurn,
    KeepAlive,
    Send,
    StartTurn,
    TurnQueued,
)
from ws_responses.protocol.closing import legal_close
from ws_responses.protocol.life import Life
from ws_responses.protocol.phases import SESSION_TABLE, TURN_TABLE, SessionInput, SessionPhase, TurnInput, TurnPhase
from ws_responses.protocol.session import Session
from ws_responses.protocol.turns import Turn

NO_TIME = Limits(
    first_event_timeout_s=None,
    event_timeout_s=None,
    max_connection_age_s=None,
    idle_timeout_s=None,
    send_timeout_s=None,
)


def make_session(limits: Limits = NO_TIME, **options: Any) -> Session:
    ids = count()
    return Session(limits, now=0.0, turn_ids=lambda: f"turn_{next(ids)}", **options)


def limited(**limits: Any) -> Limits:
    defaults: dict[str, Any] = {
        "first_event_timeout_s": None,
        "event_timeout_s": None,
        "max_connection_age_s": None,
        "idle_timeout_s": None,
        "send_timeout_s": None,
    }
    return Limits(**{**defaults, **limits})


def create(session: Session, lane: str | None = None, now: float = 0.0, **members: Any) -> Actions:
    frame: dict[str, Any] = {"type": "response.create", "model": "m", **members}
    if lane is not None:
        frame["stream_id"] = lane
    return session.frame_received(json.dumps(frame), now)


def started(actions: Actions) -> Turn:
    (action,) = actions
    assert isinstance(action, StartTurn), action
    return action.turn


def queued(actions: Actions) -> Turn:
    (action,) = actions
    assert isinstance(action, TurnQueued), action
    return action.turn


def told(actions: Iterable[Action]) -> list[tuple[str, str | None]]:
    """Code and lane of each error frame."""
    frames = [json.loads(action.frame) for action in actions if isinstance(action, Send)]
    return [(frame["error"]["code"], frame.get("stream_id")) for frame in frames]


def kinds(actions: Iterable[Action]) -> list[str]:
    return [type(action).__name__ for action in actions]


def closed(actions: Iterable[Action]) -> list[tuple[int, str]]:
    return [(action.code, action.reason) for action in actions if isinstance(action, Close)]


class Watchdog:
    """Ticks when it was told to: what the upstream says meanwhile wakes nobody."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.wakes_at = session.next_deadline()

    def until(self, end: float) -> tuple[float, list[Action]]:
        """Run on to ``end``; return the time of the first tick that did something, and what."""
        while self.wakes_at <= end:
            now = self.wakes_at
            actions = self.session.tick(now)
            self.wakes_at = self.session.next_deadline()
            if actions:
                return now, list(actions)
            assert self.wakes_at > now, "the watchdog would spin"
        return end, []


# -- lanes and queues ----------------------------------------------------------------------------------------------------


def test_turns_of_a_lane_run_one_after_the_other_and_those_of_others_beside_them() -> None:
    """Protocol d.1: FIFO in a lane, concurrent across lanes; a second create is queued, not rejected."""
    session = make_session()
    first, other = started(create(session, "a")), started(create(session, "b"))
    second, third = queued(create(session, "a")), queued(create(session, "a"))
    assert not session.turn_ended(other, 1.0)
    assert started(session.turn_ended(first, 1.0)) is second
    assert started(session.turn_ended(second, 1.0)) is third


def test_the_17th_waits_and_the_oldest_waiting_starts_first() -> None:
    """Guide, multiplexing: 16 in flight, the default lane included; further creates are accepted."""
    session = make_session(limited())
    running = [started(create(session, lane)) for lane in [None, *map(str, range(15))]]
    late = [queued(create(session, lane)) for lane in ("x", "y")]
    assert started(session.turn_ended(running[3], 1.0)) is late[0]
    assert started(session.turn_ended(running[0], 1.0)) is late[1]


def test_a_lane_that_waits_does_not_hold_up_others() -> None:
    """The oldest create may wait for its own lane while a younger one on a free lane can run."""
    session = make_session(limited(max_running_turns=2))
    a, b = started(create(session, "a")), started(create(session, "b"))
    queued(create(session, "a"))
    younger = queued(create(session, "c"))
    assert started(session.turn_ended(b, 1.0)) is younger
    assert started(session.turn_ended(a, 1.0)).lane.name == "a"


@pytest.mark.parametrize("max_lanes", [1, 2, 32])
def test_lane_names_count_for_life(max_lanes: int) -> None:
    """Protocol d.1: 32 distinct names; a lane that has ended frees none; the default lane is none of them."""
    session = make_session(limited(max_lanes=max_lanes))
    for number in range(max_lanes):
        session.turn_ended(started(create(session, str(number))), 1.0)
    assert told(create(session, "one_more")) == [("websocket_stream_limit_reached", "one_more")]
    for lane in (None, "0", str(max_lanes - 1)):
        session.turn_ended(started(create(session, lane)), 1.0)


def test_a_create_that_the_queue_refuses_uses_up_no_lane_name() -> None:
    """Names are few and never come back: a client that is told to try again must be able to."""
    session = make_session(limited(max_lanes=2, max_running_turns=1, max_queued_creates=0))
    turn = started(create(session, "a"))
    for name in ("b", "c", "d"):
        assert told(create(session, name)) == [("websocket_queue_full", name)]
    session.turn_ended(turn, 1.0)
    started(create(session, "d"))


@pytest.mark.parametrize("bound", [0, 1, 64])
def test_the_queue_is_bounded_in_number(bound: int) -> None:
    """n - 1 and n wait, the next one is told 429; what waits is not disturbed."""
    session = make_session(limited(max_queued_creates=bound))
    first = started(create(session))
    waiting = [queued(create(session)) for _ in range(bound)]
    assert told(create(session)) == [("websocket_queue_full", None)]
    assert told(create(session, None)) == [("websocket_queue_full", None)]
    started(create(session, "free"))
    actions = session.turn_ended(first, 1.0)
    assert [started(actions)] == waiting[:1] if waiting else not actions


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_the_queue_is_bounded_in_bytes(over: int) -> None:
    """The sum may reach the limit, not exceed it; bytes, not characters."""
    frame = '{"type":"response.create","input":"€€€"}'
    size = len(frame.encode())
    session = make_session(limited(max_queued_bytes=2 * size - over))
    started(session.frame_received(frame, 0.0))
    queued(session.frame_received(frame, 0.0))
    actions = session.frame_received(frame, 0.0)
    if over > 0:
        assert told(actions) == [("websocket_queue_full", None)]
    else:
        queued(actions)


def test_an_error_of_the_queue_is_a_429() -> None:
    """Clients retry a 429; another status would make them give up."""
    session = make_session(limited(max_queued_creates=0))
    started(create(session, "s"))
    (action,) = create(session, "s")
    assert isinstance(action, Send)
    frame = json.loads(action.frame)
    assert (frame["status"], frame["error"]["type"], frame["stream_id"]) == (429, "rate_limit_error", "s")


# -- time ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "between"), [(20.0, 20.0), (20.0, 1.0), (2.0, 20.0), (None, 3.0), (7.7, None)])
@pytest.mark.parametrize("heard_at", [None, 0.0, 1.3, 1.9])
def test_a_silent_upstream_is_aborted_in_time(
    first: float | None, between: float | None, heard_at: float | None
) -> None:
    """Rule 10: first event, between events. Never early; at most a quarter of the span late, also of a short one."""
    session = make_session(limited(first_event_timeout_s=first, event_timeout_s=between))
    turn = started(create(session))
    watchdog = Watchdog(session)
    patience, since = first, 0.0
    if heard_at is not None:
        assert not watchdog.until(heard_at)[1]
        turn.heard += 1
        patience, since = between, heard_at
    at, actions = watchdog.until(1000.0)
    if patience is None:
        assert not actions
        return
    (action,) = actions
    assert isinstance(action, AbortTurn)
    assert isinstance(action.error, UpstreamTimeout)
    assert action.error.status == 504
    assert since + patience <= at <= since + patience * 1.25 + 1e-9


def test_signs_of_life_keep_a_turn() -> None:
    """Comments count as life; only silence is an offence."""
    session = make_session(limited(first_event_timeout_s=10.0, event_timeout_s=10.0))
    turn = started(create(session))
    watchdog = Watchdog(session)
    for second in range(1, 100, 7):
        turn.heard += 1
        assert not watchdog.until(float(second))[1]


@pytest.mark.parametrize("limit", [5.0, 0.1])
def test_a_blocked_write_stops_the_upstreams_clock_and_has_its_own_limit(limit: float) -> None:
    """A client that reads slowly is not the app's fault (B072); one that reads nothing is closed with 1008."""
    session = make_session(limited(event_timeout_s=1.0, first_event_timeout_s=1.0, send_timeout_s=limit))
    turn = started(create(session))
    since = 0.7
    for step in range(1, 100):
        now = since + limit * step / 100
        assert not session.tick(now, since), now
    actions = session.tick(since + limit, since)
    assert kinds(actions) == ["AbortTurn", "Close"]
    assert closed(actions) == [(1008, "client does not read")]
    assert actions[0] == AbortTurn(turn, None)


def test_after_a_blocked_write_the_upstreams_time_begins_anew() -> None:
    """It must not be aborted at once for a silence that was ours."""
    session = make_session(limited(event_timeout_s=10.0, first_event_timeout_s=10.0))
    started(create(session))
    session.tick(100.0, 0.5)
    at, actions = Watchdog(session).until(1000.0)
    assert at == 110.0
    assert kinds(actions) == ["AbortTurn"]


@pytest.mark.parametrize("lane", [None, "s"])
def test_keep_alive_in_silence(lane: str | None) -> None:
    """Each span of silence asks for one sign of life, and for none after an event."""
    session = make_session(keepalive_s=8.0)
    turn = started(create(session, lane))
    watchdog = Watchdog(session)
    assert watchdog.until(100.0) == (8.0, [KeepAlive(turn)])
    assert watchdog.until(100.0) == (16.0, [KeepAlive(turn)])
    watchdog.until(20.0)
    turn.heard += 1
    at, actions = watchdog.until(100.0)
    assert 28.0 <= at <= 30.0
    assert actions == [KeepAlive(turn)]


def test_keep_alive_does_not_count_as_life_of_the_upstream() -> None:
    """Ours says nothing about the app's."""
    session = make_session(limited(first_event_timeout_s=20.0), keepalive_s=8.0)
    started(create(session))
    session.tick(8.0)
    session.tick(16.0)
    assert kinds(session.tick(20.0)) == ["AbortTurn"]


def test_an_idle_connection_is_closed() -> None:
    """1001 with its reason; idle is the time after the last frame or turn."""
    session = make_session(limited(idle_timeout_s=10.0))
    assert session.next_deadline() == 10.0
    turn = started(create(session, now=6.0))
    assert not Watchdog(session).until(50.0)[1]
    session.turn_ended(turn, 50.0)
    assert not session.tick(59.9)
    assert not session.frame_received('{"type":"response.processed"}', 55.0)
    assert not session.tick(64.9)
    assert session.next_deadline() == 65.0
    assert closed(session.tick(65.0)) == [(1001, "idle")]


def test_after_a_close_nothing_is_wanted() -> None:
    """A deadline in the past would make the watchdog spin until the peer answers the close."""
    session = make_session(limited(idle_timeout_s=10.0, max_connection_age_s=5.0, age_grace_s=0.0))
    session.tick(5.0)
    assert session.phase is SessionPhase.CLOSING
    assert session.next_deadline() == float("inf")
    assert not session.tick(1000.0)
    assert not create(session, now=1000.0)
    session.peer_gone()
    assert session.next_deadline() == float("inf")


# -- age and drain -------------------------------------------------------------------------------------------------------

AGE = ("websocket_connection_limit_reached", None)


def test_an_old_idle_connection_is_told_and_closed() -> None:
    """Protocol e.3: the error precedes the close."""
    session = make_session(limited(max_connection_age_s=3600.0))
    assert session.next_deadline() == 3600.0
    assert not session.tick(3599.9)
    actions = session.tick(3600.0)
    assert kinds(actions) == ["Send", "Close"]
    assert told(actions) == [AGE]
    assert [code for code, _ in closed(actions)] == [1001]


def test_an_idle_client_that_listens_to_no_error_is_only_closed() -> None:
    """B062: an error frame out of the blue crashes some clients; ``age_notice=False`` spares them."""
    session = make_session(limited(max_connection_age_s=10.0), age_notice=False)
    assert kinds(session.tick(10.0)) == ["Close"]


def test_the_documented_text_of_the_age_limit() -> None:
    """Clients match it; 60 minutes is the default."""
    session = make_session(Limits(idle_timeout_s=None))
    (send, close) = session.tick(3600.0)
    assert isinstance(send, Send)
    assert json.loads(send.frame) == {
        "type": "error",
        "status": 400,
        "sequence_number": 0,
        "error": {
            "type": "invalid_request_error",
            "code": "websocket_connection_limit_reached",
            "message": "Responses websocket connection limit reached (60 minutes). Create a new websocket connection "
            "to continue.",
            "param": None,
        },
    }
    assert isinstance(close, Close)
    assert legal_close(close.code, close.reason) == (1001, close.reason)


def test_an_old_connection_lets_running_turns_end() -> None:
    """No new turns, a grace for running ones, then the notice and 1001."""
    session = make_session(limited(max_connection_age_s=100.0, age_grace_s=60.0))
    a, b = started(create(session, "a")), started(create(session, "b"))
    waiting = [queued(create(session, lane)) for lane in ("b", "a", "b")]
    actions = session.tick(100.0)
    assert kinds(actions) == ["DropTurn"] * 3
    assert [action.turn for action in actions if isinstance(action, DropTurn)] == waiting
    assert told(create(session, "a", now=120.0)) == [], "it would be taken for the end of the turn that runs"
    assert told(create(session, "c", now=120.0)) == [(AGE[0], "c")]
    assert told(session.turn_ended(a, 130.0)) == [(AGE[0], "a")] * 2
    assert told(create(session, "a", now=131.0)) == [(AGE[0], "a")]
    assert session.next_deadline() == 160.0
    assert not session.tick(159.0)
    actions = session.turn_ended(b, 159.5)
    assert kinds(actions) == ["Send", "Send", "Send", "Close"]
    assert told(actions) == [(AGE[0], "b"), (AGE[0], "b"), AGE]


@pytest.mark.parametrize("age_notice", [True, False])
def test_what_still_runs_after_the_grace_is_aborted(age_notice: bool) -> None:
    """The error goes to the running turns first, then the notice, then the close; the notice is due as a turn ran."""
    session = make_session(limited(max_connection_age_s=100.0, age_grace_s=60.0), age_notice=age_notice)
    turns = [started(create(session, lane)) for lane in ("a", "b")]
    session.tick(100.0)
    actions = session.tick(160.0)
    assert [
        (action.turn, action.error.code) for action in actions if isinstance(action, AbortTurn) and action.error
    ] == [(turn, AGE[0]) for turn in turns]
    assert not session.turn_ended(turns[0], 160.0)
    assert kinds(session.turn_ended(turns[1], 160.0)) == ["Send", "Close"]


def test_no_grace() -> None:
    """Zero is allowed, and means at once."""
    session = make_session(limited(max_connection_age_s=100.0, age_grace_s=0.0))
    turn = started(create(session))
    assert kinds(session.tick(100.0)) == ["AbortTurn"]
    assert kinds(session.turn_ended(turn, 100.0)) == ["Send", "Close"]


def drain(session: Session, now: float, grace_s: float = 60.0) -> Actions:
    return session.retire(now, error=Unavailable("restart"), close_code=1012, reason="service restart", grace_s=grace_s)


def test_drain_closes_an_idle_connection_with_1012() -> None:
    """Clients reconnect at 1012; there is nothing to tell."""
    assert drain(make_session(), 1.0) == (Close(1012, "service restart"),)


def test_drain_refuses_what_waits_and_lets_the_rest_end() -> None:
    """Each refusal names its lane, and comes behind the turn that runs there; the close comes after the last end."""
    session = make_session()
    turn = started(create(session, "a"))
    waiting = queued(create(session, "a"))
    actions = drain(session, 1.0)
    assert actions == (DropTurn(waiting),)
    assert not drain(session, 2.0)
    actions = session.turn_ended(turn, 3.0)
    assert told(actions) == [("server_is_overloaded", "a")]
    assert actions[1:] == (Close(1012, "service restart"),)


def test_what_waits_on_a_lane_where_nothing_runs_is_refused_at_once() -> None:
    """Nobody could take its error for the end of another turn, and its client goes elsewhere the sooner."""
    session = make_session(limited(max_running_turns=1))
    started(create(session, "a"))
    queued(create(session, "b"))
    assert told(drain(session, 1.0)) == [("server_is_overloaded", "b")]


def test_how_many_refusals_wait_is_bounded() -> None:
    """Beyond that they come at once: a client that floods is told so, and nothing is kept for it."""
    session = make_session(limited(max_queued_creates=2))
    turn = started(create(session))
    drain(session, 1.0)
    assert [told(create(session, now=2.0)) for _ in range(3)] == [[], [], [("server_is_overloaded", None)]]
    assert told(session.turn_ended(turn, 3.0)) == [("server_is_overloaded", None)] * 2


def test_refusals_that_wait_are_told_before_any_close() -> None:
    """The grace has passed, or the operator ends it: each create gets its one answer."""
    for how in ("grace", "close"):
        session = make_session()
        turn = started(create(session))
        queued(create(session))
        drain(session, 1.0)
        actions = list(session.tick(1000.0) if how == "grace" else session.close(1008, "x", error=Unavailable("x")))
        assert isinstance(actions[0], AbortTurn)
        actions += session.turn_ended(turn, 1000.0)
        assert told(actions) == [("server_is_overloaded", None)]
        assert isinstance(actions[-1], Close)


def test_a_drained_connection_does_not_also_age() -> None:
    """Its end is decided; a second retirement would extend it."""
    session = make_session(limited(max_connection_age_s=10.0))
    started(create(session))
    drain(session, 1.0, grace_s=100.0)
    assert not session.tick(50.0)
    assert session.next_deadline() == 101.0


def test_refusals_while_draining_hold_no_memory() -> None:
    """An exception object that is raised again and again keeps the frames of each time, and the data in them."""
    session = make_session()
    session.turn_ended(started(create(session)), 1.0)
    started(create(session, "a"))
    drain(session, 1.0)

    text = '{"type":"response.create","input":"' + "x" * 100 + '"}'
    held = sys.getrefcount(text)
    assert told(session.frame_received(text, 2.0)) == [("server_is_overloaded", None)]
    assert sys.getrefcount(text) == held


# -- closes --------------------------------------------------------------------------------------------------------------


def test_a_frame_above_the_limit_closes_with_1009_and_tells_all_other_turns() -> None:
    """B070: each turn gets its closing event before any close that we start."""
    session = make_session(limited(max_frame_bytes=100))
    running = [started(create(session, lane)) for lane in ("a", None)]
    queued(create(session, "a"))
    actions = session.frame_received("x" * 101, 1.0)
    assert kinds(actions) == ["AbortTurn", "AbortTurn", "DropTurn", "Send", "Close"]
    assert told(actions) == [("websocket_message_too_big", "a")]
    aborted = {action.turn: action.error for action in actions if isinstance(action, AbortTurn)}
    assert list(aborted) == running
    assert all(isinstance(error, WireError) and not error.ran for error in aborted.values())
    assert [code for code, _ in closed(actions)] == [1009]


def test_the_operators_close_tells_all_turns() -> None:
    """A revoked client learns why, on each lane."""
    session = make_session()
    turn = started(create(session, "a"))
    queued(create(session, "a"))
    error = Unavailable("gone")
    actions = session.close(1008, "policy", error=error)
    assert kinds(actions) == ["AbortTurn", "DropTurn", "Send", "Close"]
    assert actions[0] == AbortTurn(turn, error)
    assert not session.close(1008, "policy", error=error)


def test_a_client_that_leaves_is_told_nothing() -> None:
    """Everything stops; nothing starts."""
    session = make_session()
    turn = started(create(session, "a"))
    waiting = queued(create(session, "a"))
    assert list(session.peer_gone()) == [DropTurn(waiting), AbortTurn(turn, None)]
    assert not session.turn_ended(turn, 1.0)
    assert not create(session)
    assert not session.peer_gone()


@pytest.mark.parametrize(
    ("code", "legal"),
    [
        (1000, True),
        (1001, True),
        (1003, True),
        (1007, True),
        (1008, True),
        (1009, True),
        (1011, True),
        (1012, True),
        (1014, True),
        (3000, True),
        (4402, True),
        (4999, True),
        (0, False),
        (999, False),
        (1004, False),
        (1005, False),
        (1006, False),
        (1015, False),
        (2999, False),
        (5000, False),
    ],
)
def test_reserved_close_codes_become_1011(code: int, legal: bool) -> None:
    """RFC 6455, 7.4: servers raise or send garbage for them (B045)."""
    assert legal_close(code, "") == (code if legal else 1011, "")


@given(st.text(st.characters(), max_size=200))
def test_close_reasons_fit(reason: str) -> None:
    """At most 123 bytes of valid UTF-8, and the beginning of what was meant."""
    _, cut = legal_close(1000, reason)
    wanted = reason.encode("utf-8", "replace")
    assert len(cut.encode()) <= 123
    assert wanted.startswith(cut.encode())
    assert len(cut.encode()) > min(len(wanted), 123) - 4


# -- the contract with the shell -----------------------------------------------------------------------------------------


def test_the_tables_say_what_is_legal() -> None:
    """The docs' diagram is drawn from them: each phase has a row, nothing leaves the last one, all can be reached."""
    assert set(SESSION_TABLE) == set(SessionPhase)
    assert set(TURN_TABLE) == set(TurnPhase)
    assert SESSION_TABLE[SessionPhase.CLOSED] == {}
    assert TURN_TABLE[TurnPhase.ENDED] == {}
    assert {to for row in SESSION_TABLE.values() for to in row.values()} == set(SessionPhase) - {SessionPhase.OPEN}
    assert {to for row in TURN_TABLE.values() for to in row.values()} == set(TurnPhase) - {TurnPhase.QUEUED}


@pytest.mark.parametrize("phase", TurnPhase)
@pytest.mark.parametrize("stimulus", TurnInput)
def test_what_the_turn_table_lacks_is_a_bug_of_the_caller(phase: TurnPhase, stimulus: TurnInput) -> None:
    """It must be loud: a turn that ends twice would free another turn's lane."""
    turn = started(create(make_session()))
    turn.phase = phase
    if stimulus in TURN_TABLE[phase]:
        turn.move(stimulus)
        assert turn.phase is TURN_TABLE[phase][stimulus]
    else:
        with pytest.raises(LocalProtocolError):
            turn.move(stimulus)
        assert turn.phase is phase


@pytest.mark.parametrize("phase", SessionPhase)
@pytest.mark.parametrize("stimulus", SessionInput)
def test_what_the_session_table_lacks_is_a_bug_of_ours(phase: SessionPhase, stimulus: SessionInput) -> None:
    """The table is the one place that says what a connection may become."""
    life = Life(Limits(), 0.0)
    life.phase = phase
    if stimulus in SESSION_TABLE[phase]:
        life.move(stimulus)
        assert life.phase is SESSION_TABLE[phase][stimulus]
    else:
        with pytest.raises(LocalProtocolError):
            life.move(stimulus)
        assert life.phase is phase


def imports(module: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("room", ["protocol", "state"])
def test_the_core_needs_no_event_loop_no_clock_and_nothing_of_the_shell(room: str) -> None:
    """Sans-IO: what it imports it could use, and then a test with a fake clock would prove nothing."""
    ours = ("protocol.", "state.", "errors.", "limits.")
    for module in (Path(ws_responses.__file__).parent / room).glob("*.py"):
        for name in imports(module):
            root, _, rest = name.partition(".")
            assert root not in {"asyncio", "anyio", "trio", "time", "random", "secrets", "uuid", "threading"}, module
            assert root != "ws_responses" or rest.startswith(ours), (module, name)


class TestWithoutLanes:
    """The profile of Open Responses: one response in flight on a connection."""

    def error_of(self, actions: Actions) -> dict[str, Any]:
        (action,) = actions
        assert isinstance(action, Send)
        frame: dict[str, Any] = json.loads(action.frame)
        return frame

    @pytest.mark.parametrize("name", ["main", "", "no good", None, 1])
    def test_any_stream_id_is_refused(self, name: Any) -> None:
        session = make_session(lanes=False)
        frame = self.error_of(create(session, stream_id=name))

        assert (frame["status"], frame["error"]["code"], frame["error"]["param"]) == (
            400,
            "invalid_stream_id",
            "stream_id",
        )
        assert "stream_id" not in frame
        assert (set(session.lanes.by_name), session.running) == (set(), [])

    def test_a_wrapped_create_is_no_way_round(self) -> None:
        session = make_session(lanes=False, accept_wrapped=True)
        for frame in (
            {"type": "response.create", "response": {"model": "m", "stream_id": "main"}},
            {"type": "response.create", "stream_id": "main", "response": {"model": "m"}},
        ):
            error = self.error_of(session.frame_received(json.dumps(frame), 0.0))
            assert error["error"]["code"] == "invalid_stream_id"

    def test_creates_run_one_at_a_time_in_order(self) -> None:
        session = make_session(lanes=False)
        first = started(create(session))
        second, third = queued(create(session)), queued(create(session))

        assert started(session.turn_ended(first, 1.0)) is second
        assert session.running == [second]
        assert started(session.turn_ended(second, 2.0)) is third

    def test_lanes_are_served_by_default(self) -> None:
        assert started(create(make_session(), "main")).lane.name == "main"
