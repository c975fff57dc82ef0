"""A summary of a conversation, by the backend that answers it.

The rendered prompt goes on by one message, so that what the service has cached of it holds.
"""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ws_responses.backends import ChatPrompt, Delta, GenerateParams, TokenPrompt, Usage
from ws_responses.engine.generation import Caller, Opened, close, drain
from ws_responses.engine.plan import Plan
from ws_responses.engine.prompts import ChatTools, params_of, prompt_of
from ws_responses.errors import StreamTruncated, UpstreamError
from ws_responses.protocol.events import encode
from ws_responses.rendering.renderer import OutputParser, OutputPiece, ToolChoice

MAX_SUMMARY_TOKENS: Final = 8192
"""Tokens of a summary, reasoning included."""

MAX_SUMMARY_CHARS: Final = 64 * 1024
"""Characters of a summary: what comes beyond is left out."""

INSTRUCTION: Final = encode(
    {
        "type": "message",
        "role": "user",
        "content": (
            "Stop here and write a summary of this conversation. It will replace the conversation: whoever goes on with the "
            "work sees only the summary. Say what the user wants, and every wish and rule that still holds; what was done, "
            "found and decided, and why; names, numbers, paths, ids and code that are still needed, exactly; what failed; "
            "what is left to do, and what comes next. Call no tools, ask nothing, and do not go on with the work itself. "
            "Answer with the summary only."
        ),
    }
)
"""What is said to the model, as an item."""

_NO_CALLS: Final = ToolChoice(mode="none")


class SummaryPlan(Struct, frozen=True, kw_only=True):
    """A summary, ready to be asked for.

    Attributes:
        plan: Of the turn whose conversation it is of.
        prompt: What the backend is given.
        params: How it is to sample.
        parser: Reads it.
    """

    plan: Plan
    prompt: TokenPrompt | ChatPrompt
    params: GenerateParams
    parser: OutputParser


class Summary(Struct, frozen=True):
    """A summary and what it took.

    Attributes:
        text: The summary.
        usage: As the service told, or as it was counted; None if unknown.
    """

    text: str
    usage: Usage | None


def plan_summary(plan: Plan, chat_tools: ChatTools) -> SummaryPlan:
    """Return the plan of a summary of a turn's conversation, its new items included.

    Args:
        plan: Of the turn.
        chat_tools: Encodes tools for chat.

    Raises:
        CannotRender: The model's format has no place for the instruction.
    """
    route, draft, key = plan.route, plan.draft, plan.rendering.key
    request = replace(draft.request, response_format=None, max_output_tokens=None)
    state = route.renderer.extend(plan.rendering.state, [INSTRUCTION])
    answer = replace(route.renderer.answer(state, _NO_CALLS, key.settings), schema=None)
    counts = route.renderer.produces == "tokens"
    # The tools stay in the prompt, although none may be called: what comes first must not change.
    tools = None if counts else chat_tools.encoded(draft.tools, draft.choice)
    params = params_of(route, request, answer.prompt.end if counts else None, draft.session)
    return SummaryPlan(
        plan=plan,
        prompt=prompt_of(route, answer, request, tools, _NO_CALLS),
        params=replace(params, max_tokens=min(params.max_tokens or MAX_SUMMARY_TOKENS, MAX_SUMMARY_TOKENS)),
        parser=answer.parser,
    )


class Summariser:
    """Asks for one summary.

    Args:
        wanted: What to ask.
        caller: Asks.
        alive: Called for each sign of life.
    """

    def __init__(self, wanted: SummaryPlan, caller: Caller, alive: Callable[[], None]) -> None:
        self._wanted = wanted
        self._caller = caller
        self._alive = alive
        self._pieces: list[str] = []
        self._room = MAX_SUMMARY_CHARS
        self._sampled = 0
        self._usage: Usage | None = None
        self._ended = False

    async def open(self) -> Opened:
        """Begin; the caller closes it.

        Raises:
            WireError: The backend failed for good.
        """
        wanted = self._wanted
        return await self._caller.open(wanted.plan.route, wanted.prompt, wanted.params, self._alive)

    async def read(self, opened: Opened) -> Summary:
        """Read it to its end, and close it.

        Raises:
            UpstreamError: It broke off, or is empty.
        """
        try:
            for delta in opened.first:
                self._take(delta)
            if self._usage is None or not self._ended:
                await self._read_rest(opened)
            if not self._ended:
                raise StreamTruncated
            await drain(opened.deltas)
        finally:
            await close(opened.deltas)
        self._add(self._wanted.parser.end())
        text = "".join(self._pieces).strip()
        if not text:
            raise UpstreamError("The service gave no summary of the conversation.", code="upstream_invalid_output")
        return Summary(text, self._told())

    async def _read_rest(self, opened: Opened) -> None:
        async for delta in opened.deltas:
            self._alive()
            self._take(delta)
            if self._ended and self._usage is not None:
                return

    def _take(self, delta: Delta) -> None:
        self._sampled += len(delta.token_ids)
        self._usage = delta.usage or self._usage
        self._ended |= delta.finish is not None
        if delta.text or delta.token_ids:
            self._add(self._wanted.parser.feed(delta.token_ids, delta.text))

    def _add(self, pieces: Sequence[OutputPiece]) -> None:
        for piece in pieces:
            if piece.kind == "text" and self._room > 0:
                self._pieces.append(piece.text[: self._room])
                self._room -= len(piece.text)

    def _told(self) -> Usage | None:
        """Return the usage as told, or as counted."""
        prompt, usage = self._wanted.prompt, self._usage or Usage()
        counted = prompt.rendered.end if isinstance(prompt, TokenPrompt) else None
        taken = counted if usage.input_tokens is None else usage.input_tokens
        given = (self._sampled or None) if usage.output_tokens is None else usage.output_tokens
        return None if taken is None or given is None else replace(usage, input_tokens=taken, output_tokens=given)
