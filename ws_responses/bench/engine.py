"""The engine with what stands around it in a benchmark: a renderer of real tokens, and a backend that calls a tool each time."""

from collections.abc import AsyncGenerator
from time import thread_time
from typing import Final

from msgspec.structs import replace

from ws_responses import ResponsesApp, ResponsesEngine
from ws_responses.backends import ChatPrompt, Delta, GenerateParams, TokenPrompt
from ws_responses.bench.inprocess import Conversation
from ws_responses.bench.loop import ARGUMENTS, SHELL
from ws_responses.rendering.harmony import HarmonyRenderer
from ws_responses.rendering.tokenizer import TiktokenTokenizer
from ws_responses.rendering.vocabulary import load_encoding
from ws_responses.testing.backends import HARMONY, Call, Said, ScriptedBackend

CALLS: Final = Said(calls=(Call(SHELL["name"], ARGUMENTS),))
"""The answer to everything."""

_MARKUP: Final = replace(HARMONY, start=None)  # prompts are not looked at: that would take longer than all else


class ToolBackend(ScriptedBackend):
    """Asks for a tool in each turn.

    Attributes:
        entered_at: When it was called last, by the thread's CPU clock.
        prompt: What it was given last; None before that.
    """

    def __init__(self) -> None:
        encoding = load_encoding("o200k_harmony")
        super().__init__(
            respond=lambda _: CALLS, tokenizer=TiktokenTokenizer(encoding), markup=_MARKUP, remembers=0, keeps=0
        )
        self.entered_at = 0.0
        self.prompt: TokenPrompt | ChatPrompt | None = None

    def generate(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> AsyncGenerator[Delta]:
        """Take note of the call; the rest is the scripted backend's."""
        self.entered_at = thread_time()
        self.prompt = prompt
        return super().generate(prompt, params)


class EngineConversation(Conversation):
    """A conversation with the engine.

    Attributes:
        backend: What it asks.
    """

    def __init__(self) -> None:
        self.backend = ToolBackend()
        engine = ResponsesEngine(self.backend, renderer=HarmonyRenderer())
        super().__init__(ResponsesApp(engine, authorize="open"), self.backend, store=False)

    @property
    def tokens(self) -> int:
        """Tokens of the last prompt."""
        return 0 if self.backend.prompt is None else self.backend.prompt.rendered.end

    @property
    def content_bytes(self) -> int:
        """Bytes of the items, four for each token, and the ids in the encoded form that the backend takes."""
        prompt = self.backend.prompt
        encoded = () if prompt is None else (len(link.encoded) for link in prompt.rendered.links())
        return self.item_bytes + 4 * self.tokens + sum(encoded)
