"""P4: rendering what a turn adds to a long conversation, beside rendering all of it.

The conversation is an agent's: in each turn the model thinks and calls a tool. It is rendered for gpt-oss, by its real vocabulary.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from time import process_time
from typing import Any, Final, Self

from ws_responses.bench.loop import ARGUMENTS, SHELL, ToolOutputs
from ws_responses.bench.results import Row, Sample, Unexpected
from ws_responses.protocol.calls import START
from ws_responses.protocol.events import encode
from ws_responses.rendering.cache import Kept, Rendering, RenderKey, render
from ws_responses.rendering.harmony import HarmonyRenderer
from ws_responses.rendering.rendered import Rendered
from ws_responses.rendering.renderer import RenderSettings, Tool, ToolSet
from ws_responses.state.node import Record, ResponseNode

_TOKENS: Final = 100_000
_TURN_BYTES: Final = 4_000
_DELTA_BYTES: Final = 1_450
"""Of a tool's output: some 400 tokens with what surrounds it."""

_TOOL: Final = Tool(
    kind="function", name=SHELL["name"], description=SHELL["description"], parameters=SHELL["parameters"]
)
_KEY: Final = RenderKey(
    "harmony",
    "msgpack",
    RenderSettings(instructions="Work on the code in /work.", tools=ToolSet(tools=(_TOOL,), raw=encode([SHELL]))),
)


class Render:
    """P4.

    Args:
        quick: Measure less.
    """

    name = "P4"

    def __init__(self, *, quick: bool) -> None:
        self._deltas, self._wholes = (20, 2) if quick else (50, 4)
        of = f"a conversation of {_TOKENS:,} tokens"
        self.rows = (
            Row("P4.delta", f"rendering 400 tokens more of {of}, beside rendering all of it", "us CPU", 100, "gain"),
            Row("P4.tokens", f"tokens rendered for that, beside those that {of} grows by", "tokens", 1.0),
            Row(
                "P4.rewind",
                "a final answer that puts all reasoning out of sight, and what comes next, beside the same",
                "us CPU",
                None,
                "gain",
            ),
        )
        self._chain = _Chain()

    async def __aenter__(self) -> Self:
        """Have the conversation.

        Raises:
            Unexpected: What was kept and what is rendered anew differ.
        """
        chain = self._chain
        await chain.add([_message("user", "input_text", "Find out why the tests are slow.")])
        while chain.tokens < _TOKENS:
            await chain.add([chain.output(_TURN_BYTES)])
        delta = [chain.output(_DELTA_BYTES)]
        warm, cold = await chain.render(chain.warm, delta), await chain.render(chain.cold, delta)
        if not warm.hit or cold.hit or warm.state.ids() != cold.state.ids():
            raise Unexpected("a conversation that was continued is not the same as when it is rendered anew")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is left."""

    async def round(self, number: int) -> Mapping[str, Sample]:
        """Render what comes next again and again, and all of it some times."""
        del number  # they are short, and follow each other closely
        chain = self._chain
        delta_us, rendering = await self._times(self._deltas, chain.warm)
        whole_us, _ = await self._times(self._wholes, chain.cold)
        rewind_us = median([await self._rewind_us() for _ in range(self._deltas)])
        return {
            "P4.delta": Sample(delta_us, whole_us),
            "P4.tokens": Sample(rendering.rendered + rendering.rewound, rendering.state.end - chain.tokens),
            "P4.rewind": Sample(rewind_us, whole_us),
        }

    async def _times(self, count: int, parent: ResponseNode | None) -> tuple[float, Rendering]:
        """Return the median time of rendering a turn after ``parent``, in microseconds, and the last result.

        CPU time of the process, since much text is rendered in a thread.
        """
        chain = self._chain
        times: list[float] = []
        rendering = None
        for _ in range(count):
            delta = [chain.output(_DELTA_BYTES)]
            begin = process_time()
            rendering = await chain.render(parent, delta)
            times.append(process_time() - begin)
        assert rendering is not None
        return median(times) * 1e6, rendering

    async def _rewind_us(self) -> float:
        chain = self._chain
        delta = [chain.output(_DELTA_BYTES)]
        before = (await chain.render(chain.warm, delta)).state
        begin = process_time()
        node = chain.node(before, delta, [_message("assistant", "output_text", "They wait.", phase="final_answer")])
        await chain.render(node, [_message("user", "input_text", "Mend it.")])
        return (process_time() - begin) * 1e6


class _Chain:
    """A conversation as two lines of nodes: one that keeps what was rendered, and one of the same records that does not.

    Attributes:
        warm: The end of the first.
        cold: The end of the second.
        tokens: Tokens so far.
    """

    def __init__(self) -> None:
        self._renderer = HarmonyRenderer()
        self._outputs = ToolOutputs()
        self._calls = 0
        self.warm: ResponseNode | None = None
        self.cold: ResponseNode | None = None
        self.tokens = 0

    async def render(self, parent: ResponseNode | None, delta: Sequence[bytes]) -> Rendering:
        """Render a turn."""
        return await render(self._renderer, _KEY, parent, delta)

    def node(self, state: Rendered, delta: Sequence[bytes], output: Sequence[bytes]) -> ResponseNode:
        """Return the node of a turn after the last one.

        Args:
            state: After its input.
            delta: Its input.
            output: Its output.
        """
        state = self._renderer.extend(state, output)
        return ResponseNode(_record(delta, output), self.warm, tenant="bench", kept=Kept(key=_KEY, state=state))

    async def add(self, delta: Sequence[bytes]) -> None:
        """Add a turn in which the model calls its tool."""
        rendering = await self.render(self.warm, delta)
        self.warm = node = self.node(rendering.state, delta, self._called())
        self.cold = ResponseNode(node.record, self.cold, tenant="bench")
        assert isinstance(node.kept, Kept)
        assert node.kept.state is not None
        self.tokens = node.kept.state.end

    def output(self, size: int) -> bytes:
        """Return the next output of the tool."""
        output = self._outputs.next(size)
        return encode({"type": "function_call_output", "call_id": f"call_{self._calls}", "output": output})

    def _called(self) -> list[bytes]:
        self._calls += 1
        thought = {"type": "reasoning_text", "text": f"Step {self._calls}: look where it is used before it is changed."}
        call = {"type": "function_call", "call_id": f"call_{self._calls}", "name": "shell", "arguments": ARGUMENTS}
        return [encode({"type": "reasoning", "summary": [], "content": [thought]}), encode(call)]


def _message(role: str, kind: str, text: str, **members: Any) -> bytes:
    part = {"type": kind, "text": text}
    return encode({"type": "message", "role": role, "content": [part], **members})


def _record(items: Sequence[bytes], output: Sequence[bytes]) -> Record:
    joined = b",".join([*items, *output])
    return Record(
        id="resp",
        parent_id=None,
        model="bench",
        store=False,
        items=joined,
        output_at=len(joined) - len(b",".join(output)),
        history_at=0,
        base=False,
        calls=START,
        generated=True,
        status="completed",
    )
