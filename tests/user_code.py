"""What users write: run and type-checked against the installed wheel, where nothing of the checkout can be seen.

It is a file of its own, with public names only; `tests/test_installed.py` copies it out.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import ws_responses
from ws_responses import (
    CurrentTurn,
    Handshake,
    Limits,
    Principal,
    QuotaExceeded,
    QuotaRequest,
    ResponsesEngine,
    ResponsesWebSocketMiddleware,
    Safety,
    Settlement,
    TermClassifier,
    TurnRecord,
    current_turn,
)
from ws_responses.backends import Accepts, ChatPrompt, Delta, GenerateParams, TokenPrompt, Usage
from ws_responses.instrumentation import Fact, TurnFinished
from ws_responses.rendering.chat import ChatRenderer


async def api(scope: Any, receive: Any, send: Any) -> None:
    """An app of no framework."""


async def authorize(handshake: Handshake, model: str | None) -> Principal | None:
    """Who may come in."""
    key: str | None = handshake.bearer_token
    return Principal(id="me", tenant="mine") if key and model != "secret" else None


def prepare(body: dict[str, Any], turn: CurrentTurn) -> None:
    """A change of each inner body."""
    body["metadata"] = {"lane": turn.lane or ""}


async def book(record: TurnRecord) -> None:
    """A bill."""
    tokens: int | None = record.usage.input_tokens if record.usage else None
    print(record.turn_id, record.response_id, tokens)


def quota(request: QuotaRequest) -> None:
    """No turns for strangers."""
    if request.principal_id is None:
        raise QuotaExceeded("Who are you?")


def hear(fact: Fact) -> None:
    """A hook."""
    if isinstance(fact, TurnFinished):
        print(fact.outcome)


class Echo:
    """A backend."""

    @property
    def accepts(self) -> Accepts:
        """Chat messages."""
        return Accepts(kinds=frozenset({"chat"}))

    async def generate(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> AsyncGenerator[Delta]:
        """Say hello."""
        yield Delta(text="Hello")
        yield Delta(finish="stop", usage=Usage(input_tokens=1, output_tokens=1))

    async def prefill(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> Usage | None:
        """Nothing to prepare."""
        return None

    async def aclose(self) -> None:
        """Nothing to close."""


app = ResponsesWebSocketMiddleware(
    api,
    history="replay",
    limits=Limits(max_lanes=4),
    authorize=authorize,
    prepare=prepare,
    hooks=[hear],
    safety=Safety(TermClassifier(["a term"])),
    settlement=Settlement(book),
    quota=quota,
)
engine = ResponsesEngine(Echo(), renderer=ChatRenderer(), models=["echo"])
models: Sequence[str] = ["echo"]


async def stop() -> bool:
    """Drain before the server stops."""
    return await app.drain(30)


def model_of_this_call() -> str | None:
    """For handlers."""
    turn: CurrentTurn = current_turn()
    return turn.model


if __name__ == "__main__":
    print(ws_responses.__file__, ws_responses.__version__)
