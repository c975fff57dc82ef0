"""The conformance suite on the scripted backend; and that it finds what it is for."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from ws_responses.backends import Accepts, ChatPrompt, Delta, GenerateParams, TokenPrompt, Usage
from ws_responses.errors import WireError
from ws_responses.rendering.rendered import Rendered
from ws_responses.testing.backend_conformance import BackendConformance, generated
from ws_responses.testing.backends import ScriptedBackend
from ws_responses.testing.faults import Fault

TOKENS = Accepts(kinds=frozenset({"tokens"}), form="msgpack", returns_ids=True)
CHAT = Accepts(kinds=frozenset({"chat"}))


class TestTokens(BackendConformance):
    @pytest.fixture
    def backend(self) -> ScriptedBackend:
        return ScriptedBackend(accepts=TOKENS)

    @pytest.fixture
    def service(self, backend: ScriptedBackend) -> ScriptedBackend:
        return backend


class TestChat(TestTokens):
    @pytest.fixture
    def backend(self) -> ScriptedBackend:
        return ScriptedBackend(accepts=CHAT)


PROMPT = TokenPrompt(rendered=Rendered.of_tokens([1, 2], "msgpack"))
PARAMS = GenerateParams(model="m")
Deltas = AsyncGenerator[Delta]


class Broken(ScriptedBackend):
    """A backend with one fault."""

    def __init__(self, fault: Callable[[Deltas], Deltas]) -> None:
        super().__init__(accepts=TOKENS)
        self._fault = fault

    async def generate(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> Deltas:
        async with aclosing(super().generate(prompt, params)) as right, aclosing(self._fault(right)) as wrong:
            async for delta in wrong:
                yield delta


async def goes_on_after_finish(deltas: Deltas) -> Deltas:
    async for delta in deltas:
        yield delta
    yield Delta(text="more")


async def never_finishes(deltas: Deltas) -> Deltas:
    async for delta in deltas:
        if delta.finish is None:
            yield delta


async def gathers(deltas: Deltas) -> Deltas:
    gathered = [delta async for delta in deltas]
    for delta in gathered:
        yield delta


async def loses_order(deltas: Deltas) -> Deltas:
    held: Delta | None = None
    async for delta in deltas:
        if held is None and delta.finish is None:
            held = delta
            continue
        yield delta
        if held is not None:
            yield held
            held = None


async def swallows_errors(deltas: Deltas) -> Deltas:
    try:
        async for delta in deltas:
            yield delta
    except WireError:
        yield Delta(finish="stop")


async def calls_every_end_a_stop(deltas: Deltas) -> Deltas:
    async for delta in deltas:
        yield delta if delta.finish is None else Delta(finish="stop", usage=delta.usage)


async def bills_the_unknown_as_nothing(deltas: Deltas) -> Deltas:
    async for delta in deltas:
        yield delta if delta.finish is None or delta.usage else Delta(finish="stop", usage=Usage(input_tokens=0))


async def hides_losses(deltas: Deltas) -> Deltas:
    async for delta in deltas:
        yield Delta(text=delta.text, token_ids=delta.token_ids, finish=delta.finish)


SUITE = TestTokens()
SUITE.ends_within_s = SUITE.patience_s = 0.1


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        (goes_on_after_finish, SUITE.test_text_comes_in_order_and_finish_comes_last),
        (never_finishes, SUITE.test_an_empty_answer_is_an_answer),
        (loses_order, SUITE.test_text_comes_in_order_and_finish_comes_last),
        (gathers, SUITE.test_deltas_do_not_wait_for_the_next_ones),
        (bills_the_unknown_as_nothing, SUITE.test_usage_is_told_and_what_is_unknown_is_none),
        (hides_losses, SUITE.test_ids_come_in_order_and_a_loss_is_told),
    ],
    ids=lambda value: value.__name__,
)
async def test_the_suite_finds(fault: Callable[[Deltas], Deltas], test: Callable[..., Any]) -> None:
    """Without this a suite that tests nothing would pass."""
    backend = Broken(fault)
    with pytest.raises(AssertionError):
        await test(backend=backend, service=backend, prompt=PROMPT, params=PARAMS)


async def test_the_suite_finds_a_lost_finish() -> None:
    backend = Broken(calls_every_end_a_stop)
    with pytest.raises(AssertionError):
        await SUITE.test_why_it_ended_is_told(backend, backend, PROMPT, PARAMS, "length")


async def test_the_suite_finds_swallowed_errors(caplog: pytest.LogCaptureFixture) -> None:
    backend = Broken(swallows_errors)
    with pytest.raises(AssertionError, match="as if nothing had happened"):
        await SUITE.test_a_failure_is_told(backend, None, backend, PROMPT, PARAMS, Fault.CUT, caplog)


async def test_what_comes_together_is_put_together() -> None:
    """The suite's own eyes."""

    async def deltas() -> Deltas:
        yield Delta(text="a", token_ids=[1], usage=Usage(input_tokens=1))
        yield Delta(text="b", token_ids=[2, 3])
        yield Delta(finish="length", usage=Usage(input_tokens=2))

    result = await generated(deltas())
    assert (result.text, result.token_ids, result.finish) == ("ab", [1, 2, 3], "length")
    assert result.usage == Usage(input_tokens=2)
