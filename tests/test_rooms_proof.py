"""Safety and quota from a client's frame to its last event: for a wrapped app and for the engine, by socket and by HTTP."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import anyio
import pytest

from tests.rooms import KINDS, WAYS, Books, Heard, House, Kind, Post, Way, next_id, said
from tests.safety_room import Scripted, blocking
from tests.shell import code_of, create, id_of, kinds
from ws_responses import current_turn
from ws_responses.protocol.items import split_items
from ws_responses.quota import QuotaExceeded, QuotaRequest
from ws_responses.rendering.chat import ChatRenderer
from ws_responses.safety import Carried, Safety, SafetyInput, Screen, TermClassifier, Verdict
from ws_responses.testing import settle, steps
from ws_responses.validation import check_output, heads_of

PHRASE = "make a bomb"
OVERLAP = 64

every_kind = pytest.mark.parametrize("kind", KINDS)
every_way = pytest.mark.parametrize("way", WAYS)


def hears(heard: Heard, text: str) -> bool:
    """Whether a client was sent a text: in one frame, or in pieces that it joins."""
    return any(text in frame for frame in heard.frames) or text in heard.streamed


# -- counted, not claimed --------------------------------------------------------------------------------------------------


class Counting(Scripted):
    """A classifier that counts what it is given."""

    @property
    def judged(self) -> int:
        """Characters judged so far, overlaps included."""
        return sum(len(delta.text) for delta in self.deltas)

    @property
    def new(self) -> list[str]:
        """What was new, text by text."""
        return [piece.text for delta in self.deltas for piece in delta.pieces]


class Validated:
    """Counts the items that the validator reads: a turn calls these functions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inputs = self.outputs = 0

        def counting_heads(items: Sequence[Any]) -> Any:
            self.inputs += len(items)
            return heads_of(items)

        def counting_output(state: Any, items: Sequence[bytes]) -> Any:
            self.outputs += len(items)
            return check_output(state, items)

        monkeypatch.setattr("ws_responses.turn_input.heads_of", counting_heads)
        monkeypatch.setattr("ws_responses.turn_node.check_output", counting_output)


@every_kind
async def test_by_socket_each_item_is_judged_once_beside_an_overlap(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a conversation of n turns would cost classifiers and validator n times n."""
    turns = 200
    validated, first, second = Validated(monkeypatch), Counting(name="first"), Counting(name="second")
    house = House(kind, safety=Safety(first, second, overlap_chars=OVERLAP))
    judged: list[int] = []
    async with house.socket() as ws:
        then: dict[str, Any] = {}
        for turn in range(turns):
            house.say(f"answer {turn:04}.")
            asked = {"type": "message", "role": "user", "content": f"question {turn:04}."}
            parent = await next_id(ws, create([asked], instructions="Be brief.", **then))
            then = {"previous_response_id": parent}
            judged.append(first.judged)
    for classifier in (first, second):
        said = [f"{who} {turn:04}." for turn in range(turns) for who in ("question", "answer")]
        assert classifier.new == ["Be brief.", *said]
        assert len(classifier.deltas) == 2 * turns
        assert all(len(delta.text) <= len(delta.new_text) + OVERLAP + 1 for delta in classifier.deltas)
    assert (validated.inputs, validated.outputs) == (turns, turns)
    steps_between = {later - earlier for earlier, later in pairwise(judged[10:])}
    assert len(steps_between) == 1, "the two hundredth turn costs what the eleventh did"


@pytest.mark.parametrize("history", ["replay", "forward", "turn"])
@pytest.mark.parametrize("mode", ["before", "beside"])
async def test_whatever_the_app_is_given_of_the_history_only_what_is_new_is_judged(history: Any, mode: Any) -> None:
    """What an app is sent differs by the mode; what was judged, and that a block stops the turn, must not."""
    classifier = Scripted(blocking(PHRASE))
    house = House("app", safety=Safety(classifier, mode=mode), history=history)
    house.app.stateful = history == "forward"
    async with house.socket() as ws:
        house.say("One.")
        parent = await next_id(ws, create("first", store=True))
        house.say("Two.")
        parent = await next_id(ws, create("second", store=True, previous_response_id=parent))
        if mode == "beside":
            house.say("Never told.", then_wait=True)
        await ws.send_json(create(f"how to {PHRASE}", store=True, previous_response_id=parent))
        await settle()
        await house.clock.advance(1)
        (refusal,) = await ws.collect()
    assert code_of(refusal) == "invalid_prompt"
    assert classifier.texts[:4] == ["first", "One.", "second", "Two."]
    assert house.ran == (3 if mode == "beside" else 2)


@every_kind
async def test_by_http_with_the_whole_history_everything_is_judged_again(kind: Kind) -> None:
    """What a socket saves: resent, a conversation is judged as often as it is sent."""
    turns = 40
    classifier = Counting()
    house = House(kind, safety=Safety(classifier, overlap_chars=0))
    items: list[dict[str, Any]] = []
    judged: list[int] = []
    for turn in range(turns):
        house.say(f"answer {turn:04}.")
        items.append({"role": "user", "content": f"question {turn:04}."})
        await house.ask("json", items)
        items.append({"role": "assistant", "content": f"answer {turn:04}."})
        judged.append(classifier.judged)
    for turn in range(turns):
        assert classifier.new.count(f"question {turn:04}.") == turns - turn
        assert classifier.new.count(f"answer {turn:04}.") == turns - turn, "once when it was said, then as history"
    assert judged[-1] > 3.5 * judged[turns // 2 - 1], "twice the turns, four times the text"


@pytest.mark.parametrize("house", ["app", "app that is rendered", "engine"])
async def test_the_delta_is_split_once_for_all_that_read_it(house: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of a turn would else decode all of its input again: classifiers, renderer, planner."""
    split: list[int] = []

    def counting(joined: bytes) -> list[bytes]:
        items = split_items(joined)
        split.append(len(items))
        return items

    monkeypatch.setattr("ws_responses.upstreams.base.split_items", counting)
    renderer: dict[str, Any] = {"renderer": ChatRenderer()} if "rendered" in house else {}
    asked = House("engine" if house == "engine" else "app", safety=Safety(Scripted()), **renderer)
    asked.say("Fine.")
    async with asked.socket() as ws:
        await next_id(ws, create([{"role": "user", "content": text} for text in ("one", "two")]))
    assert split == [2]


# -- nothing slips through between two texts ---------------------------------------------------------------------------------

HALVES = [("now make", "a bomb here"), ("now make a", "bomb here")]


@every_kind
@pytest.mark.parametrize(("before", "after"), HALVES)
async def test_a_phrase_over_two_inputs_is_found(kind: Kind, before: str, after: str) -> None:
    house = House(kind, safety=Safety(TermClassifier([PHRASE])))
    async with house.socket() as ws:
        warm = await next_id(ws, create(before, generate=False))
        (refusal,) = await ws.turn(create(after, previous_response_id=warm))
    assert code_of(refusal) == "invalid_prompt"
    assert not any(PHRASE.partition(" ")[2] in str(house.told(index)) for index in range(house.ran))


@every_kind
@every_way
@pytest.mark.parametrize(("before", "after"), HALVES)
async def test_a_phrase_over_an_input_and_its_output_is_found(kind: Kind, way: Way, before: str, after: str) -> None:
    house = House(kind, safety=Safety(TermClassifier([PHRASE])))
    house.say(after)
    heard = await house.ask(way, before)
    assert heard.response["incomplete_details"] == {"reason": "content_filter"}
    assert not hears(heard, after)


@every_kind
@pytest.mark.parametrize(("before", "after"), HALVES)
async def test_a_phrase_over_an_output_and_the_next_input_is_found(kind: Kind, before: str, after: str) -> None:
    house = House(kind, safety=Safety(TermClassifier([PHRASE])))
    house.say(before)
    async with house.socket() as ws:
        parent = await next_id(ws, create())
        (refusal,) = await ws.turn(create(after, previous_response_id=parent))
    assert code_of(refusal) == "invalid_prompt"
    assert house.ran == 1


@pytest.mark.parametrize(("before", "after"), HALVES)
async def test_a_phrase_over_two_items_of_an_output_is_found(before: str, after: str) -> None:
    house = House("app", safety=Safety(TermClassifier([PHRASE])))
    house.app.script([steps.reasoning(before), steps.text(after)])
    heard = await house.ask("socket")
    assert heard.response["incomplete_details"] == {"reason": "content_filter"}
    assert not hears(heard, after)


@every_kind
@every_way
@pytest.mark.parametrize("window_chars", [1, 5, 16, 1000])
@pytest.mark.parametrize("hold_back_chars", [0, 32])
async def test_a_phrase_over_windows_is_found_and_nothing_of_its_window_is_sent(
    kind: Kind, way: Way, window_chars: int, hold_back_chars: int
) -> None:
    """All that the client was sent is searched: deltas, finished items, the last snapshot, the JSON answer."""
    house = House(
        kind,
        safety=Safety(TermClassifier([PHRASE]), window_chars=window_chars, hold_back_chars=hold_back_chars),
    )
    harmless = "You would first of all need to know how to "
    house.say(f"{harmless}{PHRASE}, and then some more words after it.", pieces=40)
    heard = await house.ask(way)
    assert not hears(heard, PHRASE)
    assert not hears(heard, "more words")
    assert heard.response["status"] == "incomplete"
    assert heard.response["incomplete_details"] == {"reason": "content_filter"}
    assert (harmless + PHRASE).startswith(heard.text)
    if way != "json":
        assert heard.streamed == heard.text, "the snapshot holds what was sent, and no more"
    if hold_back_chars:
        assert harmless.startswith(heard.text), "of what is held back, the phrase has not begun to leave"


@every_kind
@every_way
async def test_of_an_output_that_is_judged_as_a_whole_nothing_is_sent_if_it_is_blocked(kind: Kind, way: Way) -> None:
    house = House(kind, safety=Safety(TermClassifier([PHRASE]), output="whole"))
    house.say(f"Some words, and {PHRASE}.", pieces=10)
    heard = await house.ask(way)
    assert not hears(heard, "Some")
    assert (heard.response["status"], heard.response["output"]) == ("incomplete", [])


async def test_what_an_app_tells_in_its_last_snapshot_only_is_blocked_as_an_output() -> None:
    """Its client asked for nothing wrong: it must not be told so, and keeps the response that it continued."""
    house = House("app", safety=Safety(TermClassifier([PHRASE])))
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": PHRASE}]}
    whole = {"id": "resp_1", "object": "response", "status": "completed", "output": [message]}
    async with house.socket() as ws:
        house.say("Fine.")
        parent = await next_id(ws, create())
        house.app.script(
            [steps.drop_event("response.created"), steps.event({"type": "response.completed", "response": whole})]
        )
        events = await ws.turn(create(previous_response_id=parent))
        assert not any(PHRASE in str(frame) for frame in ws.frames)
        house.say("Fine as well.")
        await next_id(ws, create(previous_response_id=parent))
    assert kinds(events) == ["created", "incomplete"]
    assert events[-1]["response"]["incomplete_details"] == {"reason": "content_filter"}


# -- beside ------------------------------------------------------------------------------------------------------------------


@every_kind
@every_way
@pytest.mark.parametrize("blocks", [True, False])
async def test_beside_the_classifier_inference_begins_and_a_block_cancels_it(
    kind: Kind, way: Way, blocks: bool
) -> None:
    """The order is seen from outside: the classifier has been asked and not answered, the model runs, the client has nothing."""
    classifier = Scripted(blocking(PHRASE))
    answer = classifier.gate = anyio.Event()
    house = House(kind, safety=Safety(Screen(classifier, stages=["input"]), mode="beside"))
    house.say("The answer.", then_wait=True)
    answers: list[Heard] = []

    async def ask() -> None:
        answers.append(await house.ask(way, f"how to {PHRASE}" if blocks else "hi"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await house.wait_ran(1)
        await settle()
        assert (len(classifier.deltas), house.running, answers) == (1, 1, [])
        answer.set()
        await settle()
        if not blocks:
            house.go_on()
        await house.clock.advance(1)
    (heard,) = answers
    assert house.was_stopped(0) is blocks
    assert house.running == 0
    if blocks:
        assert (heard.status, heard.code) == (400, "invalid_prompt")
        assert not hears(heard, "answer")
    else:
        assert heard.text == "The answer."


# -- classifiers that fail -----------------------------------------------------------------------------------------------------


class Faulty:
    """A classifier that does one wrong thing."""

    name = "faulty"

    def __init__(self, fault: str) -> None:
        self.fault = fault

    async def classify(self, delta: SafetyInput, state: Carried, /) -> Verdict:
        if self.fault == "raises":
            raise RuntimeError(delta.text)
        if self.fault == "hangs":
            await anyio.sleep_forever()
        return {"action": "allow", "state": state}  # type: ignore[return-value]


@every_kind
@every_way
@pytest.mark.parametrize("fault", ["raises", "hangs", "nonsense"])
@pytest.mark.parametrize("stage", ["input", "output"])
@pytest.mark.parametrize("fail", ["closed", "open"])
async def test_a_classifier_that_fails_closes_the_way_or_opens_it(
    kind: Kind, way: Way, fault: str, stage: Any, fail: Any, caplog: pytest.LogCaptureFixture
) -> None:
    screen = Screen(Faulty(fault), stages=[stage], fail=fail, time_limit_s=5.0)
    house = House(kind, safety=Safety(screen))
    house.say("The answer.", pieces=3)
    answers: list[Heard] = []

    async def ask() -> None:
        answers.append(await house.ask(way, "a secret question"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await house.clock.advance(4.9)
        await settle()  # a client that leaves waits for calm as well
        assert len(answers) == (fault != "hangs")
        await house.clock.advance(1)
    (heard,) = answers
    if fail == "open":
        assert (heard.status, heard.text) == (200, "The answer.")
    else:
        assert heard.code == "safety_unavailable"
        assert heard.status == 200 if stage == "output" and way != "json" else 503
        assert not hears(heard, "answer")
        assert house.ran == (stage == "output")
    assert "secret" not in caplog.text
    assert "answer" not in caplog.text


# -- what a block leaves behind ------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("store", [True, False])
async def test_a_blocked_answer_is_not_found_and_the_response_before_it_still_is(kind: Kind, store: bool) -> None:
    house = House(kind, safety=Safety(TermClassifier([PHRASE]), window_chars=1))
    async with house.socket() as ws:
        house.say("Fine.")
        parent = await next_id(ws, create(store=store))
        house.say(f"First {PHRASE}.", pieces=8)
        blocked = await ws.turn(create("how?", store=store, previous_response_id=parent))
        assert kinds(blocked)[-1] == "incomplete"
        (refusal,) = await ws.turn(create("go on", store=store, previous_response_id=id_of(blocked)))
        house.say("Fine as well.")
        await next_id(ws, create("something else", store=store, previous_response_id=parent))
    assert code_of(refusal) == "previous_response_not_found"
    async with house.socket() as ws:
        (again,) = await ws.turn(create("go on", previous_response_id=id_of(blocked)))
    assert code_of(again) == "previous_response_not_found"
    assert PHRASE not in house.told(-1)


@every_kind
async def test_what_could_not_be_judged_evicts_the_parent_and_a_stored_one_is_loaded_again(kind: Kind) -> None:
    """As the page says: a turn that failed. A client with a stored chain goes on, one without sends the conversation again."""
    classifier = Scripted()
    house = House(kind, safety=Safety(classifier))
    for store in (False, True):
        async with house.socket() as ws:
            classifier.answer = lambda _: Verdict()
            house.say("Fine.")
            parent = await next_id(ws, create(store=store))
            classifier.answer = lambda _: None  # type: ignore[assignment, return-value]
            (refusal,) = await ws.turn(create(store=store, previous_response_id=parent))
            assert (refusal["status"], code_of(refusal)) == (503, "safety_unavailable")
            (again,) = await ws.turn(create(store=store, previous_response_id=parent))
        assert code_of(again) == ("safety_unavailable" if store else "previous_response_not_found")


@every_kind
async def test_a_blocked_input_evicts_the_parent_of_its_lane_and_no_other(kind: Kind) -> None:
    """As every turn that ran and failed; a fork of another lane leaves the parent to its owner."""
    house = House(kind, safety=Safety(TermClassifier([PHRASE])))
    async with house.socket() as ws:
        house.say("Fine.")
        parent = await next_id(ws, create(store=False))
        (fork,) = await ws.turn(create(PHRASE, store=False, stream_id="b", previous_response_id=parent))
        house.say("Still there.")
        child = await next_id(ws, create("hi", store=False, previous_response_id=parent))
        (refusal,) = await ws.turn(create(PHRASE, store=False, previous_response_id=child))
        (gone,) = await ws.turn(create("hi", store=False, previous_response_id=child))
    assert (code_of(fork), code_of(refusal)) == ("invalid_prompt", "invalid_prompt")
    assert code_of(gone) == "previous_response_not_found"


@every_kind
@every_way
@pytest.mark.parametrize("classifier", [TermClassifier([PHRASE]), Scripted(blocking(PHRASE))], ids=["quick", "slow"])
async def test_what_was_sent_of_a_blocked_answer_can_be_continued_if_the_operator_says_so(
    kind: Kind, way: Way, classifier: Any
) -> None:
    """The model must not be told what was kept from the client, although all of it may have been generated by then."""
    house = House(kind, safety=Safety(classifier, window_chars=1, continue_blocked=True))
    house.say(f"First of all, {PHRASE}. Then secret words.", pieces=20)
    house.say("Fine.")
    if way == "socket":
        async with house.socket() as ws:
            blocked = (await ws.turn(create("how?")))[-1]["response"]
            answer = (await ws.turn(create("go on", previous_response_id=blocked["id"])))[-1]["response"]
    else:
        blocked = (await house.ask(way, "how?")).response
        answer = (await house.ask(way, "go on", previous_response_id=blocked["id"])).response
    assert blocked["incomplete_details"] == {"reason": "content_filter"}
    assert said(answer) == "Fine."
    assert said(blocked) in house.told(1)
    assert "bomb" not in house.told(1)
    assert "secret" not in house.told(1)


@every_kind
async def test_a_flag_is_carried_along_the_chain_and_told_to_the_handler_and_the_books(kind: Kind) -> None:
    books = Books()
    house = House(kind, safety=Safety(TermClassifier(flag={"mood": ["sad"]})), settlement=books.settlement())
    seen: list[Any] = []

    async def look() -> None:
        turn = current_turn()
        seen.append((None if turn.judgement is None else turn.judgement.action, turn.flags))

    if kind == "app":
        house.app.script(*[[steps.call(look), steps.text("Fine.")] for _ in range(2)])
    async with house.socket() as ws:
        parent = await next_id(ws, create("I am sad"))
        await next_id(ws, create("hello", previous_response_id=parent))
    first, second = books.records
    assert (first.verdict, first.flags) == ("flag", ("terms:mood",))
    assert (second.verdict, second.flags) == ("allow", ())
    if kind == "app":
        assert seen == [("flag", ("terms:mood",)), ("allow", ("terms:mood",))]


# -- quota ---------------------------------------------------------------------------------------------------------------------


class Allowance:
    """A quota of so many turns."""

    def __init__(self, turns: int) -> None:
        self.left = turns
        self.asked: list[QuotaRequest] = []

    def __call__(self, request: QuotaRequest) -> None:
        self.asked.append(request)
        if self.left < 1:
            raise QuotaExceeded(retry_after_s=6.2)
        self.left -= 1


@every_kind
@every_way
async def test_a_turn_above_the_quota_is_told_when_to_come_back_and_does_not_run(kind: Kind, way: Way) -> None:
    books, quota = Books(), Allowance(0)
    house = House(kind, quota=quota, settlement=books.settlement())
    if way == "socket":
        async with house.socket() as ws:
            (refusal,) = await ws.turn(create())
        told: tuple[int, str | None, Any] = (refusal["status"], code_of(refusal), refusal["headers"])
    else:
        async with house.post(stream=way == "stream") as post:
            await post.answered()
        told = (post.status, post.heard().code, {"retry-after": post.headers["retry-after"]})
    assert told == (429, "rate_limit_exceeded", {"retry-after": "7"})
    assert house.ran == 0
    (record,) = books.records
    assert (record.outcome, record.ran, record.usage) == ("refused", False, None)
    assert record.turn_id == quota.asked[0].turn_id


@every_kind
async def test_creates_that_had_to_wait_are_asked_for_when_they_start_and_the_parent_stays(kind: Kind) -> None:
    """Asked for when it came in, a queue of creates would pass before the first of them is counted."""
    quota = Allowance(2)
    house = House(kind, quota=quota)
    async with house.socket() as ws:
        house.say("One.")
        parent = await next_id(ws, create(store=False))
        house.say("Two.", then_wait=True)
        for _ in range(3):
            await ws.send_json(create(store=False, previous_response_id=parent))
        await house.wait_ran(2)
        await settle()
        assert len(quota.asked) == 2
        house.go_on()
        ends = [(await ws.collect())[-1] for _ in range(3)]
        assert [end["type"] for end in ends] == ["response.completed", "error", "error"]
        assert {code_of(end) for end in ends[1:]} == {"rate_limit_exceeded"}
        quota.left = 1
        house.say("Three.")
        await next_id(ws, create(store=False, previous_response_id=parent))
    assert [request.parent_id for request in quota.asked] == [None, *[parent] * 4]


@every_kind
async def test_a_warm_up_is_asked_for_too(kind: Kind) -> None:
    quota = Allowance(0)
    house = House(kind, quota=quota)
    async with house.socket() as ws:
        (refusal,) = await ws.turn(create(generate=False))
    assert code_of(refusal) == "rate_limit_exceeded"
    assert quota.asked[0].warm_up


# -- HTTP is guarded too -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "DELETE", "HEAD", "PUT"])
async def test_other_methods_of_the_path_go_to_the_app_untouched(method: str) -> None:
    house = House("app", safety=Safety(TermClassifier([PHRASE])), quota=Allowance(0))
    async with Post(house.served, b"not JSON", method=method, path="/v1/responses/resp_1") as post:
        await post.answered()
    assert post.status == 404
    (request,) = house.app.others
    assert (request.method, request.path, request.raw) == (method, "/v1/responses/resp_1", b"not JSON")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses/compact", "/v1/responsesx", "/responses"])
async def test_other_paths_go_to_the_app_untouched(path: str) -> None:
    """The middleware knows no other form of request: what it cannot read it cannot judge, and must not spoil."""
    house = House("app", safety=Safety(TermClassifier([PHRASE])), quota=Allowance(0))
    house.say("Fine.")
    body = b'{ "model": "m" , "input": "%s", "stream" : true }' % PHRASE.encode()
    async with Post(house.served, body, path=path) as post:
        await post.answered()
    assert post.status == 200
    (request,) = house.app.requests
    assert request.raw == body
    assert request.header(b"accept-encoding") is None, "nothing of ours is in the request"


@pytest.mark.parametrize("path", ["/v1/responses/", "/v1//responses", "/codex/responses", "/codex/responses/"])
async def test_there_is_no_way_round_by_another_spelling_of_the_path(path: str) -> None:
    """Some routers take a path with more slashes for the same; the app's own route (``inner_path``) is another way to it."""
    house = House("app", safety=Safety(TermClassifier([PHRASE])), inner_path="/codex/responses")
    async with Post(house.served, {"model": "m", "input": PHRASE}, path=path) as post:
        await post.answered()
    assert post.status == 400
    assert house.ran == 0
    house.say("Fine.")
    async with Post(house.served, {"model": "m", "input": "hi"}, path=path) as post:
        await post.answered()
    assert post.status == 200
    assert house.app.requests[0].path == path, "the app is asked at the path that the client has named"


@pytest.mark.parametrize("json_only", [True, False])
@pytest.mark.parametrize("way", ["stream", "json"])
async def test_an_app_may_answer_by_json_or_by_a_stream(way: Way, json_only: bool) -> None:
    """The client is given what it asked for, whatever the app makes of the ``stream: true`` that it is sent."""
    house = House("app", safety=Safety(Scripted()))
    house.app.script([steps.text("Fine.", deltas=2), *([steps.json_only()] if json_only else [])])
    heard = await house.ask(way)
    assert heard.text == "Fine."
    assert house.app.requests[0].body["stream"] is True
    assert (len(heard.events) == 1) is (way == "json")


async def test_of_the_headers_of_an_answer_only_those_of_an_error_are_kept() -> None:
    """As the page says: an answer is told anew, from its events."""
    house = House("app", settlement=Books().settlement())
    house.app.script([steps.headers([(b"x-request-id", b"req_1")]), steps.text("Fine.")])
    async with house.post() as answered:
        await answered.answered()
    house.app.script([steps.status(429, headers=[(b"retry-after", b"3"), (b"x-other", b"1")])])
    async with house.post() as refused:
        await refused.answered()
    assert (answered.status, answered.headers.get("x-request-id")) == (200, None)
    assert (refused.status, refused.headers.get("retry-after"), refused.headers.get("x-other")) == (429, "3", None)


async def test_an_app_that_keeps_its_responses_is_named_them_as_before() -> None:
    """A guard must not turn a request for an app with a memory into one for an app without."""
    classifier = Counting()
    house = House("app", safety=Safety(classifier), settlement=Books().settlement())
    house.app.stateful = True
    house.say("One.")
    first = await house.ask("json", "first")
    house.say("Two.")
    second = await house.ask("json", "second", previous_response_id=first.response["id"])
    assert second.text == "Two."
    assert house.app.requests[1].body["previous_response_id"] == first.response["id"]
    assert house.app.requests[1].body["input"] == "second"
    assert classifier.new == ["first", "One.", "second", "Two."], "the store has the verdicts on the parent"


async def test_a_blocked_answer_is_not_continued_by_an_app_that_has_stored_all_of_it() -> None:
    """The app was done before the verdict: it would go on from what nobody was to see."""
    house = House("app", safety=Safety(TermClassifier([PHRASE])), history="forward")
    house.app.stateful = True
    house.say(f"First, {PHRASE}.")
    blocked = await house.ask("json", "how?")
    assert blocked.response["id"] in house.app.stored
    for way in WAYS:
        heard = await house.ask(way, "go on", previous_response_id=blocked.response["id"])
        assert heard.code == "previous_response_not_found"
    assert house.ran == 1


async def test_what_was_not_judged_was_not_stored_and_is_not_named_to_the_app() -> None:
    """It would not find the response that it was asked not to store."""
    house = House("app", safety=Safety(Scripted(), mode="beside"), history="forward")
    house.app.stateful = True
    async with house.socket() as ws:
        house.say("One.")
        parent = await next_id(ws, create("first", store=True))
        house.say("Two.")
        await next_id(ws, create("second", store=True, previous_response_id=parent))
    assert house.app.stored == {}
    assert "previous_response_id" not in house.app.requests[1].body
    assert "first" in house.told(1)


@every_kind
async def test_a_post_is_judged_charged_and_settled_once(kind: Kind) -> None:
    """An engine's app has the middleware around it: it must not guard what is guarded."""
    classifier, quota, books = Counting(), Allowance(9), Books()
    house = House(kind, safety=Safety(classifier), quota=quota, settlement=books.settlement())
    house.say("Fine.")
    await house.ask("json", "hello")
    assert classifier.new == ["hello", "Fine."]
    assert len(quota.asked) == 1
    assert [(record.outcome, record.transport) for record in books.records] == [("completed", "http")]


@every_kind
@pytest.mark.parametrize("field", ["generate", "stream_id"])
async def test_what_only_a_socket_has_is_no_way_round(kind: Kind, field: str) -> None:
    """A POST with ``generate: false`` is no warm-up: it is refused before anybody is asked."""
    quota = Allowance(9)
    house = House(kind, quota=quota)
    async with house.post(**{field: False if field == "generate" else "a"}) as post:
        await post.answered()
    assert (post.status, post.heard().code) == (400, "unknown_parameter")
    assert (quota.asked, house.ran) == ([], 0)


@every_kind
async def test_a_client_of_a_post_that_leaves_stops_it_and_leaves_a_record(kind: Kind) -> None:
    books = Books()
    house = House(kind, safety=Safety(TermClassifier([PHRASE])), settlement=books.settlement())
    house.say("Once upon a time. ", then_wait=True)
    async with house.post(stream=True) as post:
        await house.wait_ran(1)
        await settle()
        post.leave()
        await house.clock.advance(1)
        await settle()
        assert post.returned
    assert house.was_stopped(0)
    (record,) = books.records
    assert (record.outcome, record.ran, record.transport) == ("gone", True, "http")


@pytest.mark.parametrize("continue_blocked", [True, False])
async def test_of_a_blocked_answer_an_engine_retrieves_what_was_told(continue_blocked: bool) -> None:
    safety = Safety(Scripted(blocking(PHRASE)), window_chars=1, continue_blocked=continue_blocked)
    house = House("engine", safety=safety)
    house.say(f"First of all, {PHRASE}. Then secret words.", pieces=20)
    blocked = (await house.ask("json", "how?")).response
    async with Post(house.served, b"", method="GET", path=f"/v1/responses/{blocked['id']}") as get:
        await get.answered()
    if continue_blocked:
        assert get.heard().response == blocked
    else:
        assert get.status == 404


@pytest.mark.parametrize("refused_by", ["quota", "safety"])
async def test_a_request_to_compact_passes_the_rooms_of_an_engine(refused_by: str) -> None:
    """It takes a conversation and has the model read it: it costs, and may hold what no model is to be told."""
    books, quota = Books(), Allowance(0 if refused_by == "quota" else 9)
    house = House("engine", quota=quota, safety=Safety(TermClassifier([PHRASE])), settlement=books.settlement())
    async with Post(house.served, {"model": "m", "input": f"how to {PHRASE}"}, path="/v1/responses/compact") as post:
        await post.answered()
    assert post.heard().code == ("rate_limit_exceeded" if refused_by == "quota" else "invalid_prompt")
    assert house.ran == 0
    assert books.outcomes == ["refused" if refused_by == "quota" else "blocked"]
