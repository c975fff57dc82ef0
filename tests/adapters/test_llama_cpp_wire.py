"""The llama.cpp adapter at the wire: what it sends, and what it makes of answers that the real server seldom gives."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.adapters.llama_service import LlamaCppService
from ws_responses import ConfigurationError, WireError
from ws_responses.adapters._llama_cpp_events import EventReader
from ws_responses.adapters._llama_cpp_slots import Slots
from ws_responses.adapters.llama_cpp import HttpLimits, LlamaCppBackend
from ws_responses.backends import Delta, GenerateParams, TokenPrompt, Usage
from ws_responses.rendering.rendered import Rendered
from ws_responses.testing.backend_conformance import BackendConformance
from ws_responses.testing.services import CUT, HOLD, HttpAnswer, LoopbackService, Piece, recut

PARAMS = GenerateParams(model="m")
PROMPT = TokenPrompt(rendered=Rendered.of_tokens([1, 2], "json").with_tokens([3]))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def service() -> AsyncIterator[LoopbackService]:
    async with LoopbackService() as service:
        yield service


@pytest.fixture
async def backend(service: LoopbackService) -> AsyncIterator[LlamaCppBackend]:
    backend = LlamaCppBackend(service.url)
    yield backend
    await backend.aclose()


def event(**members: Any) -> bytes:
    return b"data: " + msgspec.json.encode(members) + b"\n\n"


def sampled(text: str, tokens: Sequence[int], predicted: int) -> bytes:
    """One event as the server writes it."""
    return event(
        index=0, content=text, tokens=tokens, stop=False, id_slot=-1, tokens_predicted=predicted, tokens_evaluated=3
    )


def last(predicted: int, stop_type: str = "eos", cached: int = 2) -> bytes:
    return event(
        content="",
        tokens=[],
        stop=True,
        stop_type=stop_type,
        tokens_predicted=predicted,
        tokens_evaluated=3,
        timings={"cache_n": cached, "prompt_n": 3 - cached, "predicted_n": predicted, "predicted_ms": 12.5},
    )


def answer(*body: Piece, **options: Any) -> HttpAnswer:
    return HttpAnswer(body=body, content_type="text/event-stream", **options)


async def sample(
    backend: LlamaCppBackend, prompt: TokenPrompt = PROMPT, params: GenerateParams = PARAMS
) -> list[Delta]:
    async with aclosing(backend.generate(prompt, params)) as deltas:
        return [delta async for delta in deltas]


async def test_a_request_holds_what_was_asked_for(service: LoopbackService, backend: LlamaCppBackend) -> None:
    """An absent member leaves the choice to the server; a null would be refused."""
    service.script(answer(last(0)), answer(last(0)))
    schema = TokenPrompt(rendered=PROMPT.rendered, schema=b'{"type": "object"}')

    await sample(backend)
    await sample(
        backend, schema, GenerateParams(model="m", max_tokens=5, temperature=0, top_p=0.5, user="u", session="s")
    )

    plain, full = (request.decoded() for request in service.requests)
    fields = plain.pop("response_fields")
    assert plain == {"model": "m", "prompt": [1, 2, 3], "stream": True, "return_tokens": True}
    assert {"content", "tokens", "stop", "timings"} <= set(fields)
    assert full == {
        **plain,
        "response_fields": fields,
        "n_predict": 5,
        "temperature": 0,
        "top_p": 0.5,
        "json_schema": {"type": "object"},
    }
    assert [request.path for request in service.requests] == ["/completion"] * 2


async def test_the_operators_members_are_defaults(service: LoopbackService) -> None:
    backend = LlamaCppBackend(f"{service.url}/", api_key="k", extra_body={"top_k": 20, "temperature": 0.5})
    service.script(answer(last(0)), answer(last(0)))

    await sample(backend)
    await sample(backend, params=GenerateParams(model="m", temperature=0))

    await backend.aclose()
    first, second = (request.decoded() for request in service.requests)
    assert (first["top_k"], first["temperature"]) == (20, 0.5)
    assert (second["top_k"], second["temperature"]) == (20, 0)
    assert service.requests[0].headers["authorization"] == "Bearer k"


@pytest.mark.parametrize("member", ["prompt", "stream", "n_predict", "id_slot", "json_schema", "response_fields"])
def test_members_that_the_adapter_sets_are_refused(member: str) -> None:
    with pytest.raises(ConfigurationError, match=member):
        LlamaCppBackend("http://localhost", extra_body={member: 1})


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="slots"):
        LlamaCppBackend("http://localhost", slots=0)
    with pytest.raises(ConfigurationError, match="base_url"):
        LlamaCppBackend("localhost:8080")


async def test_a_prefill_asks_for_no_token_and_no_stream(service: LoopbackService, backend: LlamaCppBackend) -> None:
    body = {"content": "x", "tokens": [7], "stop_type": "limit", "tokens_predicted": 1, "tokens_evaluated": 3}
    service.script(HttpAnswer.json({**body, "timings": {"cache_n": 2, "prompt_n": 1}}))

    usage = await backend.prefill(PROMPT, GenerateParams(model="m", max_tokens=99))

    request = service.requests[0].decoded()
    assert (request["n_predict"], request["stream"], request["prompt"]) == (0, False, [1, 2, 3])
    assert usage == Usage(input_tokens=3, cached_tokens=2, output_tokens=0)


class TestConformance(BackendConformance):
    # The real server closes each connection: see test_a_connection_serves_one_request.
    test_turns_share_a_connection: Any = None

    @pytest.fixture
    async def service(self) -> AsyncIterator[LlamaCppService]:
        async with LlamaCppService() as service:
            yield service

    @pytest.fixture
    async def backend(self, service: LlamaCppService) -> AsyncIterator[LlamaCppBackend]:
        backend = LlamaCppBackend(service.base_url, api_key=self.key)
        yield backend
        await backend.aclose()

    @pytest.fixture
    async def hasty_backend(self, service: LlamaCppService) -> AsyncIterator[LlamaCppBackend]:
        limits = HttpLimits(first_event_s=0.2, event_s=0.2, max_event_bytes=64 * 1024)
        backend = LlamaCppBackend(service.base_url, api_key=self.key, limits=limits)
        yield backend
        await backend.aclose()


# --- answers ------------------------------------------------------------------------------------------------------------

BODY = [sampled("a", [10], 1), sampled("\u00e9", [11], 3), sampled("", [2], 4), last(4)]


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
async def test_where_the_body_is_cut_makes_no_difference(
    size: int, service: LoopbackService, backend: LlamaCppBackend
) -> None:
    service.script(answer(*recut(BODY, size)))

    deltas = await sample(backend)

    assert [(delta.text, list(delta.token_ids), delta.ids_lost) for delta in deltas] == [
        ("a", [10], False),
        ("\u00e9", [11], True),
        ("", [2], False),
        ("", [], False),
    ]
    assert deltas[-1].finish == "stop"
    assert deltas[-1].usage == Usage(input_tokens=3, cached_tokens=2, output_tokens=4)


async def test_ids_that_are_missing_at_the_end_are_missing(service: LoopbackService, backend: LlamaCppBackend) -> None:
    service.script(answer(sampled("a", [10], 1), last(3, "limit")))

    _, lost, end = await sample(backend)

    assert (lost.ids_lost, lost.text, end.finish) == (True, "", "length")


@pytest.mark.parametrize(
    ("stop_type", "finish"), [("eos", "stop"), ("word", "stop"), ("none", "stop"), ("limit", "length"), ("new", "stop")]
)
async def test_why_it_ended(stop_type: str, finish: str, service: LoopbackService, backend: LlamaCppBackend) -> None:
    service.script(answer(last(0, stop_type)))
    (end,) = await sample(backend)
    assert end.finish == finish


async def test_a_stop_id_that_the_server_knows_too_ends_with_its_usage(
    service: LoopbackService, backend: LlamaCppBackend
) -> None:
    service.script(answer(sampled("a", [10], 1), sampled("", [2], 2), last(2)))

    deltas = await sample(backend, TokenPrompt(rendered=PROMPT.rendered, stop_ids=(2,)))

    assert [list(delta.token_ids) for delta in deltas] == [[10], [2], []]
    assert deltas[-1].usage == Usage(input_tokens=3, cached_tokens=2, output_tokens=2)
    assert service.hung_up == 0


async def test_a_stop_id_that_the_server_does_not_know_ends_it_here(
    service: LoopbackService, backend: LlamaCppBackend
) -> None:
    service.script(answer(sampled("a", [10], 1), sampled("b", [11], 2), sampled("c", [12], 3), HOLD))

    with anyio.fail_after(20):
        deltas = await sample(backend, TokenPrompt(rendered=PROMPT.rendered, stop_ids=(11, 12)))

    assert [list(delta.token_ids) for delta in deltas] == [[10], [11], []]
    assert deltas[-1].finish == "stop"
    # What came from the cache is told at the end only.
    assert deltas[-1].usage == Usage(input_tokens=3, cached_tokens=None, output_tokens=2)
    await service.wait_until(lambda: service.hung_up == 1)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ([sampled("a", [10], 1)], 502, "upstream_stream_truncated"),
        ([sampled("a", [10], 1), CUT], 502, "upstream_stream_truncated"),
        ([], 502, "upstream_stream_truncated"),
        ([sampled("a", [10], 1), b"data: {nonsense\n\n"], 502, "upstream_error"),
        ([sampled("a", [10], 1), event(tokens="none")], 502, "upstream_error"),
        ([event(error={"code": 500, "message": "Compute error.", "type": "server_error"})], 500, "server_error"),
        (
            [event(error={"code": 400, "message": "too long", "type": "exceed_context_size_error", "n_ctx": 8})],
            400,
            "context_length_exceeded",
        ),
        ([event(error="it broke")], 500, "server_error"),
    ],
)
async def test_a_stream_that_fails(
    body: list[Piece], status: int, code: str, service: LoopbackService, backend: LlamaCppBackend
) -> None:
    service.script(answer(*body))
    with pytest.raises(WireError) as caught:
        await sample(backend)
    assert (caught.value.status, caught.value.code) == (status, code)


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, "exceed_context_size_error", "context_length_exceeded"),
        (401, "authentication_error", "upstream_authentication_error"),
        (503, "unavailable_error", "server_is_overloaded"),
        (500, "server_error", "server_error"),
    ],
)
async def test_a_refusal(status: int, kind: str, code: str, service: LoopbackService, backend: LlamaCppBackend) -> None:
    """llama.cpp writes the status as ``code``, and names the kind in ``type``."""
    error = {"code": status, "message": "Loading model", "type": kind}
    for attempt in (lambda: sample(backend), lambda: backend.prefill(PROMPT, PARAMS)):
        service.script(HttpAnswer.json({"error": error}, status=status))
        with pytest.raises(WireError) as caught:
            await attempt()
        assert caught.value.code == code


async def test_a_connection_serves_one_request(service: LoopbackService, backend: LlamaCppBackend) -> None:
    """The real server closes each after a stream, although it promises not to unless it is told: the next request would be
    lost on it.
    """
    service.script(*[answer(last(0), headers=(("connection", "close"),))] * 3)
    for _ in range(3):
        await sample(backend)
    assert service.connections == 3
    assert {request.headers["connection"] for request in service.requests} == {"close"}


# --- the reader and the slots, without any I/O --------------------------------------------------------------------------


@given(st.lists(st.tuples(st.lists(st.integers(0, 99), max_size=3), st.integers(0, 3)), max_size=20))
def test_lost_ids_are_told_exactly_where_the_count_steps_by_more(steps: list[tuple[list[int], int]]) -> None:
    """Each event tells some ids and hides some; nothing that was hidden may go unnoticed, and nothing else be suspected."""
    reader = EventReader(())
    predicted = 0
    for tokens, hidden in steps:
        predicted += len(tokens) + hidden
        delta = reader.read(sampled("", tokens, predicted)[6:])
        assert (delta is not None and delta.ids_lost) == (hidden > 0)
        assert ([] if delta is None else list(delta.token_ids)) == tokens


class Holder:
    """Conversations that hold slots, and give them back in any order."""

    def __init__(self, count: int) -> None:
        self._slots = Slots(count)
        self._held: dict[str, Any] = {}

    def begin(self, session: str) -> int | None:
        self._held[session] = held = self._slots.held(session)
        slot: int | None = held.__enter__()
        return slot

    def end(self, session: str) -> None:
        self._held.pop(session).__exit__(None, None, None)

    def turn(self, session: str) -> int | None:
        with self._slots.held(session) as slot:
            return slot


def test_a_conversation_keeps_its_slot() -> None:
    holder = Holder(2)
    one, two = holder.turn("one"), holder.turn("two")
    assert {one, two} == {0, 1}
    assert [holder.turn("one"), holder.turn("two"), holder.turn("one")] == [one, two, one]


def test_a_new_conversation_takes_the_slot_unused_for_longest() -> None:
    holder = Holder(2)
    one, two = holder.turn("one"), holder.turn("two")
    holder.turn("one")
    assert holder.turn("three") == two
    assert holder.turn("one") == one
    assert holder.turn("two") == two


def test_a_slot_at_work_is_neither_taken_over_nor_waited_for() -> None:
    """Without this a conversation would wait for another one although the server has a slot that is free."""
    holder = Holder(2)
    one = holder.begin("one")
    assert holder.turn("two") != one
    assert holder.turn("three") != one
    assert holder.turn("one") is None
    two = holder.begin("two")
    assert two not in {one, None}
    assert holder.turn("four") is None
    holder.end("one")
    assert holder.turn("four") == one


def test_without_slots_or_a_name_the_server_chooses() -> None:
    assert Holder(0).turn("one") is None
    with Slots(2).held(None) as slot:
        assert slot is None


async def test_the_slot_of_a_conversation_is_named_to_the_server(service: LoopbackService) -> None:
    backend = LlamaCppBackend(service.url, slots=2)
    service.script(*[answer(last(0))] * 4)
    for session in ("a", "b", "a", None):
        await sample(backend, params=GenerateParams(model="m", session=session))
    await backend.aclose()

    a, b, again, none = (request.decoded().get("id_slot") for request in service.requests)
    assert {a, b} == {0, 1}
    assert again == a
    assert none is None
