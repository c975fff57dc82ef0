"""The deterministic model behind a scripted backend."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, takewhile
from typing import Any, Final, Self

import msgspec
from msgspec import Struct

from ws_responses.backends import ChatPrompt, Delta, Finish, GenerateParams, PromptKind, TokenPrompt, Usage
from ws_responses.rendering.tokenizer import Tokenizer
from ws_responses.testing.model import ARGUMENTS
from ws_responses.testing.prompts import PrefixMemory, calls_made, offered_call
from ws_responses.testing.speech import PLAIN, Call, Markup, Said, chat_deltas, token_deltas

__all__ = ["Asked", "Speaker", "kind_of"]

_SAYINGS: Final = 16
"""Answers without calls that are kept in pieces."""


class Asked(Struct, frozen=True, kw_only=True):
    """What the model is asked.

    Attributes:
        prompt: As it came.
        params: As they came.
        calls: Tool outputs behind the last user message, as far as the prompt shows them.
    """

    prompt: TokenPrompt | ChatPrompt
    params: GenerateParams
    calls: int


class _Saying(Struct, frozen=True, kw_only=True):
    """An answer in pieces.

    Attributes:
        deltas: Without the last one.
        finish: Why it ends.
        tokens: Of all deltas; one without ids counts as one.
        reasoning_tokens: Of these, deltas with reasoning.
        ids: Of all deltas.
    """

    deltas: Sequence[Delta]
    finish: Finish
    tokens: int
    reasoning_tokens: int
    ids: Sequence[int]

    @classmethod
    def of(cls, deltas: Sequence[Delta], finish: Finish) -> Self:
        """Count what is said."""
        return cls(
            deltas=deltas,
            finish=finish,
            tokens=sum(map(_tokens, deltas)),
            reasoning_tokens=sum(bool(delta.reasoning) for delta in deltas),
            ids=[token for delta in deltas for token in delta.token_ids],
        )

    def cut(self, most: int | None) -> "_Saying":
        """Return it with ``most`` tokens at most."""
        if most is None or self.tokens <= most:
            return self
        sums = accumulate(map(_tokens, self.deltas))
        return self.of(self.deltas[: sum(1 for _ in takewhile(lambda tokens: tokens <= most, sums))], "length")


class Speaker:
    """Calls a tool ``tool_calls`` times after each user message, then answers with text.

    Args:
        tool_calls: Calls after each user message.
        call: The call to make; None takes it from the tools of a chat prompt.
        text: The answer; by default it names the tokens of the prompt, so that a lost one shows.
        reasoning: Comes before each answer.
        respond: Answers instead of all that.
        arguments: Arguments by tool name.
        piece: Characters of one delta; None for a word each.
        tokenizer: Makes ids of what is said to a token prompt; None for text only.
        markup: Writes what is said to a token prompt.
        remembers: Prompts that its cache knows.
    """

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
        tokenizer: Tokenizer | None = None,
        markup: Markup = PLAIN,
        remembers: int = 32,
    ) -> None:
        self._tool_calls = tool_calls
        self._call = call
        self._text = text
        self._reasoning = reasoning
        self._respond = respond
        self._arguments = arguments
        self._piece = piece
        self._tokenizer = tokenizer
        self._markup = markup
        self._memories: dict[PromptKind, PrefixMemory] = {
            "tokens": PrefixMemory("tokens", remembers),
            "chat": PrefixMemory("chat", remembers),
        }
        self._sayings: dict[tuple[PromptKind, Said], _Saying] = {}
        self._answers = 0

    def say(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams, said: Said | None) -> Iterator[Delta]:
        """Yield an answer, with its usage and its end.

        Args:
            prompt: What it is an answer to.
            params: Bound it.
            said: The answer; None for the model's own.
        """
        if said is None:
            said = self._think(prompt, params)
        usage = self.read(prompt)
        saying = self._saying(kind_of(prompt), said).cut(params.max_tokens)
        yield from saying.deltas
        self._memories[kind_of(prompt)].keep(prompt.rendered, saying.ids)
        yield Delta(
            finish=saying.finish,
            usage=msgspec.structs.replace(
                usage,
                output_tokens=saying.tokens,
                reasoning_tokens=None if isinstance(prompt, TokenPrompt) else saying.reasoning_tokens,
            ),
        )

    def read(self, prompt: TokenPrompt | ChatPrompt) -> Usage:
        """Return what reading a prompt takes."""
        memory = self._memories[kind_of(prompt)]
        return Usage(
            input_tokens=memory.tokens(prompt.rendered), cached_tokens=memory.cached(prompt.rendered), output_tokens=0
        )

    def remember(self, prompt: TokenPrompt | ChatPrompt) -> None:
        """Take a prompt into the cache."""
        self._memories[kind_of(prompt)].keep(prompt.rendered)

    def _think(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> Said:
        calls = calls_made(prompt, self._markup, self._tokenizer)
        if self._respond is not None:
            return self._respond(Asked(prompt=prompt, params=params, calls=calls))
        call = self._call
        if call is None and isinstance(prompt, ChatPrompt):
            call = offered_call(prompt, self._arguments)
        if call is not None and calls < self._tool_calls:
            return Said(reasoning=self._reasoning, calls=(call,))
        unit = "messages" if isinstance(prompt, ChatPrompt) else "tokens"
        return Said(reasoning=self._reasoning, text=self._text or f"This answers {prompt.rendered.end} {unit}.")

    def _saying(self, kind: PromptKind, said: Said) -> _Saying:
        known = self._sayings.get((kind, said))
        if known is not None:
            return known
        if kind == "tokens":
            deltas = tuple(token_deltas(said, self._piece, self._markup, self._tokenizer))
        else:
            self._answers += 1
            deltas = tuple(chat_deltas(said, self._piece, f"call_{self._answers}"))
        saying = _Saying.of(deltas, said.end)
        if len(self._sayings) < _SAYINGS and not said.calls:  # the ids of calls are never used twice
            self._sayings[kind, said] = saying
        return saying


def kind_of(prompt: TokenPrompt | ChatPrompt) -> PromptKind:
    """Return the kind of a prompt."""
    return "tokens" if isinstance(prompt, TokenPrompt) else "chat"


def _tokens(delta: Delta) -> int:
    return len(delta.token_ids) or 1
