"""Stand-ins for an inference service and a token format, small enough to be read, and a socket to an engine."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio

from ws_responses import ResponsesWebSocketMiddleware
from ws_responses._types import Receive, Scope, Send
from ws_responses.backends import Accepts, ChatPrompt, Delta, GenerateParams, TokenPrompt, Usage
from ws_responses.clock import Clock
from ws_responses.engine.engine import ResponsesEngine
from ws_responses.rendering.items import AdditionalTools, CallOutput, CustomCall, FunctionCall, Message, read_items
from ws_responses.rendering.rendered import Form, Rendered
from ws_responses.rendering.renderer import (
    Answer,
    CannotRender,
    OutputPiece,
    RenderSettings,
    ToolChoice,
)
from ws_responses.testing import MemorySocket

Event = dict[str, Any]
Step = Delta | Exception | anyio.Event

STOP = Delta(finish="stop", usage=Usage(input_tokens=5, cached_tokens=2, output_tokens=3, reasoning_tokens=1))


def said(*texts: str) -> list[Step]:
    """An answer of plain text."""
    return [*(Delta(text=text) for text in texts), STOP]


class ScriptedService:
    """A backend that does what the test says, generation by generation.

    A step is a delta, an error that is raised, or an event that is waited for. Without a script it says "Hello", in letters
    if it is given tokens.
    """

    def __init__(self, *kinds: Literal["tokens", "chat"], **accepts: Any) -> None:
        self.accepts = Accepts(kinds=frozenset(kinds or ("chat",)), **accepts)
        self.scripts: list[Sequence[Step]] = []
        self.prompts: list[TokenPrompt | ChatPrompt] = []
        self.params: list[GenerateParams] = []
        self.prefilled: list[TokenPrompt | ChatPrompt] = []
        self.prefill_error: Exception | None = None
        self.running = 0
        self.closed = 0
        self.exhausted = 0
        self.entered = anyio.Event()

    def will(self, *answers: Sequence[Step]) -> None:
        self.scripts += answers

    async def generate(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> AsyncGenerator[Delta]:
        self.prompts.append(prompt)
        self.params.append(params)
        hello = [Delta(token_ids=letters("Hello")), STOP] if isinstance(prompt, TokenPrompt) else said("Hel", "lo")
        steps = self.scripts.pop(0) if self.scripts else hello
        self.running += 1
        self.entered.set()
        try:
            for step in steps:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, anyio.Event):
                    await step.wait()
                else:
                    yield step
            self.exhausted += 1
        finally:
            self.running -= 1

    async def prefill(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> Usage | None:
        self.prefilled.append(prompt)
        if self.prefill_error is not None:
            raise self.prefill_error
        return None

    async def aclose(self) -> None:
        self.closed += 1

    def messages(self, index: int = -1) -> list[dict[str, Any]]:
        """The chat messages of a prompt."""
        messages: list[dict[str, Any]] = json.loads(self.prompts[index].rendered.json_array())
        return messages

    def text(self, index: int = -1) -> str:
        """A token prompt of ``LetterRenderer`` as text."""
        return "".join(map(chr, self.prompts[index].rendered.ids()))


END, ANSWER, REASONING, CALL, COMMENTARY, FINAL = 1, 2, 3, 4, 5, 6
PHASES = {COMMENTARY: "commentary", FINAL: "final_answer"}


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


class LetterParser:
    """Letters are text; other tokens begin something else, up to END; a call is ``name arguments``."""

    def __init__(self, prefill: Sequence[int] = ()) -> None:
        self._kind: Literal["text", "reasoning", "call"] = "text"
        self._calls = -1
        self._name: str | None = ""
        self._phase: str | None = None
        self._begun = prefill

    def feed(self, token_ids: Sequence[int], text: str) -> Sequence[OutputPiece]:
        del text
        tokens, self._begun = [*self._begun, *token_ids], ()
        return [piece for token in tokens if (piece := self._token(token)) is not None]

    def end(self) -> Sequence[OutputPiece]:
        return ()

    def _token(self, token: int) -> OutputPiece | None:
        if token == END or token in PHASES:
            self._kind, self._phase = "text", PHASES.get(token)
        elif token == REASONING:
            self._kind = "reasoning"
        elif token == CALL:
            self._kind, self._name = "call", ""
            self._calls += 1
        elif self._kind != "call":
            return OutputPiece(kind=self._kind, text=chr(token), phase=self._phase)
        elif self._name is None:
            return OutputPiece(kind="call", call=self._calls, text=chr(token))
        elif chr(token) != " ":
            self._name += chr(token)
        else:
            name, self._name = self._name, None
            return OutputPiece(kind="call", call=self._calls, name=name)
        return None


class LetterRenderer:
    """A token format in which a token is a letter."""

    produces: Literal["tokens"] = "tokens"

    def __init__(self, name: str = "letters") -> None:
        self.name = name
        self.rendered = 0

    def begin(self, settings: RenderSettings, form: Form) -> Rendered:
        tools = "" if settings.tools is None else ",".join(tool.wire_name for tool in settings.tools.tools)
        return Rendered.of_tokens([*letters(f"{settings.instructions or ''}[{tools}]"), END], form)

    def extend(self, state: Rendered, items: Iterable[bytes]) -> Rendered:
        for index, item in read_items(items):
            match item:
                case Message(role=role, content=content):
                    said = (
                        content if isinstance(content, str) else "".join(_letters_of(p, index) for p in content or ())
                    )
                    text = f"{role[0]}:{said}"
                case FunctionCall(arguments=arguments) | CustomCall(input=arguments):
                    text = f"c:{item.wire_name} {arguments}"
                case CallOutput(output=str(output)):
                    text = f"o:{output}"
                case AdditionalTools():
                    continue
                case _:
                    text = "r:"
            self.rendered += len(text)
            state = state.with_tokens([*letters(text), END])
        return state

    def answer(self, state: Rendered, choice: ToolChoice, settings: RenderSettings) -> Answer:
        del settings
        if choice.mode == "required":
            return Answer(prompt=state.with_tokens([ANSWER]), parser=LetterParser(), schema=b"{}")
        return Answer(prompt=state.with_tokens([ANSWER]), parser=LetterParser(), stop_ids=(END,))

    def answered(self, state: Rendered, sampled_ids: Sequence[int]) -> Rendered:
        return state.with_tokens([ANSWER, *sampled_ids, END])


def _letters_of(part: Any, index: int) -> str:
    text = getattr(part, "text", None)
    if not isinstance(text, str):
        raise CannotRender("Only text has letters.", index=index, param="content")
    return text


async def no_app(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError(f"the engine answers, not the app: {scope['type']}")


@asynccontextmanager
async def socket_to(
    engine: ResponsesEngine, clock: Clock | None = None, max_unread: int | None = None, **options: Any
) -> AsyncIterator[MemorySocket]:
    """Open a socket to an engine, through the whole of the middleware."""
    app = ResponsesWebSocketMiddleware(no_app, upstream=engine, authorize="open", clock=clock, **options)
    async with MemorySocket(app, max_unread=max_unread) as ws:
        yield ws


def last(events: Sequence[Event]) -> Event:
    """The response object of the closing event."""
    response: Event = events[-1]["response"]
    return response


def kinds(events: Sequence[Event]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]
