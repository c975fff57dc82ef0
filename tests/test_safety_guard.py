"""The gate with its tasks, between an upstream and a turn: order, back-pressure, blocks, errors, and ends of all kinds."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tests.safety_room import (
    ABOUT,
    Scripted,
    Turn,
    blocking,
    builder,
    decoded,
    encoded,
    kinds,
    message_stream,
    options,
    snapshot_texts,
    texts_of,
)
from ws_responses.errors import StreamTruncated, UpstreamError
from ws_responses.safety import (
    ContentBlocked,
    Downstream,
    Guard,
    Judge,
    OutputGate,
    Piece,
    Safety,
    SafetyInput,
    SafetyState,
    TermClassifier,
    Verdict,
)
from ws_responses.testing import FakeClock, settle

Answer = Callable[[Downstream], Awaitable[None]]

PENDING = SafetyInput(stage="input", pieces=(Piece(text="the input"),), about=ABOUT)
BAD = "bad word"


class Line:
    """A guard between an upstream, which the test writes, and a turn."""

    def __init__(self, *classifiers: Any, pending: bool = False, **gate: Any) -> None:
        self.turn = Turn()
        self.gate = OutputGate(options(**gate), ABOUT, None if pending else SafetyState())
        judge = Judge(Safety(*classifiers), FakeClock())
        self.guard = Guard(judge, self.gate, self.turn, stop=self.turn.stop)
        self.pending = PENDING if pending else None
        self.raised: Exception | None = None
        self.over = False

    async def run(self, answer: Answer) -> None:
        try:
            await self.guard.run(answer, self.pending, SafetyState())
        except Exception as error:  # noqa: BLE001 - for the test to look at
            self.raised = error
        self.over = True

    @property
    def kinds(self) -> list[str]:
        return kinds(self.turn.payloads)


async def give(emit: Downstream, payload: bytes) -> None:
    await emit.event(payload)


def sending(stream: list[bytes], *, then: Exception | None = None, pause: bool = False) -> Answer:
    async def answer(emit: Downstream) -> None:
        for payload in stream:
            await emit.event(payload)
            if pause:
                await checkpoint()
        if then is not None:
            raise then

    return answer


STREAM = message_stream("One two three four five. ", deltas=8)
BAD_STREAM = message_stream(f"One two three {BAD} five. ", deltas=8)
CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "quick": lambda: TermClassifier([BAD]),
    "slow": lambda: Scripted(blocking(BAD)),
}


@pytest.mark.parametrize("speed", CLASSIFIERS)
@pytest.mark.parametrize("output", ["windows", "whole"])
async def test_a_good_answer_passes_as_it_is(speed: str, output: str) -> None:
    line = Line(CLASSIFIERS[speed](), output=output)
    await line.run(sending(STREAM))

    assert line.raised is None
    assert line.turn.payloads == STREAM
    assert line.guard.judgement is not None
    assert (line.guard.judgement.action, line.turn.stops) == ("allow", 0)
    assert line.gate.state is not None
    assert line.gate.state.tail == "One two three four five. "


@pytest.mark.parametrize("speed", CLASSIFIERS)
@pytest.mark.parametrize("output", ["windows", "whole"])
async def test_a_bad_answer_is_cut_off_and_its_upstream_ended(speed: str, output: str) -> None:
    line = Line(CLASSIFIERS[speed](), output=output)
    await line.run(sending(BAD_STREAM))

    assert line.raised is None
    assert line.kinds[-1] == "incomplete"
    response = decoded(line.turn.payloads)[-1]["response"]
    assert response["incomplete_details"] == {"reason": "content_filter"}
    assert "".join(snapshot_texts(response)) == texts_of(decoded(line.turn.payloads)).get((0, "output_text", 0), "")
    assert BAD not in json.dumps(decoded(line.turn.payloads))
    assert line.turn.stops == 1
    assert line.guard.judgement is not None
    assert line.guard.judgement.blocked


async def test_what_the_engine_gives_as_text_leaves_as_text() -> None:
    """Its deltas go past the repairs; given on as bytes they would be looked at again."""
    line = Line(TermClassifier([BAD]))

    async def answer(emit: Downstream) -> None:
        for payload, kind in zip(STREAM, kinds(STREAM), strict=True):
            await (emit.delta(payload.decode()) if kind == "output_text.delta" else emit.event(payload))

    await line.run(answer)
    assert [type(payload) for payload in line.turn.payloads] == [
        str if kind == "output_text.delta" else bytes for kind in kinds(STREAM)
    ]


# -- beside ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["windows", "off"])
async def test_inference_begins_at_once_and_its_output_waits_for_the_verdict(output: str) -> None:
    classifier = Scripted()
    classifier.gate = anyio.Event()
    line = Line(classifier, pending=True, output=output)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(line.run, sending(STREAM))
        await settle()
        assert (line.turn.payloads, classifier.texts) == ([], ["the input"])
        assert line.turn.lives == len(STREAM), "the turn must not be taken for a silent one"
        classifier.gate.set()
    assert line.turn.payloads == STREAM


async def test_a_blocked_input_ends_what_has_begun_beside_it() -> None:
    """The client is told the same as when the input is judged before."""
    classifier = Scripted(blocking("input"))
    classifier.gate = anyio.Event()
    line = Line(classifier, pending=True)
    stopped = anyio.Event()

    async def answer(emit: Downstream) -> None:
        emit.on_abort = stopped.set
        for payload in STREAM[:6]:
            await emit.event(payload)
        await stopped.wait()
        await emit.event(STREAM[6])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(line.run, answer)
        await settle()
        assert not stopped.is_set()
        classifier.gate.set()
    assert line.turn.payloads == []
    assert [type(error) for error in line.turn.errors] == [ContentBlocked]
    assert line.over


async def test_events_pass_freely_once_only_the_input_was_to_be_judged() -> None:
    line = Line(Scripted(), pending=True, output="off")

    async def answer(emit: Downstream) -> None:
        await emit.event(STREAM[0])
        await settle()
        assert line.gate.transparent
        for payload in STREAM[1:]:
            await emit.event(payload)

    await line.run(answer)
    assert line.turn.payloads == STREAM
    assert line.raised is None


# -- back-pressure ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocked_by", ["the classifier", "the client"])
async def test_the_upstream_is_paused_when_too_much_is_held(blocked_by: str) -> None:
    """Else a fast model and a slow classifier, or client, fill the memory."""
    classifier = Scripted()
    line = Line(classifier, max_held_bytes=5000)
    stream = message_stream("word " * 200, deltas=200)
    taken = 0
    go = anyio.Event()
    if blocked_by == "the client":
        line.turn.reading = go
    else:
        classifier.gate = go

    async def answer(emit: Downstream) -> None:
        nonlocal taken
        for payload in stream:
            await emit.event(payload)
            taken += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(line.run, answer)
        await settle()
        assert taken < 20
        assert line.gate.held_bytes < 5000 + 2000
        go.set()
    assert line.turn.payloads == stream
    assert taken == len(stream)


async def test_the_next_window_is_collected_while_one_is_judged() -> None:
    """Judged one by one, each window would cost the classifier's time."""
    classifier = Scripted()
    classifier.gate = anyio.Event()
    line = Line(classifier)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(line.run, sending(STREAM, pause=True))
        await settle()
        assert len(classifier.texts) == 1
        classifier.gate.set()
    assert len(classifier.texts) == 2
    assert "".join(classifier.texts) == "One two three four five. "


async def test_two_tasks_of_an_app_may_send_at_once() -> None:
    line = Line(Scripted(), max_held_bytes=1500)

    async def answer(emit: Downstream) -> None:
        async with anyio.create_task_group() as tasks:
            for payload in STREAM[:-1]:
                tasks.start_soon(give, emit, payload)
        await emit.event(STREAM[-1])

    await line.run(answer)
    assert sorted(map(bytes, line.turn.payloads)) == sorted(STREAM)  # type: ignore[arg-type]
    assert line.raised is None


# -- ends ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("speed", CLASSIFIERS)
async def test_an_error_of_the_upstream_comes_after_what_was_said_before_it(speed: str) -> None:
    line = Line(CLASSIFIERS[speed](), window_chars=1000)
    await line.run(sending(STREAM[:7], then=StreamTruncated()))

    assert line.turn.payloads == STREAM[:7]
    assert isinstance(line.raised, StreamTruncated)


@pytest.mark.parametrize("speed", CLASSIFIERS)
async def test_an_error_that_the_upstream_tells_comes_after_what_was_said_before_it(speed: str) -> None:
    """The wrapped app's own tasks may run on for long; the client must not wait for them."""
    line = Line(CLASSIFIERS[speed](), window_chars=1000)
    told: list[int] = []

    async def answer(emit: Downstream) -> None:
        for payload in STREAM[:7]:
            await emit.event(payload)
        await emit.fail(UpstreamError("it failed"))
        assert emit.ended
        await settle()
        told.append(len(line.turn.errors))
        await emit.event(STREAM[7])
        await emit.fail(UpstreamError("again"))

    await line.run(answer)
    assert line.turn.payloads == STREAM[:7]
    assert [error.message for error in line.turn.errors] == ["it failed"]
    assert told == [1]


@pytest.mark.parametrize("speed", CLASSIFIERS)
async def test_a_block_wins_over_an_error_that_comes_after_it(speed: str) -> None:
    line = Line(CLASSIFIERS[speed](), window_chars=1000)
    await line.run(sending(BAD_STREAM[:11], then=StreamTruncated()))
    assert (line.kinds[-1], line.raised, line.turn.errors) == ("incomplete", None, [])


@pytest.mark.parametrize("speed", CLASSIFIERS)
async def test_a_classifier_that_fails_closed_fails_the_turn(speed: str) -> None:
    def nonsense(_: str) -> Any:
        return None

    class Broken(Scripted):
        quick = speed == "quick"

    line = Line(Broken(nonsense))
    await line.run(sending(STREAM))
    assert [(error.status, error.code) for error in line.turn.errors] == [(503, "safety_unavailable")]
    assert texts_of(decoded(line.turn.payloads)) == {}
    assert line.turn.stops == 1


async def test_a_response_that_was_not_announced_is_closed_like_others() -> None:
    """The client's input was not at fault: it must not be told so. What is missing before the event, the repairs add."""
    line = Line(TermClassifier([BAD]))
    await line.run(sending([b'{"type":"response.output_text.done","output_index":0,"text":"bad word"}']))
    assert line.turn.errors == []
    (closing,) = decoded(line.turn.payloads)
    assert (closing["type"], closing["response"]["output"]) == ("response.incomplete", [])


async def test_output_that_is_too_large_fails_the_turn_and_ends_the_upstream() -> None:
    line = Line(TermClassifier([BAD]), max_output_bytes=10)
    await line.run(sending(STREAM))
    assert [error.code for error in line.turn.errors] == ["output_too_large"]
    assert line.turn.stops == 1
    assert line.raised is None


@pytest.mark.parametrize("speed", CLASSIFIERS)
async def test_a_turn_that_was_ended_from_outside_takes_no_more(speed: str) -> None:
    """By a limit, the operator, or because the client has gone."""
    line = Line(CLASSIFIERS[speed]())

    async def answer(emit: Downstream) -> None:
        await emit.event(STREAM[0])
        line.turn.gone = True
        assert emit.ended
        for payload in STREAM[1:]:
            await emit.event(payload)

    await line.run(answer)
    assert line.turn.payloads in ([], STREAM[:1])
    assert line.raised is None


async def test_cancellation_ends_the_upstream_and_the_classifier() -> None:
    classifier = Scripted()
    classifier.gate = anyio.Event()
    line = Line(classifier)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(line.run, sending(STREAM))
        await settle()
        tasks.cancel_scope.cancel()
    assert not line.over
    assert texts_of(decoded(line.turn.payloads)) == {}


async def test_what_runs_in_the_background_is_told_when_the_closing_event_is_out() -> None:
    """Until then the turn is ours: told before, the connection would leave a judged answer to itself when its client goes."""
    classifier = Scripted()
    classifier.gate = anyio.Event()
    line = Line(classifier)
    done = anyio.Event()
    told: list[bool] = []

    async def answer(emit: Downstream) -> None:
        for payload in STREAM:
            await emit.event(payload)
        emit.in_background = True
        await done.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(line.run, answer)
        await settle()
        told.append(line.turn.in_background)
        classifier.gate.set()
        await settle()
        told.append(line.turn.in_background)
        assert line.turn.payloads == STREAM
        done.set()
    assert told == [False, True]


async def test_nothing_comes_between_the_frames_of_an_event_that_is_on_its_way() -> None:
    """The turn may write an event in several frames: a closing event between them would leave a gap in the numbers."""
    writing = anyio.Event()

    class SlowTurn(Turn):
        async def event(self, payload: bytes, /) -> None:
            if json.loads(payload)["type"] == "response.in_progress":
                await writing.wait()
            await super().event(payload)

    line = Line(Scripted(blocking(BAD)))
    line.turn = SlowTurn()
    line.guard = Guard(Judge(Safety(Scripted(blocking(BAD))), FakeClock()), line.gate, line.turn, stop=line.turn.stop)

    async def answer(emit: Downstream) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(give, emit, BAD_STREAM[1])
            await settle()
            await emit.event(b'{"type":"response.output_text.done","output_index":0,"text":"bad word"}')

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(line.run, answer)
        await settle()
        assert line.kinds == []
        writing.set()
    assert line.kinds == ["in_progress", "incomplete"]


async def test_what_passed_leaves_before_the_next_window_is_judged() -> None:
    """A slow classifier would else hold up each window for the time of two."""
    classifier = Scripted()
    first, second = anyio.Event(), anyio.Event()
    classifier.gate = first
    line = Line(classifier)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(line.run, sending(STREAM, pause=True))
        await settle()
        classifier.gate = second
        first.set()
        await settle()
        assert len(classifier.texts) == 2
        sent = texts_of(decoded(line.turn.payloads))[0, "output_text", 0]
        assert classifier.texts[0].startswith(sent)
        assert sent
        second.set()


async def test_the_state_is_complete_before_the_last_event_leaves() -> None:
    """The turn commits its node when it gets that event."""
    states: list[SafetyState | None] = []
    line = Line(Scripted(lambda _: Verdict(state="seen")))

    class Committing(Turn):
        async def event(self, payload: bytes, /) -> None:
            await super().event(payload)
            if self.ended:
                states.append(line.gate.state)

    line.turn = Committing()
    line.guard = Guard(
        Judge(Safety(Scripted(lambda _: Verdict(state="seen"))), FakeClock()), line.gate, line.turn, stop=lambda: None
    )
    await line.run(sending(STREAM))
    assert states[0] is not None
    assert (states[0].tail, states[0].carried) == ("One two three four five. ", (("scripted", "seen"),))


async def test_an_upstream_that_never_waits_lets_others_run_after_its_end() -> None:
    line = Line(TermClassifier([BAD]))
    build = builder()
    stream = encoded([*build.start(), *build.complete()])
    ran = False

    async def other() -> None:
        nonlocal ran
        ran = True

    async def answer(emit: Downstream) -> None:
        async with anyio.create_task_group() as tasks:
            for payload in stream:
                await emit.event(payload)
            tasks.start_soon(other)
            for _ in range(32 * 64):
                await emit.event(stream[0])
            assert ran

    await line.run(answer)
    assert line.raised is None
