"""The rooms in a turn: quota, safety and settlement, from a client's frame to its last event."""

import json
from functools import partial
from typing import Any

import anyio
import httpx
import pytest

from tests.safety_room import Scripted, blocking
from tests.shell import Shell, code_of, create, id_of, kinds, text_of
from ws_responses.quota import QuotaExceeded, QuotaRequest
from ws_responses.safety import Safety, Screen, TermClassifier, Verdict
from ws_responses.settlement import Settlement, TurnRecord
from ws_responses.testing import ScriptedApp, settle, steps

BAD = "bad word"


def scripted(*turns: Any) -> ScriptedApp:
    app = ScriptedApp()
    app.script(*turns)
    return app


class Books:
    """A settlement hook."""

    def __init__(self) -> None:
        self.records: list[TurnRecord] = []
        self.gate: anyio.Event | None = None

    async def __call__(self, record: TurnRecord) -> None:
        if self.gate is not None:
            await self.gate.wait()
        self.records.append(record)

    @property
    def outcomes(self) -> list[str]:
        return [record.outcome for record in self.records]


# -- safety ----------------------------------------------------------------------------------------------------------------


async def test_a_blocked_input_never_reaches_the_app() -> None:
    app = scripted()
    shell = Shell(app, safety=Safety(TermClassifier([BAD])))
    async with shell.socket() as ws:
        (refusal,) = await ws.turn(create(f"a {BAD}"))
        assert (refusal["type"], refusal["status"], code_of(refusal)) == ("error", 400, "invalid_prompt")
        assert app.requests == []
        good = await ws.turn(create("good"))
    assert kinds(good)[-1] == "completed"


async def test_only_what_is_new_is_judged() -> None:
    classifier = Scripted()
    shell = Shell(scripted([steps.text("One.")], [steps.text("Two.")]), safety=Safety(classifier))
    async with shell.socket() as ws:
        first = await ws.turn(create("first", instructions="be brief"))
        await ws.turn(create("second", instructions="be brief", previous_response_id=id_of(first)))
    assert classifier.texts == ["be brief\nfirst", "One.", "second", "Two."]
    assert classifier.deltas[2].text == "be brief first One.\nsecond"


async def test_a_term_across_two_turns_is_found() -> None:
    shell = Shell(scripted([steps.text("and then")]), safety=Safety(TermClassifier(["and then boom"])))
    async with shell.socket() as ws:
        first = await ws.turn(create("hello"))
        (refusal,) = await ws.turn(create("boom", previous_response_id=id_of(first)))
    assert code_of(refusal) == "invalid_prompt"


@pytest.mark.parametrize("continue_blocked", [False, True])
async def test_a_blocked_answer_is_cut_off_and_continued_only_if_the_operator_says_so(continue_blocked: bool) -> None:
    app = scripted([steps.text(f"Some words and a {BAD} and more.", deltas=10), steps.stall()], [steps.text("Fine.")])
    shell = Shell(app, safety=Safety(TermClassifier([BAD]), window_chars=1, continue_blocked=continue_blocked))
    async with shell.socket() as ws:
        events = await ws.turn(create())
        await shell.clock.advance(1)
        assert app.requests[0].outcome in ("disconnected", "cancelled")
        response = events[-1]["response"]
        second = await ws.turn(create("go on", previous_response_id=id_of(events)))
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "content_filter"})
    assert text_of(events[-1]) == "Some words and a bad "
    assert BAD not in json.dumps(list(events))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert kinds(events)[-2:] == ["output_item.done", "incomplete"]
    if not continue_blocked:
        assert code_of(second[-1]) == "previous_response_not_found"
        return
    assert kinds(second)[-1] == "completed"
    (_, answered, _) = app.requests[1].body["input"]
    assert answered["content"][0]["text"] == "Some words and a bad "


@pytest.mark.parametrize("bad", [True, False])
async def test_beside_the_verdict_inference_runs_and_nothing_is_seen_or_stored(bad: bool) -> None:
    classifier = Scripted(blocking(BAD))
    classifier.gate = anyio.Event()
    app = scripted([steps.text("Answer", deltas=3), steps.stall() if bad else steps.complete()])
    shell = Shell(app, safety=Safety(Screen(classifier, stages=["input"]), mode="beside"))
    async with shell.socket() as ws:
        await ws.send_json(create(BAD if bad else "good", store=True))
        await app.wait_requests(1)
        await settle()
        assert ws.frames == []
        assert app.requests[0].body["store"] is False
        classifier.gate.set()
        last = [await ws.receive_json()]
        while last[-1]["type"] not in ("error", "response.completed"):
            last.append(await ws.receive_json())
        await shell.clock.advance(1)
    if bad:
        assert [event["type"] for event in last] == ["error"]
        assert app.requests[0].outcome in ("disconnected", "cancelled")
    else:
        assert text_of(last[-1]) == "Answer"


async def test_what_was_judged_is_not_judged_again_when_it_comes_from_the_store() -> None:
    """Each reconnection, and each POST that names its parent, would else cost as much as the whole conversation."""
    classifier = Scripted()
    answers = [[steps.text(f"{number}.")] for number in range(3)]
    shell = Shell(scripted(*answers), safety=Safety(classifier, overlap_chars=64))
    key = (b"authorization", b"Bearer key-1")
    parent: dict[str, Any] = {}
    for text in ("first", "second", "third"):
        async with shell.socket(key) as ws:
            events = await ws.turn(create(text, store=True, instructions="Be kind.", **parent))
        parent = {"previous_response_id": id_of(events)}
    assert [delta.new_text for delta in classifier.deltas] == ["Be kind.\nfirst", "0.", "second", "1.", "third", "2."]
    assert classifier.deltas[-2].text.endswith("second 1.\nthird"), "the overlap comes with it"


async def test_a_warm_up_is_judged_too_and_not_again_when_it_is_continued() -> None:
    classifier = Scripted()
    shell = Shell(scripted([steps.text("One.")]), safety=Safety(classifier, mode="beside"))
    async with shell.socket() as ws:
        warm = await ws.turn(create("warm", generate=False))
        await ws.turn(create([], previous_response_id=id_of(warm)))
    assert classifier.texts == ["warm", "One."]


def always(verdict: Verdict, _: str) -> Verdict:
    return verdict


async def test_the_state_of_the_classifiers_is_charged() -> None:
    """A chain of big states would else be kept for nothing."""
    sizes = []
    for state in (None, "x" * 10_000):
        verdict = Verdict(state=state)
        shell = Shell(scripted([steps.text("One.")]), safety=Safety(Scripted(partial(always, verdict))))
        async with shell.socket() as ws:
            await ws.turn(create("first"))
            sizes.append(shell.middleware.history_bytes)
    assert sizes[1] - sizes[0] > 9_000


# -- settlement --------------------------------------------------------------------------------------------------------------

ENDS: dict[str, tuple[list[steps.Step], str, str | None, bool]] = {
    "completed": ([steps.text("Hello")], "completed", None, True),
    "incomplete": ([steps.text("Hel"), steps.incomplete()], "incomplete", None, True),
    "failed": ([steps.text("Hel"), steps.fail("rate_limit_exceeded")], "failed", "rate_limit_exceeded", True),
    "refused": ([steps.status(429)], "refused", "rate_limit_exceeded", True),
    "blocked": ([steps.text(f"{BAD} here")], "blocked", None, True),
}


@pytest.mark.parametrize("how", ENDS)
async def test_every_turn_leaves_one_record_however_it_ends(how: str) -> None:
    script, outcome, code, ran = ENDS[how]
    books = Books()
    shell = Shell(scripted(script), safety=Safety(TermClassifier([BAD])), settlement=Settlement(books))
    async with shell.socket() as ws:
        await ws.turn(create())
    (record,) = books.records
    assert (record.outcome, record.code, record.ran, record.model) == (outcome, code, ran, "m")
    assert (record.usage is not None) is (how in ("completed", "incomplete", "failed"))


@pytest.mark.parametrize(
    ("frame", "outcome"),
    [
        (create(f"a {BAD}"), "blocked"),
        (create(previous_response_id="resp_unknown"), "refused"),
        (create(generate=False), "warm_up"),
    ],
)
async def test_so_does_a_turn_that_never_got_to_the_app(frame: dict[str, Any], outcome: str) -> None:
    books = Books()
    shell = Shell(scripted(), safety=Safety(TermClassifier([BAD])), settlement=Settlement(books))
    async with shell.socket() as ws:
        await ws.turn(frame)
    (record,) = books.records
    assert (record.outcome, record.ran, record.verdict) == (
        outcome,
        False,
        {"blocked": "block", "warm_up": "allow", "refused": None}[outcome],
    )


async def test_a_client_that_leaves_leaves_a_record() -> None:
    books = Books()
    app = scripted([steps.text("Hel"), steps.stall()])
    shell = Shell(app, settlement=Settlement(books))
    async with shell.socket() as ws:
        await ws.send_json(create())
        await app.wait_requests(1)
        await ws.receive()
        await ws.abort()
        await shell.clock.advance(1)
        await ws.wait_returned()
    (record,) = books.records
    assert (record.outcome, record.usage, record.ran) == ("gone", None, True)


async def test_the_next_turn_does_not_wait_for_the_bill() -> None:
    books = Books()
    books.gate = anyio.Event()
    shell = Shell(scripted([steps.text("One.")], [steps.text("Two.")]), settlement=Settlement(books))
    async with shell.socket() as ws:
        first = await ws.turn(create())
        second = await ws.turn(create(previous_response_id=id_of(first)))
        assert books.records == []
        books.gate.set()
    assert [record.response_id for record in books.records] == [id_of(first), id_of(second)]
    assert books.records[1].parent_id == id_of(first)


async def test_the_end_waits_for_the_record_where_that_is_asked_for() -> None:
    books = Books()
    books.gate = anyio.Event()
    shell = Shell(
        scripted([steps.text("One.")], [steps.text("Two.")]), settlement=Settlement(books, before_terminal=True)
    )
    async with shell.socket() as ws:
        await ws.send_json(create())
        await ws.send_json(create())
        await settle()
        sent = [json.loads(frame)["type"] for frame in ws.frames]
        assert sent[-1] == "response.output_item.done"
        assert sent.count("response.created") == 1
        books.gate.set()
        ends = 0
        while ends < 2:
            ends += (await ws.receive_json())["type"] == "response.completed"
    assert books.outcomes == ["completed", "completed"]


async def test_a_chain_that_lags_is_refused() -> None:
    books = Books()
    books.gate = anyio.Event()
    shell = Shell(scripted([steps.text("One.")]), settlement=Settlement(books, max_unsettled=1, on_lag="refuse"))
    async with shell.socket() as ws:
        first = await ws.turn(create())
        (refusal,) = await ws.turn(create(previous_response_id=id_of(first)))
        assert (refusal["status"], code_of(refusal)) == (429, "settlement_lag")
        books.gate.set()
        await settle()
        again = await ws.turn(create(previous_response_id=id_of(first)))
    assert kinds(again)[-1] == "completed"


async def test_a_connection_that_ends_waits_for_its_bills_but_not_for_ever() -> None:
    books = Books()
    books.gate = anyio.Event()
    lost: list[str] = []
    settlement = Settlement(books, drain_timeout_s=5, on_undelivered=lambda record, error: lost.append(record.turn_id))
    shell = Shell(scripted([steps.text("One.")]), settlement=settlement)
    async with shell.socket() as ws:
        await ws.turn(create())
        await ws.close()
        await shell.clock.advance(4.9)
        waited = not ws.returned
        await shell.clock.advance(0.1)
        await settle()
        assert waited
        assert ws.returned
    assert len(lost) == 1


# -- quota -----------------------------------------------------------------------------------------------------------------


async def test_the_third_turn_is_above_the_quota_and_the_socket_stays() -> None:
    asked: list[QuotaRequest] = []

    def quota(request: QuotaRequest) -> None:
        asked.append(request)
        if len(asked) == 3:
            raise QuotaExceeded(retry_after_s=7)

    shell = Shell(scripted(), quota=quota)
    async with shell.socket() as ws:
        first = await ws.turn(create())
        await ws.turn(create(previous_response_id=id_of(first)))
        (refusal,) = await ws.turn(create(previous_response_id=id_of(first)))
        assert (refusal["status"], code_of(refusal), refusal["headers"]) == (
            429,
            "rate_limit_exceeded",
            {"retry-after": "7"},
        )
        again = await ws.turn(create(previous_response_id=id_of(first)))
    assert kinds(again)[-1] == "completed", "a refused turn never ran: its parent stays"


# -- HTTP is guarded too ---------------------------------------------------------------------------------------------------


async def post(app: Any, body: dict[str, Any], headers: dict[str, str] | None = None) -> httpx.Response:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://test", headers={"authorization": "Bearer key-1"}
    ) as http:
        return await http.post("/v1/responses", json={"model": "m", "input": "hi"} | body, headers=headers)


async def test_a_plain_post_passes_the_rooms_as_a_turn_does() -> None:
    """HTTP is what every client falls back to: it must not be the way round."""
    app, books = scripted([steps.text("Fine.")]), Books()
    shell = Shell(app, safety=Safety(TermClassifier([BAD])), settlement=Settlement(books))
    refused = await post(shell.middleware, {"input": f"a {BAD}"})
    answered = await post(shell.middleware, {})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_prompt")
    assert answered.status_code == 200
    assert answered.json()["output"][0]["content"][0]["text"] == "Fine."
    assert [(record.outcome, record.transport) for record in books.records] == [
        ("blocked", "http"),
        ("completed", "http"),
    ]


async def test_a_streamed_post_is_judged_window_by_window() -> None:
    app = scripted([steps.text(f"Some words and a {BAD} and more.", deltas=10)])
    shell = Shell(app, safety=Safety(TermClassifier([BAD]), window_chars=1))
    answer = await post(shell.middleware, {"stream": True})
    assert BAD not in answer.text
    assert '"reason":"content_filter"' in answer.text


async def test_the_quota_counts_posts() -> None:
    def quota(request: QuotaRequest) -> None:
        raise QuotaExceeded(retry_after_s=7)

    answer = await post(Shell(scripted(), quota=quota).middleware, {})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")


async def test_an_id_of_the_apps_own_is_left_to_the_app() -> None:
    app = scripted([steps.text("Fine.")])
    answer = await post(
        Shell(app, settlement=Settlement(Books())).middleware, {"previous_response_id": "resp_of_the_app"}
    )
    assert answer.status_code == 200
    assert app.requests[0].body["previous_response_id"] == "resp_of_the_app"


async def test_without_a_room_a_post_goes_through_untouched() -> None:
    """The body reaches the app byte by byte, and its answer the client: nothing is read on the way."""
    app = scripted([steps.text("Fine.")])
    answer = await post(Shell(app).middleware, {"stream": False, "background": False})
    assert answer.status_code == 200
    assert app.requests[0].body["background"] is False


async def test_the_guard_may_be_turned_off_with_a_warning() -> None:
    app, books = scripted([steps.text("Fine.")]), Books()
    with pytest.warns(UserWarning, match="guard_http"):
        shell = Shell(app, settlement=Settlement(books), guard_http=False)
    assert (await post(shell.middleware, {})).status_code == 200
    assert books.records == []


async def test_the_app_judges_the_credentials_of_a_post() -> None:
    app = scripted(
        [steps.status(401, {"error": {"message": "No.", "code": "invalid_api_key", "type": "invalid_request_error"}})]
    )
    answer = await post(Shell(app, settlement=Settlement(Books())).middleware, {})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
