"""The conformance suite of backends: subclass it, and give it your backend and a service to provoke.

    class TestMyBackend(BackendConformance):
        @pytest.fixture
        async def service(self):
            async with ChatService() as service:  # or a stand-in of your own: see ServiceUnderTest
                yield service

        @pytest.fixture
        async def backend(self, service):
            backend = MyBackend(service.base_url, api_key=self.key)
            yield backend
            await backend.aclose()

Needs pytest. The tests run by the plugin of anyio, or by any other in its automatic mode. What your service cannot be made to do is
skipped, by name.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, ClassVar, Protocol

import anyio
import pytest
from msgspec import Struct

from ws_responses.backends import (
    Backend,
    ChatPrompt,
    Delta,
    Finish,
    GenerateParams,
    PromptNotAccepted,
    TokenPrompt,
    ToolCallDelta,
    Usage,
)
from ws_responses.errors import WireError
from ws_responses.rendering.rendered import Rendered
from ws_responses.testing.clock import settle
from ws_responses.testing.faults import EXPECTED, Fault

__all__ = ["BackendConformance", "Generated", "ServiceUnderTest", "generated"]

STOP = Delta(finish="stop")


class ServiceUnderTest(Protocol):
    """The service behind a backend, as far as the suite gives it orders.

    ``ws_responses.testing.inference`` has two for HTTP; ``ScriptedBackend`` is its own.

    Attributes:
        speaks: Members of ``Delta`` that it can send.
        faults: What it can be made to do.
        running: Generations that run in it now.
        connections: Connections so far; None if that is not known.
    """

    @property
    def speaks(self) -> frozenset[str]: ...  # noqa: D102 - see the class

    @property
    def faults(self) -> frozenset[Fault]: ...  # noqa: D102 - see the class

    @property
    def running(self) -> int: ...  # noqa: D102 - see the class

    @property
    def connections(self) -> int | None: ...  # noqa: D102 - see the class

    def will_answer(
        self,
        deltas: Sequence[Delta],
        *,
        hold_after: int | None = None,
        late_end: bool = False,
        cut_every: int | None = None,
    ) -> None:
        """Answer the next generation with these deltas; a service that cannot (a real model) calls ``pytest.skip``.

        Args:
            deltas: The last one has ``finish``.
            hold_after: Wait for ``release()`` after so many of them.
            late_end: Wait for ``release()`` between the last event and the end of the answer, if that is another thing there.
            cut_every: Send so many bytes at a time, if bytes are sent.
        """
        ...

    def will_fail(self, fault: Fault, after: Sequence[Delta] = ()) -> None:
        """Do this in the next generation, after these deltas if it is one that comes in a stream."""
        ...

    def release(self) -> None:
        """Let the answers that wait go on."""
        ...

    async def wait_until(self, predicate: Callable[[], bool], seconds: float = 5.0) -> None:
        """Return as soon as ``predicate()`` holds, for example on ``running``.

        Raises:
            AssertionError: It does not within ``seconds``.
        """
        ...


class Generated(Struct, frozen=True, kw_only=True):
    """What a generation yielded, put together.

    Attributes:
        deltas: All of them, in order.
        error: What ended it; None if nothing did.
    """

    deltas: list[Delta]
    error: WireError | None = None

    @property
    def text(self) -> str:
        """All of the text."""
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> list[int]:
        """All ids."""
        return [each for delta in self.deltas for each in delta.token_ids]

    @property
    def finish(self) -> Finish | None:
        """Why it ended; None if it did not."""
        return self.deltas[-1].finish if self.deltas else None

    @property
    def usage(self) -> Usage | None:
        """The last one."""
        return next((delta.usage for delta in reversed(self.deltas) if delta.usage is not None), None)

    @property
    def calls(self) -> list[tuple[str | None, str | None, str]]:
        """Id, name and arguments of each call."""
        calls: dict[int, tuple[str | None, str | None, str]] = {}
        for piece in (piece for delta in self.deltas for piece in delta.tool_calls):
            call_id, name, arguments = calls.get(piece.index, (piece.id, piece.name, ""))
            calls[piece.index] = (call_id, name, arguments + piece.arguments)
        return [calls[index] for index in sorted(calls)]


async def generated(deltas: AsyncGenerator[Delta]) -> Generated:
    """Take a generation to its end, whatever that is, and check what holds for every one."""
    taken: list[Delta] = []
    error: WireError | None = None
    async with aclosing(deltas):
        try:
            async for delta in deltas:
                assert not taken or taken[-1].finish is None, "nothing comes after the delta that has finish"
                taken.append(delta)
        except WireError as failure:
            error = failure
    if error is None:
        assert taken, "a generation yields at least the delta that has finish"
        assert taken[-1].finish is not None, "a generation without finish is a failure, not an end"
    indexes = [piece.index for delta in taken for piece in delta.tool_calls]
    assert indexes == sorted(indexes), "the pieces of one call follow each other"
    assert sorted(set(indexes)) == list(range(len(set(indexes)))), "calls are numbered from 0 on"
    return Generated(deltas=taken, error=error)


def _no_backend(_: "BackendConformance") -> None:
    return None


def _prompt(_: "BackendConformance", backend: Backend) -> TokenPrompt | ChatPrompt:
    if "tokens" in backend.accepts.kinds:
        return TokenPrompt(rendered=Rendered.of_tokens(range(1, 9), backend.accepts.form))
    return ChatPrompt(rendered=Rendered.of_messages([b'{"role":"user","content":"hi"}']))


def _params(_: "BackendConformance") -> GenerateParams:
    return GenerateParams(model="m", max_tokens=64)


class BackendConformance:
    """The tests. Subclasses define the fixtures ``service`` and ``backend``, and may define three more.

    ==================  ============================================================================================
    fixture             what it is
    ==================  ============================================================================================
    ``service``         a ``ServiceUnderTest``
    ``backend``         the backend, fresh for each test and closed after it
    ``hasty_backend``   one with time limits of a fraction of a second and events of at most 64 KiB; without it the faults
                        that show only by such limits are skipped
    ``prompt``          a prompt that it takes; by default a short one of a kind that it accepts
    ``params``          how to sample
    ==================  ============================================================================================

    Attributes:
        ends_within_s: What an abandoned generation may go on in the service.
        patience_s: Time after which what has not come will not come.
        key: Given to the service as a credential by your ``backend`` fixture, if it takes one; no error may hold it.
    """

    pytestmark: ClassVar[Any] = pytest.mark.anyio

    ends_within_s: float = 0.5
    patience_s: float = 5.0
    key: str = "sk-conformance-1"

    # Typed as anything, so that subclasses may give them other arguments, and make them async.
    hasty_backend: Any = pytest.fixture(_no_backend)
    prompt: Any = pytest.fixture(_prompt)
    params: Any = pytest.fixture(_params)

    # -- what comes out ----------------------------------------------------------------------------------------------

    async def test_what_it_accepts_is_constant(self, backend: Backend) -> None:
        """The engine renders for it before it is asked for anything."""
        assert backend.accepts == backend.accepts
        assert backend.accepts.kinds, "it takes some kind of prompt"
        assert backend.accepts.kinds <= {"tokens", "chat"}
        assert backend.accepts.form in {None, "json", "msgpack"}

    async def test_text_comes_in_order_and_finish_comes_last(
        self, backend: Backend, service: ServiceUnderTest, prompt: Any, params: GenerateParams
    ) -> None:
        """Also characters that chunk borders cut through."""
        pieces = ["Hel", "lo ", "wörld \N{PARTY POPPER}", "\n\u2028\x85", "日本", '"\\', " data: x\n\n"]
        service.will_answer([*(Delta(text=piece) for piece in pieces), STOP])

        result = await generated(backend.generate(prompt, params))

        assert result.error is None
        assert result.text == "".join(pieces)
        assert result.finish == "stop"

    @pytest.mark.parametrize("cut_every", [1, 2, 7, 1024])
    async def test_borders_of_chunks_change_nothing(
        self, backend: Backend, service: ServiceUnderTest, prompt: Any, params: GenerateParams, cut_every: int
    ) -> None:
        """A service writes, and a network delivers, as it likes."""
        service.will_answer([Delta(text="é\N{PARTY POPPER}"), Delta(text="日"), STOP], cut_every=cut_every)

        result = await generated(backend.generate(prompt, params))

        assert (result.text, result.finish, result.error) == ("é\N{PARTY POPPER}日", "stop", None)

    @pytest.mark.parametrize("finish", ["stop", "length", "content_filter"])
    async def test_why_it_ended_is_told(
        self, backend: Backend, service: ServiceUnderTest, prompt: Any, params: GenerateParams, finish: Finish
    ) -> None:
        """A cut answer must not pass for a whole one."""
        service.will_answer([Delta(text="x"), Delta(finish=finish)])

        assert (await generated(backend.generate(prompt, params))).finish == finish

    async def test_an_empty_answer_is_an_answer(
        self, backend: Backend, service: ServiceUnderTest, prompt: Any, params: GenerateParams
    ) -> None:
        """A model may say nothing."""
        service.will_answer([STOP])

        result = await generated(backend.generate(prompt, params))

        assert (result.text, result.finish, result.error) == ("", "stop", None)

    async def test_usage_is_told_and_what_is_unknown_is_none(
        self, backend: Backend, service: ServiceUnderTest, prompt: Any, params: GenerateParams
    ) -> None:
        """0 for unknown would be billed as nothing."""
        _speaks(service, "usage")
        usage = Usage(input_tokens=8, cached_tokens=4, output_tokens=1)
        service.will_answer([_sampled("x", 1), Delta(finish="stop", usage=usage)])
        service.will_answer([_sampled("x", 1), STOP])

        known = await generated(backend.generate(prompt, params))
        unknown = await generated(backend.generate(prompt, params))

        assert known.usage is not None
        assert (known.usage.input_tokens, known.usage.cached_tokens, known.usage.output_tokens) == (8, 4, 1)
        assert known.usage.reasoning_tokens in {None, 0}
        assert unknown.usage is None or 0 not in {unknown.usage.input_tokens, unknown.usage.output_tokens}

    async def test_reasoning_is_no_text(
        self, backend: Backend, service: ServiceUnderTest, prompt: Any, params: GenerateParams
    ) -> None:
        """What a model thinks must not be shown as its answer."""
        _speaks(service, "reasoning")
        service.will_answer([Delta(reasoning="hm "), Delta(reasoning="so"), Delta(text="42"), STOP])

        result = await generated(backend.generate(prompt, params))

        assert "".join(delta.reasoning for delta in result.deltas) == "hm so"
        assert result.text == "42"

    async def test_a_refusal_is_no_text(
        self, backend: Backend, service: ServiceUnderTest, prompt: Any, params: GenerateParams
    ) -> None:
        """Clients show it in another way."""
        _speaks(service, "refusal")
        service.will_answer([Delta(refusal="I "), Delta(refusal="won't."), STOP])

        result = await generated(backend.generate(prompt, params))

        assert "".join(delta.refusal for delta in result.deltas) == "I won't."
        assert result.text == ""

    async def test_calls_come_in_pieces(
        self, backend: Backend, service: ServiceUnderTest, prompt: Any, params: GenerateParams
    ) -> None:
        """Two calls, one of them without arguments."""
        _speaks(service, "tool_calls")
        pieces = [
            ToolCallDelta(index=0, id="call_1", name="get_weather", arguments=""),
            ToolCallDelta(index=0, arguments='{"city":'),
            ToolCallDelta(index=0, arguments='"Paris"}'),
            ToolCallDelta(index=1, id="call_2", name="now", arguments="{}"),
        ]
        service.will_answer([*(Delta(tool_calls=(piece,)) for piece in pieces), Delta(finish="tool_calls")])

        result = await generated(backend.generate(prompt, params))

        assert [call[1:] for call in result.calls] == [("get_weather", '{"city":"Paris"}'), ("now", "{}")]
        assert result.finish == "tool_calls"

    async def test_ids_come_in_order_and_a_loss_is_told(
        self, backend: Backend, service: ServiceUnderTest, prompt: Any, params: GenerateParams
    ) -> None:
        """Ids that are thought to be complete and are not would corrupt every later prompt."""
        _speaks(service, "token_ids")
        if not backend.accepts.returns_ids:
            pytest.skip("the backend tells no ids")
        # The end of a sequence is an id without text.
        service.will_answer([_sampled("a", 5), _sampled("bc", 6, 7), _sampled("", 8), STOP])
        service.will_answer([_sampled("a", 5), Delta(text="b"), STOP])

        whole = await generated(backend.generate(prompt, params))
        lossy = await generated(backend.generate(prompt, params))

        assert whole.token_ids == [5, 6, 7, 8]
        assert not any(delta.ids_lost for delta in whole.deltas)
        assert any(delta.ids_lost for delta in lossy.deltas)

    async def test_deltas_do_not_wait_for_the_next_ones(
        self, backend: Backend, service: ServiceUnderTest, prompt: Any, params: GenerateParams
    ) -> None:
        """A backend that gathers adds to every client's time to the first token."""
        service.will_answer([Delta(text="a"), Delta(text="b"), Delta(text="c"), STOP], hold_after=2)

        text = ""
        with anyio.move_on_after(self.patience_s):
            async with aclosing(backend.generate(prompt, params)) as deltas:
                async for delta in deltas:
                    text += delta.text
                    if text == "ab":
                        service.release()
        assert text == "abc"

    # -- many, and the end -------------------------------------------------------------------------------------------

    async def test_many_generations_at_once(
        self, backend: Backend, service: ServiceUnderTest, prompt: Any, params: GenerateParams
    ) -> None:
        """One backend serves all conversations of a process."""
        many = 5
        for number in range(many):
            service.will_answer([Delta(text=f"{number}"), Delta(text=f"{number}"), STOP], hold_after=1)
        texts: list[str] = []

        async def one() -> None:
            texts.append((await generated(backend.generate(prompt, params))).text)

        async with anyio.create_task_group() as group:
            for _ in range(many):
                group.start_soon(one)
            await service.wait_until(lambda: service.running == many)
            service.release()

        assert sorted(texts) == ["00", "11", "22", "33", "44"]

    @pytest.mark.parametrize("hold_after", [0, 1])
    async def test_a_cancelled_generation_ends_in_the_service(
        self, backend: Backend, service: ServiceUnderTest, prompt: Any, params: GenerateParams, hold_after: int
    ) -> None:
        """Else a gone client's answer is sampled, and paid for, to its end."""
        service.will_answer([Delta(text="a"), Delta(text="b"), STOP], hold_after=hold_after)

        async with anyio.create_task_group() as group:
            group.start_soon(generated, backend.generate(prompt, params))
            await service.wait_until(lambda: service.running == 1)
            group.cancel_scope.cancel()
        await service.wait_until(lambda: service.running == 0, self.ends_within_s)

        service.will_answer([Delta(text="c"), STOP])
        assert (await generated(backend.generate(prompt, params))).text == "c"

    async def test_a_closed_generation_ends_in_the_service(
        self, backend: Backend, service: ServiceUnderTest, prompt: Any, params: GenerateParams
    ) -> None:
        """By ``aclose``, as a consumer does that has heard enough."""
        service.will_answer([Delta(text="a"), Delta(text="b"), STOP], hold_after=1)

        deltas = backend.generate(prompt, params)
        assert (await anext(deltas)).text == "a"
        await deltas.aclose()
        await service.wait_until(lambda: service.running == 0, self.ends_within_s)

        await deltas.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(deltas)

    async def test_a_generation_that_is_never_asked_for_costs_nothing(
        self, backend: Backend, service: ServiceUnderTest, prompt: Any, params: GenerateParams
    ) -> None:
        """``generate`` only makes the generator."""
        await backend.generate(prompt, params).aclose()

        assert service.running == 0

    @pytest.mark.parametrize("used", [False, True])
    async def test_a_backend_may_be_closed_twice(
        self,
        backend: Backend,
        service: ServiceUnderTest,
        prompt: Any,
        params: GenerateParams,
        used: bool,  # noqa: FBT001 - pytest gives it by name
    ) -> None:
        """Whoever shares it need not agree on who closes it."""
        if used:
            service.will_answer([Delta(text="x"), STOP])
            await generated(backend.generate(prompt, params))
        await backend.aclose()
        await backend.aclose()

    @pytest.mark.parametrize("late_end", [False, True])
    @pytest.mark.parametrize("to_the_end", [False, True])
    async def test_turns_share_a_connection(
        self,
        backend: Backend,
        service: ServiceUnderTest,
        prompt: Any,
        params: GenerateParams,
        to_the_end: bool,  # noqa: FBT001 - pytest gives it by name
        late_end: bool,  # noqa: FBT001
    ) -> None:
        """A new one costs two or three round trips, each turn; also if nobody asks for more after the last delta."""
        if service.connections is None:
            pytest.skip("the service does not count its connections")
        for _ in range(5):
            service.will_answer([Delta(text="x"), STOP], late_end=late_end)
            async with aclosing(backend.generate(prompt, params)) as deltas:
                async for delta in deltas:
                    if delta.finish is not None and not to_the_end:
                        break
            service.release()
            await service.wait_until(lambda: service.running == 0)
            await settle()

        assert service.connections == 1

    # -- failures ----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.value)
    async def test_a_failure_is_told(
        self,
        backend: Backend,
        hasty_backend: Backend | None,
        service: ServiceUnderTest,
        prompt: Any,
        params: GenerateParams,
        fault: Fault,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """By the one table for all backends, after what was sampled before it, and with nothing left behind."""
        if fault not in service.faults:
            pytest.skip(f"the service cannot be made to fail so: {fault.value}")
        if fault.needs_patience or fault is Fault.EVENT_TOO_LARGE:
            if hasty_backend is None:
                pytest.skip(f"no backend with small limits: {fault.value}")
            backend = hasty_backend
        sampled = [Delta(text="a"), Delta(text="b")]
        service.will_fail(fault, sampled)

        result = await generated(backend.generate(prompt, params))

        assert result.error is not None, "the generation ended as if nothing had happened"
        expected = EXPECTED[fault]
        assert (result.error.status, result.error.code) == (expected.status, expected.code)
        assert result.error.headers.get("retry-after") == expected.retry_after
        if expected.param is not None:
            assert result.error.param == expected.param
        assert result.text == ("ab" if fault.in_stream else "")
        assert self.key not in f"{result.error!r} {result.error.extra} {caplog.text}"
        await service.wait_until(lambda: service.running == 0, self.ends_within_s)
        if fault is not Fault.UNREACHABLE:
            service.will_answer([Delta(text="c"), STOP])
            assert (await generated(backend.generate(prompt, params))).text == "c", "it goes on after a failure"

    async def test_a_prompt_of_another_kind_is_refused(self, backend: Backend, params: GenerateParams) -> None:
        """Before anything is sampled, so that the engine can try the other kind."""
        others: dict[str, TokenPrompt | ChatPrompt] = {
            "tokens": TokenPrompt(rendered=Rendered.of_tokens([1], None)),
            "chat": ChatPrompt(rendered=Rendered.of_messages([b'{"role":"user","content":"hi"}'])),
        }
        for kind in sorted(others.keys() - backend.accepts.kinds):
            with pytest.raises(PromptNotAccepted):
                await anext(backend.generate(others[kind], params))

    # -- warming up --------------------------------------------------------------------------------------------------

    async def test_a_warm_up_reads_the_prompt_and_answers_nothing(
        self, backend: Backend, service: ServiceUnderTest, prompt: Any, params: GenerateParams
    ) -> None:
        """It may do nothing at all, but then it says so."""
        usage = await backend.prefill(prompt, params)

        await service.wait_until(lambda: service.running == 0)
        assert usage is None or usage.input_tokens is None or usage.input_tokens > 0
        service.will_answer([Delta(text="c"), STOP])
        assert (await generated(backend.generate(prompt, params))).text == "c"

    async def test_a_warm_up_that_fails_is_told(
        self, backend: Backend, service: ServiceUnderTest, prompt: Any, params: GenerateParams
    ) -> None:
        """By the same table."""
        if Fault.RATE_LIMITED not in service.faults:
            pytest.skip("the service cannot be made to fail")
        service.will_fail(Fault.RATE_LIMITED)

        try:
            usage = await backend.prefill(prompt, params)
        except WireError as error:
            assert (error.status, error.code) == (429, "rate_limit_exceeded")
        else:
            assert usage is None, "it says that it has read the prompt, but the service refused"


def _speaks(service: ServiceUnderTest, member: str) -> None:
    if member not in service.speaks:
        pytest.skip(f"the service does not send {member}")


def _sampled(text: str, *ids: int) -> Delta:
    return Delta(text=text, token_ids=ids)
