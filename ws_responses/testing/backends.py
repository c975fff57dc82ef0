"""A backend without a service: it says what a test tells it to, or what its deterministic model says.

    backend = ScriptedBackend(tool_calls=2)
    backend.will_fail(Fault.RATE_LIMITED)
    ...
    assert backend.generations[-1].outcome == "failed"

It serves chat and token prompts, on asyncio and trio, and is its own ``ServiceUnderTest``.
"""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Final, Literal

import anyio
from anyio.lowlevel import checkpoint
from msgspec import Struct

from ws_responses.backends import Accepts, ChatPrompt, Delta, GenerateParams, PromptNotAccepted, TokenPrompt, Usage
from ws_responses.clock import Clock, MonotonicClock
from ws_responses.errors import UpstreamError
from ws_responses.rendering.tokenizer import Tokenizer
from ws_responses.testing._signal import Signal
from ws_responses.testing.faults import EXPECTED, Fault
from ws_responses.testing.model import ARGUMENTS
from ws_responses.testing.speaker import Asked, Speaker, kind_of
from ws_responses.testing.speech import CHATML, HARMONY, PLAIN, Call, Markup, Said

__all__ = ["CHATML", "HARMONY", "PLAIN", "Asked", "Call", "Fault", "Generation", "Markup", "Said", "ScriptedBackend"]

_YIELD_EVERY: Final = 64
"""Deltas after which others may run, at a rate of 0."""


class Generation(Struct, kw_only=True):
    """A call of ``generate`` or ``prefill``, for a test to look at.

    Attributes:
        prompt: As it came.
        params: As they came.
        kind: Which call it was.
        deltas: Number of deltas taken.
        outcome: "abandoned" means cancelled, or closed before its end.
    """

    prompt: TokenPrompt | ChatPrompt
    params: GenerateParams
    kind: Literal["generate", "prefill"] = "generate"
    deltas: int = 0
    outcome: Literal["running", "finished", "failed", "abandoned"] = "running"


class _Script(Struct, frozen=True, kw_only=True):
    """What a generation does: deltas as they are, or something said; the model speaks if both are None."""

    deltas: Sequence[Delta] | None = None
    said: Said | None = None
    hold_after: int | None = None
    fault: Fault | None = None


_UNSCRIPTED: Final = _Script()


class ScriptedBackend:
    """A backend that needs no service.

    Its model calls a tool ``tool_calls`` times after each user message, then answers with text. The tool is the forced one,
    else the first of ``arguments`` that is offered, else the first, with arguments made from its schema; token prompts do not
    show their tools, so that ``call`` is needed there. Calls are counted by the tool outputs in the prompt, which takes a
    tokenizer and a markup where the prompt is one of tokens.

    Usage is told with the end: the tokens of the prompt (of chat messages, a fourth of their bytes), those of them that an earlier
    prompt and its answer begin with, and the tokens that were said.

    Args:
        tool_calls: Calls after each user message.
        call: The call to make; None takes it from the tools of a chat prompt.
        text: The answer; by default it names the number of tokens or messages in the prompt, so that a lost one shows.
        reasoning: Comes before each answer.
        respond: Answers instead of all that.
        arguments: Arguments by tool name.
        piece: Characters of one delta; None for a word each.
        rate: Deltas per second; 0 for as fast as it can.
        tokenizer: Makes ids of what is said to a token prompt; None for text only.
        markup: Writes what is said to a token prompt: ``PLAIN``, ``HARMONY``, ``CHATML``, or one of your own.
        accepts: What it takes and gives; by default both kinds of prompts and all that may be in them.
        prefills: It can warm up.
        remembers: Prompts that its cache knows; 0 for none, and no cached tokens in the usage.
        keeps: Calls kept in ``generations``.
        clock: Paces it.

    Attributes:
        accepts: What it takes and gives.
        generations: The newest calls, oldest first.
        running: Calls that run now.
        closed: ``aclose`` was called.
        speaks: See ``ServiceUnderTest``.
        faults: See ``ServiceUnderTest``.
        connections: None: it has none.
    """

    speaks = frozenset({"text", "reasoning", "refusal", "tool_calls", "token_ids", "usage", "service_tier"})
    faults = frozenset(Fault) - {Fault.SILENT, Fault.STALLED, Fault.EVENT_TOO_LARGE}
    connections: int | None = None

    def __init__(
        self,
        *,
        tool_calls: int = 1,
        call: Call | None = None,
        text: str | None = None,
        reasoning: str = "",
        respond: Callable[[Asked], Said] | None = None,
        arguments: Mapping[str, Mapping[str, Any]] = ARGUMENTS,
        piece: int | None = None,
        rate: float = 0.0,
        tokenizer: Tokenizer | None = None,
        markup: Markup = PLAIN,
        accepts: Accepts | None = None,
        prefills: bool = True,
        remembers: int = 32,
        keeps: int = 256,
        clock: Clock | None = None,
    ) -> None:
        self._speaker = Speaker(
            tool_calls=tool_calls,
            call=call,
            text=text,
            reasoning=reasoning,
            respond=respond,
            arguments=arguments,
            piece=piece,
            tokenizer=tokenizer,
            markup=markup,
            remembers=remembers,
        )
        self.accepts = accepts or Accepts(
            kinds=frozenset({"tokens", "chat"}),
            form="json",
            returns_ids=tokenizer is not None,
            images=True,
            files=True,
            constrains=True,
        )
        self.generations: deque[Generation] = deque(maxlen=keeps)
        self.running = 0
        self.closed = False
        self._rate = rate
        self._prefills = prefills
        self._clock = clock or MonotonicClock()
        self._scripts: deque[_Script] = deque()
        self._signal = Signal()
        self._releases = 0

    # -- what a test says --------------------------------------------------------------------------------------------

    def will_say(self, *said: Said) -> None:
        """Say this in the next generations, with a usage and an end as the model has them."""
        self._scripts.extend(_Script(said=one) for one in said)

    def will_answer(
        self,
        deltas: Sequence[Delta],
        *,
        hold_after: int | None = None,
        late_end: bool = False,  # noqa: ARG002 - see ServiceUnderTest
        cut_every: int | None = None,  # noqa: ARG002
    ) -> None:
        """Answer the next generation with just these deltas.

        Args:
            deltas: The last one has ``finish``. One without ids is marked as a loss if ids are promised.
            hold_after: Wait for ``release()`` after so many of them.
            late_end: Means nothing here.
            cut_every: Means nothing here.
        """
        self._scripts.append(_Script(deltas=[self._told(delta) for delta in deltas], hold_after=hold_after))

    def will_fail(self, fault: Fault, after: Sequence[Delta] = ()) -> None:
        """Do this in the next generation, or in a warm-up that comes before it.

        Args:
            fault: What to do. ``SILENT`` and ``STALLED`` wait until they are cancelled.
            after: Deltas that come before it, if it is a fault that comes in a stream.
        """
        self._scripts.append(_Script(deltas=after if fault.in_stream else (), fault=fault))

    def release(self) -> None:
        """Let the generations that run go on over their hold."""
        self._releases += 1
        self._signal.notify()

    async def wait_until(self, predicate: Callable[[], bool], seconds: float = 5.0) -> None:
        """Return as soon as ``predicate()`` holds; it is asked when a call begins or ends.

        Raises:
            AssertionError: It does not within ``seconds``.
        """
        await self._signal.expect(predicate, seconds, lambda: f"not so, with {self.running} generations running")

    # -- what the engine asks ----------------------------------------------------------------------------------------

    async def generate(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> AsyncGenerator[Delta]:
        """Sample an answer; see :class:`ws_responses.backends.Backend`.

        Raises:
            WireError: A test wants it, or it takes no such prompt.
        """
        generation = Generation(prompt=prompt, params=params)
        script = self._begin(generation)
        releases = self._releases
        start = self._clock.now()
        deltas = self._speaker.say(prompt, params, script.said) if script.deltas is None else script.deltas
        try:
            for number, delta in enumerate(deltas):
                if number == script.hold_after:
                    await self._signal.wait_until(lambda: self._releases > releases)
                if self._rate:
                    await self._pace(start, number)
                elif number % _YIELD_EVERY == _YIELD_EVERY - 1:
                    await checkpoint()
                generation.deltas = number + 1
                if delta.finish is not None:
                    generation.outcome = "finished"
                yield delta
            await self._fail(generation, script.fault)
        finally:
            self._end(generation)

    async def prefill(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> Usage | None:
        """Read the prompt; see :class:`ws_responses.backends.Backend`.

        Raises:
            WireError: A test wants it, or it takes no such prompt.
        """
        if not self._prefills:
            return None
        generation = Generation(prompt=prompt, params=params, kind="prefill")
        script = self._begin(generation)
        try:
            await checkpoint()
            await self._fail(generation, script.fault)
            usage = self._speaker.read(prompt)
            self._speaker.remember(prompt)
            generation.outcome = "finished"
        finally:
            self._end(generation)
        return usage

    async def aclose(self) -> None:
        """Take note that it was closed; it would go on all the same."""
        self.closed = True

    # -- one call ----------------------------------------------------------------------------------------------------

    def _begin(self, generation: Generation) -> _Script:
        """Take note of a call; return what it is to do."""
        self.generations.append(generation)
        kind = kind_of(generation.prompt)
        if kind not in self.accepts.kinds:
            generation.outcome = "failed"
            raise PromptNotAccepted(f"This backend takes no prompts of the kind {kind!r}.")
        self.running += 1
        self._signal.notify()
        if self._scripts and (generation.kind == "generate" or self._scripts[0].fault is not None):
            return self._scripts.popleft()
        return _UNSCRIPTED

    def _end(self, generation: Generation) -> None:
        if generation.outcome == "running":
            generation.outcome = "abandoned"
        self.running -= 1
        self._signal.notify()

    async def _pace(self, start: float, number: int) -> None:
        wait = start + number / self._rate - self._clock.now()
        if wait > 0:  # one that is late catches up
            await self._clock.wait(wait, anyio.Event())

    async def _fail(self, generation: Generation, fault: Fault | None) -> None:
        if fault is None:
            return
        if fault.needs_patience:
            await anyio.sleep_forever()
        generation.outcome = "failed"
        expected = EXPECTED[fault]
        raise UpstreamError(
            f"This was asked for: {fault.value}.",
            status=expected.status,
            type="server_error" if expected.status >= 500 else "invalid_request_error",
            code=expected.code,
            param=expected.param,
            headers={} if expected.retry_after is None else {"retry-after": expected.retry_after},
        )

    def _told(self, delta: Delta) -> Delta:
        if self.accepts.returns_ids and delta.text and not delta.token_ids:
            return Delta(text=delta.text, ids_lost=True, finish=delta.finish, usage=delta.usage)
        return delta
