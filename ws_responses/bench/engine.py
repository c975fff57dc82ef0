"""The engine with what stands around it in a benchmark: gpt-oss' format by its real vocabulary, and a backend without a service."""

import asyncio
import re
from collections.abc import AsyncGenerator
from time import perf_counter, process_time, thread_time
from typing import Final

from ws_responses import Limits, ResponsesApp, ResponsesEngine, Safety
from ws_responses.backends import Accepts, ChatPrompt, Delta, GenerateParams, TokenPrompt, Usage
from ws_responses.bench.inprocess import Conversation
from ws_responses.bench.loop import ARGUMENTS, SHELL, ToolOutputs
from ws_responses.rendering.harmony import HarmonyRenderer
from ws_responses.rendering.vocabulary import load_encoding
from ws_responses.safety.verdict import Carried, SafetyInput, Verdict
from ws_responses.testing.speech import HARMONY, Call, Said

_THOUGHT_CHARS: Final = 330
"""Some ninety tokens of reasoning before each call, which itself has some fifty."""

_PACE: Final = re.compile(r"call-(\d+)-(\d+)").fullmatch


def model(*, rate: int = 0, first_ms: int = 0) -> str:
    """Return the name of a model: it tells the backend how fast to answer.

    Args:
        rate: Tokens per second; 0 for all at once.
        first_ms: Time to the first one, in milliseconds.
    """
    return f"call-{rate}-{first_ms}"


class CallBackend:
    """Calls a tool in each turn, token by token: the deltas are ready. It makes the body of a request to Cerebras first.

    Attributes:
        accepts: Token ids, as MessagePack.
        tokens: Tokens of its answer.
        entered_at: When it was called last, by the thread's CPU clock.
        called_s: The same by the process's CPU clock.
        made_s: When the body of the request was made, by the same.
        prompt: What it was given last; None before that.
    """

    def __init__(self) -> None:
        encoding = load_encoding("o200k_harmony")
        said = Said(reasoning=ToolOutputs().next(_THOUGHT_CHARS), calls=(Call(SHELL["name"], ARGUMENTS),))
        ids = encoding.encode(HARMONY.write(said), allowed_special="all")
        special = encoding.special_tokens_set
        texts = map(encoding.decode, ([one] for one in ids))
        self._deltas = [
            Delta(text="" if text in special else text, token_ids=[one]) for text, one in zip(texts, ids, strict=True)
        ]
        self.accepts = Accepts(kinds=frozenset({"tokens"}), form="msgpack", returns_ids=True)
        self.tokens = len(ids)
        self.entered_at = self.called_s = self.made_s = 0.0
        self.prompt: TokenPrompt | None = None

    def generate(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> AsyncGenerator[Delta]:
        """Answer; see :class:`ws_responses.backends.Backend`."""
        self.entered_at, self.called_s = thread_time(), process_time()
        assert isinstance(prompt, TokenPrompt)
        self.prompt = prompt
        return self._answer(prompt, params)

    async def _answer(self, prompt: TokenPrompt, params: GenerateParams) -> AsyncGenerator[Delta]:
        begin = perf_counter()
        body = prompt.rendered.msgpack_ids()
        self.made_s = process_time()
        found = _PACE(params.model)
        rate, first_s = (int(found[1]), int(found[2]) / 1e3) if found else (0, 0.0)
        for number, delta in enumerate(self._deltas):
            if rate or first_s:
                await _until(begin + first_s + (number / rate if rate else 0.0))
            yield delta
        usage = Usage(input_tokens=prompt.rendered.end, output_tokens=self.tokens)
        yield Delta(finish="tool_calls", usage=usage)
        del body

    async def prefill(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> Usage | None:  # noqa: ARG002
        """Do nothing; see :class:`ws_responses.backends.Backend`."""
        return None

    async def aclose(self) -> None:
        """Do nothing."""


async def _until(due: float) -> None:
    wait = due - perf_counter()
    if wait > 0:
        await asyncio.sleep(wait)


class SlowClassifier:
    """Passes everything, and takes its time.

    Args:
        ms_per_100kb: For 100,000 characters of new text.
    """

    name = "slow"

    def __init__(self, ms_per_100kb: float) -> None:
        self._s_per_char = ms_per_100kb / 1e3 / 1e5

    async def classify(self, delta: SafetyInput, state: Carried) -> Verdict:  # noqa: ARG002
        """Wait for as long as the text is, to the microsecond: timers of event loops count in milliseconds."""
        until = perf_counter() + len(delta.new_text) * self._s_per_char
        while perf_counter() < until:
            pass
        return Verdict()


def agents_app(backend: CallBackend | None = None, *, classifier_ms: float | None = None) -> ResponsesApp:
    """Return the engine for agents' loops.

    Args:
        backend: What it asks.
        classifier_ms: What a classifier takes for 100,000 characters of input; None for no classifier.
    """
    engine = ResponsesEngine(backend or CallBackend(), renderer=HarmonyRenderer())
    safety = None if classifier_ms is None else Safety(SlowClassifier(classifier_ms), output="off")
    limits = Limits(max_connections=None, max_tenant_connections=None)
    return ResponsesApp(engine, authorize="open", limits=limits, safety=safety)


class EngineConversation(Conversation):
    """A conversation with the engine.

    Attributes:
        backend: What it asks.
    """

    def __init__(self) -> None:
        self.backend = CallBackend()
        super().__init__(agents_app(self.backend), self.backend, store=False)

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
