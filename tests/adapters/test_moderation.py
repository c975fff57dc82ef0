"""The moderation adapter against a server that answers as the API does, byte for byte where it matters."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from ws_responses import ConfigurationError, WireError
from ws_responses.adapters.moderation import ModerationClassifier
from ws_responses.safety import About, Judge, Piece, Safety, SafetyInput, SafetyState, Screen
from ws_responses.testing import FakeClock

ABOUT = About(turn_id="turn_1", tenant="t")
CATEGORIES = ["harassment", "hate", "self-harm", "sexual/minors", "violence", "violence/graphic"]


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """aiohttp is for asyncio only."""
    backend: str = request.param
    return backend


class Service:
    """Judges as the API does: violence for what holds "kill", with a score for how often."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, Any], dict[str, str]]] = []
        self.status = 200
        self.answer: bytes | None = None
        self.url = ""

    async def moderate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append((body, dict(request.headers)))
        if self.answer is not None or self.status != 200:
            return web.Response(status=self.status, body=self.answer or b"{}", content_type="application/json")
        results = [self.result(text) for text in body["input"]]
        return web.json_response({"id": "modr-1", "model": "omni-moderation-2024-09-26", "results": results})

    def result(self, text: str) -> dict[str, Any]:
        score = min(1.0, text.count("kill") / 2)
        scores = {**dict.fromkeys(CATEGORIES, 1.2e-05), "violence": score, "hate": min(1.0, text.count("hate") / 10)}
        return {
            "flagged": score >= 0.5,
            "categories": {name: value >= 0.5 for name, value in scores.items()},
            "category_scores": scores,
            "category_applied_input_types": {name: ["text"] for name in CATEGORIES},
        }

    @property
    def texts(self) -> list[list[str]]:
        return [body["input"] for body, _ in self.requests]


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    app = web.Application()
    app.router.add_post("/v1/moderations", service.moderate)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    service.url = f"http://127.0.0.1:{port}/v1"
    yield service
    await runner.cleanup()


def delta(*texts: str, before: str = "") -> SafetyInput:
    pieces = tuple(Piece(text=text, before="" if index else before) for index, text in enumerate(texts))
    return SafetyInput(stage="input", pieces=pieces, about=ABOUT)


async def verdict_of(service: Service, given: SafetyInput, **options: Any) -> tuple[str, tuple[str, ...]]:
    classifier = ModerationClassifier("key-1", base_url=service.url, **options)
    try:
        verdict = await classifier.classify(given)
    finally:
        await classifier.aclose()
    return verdict.action, verdict.categories


async def test_what_the_service_flags_is_blocked_by_default(service: Service) -> None:
    assert await verdict_of(service, delta("hello")) == ("allow", ())
    assert await verdict_of(service, delta("kill them")) == ("block", ("violence",))


async def test_a_delta_is_one_request_with_its_overlap(service: Service) -> None:
    await verdict_of(service, delta("one", "two", before="before\n"))
    ((body, headers),) = service.requests
    assert body == {"input": ["before\none\ntwo"], "model": "omni-moderation-latest"}
    assert (headers["Authorization"], headers["Content-Type"]) == ("Bearer key-1", "application/json")


async def test_thresholds_decide_by_category(service: Service) -> None:
    options: dict[str, Any] = {"block_at": {"violence": 0.9}, "flag_at": {"*": 0.2}}
    assert await verdict_of(service, delta("kill"), **options) == ("flag", ("violence",))
    assert await verdict_of(service, delta("kill kill"), **options) == ("block", ("violence",))
    assert await verdict_of(service, delta("hate hate hate"), **options) == ("flag", ("hate",))
    assert await verdict_of(service, delta("hate"), **options) == ("allow", ())


async def test_a_long_text_goes_in_pieces_that_overlap(service: Service) -> None:
    """A phrase across two pieces must be whole in one of them."""
    text = "".join(chr(ord("a") + number % 26) for number in range(1000))
    await verdict_of(service, delta(text), max_text_chars=100, overlap_chars=20)
    pieces = [piece for request in service.texts for piece in request]
    assert all(len(piece) <= 100 for piece in pieces)
    assert pieces[0] + "".join(piece[20:] for piece in pieces[1:]) == text
    for at in range(980):
        assert any(text[at : at + 20] in piece for piece in pieces)


@pytest.mark.parametrize(("size", "pieces"), [(1, 1), (99, 1), (100, 1), (101, 2), (180, 2), (181, 3)])
async def test_no_more_pieces_are_sent_than_are_needed(service: Service, size: int, pieces: int) -> None:
    await verdict_of(service, delta("x" * size), max_text_chars=100, overlap_chars=20)
    assert [len(request) for request in service.texts] == [pieces]


async def test_many_pieces_go_in_several_requests_and_a_block_ends_them(service: Service) -> None:
    text = ("kill kill" + "x" * 91) + "x" * 9900
    assert (await verdict_of(service, delta(text), max_text_chars=100, overlap_chars=0))[0] == "block"
    assert [len(request) for request in service.texts] == [32]


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (
            401,
            b'{"error":{"message":"Incorrect API key provided: key-1","type":"invalid_request_error","code":"invalid_api_key"}}',
        ),
        (429, b'{"error":{"message":"slow down"}}'),
        (500, b"oops"),
        (200, b"not json"),
        (200, b'{"results":[]}'),
        (200, b'{"results":[{"categories":{}}]}'),
        (200, b'{"results":[{"flagged":"no"}]}'),
        (200, b""),
    ],
)
async def test_an_answer_that_is_no_verdict_is_a_failure(
    service: Service, status: int, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Fail closed; and neither the key nor the text may end up in a log."""
    service.status, service.answer = status, answer
    classifier = ModerationClassifier("key-1", base_url=service.url)
    with pytest.raises(WireError):
        await classifier.classify(delta("the text"))
    judgement = await Judge(Safety(classifier), FakeClock()).judge(delta("the text"), SafetyState())
    await classifier.aclose()
    assert (judgement.blocked, judgement.unavailable, judgement.failed) == (True, True, ("moderation",))
    assert "key-1" not in caplog.text
    assert "the text" not in caplog.text


async def test_a_service_that_is_not_there_is_a_failure() -> None:
    classifier = ModerationClassifier("", base_url="http://127.0.0.1:9/v1")
    judgement = await Judge(Safety(Screen(classifier, fail="open")), FakeClock()).judge(delta("x"), SafetyState())
    await classifier.aclose()
    assert (judgement.action, judgement.failed) == ("allow", ("moderation",))


async def test_a_service_without_keys_and_models_gets_none(service: Service) -> None:
    await verdict_of(service, delta("x"), model=None, headers={"x-team": "red"})
    classifier = ModerationClassifier("", base_url=service.url)
    await classifier.classify(delta("x"))
    await classifier.aclose()
    assert service.requests[0][0] == {"input": ["x"]}
    assert service.requests[0][1]["x-team"] == "red"
    assert "Authorization" not in service.requests[1][1]


async def test_the_key_comes_from_the_environment(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-env")
    classifier = ModerationClassifier(base_url=service.url)
    await classifier.classify(delta("x"))
    await classifier.aclose()
    assert service.requests[0][1]["Authorization"] == "Bearer key-of-env"
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        ModerationClassifier()


@pytest.mark.parametrize(
    "options",
    [{"base_url": "ftp://x"}, {"block_at": {"violence": 1.5}}, {"overlap_chars": 8000}, {"overlap_chars": -1}],
)
def test_wrong_options_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        ModerationClassifier("k", **options)


def test_the_answer_of_the_api_is_what_the_service_of_these_tests_gives() -> None:
    """As documented for POST /v1/moderations: a result has these members, and maybe more."""
    assert {"flagged", "categories", "category_scores"} <= json.loads(json.dumps(Service().result("x"))).keys()
