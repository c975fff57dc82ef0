"""The backend of the engine that every server runs: what it samples stands in the request's `user`, as the scripts of `apps.py` do in
its `metadata`.
"""

import json
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

import anyio
from msgspec import Struct

from ws_responses.backends import Accepts, ChatPrompt, Delta, GenerateParams, TokenPrompt, ToolCallDelta, Usage

_YIELD_EVERY: Final = 64


class Generation(Struct):
    """One call of the backend.

    Attributes:
        events: Deltas that were taken.
        outcome: None while it runs, "finished", or "cancelled": nobody wanted the rest.
    """

    events: int = 0
    outcome: str | None = None


class Backend:
    """Says what a test tells it to; without that it calls a tool four times, and then counts.

    Args:
        gate: Gives the event that "hold" waits for, by key.

    Attributes:
        generations: Those with a key.
        running: Number of generations that run.
    """

    accepts = Accepts(kinds=frozenset({"chat"}))

    def __init__(self, gate: Callable[[str], anyio.Event]) -> None:
        self._gate = gate
        self.generations: dict[str, Generation] = {}
        self.running = 0

    async def generate(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> AsyncGenerator[Delta]:
        """Sample what the script says; the end of a generation with a key is printed, for when nobody can be asked any more."""
        assert isinstance(prompt, ChatPrompt)
        script: dict[str, Any] = json.loads(params.user or "{}")
        generation = Generation()
        if "key" in script:
            self.generations[script["key"]] = generation
        outcome = "cancelled"
        self.running += 1
        try:
            async for delta in self._deltas(script, prompt):
                generation.events += 1
                yield delta
            outcome = "finished"
        finally:
            self.running -= 1
            generation.outcome = outcome
            if "key" in script:
                print(f"turn {script['key']}: {outcome}", flush=True)

    async def _deltas(self, script: dict[str, Any], prompt: ChatPrompt) -> AsyncGenerator[Delta]:
        match script.get("do"):
            case "silence":
                await anyio.sleep_forever()
            case "hold":
                yield Delta(text="begun")
                await self._gate(script["key"]).wait()
            case "stream":
                for number in range(script["count"]):
                    yield Delta(text="x" * script["size"])
                    if not number % _YIELD_EVERY:
                        await anyio.lowlevel.checkpoint()
            case _:
                messages = json.loads(prompt.rendered.json_array())
                outputs = sum(message["role"] == "tool" for message in messages)
                if prompt.tools and outputs < 4:
                    yield Delta(
                        tool_calls=(ToolCallDelta(index=0, id=f"call_{outputs}", name="get_weather", arguments="{}"),)
                    )
                else:
                    yield Delta(text=f"{len(messages)} messages, {outputs} of them outputs.")
        yield Delta(finish="stop", usage=Usage(input_tokens=1, output_tokens=1))

    async def prefill(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> Usage | None:
        """There is nothing to prepare."""
        return None

    async def aclose(self) -> None:
        """There is nothing to close."""
