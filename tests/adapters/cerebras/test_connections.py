"""Connections to Cerebras: used again, given up at once when nobody listens any more, and many at a time."""
# ruff: noqa: E402 - the package is optional

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any

import anyio
import pytest

from tests.adapters.cerebras.fake import (
    DONE,
    KEY,
    LAST,
    LAST_TOKENS,
    ROLE,
    answer,
    chat,
    chat_prompt,
    completion,
    params,
    said,
    stream,
    text_of,
    token_prompt,
)
from tests.conftest import require
from ws_responses.backends import ChatPrompt, Delta, TokenPrompt
from ws_responses.testing.clock import settle
from ws_responses.testing.services import HOLD, HttpAnswer, LoopbackService, ServiceRequest

require("cerebras")

from ws_responses.adapters import _cerebras_service, cerebras
from ws_responses.adapters.cerebras import CerebrasBackend


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


async def talk(backend: CerebrasBackend, prompt: ChatPrompt | TokenPrompt | None = None) -> str:
    return text_of([delta async for delta in backend.generate(prompt or chat_prompt(), params())])


async def collect(generation: AsyncIterator[Delta]) -> list[Delta]:
    return [delta async for delta in generation]


# --- used again -------------------------------------------------------------------------------------------------------


async def test_five_turns_use_one_connection(service: LoopbackService, backend: CerebrasBackend) -> None:
    """Without this each turn pays for a connection: two or three round trips with TLS."""
    for number in range(5):
        service.script(answer(f"{number}"))
        assert await talk(backend) == f"{number}"
    assert service.connections == 1


async def test_also_if_the_end_of_the_body_is_late(service: LoopbackService, backend: CerebrasBackend) -> None:
    """The last delta is there at once; the generation waits a moment for the end of the body, for the next one's sake."""
    for number in range(5):
        service.script(stream([*said("a", f"{number}"), HOLD]))
        generation = backend.generate(chat_prompt(), params())
        while not (await anext(generation)).finish:
            pass
        assert service.running == 1
        ending = asyncio.ensure_future(collect(generation))
        service.release()
        assert await ending == []
    assert service.connections == 1


async def test_also_if_it_is_so_late_that_the_generation_ends_before_it(
    service: LoopbackService, backend: CerebrasBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cerebras, "LATE_S", 0.0)
    for _ in range(5):
        service.script(stream([*said("a"), HOLD]))
        assert await talk(backend) == "a"
        assert service.running == 1
        service.release()
        await service.wait_until(lambda: service.running == 0)
        await settle()
    assert service.connections == 1


async def test_the_end_of_a_body_is_not_waited_for_for_ever(
    service: LoopbackService, backend: CerebrasBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cerebras_service, "END_S", 0.02)
    service.script(stream([*said("a"), HOLD]), answer("b"))
    assert await talk(backend) == "a"
    await service.wait_until(lambda: service.hung_up == 1)
    assert await talk(backend) == "b"


async def test_closing_does_not_wait_for_ends_that_are_late(service: LoopbackService, backend: CerebrasBackend) -> None:
    service.script(stream([*said("a"), HOLD]))
    generation = backend.generate(chat_prompt(), params())
    while not (await anext(generation)).finish:
        pass
    await backend.aclose()
    await service.wait_until(lambda: service.hung_up == 1)
    assert await collect(generation) == []


async def test_chat_and_ids_share_connections(service: LoopbackService, backend: CerebrasBackend) -> None:
    service.script(answer("a"), stream([completion("b", [1]), LAST_TOKENS, DONE]))
    assert await talk(backend) + await talk(backend, token_prompt()) == "ab"
    assert service.connections == 1


async def test_an_idle_connection_that_the_service_closed_is_not_used(
    service: LoopbackService, backend: CerebrasBackend
) -> None:
    service.script(answer("a", headers=(("connection", "close"),)), answer("b"))
    assert await talk(backend) == "a"
    assert await talk(backend) == "b"
    assert service.connections == 2


async def test_an_idle_connection_is_kept_for_a_time(service: LoopbackService) -> None:
    backend = CerebrasBackend(api_key=KEY, base_url=service.url, keepalive_s=0.01)
    service.script(answer("a"))
    assert await talk(backend) == "a"
    await service.wait_until(lambda: service.open == 0)
    await backend.aclose()


async def test_an_answer_cut_at_a_stop_id_gives_its_connection_up(
    service: LoopbackService, backend: CerebrasBackend
) -> None:
    """The service would go on sampling, and we would wait for it."""
    service.script(stream([completion("", [1, 7]), completion("", [4]), HOLD]))
    ids = [list(delta.token_ids) async for delta in backend.generate(token_prompt(stop_ids=(7,)), params())]
    assert ids == [[1, 7], []]
    await service.wait_until(lambda: service.hung_up == 1, seconds=0.5)


# --- given up ---------------------------------------------------------------------------------------------------------

Leave = Callable[[CerebrasBackend, LoopbackService], Coroutine[Any, Any, None]]


async def cancelled_task(backend: CerebrasBackend, service: LoopbackService) -> None:
    task = asyncio.ensure_future(talk(backend))
    await service.wait_until(lambda: service.running == 1)
    task.cancel()
    await asyncio.wait([task])


async def cancelled_scope(backend: CerebrasBackend, service: LoopbackService) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(talk, backend)
        await service.wait_until(lambda: service.running == 1)
        group.cancel_scope.cancel()


async def closed_generator(backend: CerebrasBackend, service: LoopbackService) -> None:
    generation = backend.generate(chat_prompt(), params())
    await anext(generation)
    await generation.aclose()


async def error_of_the_consumer(backend: CerebrasBackend, service: LoopbackService) -> None:
    with suppress(ZeroDivisionError):
        async with aclosing(backend.generate(chat_prompt(), params())) as generation:
            async for _ in generation:
                _ = 1 / 0


async def dropped_generator(backend: CerebrasBackend, service: LoopbackService) -> None:
    generation = backend.generate(chat_prompt(), params())
    await anext(generation)
    del generation
    gc.collect()


STREAMING = stream([ROLE, chat({"content": "a"}), HOLD])
STARTING = HttpAnswer(held=True)


@pytest.mark.parametrize(
    ("leave", "answered"),
    [
        (cancelled_task, STREAMING),
        (cancelled_task, STARTING),
        (cancelled_scope, STREAMING),
        (cancelled_scope, STARTING),
        (closed_generator, STREAMING),
        (error_of_the_consumer, STREAMING),
        (dropped_generator, STREAMING),
    ],
)
async def test_who_leaves_ends_the_services_work(
    service: LoopbackService, backend: CerebrasBackend, leave: Leave, answered: HttpAnswer
) -> None:
    """Without this the service samples, and bills, to the end for nobody."""
    service.script(answered, answer("b"))
    await leave(backend, service)
    await service.wait_until(lambda: service.hung_up == 1, seconds=0.5)
    assert await talk(backend) == "b", "the next generation is none the worse"


async def test_who_leaves_at_the_last_delta_costs_nothing(service: LoopbackService, backend: CerebrasBackend) -> None:
    service.script(answer("a"), answer("b"))
    async with aclosing(backend.generate(chat_prompt(), params())) as generation:
        while not (await anext(generation)).finish:
            pass
    assert await talk(backend) == "b"
    assert service.hung_up == 0


# --- many at a time ---------------------------------------------------------------------------------------------------


async def test_many_generations_at_once() -> None:
    """More than the SDK's own bound of 100 connections; each reads its own answer."""

    def respond(request: ServiceRequest) -> HttpAnswer:
        name = request.decoded()["messages"][0]["content"]
        return stream([ROLE, *(chat({"content": f"{name}."}) for _ in range(20)), HOLD, LAST, DONE])

    async with LoopbackService(respond) as service:
        backend = CerebrasBackend(api_key=KEY, base_url=service.url)
        names = [f"turn {number}" for number in range(105)]
        generations = [backend.generate(chat_prompt(name), params()) for name in names]
        firsts = await asyncio.gather(*map(anext, generations))
        assert service.running == 105
        service.release()
        rests = await asyncio.gather(*map(collect, generations))
        assert [first.text + text_of(rest) for first, rest in zip(firsts, rests, strict=True)] == [
            f"{name}." * 20 for name in names
        ]
        await backend.aclose()
        await service.wait_until(lambda: service.open == 0)


async def test_more_generations_than_connections_wait_their_turn(service: LoopbackService) -> None:
    backend = CerebrasBackend(api_key=KEY, base_url=service.url, max_connections=2)
    service.script(*(answer(f"{number}") for number in range(9)))
    words = await asyncio.gather(*(talk(backend) for _ in range(9)))
    await backend.aclose()
    assert sorted(words) == [f"{number}" for number in range(9)]
    assert service.connections == 2


# --- the client's life ------------------------------------------------------------------------------------------------


async def test_it_may_be_closed_twice_and_used_again(service: LoopbackService, backend: CerebrasBackend) -> None:
    service.script(answer("a"), answer("b"))
    assert await talk(backend) == "a"
    await backend.aclose()
    await backend.aclose()
    await service.wait_until(lambda: service.open == 0)
    assert await talk(backend) == "b"


async def test_closing_what_was_never_used(backend: CerebrasBackend) -> None:
    await backend.aclose()


def test_each_event_loop_has_a_client_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend is often a global of an app whose tests run a loop each; aiohttp's sessions belong to one."""
    backend = CerebrasBackend(api_key=KEY)

    async def once() -> tuple[str, int]:
        async with LoopbackService(lambda _: answer("a")) as service:
            monkeypatch.setenv("CEREBRAS_BASE_URL", service.url)
            text = await talk(backend)
            await backend.aclose()
            return text, service.connections

    assert [asyncio.run(once()), asyncio.run(once())] == [("a", 1), ("a", 1)]


async def test_making_a_backend_opens_nothing(service: LoopbackService) -> None:
    """The SDK's default would call the service at once, and block the event loop for it."""
    backend = CerebrasBackend(api_key=KEY, base_url=service.url)
    service.script(answer("a"))
    assert await talk(backend) == "a"
    await backend.aclose()
    assert [request.path for request in service.requests] == ["/v1/chat/completions"]
