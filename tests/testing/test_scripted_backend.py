"""The scripted backend: its model, its cache, its pace and its faults."""

import json
import math
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rendering.vocabularies import plain
from ws_responses.backends import Accepts, ChatPrompt, Delta, GenerateParams, PromptNotAccepted, TokenPrompt, Usage
from ws_responses.errors import WireError
from ws_responses.rendering.chat import ChatRenderer
from ws_responses.rendering.chatml import ChatMLRenderer
from ws_responses.rendering.harmony import HarmonyRenderer
from ws_responses.rendering.rendered import Rendered
from ws_responses.rendering.renderer import AUTO, Renderer, RenderSettings, Tool, ToolSet
from ws_responses.rendering.tokenizer import TiktokenTokenizer, Tokenizer
from ws_responses.rendering.vocabulary import load_encoding
from ws_responses.testing.backend_conformance import Generated, generated
from ws_responses.testing.backends import CHATML, HARMONY, Asked, Call, Fault, Said, ScriptedBackend
from ws_responses.testing.clock import FakeClock, settle
from ws_responses.testing.prompts import BYTES_PER_TOKEN, PrefixMemory

PARAMS = GenerateParams(model="m")
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"properties": {"city": {"minLength": 2}}, "required": ["city"]}},
}
BASH: dict[str, Any] = {"type": "function", "function": {"name": "bash"}}


def chat(*roles: str, tools: Sequence[Any] = (), choice: Any = None, content: str = "x") -> ChatPrompt:
    """A prompt with a link for each message."""
    rendered = Rendered.of_messages(())
    for role in roles:
        rendered = rendered.with_messages([msgspec.json.encode({"role": role, "content": content})])
    return ChatPrompt(
        rendered=rendered,
        tools=msgspec.json.encode(tools) if tools else None,
        tool_choice=None if choice is None else msgspec.json.encode(choice),
    )


async def answer(backend: ScriptedBackend, prompt: TokenPrompt | ChatPrompt, **params: Any) -> Generated:
    result = await generated(backend.generate(prompt, GenerateParams(model="m", **params)))
    assert result.error is None
    return result


class TestModel:
    async def test_it_calls_a_tool_after_each_user_message_and_then_answers(self) -> None:
        backend = ScriptedBackend(tool_calls=2)
        conversation: list[str] = []
        calls: list[int] = []
        for role in ["user", "tool", "tool", "user", "tool", "tool"]:
            conversation += [role] if role == "user" else ["assistant", role]
            calls.append(len((await answer(backend, chat(*conversation, tools=[WEATHER]))).calls))

        assert calls == [1, 1, 0, 1, 1, 0]

    async def test_arguments_suit_the_schema(self) -> None:
        result = await answer(ScriptedBackend(), chat("user", tools=[WEATHER]))

        ((call_id, name, arguments),) = result.calls
        assert (name, json.loads(arguments)) == ("weather", {"city": "xx"})
        assert call_id
        assert result.finish == "tool_calls"

    async def test_two_calls_never_have_one_id(self) -> None:
        """Without this a tool output would answer both."""
        backend = ScriptedBackend()
        ids = {(await answer(backend, chat("user", tools=[WEATHER]))).calls[0][0] for _ in range(3)}
        assert len(ids) == 3

    @pytest.mark.parametrize(
        ("tools", "choice", "name"),
        [
            ([WEATHER, BASH], None, "bash"),
            ([WEATHER, BASH], {"type": "function", "function": {"name": "weather"}}, "weather"),
            ([WEATHER, BASH], "required", "bash"),
            ([WEATHER, BASH], "none", None),
            ([{"type": "custom", "custom": {"name": "sql"}}], None, "sql"),
            ([], None, None),
        ],
    )
    async def test_which_tool_is_called(self, tools: Sequence[Any], choice: Any, name: str | None) -> None:
        result = await answer(ScriptedBackend(), chat("user", tools=tools, choice=choice))
        assert [call[1] for call in result.calls] == ([] if name is None else [name])

    async def test_the_answer_shows_what_is_lost(self) -> None:
        backend = ScriptedBackend()
        assert (await answer(backend, chat("system", "user"))).text == "This answers 2 messages."
        tokens = TokenPrompt(rendered=Rendered.of_tokens(range(7), "json"))
        assert (await answer(backend, tokens)).text == "This answers 7 tokens."

    async def test_reasoning_comes_before_the_text(self) -> None:
        result = await answer(ScriptedBackend(reasoning="let me see", text="ok"), chat("user"))

        assert "".join(delta.reasoning for delta in result.deltas) == "let me see"
        assert result.text == "ok"
        assert result.usage is not None
        assert (result.usage.reasoning_tokens, result.usage.output_tokens) == (3, 4)

    async def test_what_it_says_may_be_a_function_of_what_it_is_asked(self) -> None:
        asked: list[Asked] = []

        def respond(one: Asked) -> Said:
            asked.append(one)
            return Said(refusal="I won't.")

        result = await answer(ScriptedBackend(respond=respond), chat("user", "assistant", "tool"), max_tokens=9)

        assert "".join(delta.refusal for delta in result.deltas) == "I won't."
        assert (asked[0].calls, asked[0].params.max_tokens) == (1, 9)

    @pytest.mark.parametrize("piece", [None, 1, 3])
    async def test_pieces(self, piece: int | None) -> None:
        text = "a <b> \N{PARTY POPPER}\n\nc"
        result = await answer(ScriptedBackend(text=text, piece=piece), chat("user"))

        assert result.text == text
        assert piece is None or all(len(delta.text) <= piece for delta in result.deltas)

    @pytest.mark.parametrize(("most", "text", "finish"), [(2, "one two", "length"), (3, "one two three", "stop")])
    async def test_a_bound_is_kept(self, most: int, text: str, finish: str) -> None:
        result = await answer(ScriptedBackend(text="one two three"), chat("user"), max_tokens=most)

        assert (result.text, result.finish) == (text, finish)
        assert result.usage is not None
        assert result.usage.output_tokens == most

    async def test_what_is_said_next_may_be_told(self) -> None:
        backend = ScriptedBackend(text="model")
        backend.will_say(Said(text="first"), Said(calls=(Call("f", "1"), Call("g", "2"))))

        results = [await answer(backend, chat("user")) for _ in range(3)]

        assert [result.text for result in results] == ["first", "", "model"]
        assert [call[1:] for call in results[1].calls] == [("f", "1"), ("g", "2")]


class TestTokens:
    """With the real renderers: what it says is read as what was meant, and every turn begins with the one before."""

    SETTINGS = RenderSettings(
        instructions="Be short.",
        tools=ToolSet(tools=(Tool(kind="function", name="weather", parameters={"type": "object"}),), raw=b"[]"),
    )

    async def _turns(self, renderer: Renderer, backend: ScriptedBackend) -> list[tuple[Generated, list[str], str]]:
        """Run two rounds of a call and an answer; return each turn's result, calls and text."""
        state = renderer.begin(self.SETTINGS, backend.accepts.form)
        turns: list[tuple[Generated, list[str], str]] = []
        user = b'{"type":"message","role":"user","content":"How is it?"}'
        output = b'{"type":"function_call_output","call_id":"c","output":"Rain."}'
        for item in (user, output, user, output):
            state = renderer.extend(state, [item])
            plan = renderer.answer(state, AUTO, self.SETTINGS)
            result = await answer(backend, TokenPrompt(rendered=plan.prompt, stop_ids=plan.stop_ids))
            pieces = [piece for delta in result.deltas for piece in plan.parser.feed(delta.token_ids, delta.text)]
            pieces += plan.parser.end()
            calls = [piece.name for piece in pieces if piece.name is not None]
            turns.append((result, calls, "".join(piece.text for piece in pieces if piece.kind == "text")))
            state = renderer.answered(state, [*plan.prefill, *result.token_ids])
        return turns

    @pytest.mark.parametrize("format_", ["harmony", "chatml"])
    async def test_a_conversation(self, format_: str) -> None:
        tokenizer: Tokenizer
        if format_ == "harmony":
            renderer: Renderer = HarmonyRenderer(analysis="keep")
            tokenizer, markup = TiktokenTokenizer(load_encoding("o200k_harmony")), HARMONY
        else:
            tokenizer, markup = plain(), CHATML
            renderer = ChatMLRenderer(tokenizer)
        backend = ScriptedBackend(
            call=Call("weather", '{"city":"Paris"}'), text="It rains.", tokenizer=tokenizer, markup=markup
        )
        turns = await self._turns(renderer, backend)

        assert [calls for _, calls, _ in turns] == [["weather"], [], ["weather"], []]
        assert [text for _, _, text in turns] == ["", "It rains.", "", "It rains."]
        prompts = [generation.prompt.rendered.end for generation in backend.generations]
        for (before, _, _), prompt, (after, _, _) in zip(turns, prompts, turns[1:], strict=False):
            assert after.usage is not None
            assert after.usage.cached_tokens is not None
            # How a history ends an answer may differ in its last token from how it was sampled.
            assert after.usage.cached_tokens >= prompt + len(before.token_ids) - 1

    async def test_without_a_tokenizer_there_is_text_only(self) -> None:
        backend = ScriptedBackend(text="a b")
        result = await answer(backend, TokenPrompt(rendered=Rendered.of_tokens([1], "json")))

        assert (result.text, result.token_ids) == ("a b", [])
        assert not backend.accepts.returns_ids

    async def test_special_tokens_have_no_text(self) -> None:
        """As servers do it: a parser that waits for them in the text waits in vain."""
        tokenizer = TiktokenTokenizer(load_encoding("o200k_harmony"))
        backend = ScriptedBackend(text="a", tokenizer=tokenizer, markup=HARMONY)
        result = await answer(backend, TokenPrompt(rendered=Rendered.of_tokens([1], "json")))

        assert result.text == "finala"
        assert tokenizer.decode(result.token_ids) == b"<|channel|>final<|message|>a<|return|>"
        assert backend.accepts.returns_ids


IDS = st.lists(st.integers(0, 2), max_size=6)


class TestCache:
    @given(st.lists(st.tuples(IDS, IDS, IDS), max_size=4), IDS, IDS)
    def test_what_is_cached_is_the_longest_common_beginning(
        self, known: list[tuple[list[int], list[int], list[int]]], first: list[int], second: list[int]
    ) -> None:
        """However the prompts are cut into links. Without this a test of prefixes would prove nothing."""
        memory = PrefixMemory("tokens", keep=8)
        expected = 0
        for one, other, sampled in known:
            memory.keep(Rendered.of_tokens(one, None).with_tokens(other), sampled)
            both = list(zip(one + other + sampled, first + second, strict=False))
            same = next((at for at, (a, b) in enumerate(both) if a != b), len(both))
            expected = max(expected, same)

        assert memory.cached(Rendered.of_tokens(first, None).with_tokens(second)) == expected

    @given(IDS, IDS, IDS, st.integers(0, 12))
    def test_shared_links_change_nothing(self, base: list[int], one: list[int], other: list[int], cut: int) -> None:
        """A shortcut that skips what is shared must find the same."""
        root = Rendered.of_tokens(base, "json")
        known = root.with_tokens(one)
        prompt = known.cut(min(cut, known.end)).with_tokens(other)
        shared, fresh = PrefixMemory("tokens", keep=1), PrefixMemory("tokens", keep=1)
        shared.keep(known)
        fresh.keep(Rendered.of_tokens(known.ids(), None))

        assert shared.cached(prompt) == fresh.cached(Rendered.of_tokens(prompt.ids(), None))

    async def test_usage_tells_it(self) -> None:
        backend = ScriptedBackend(text="a b")
        root = Rendered.of_tokens(range(10), "json")
        usages = [
            (await answer(backend, TokenPrompt(rendered=rendered))).usage
            for rendered in (root, root.with_tokens([7]), Rendered.of_tokens([0, 1, 9], "json"))
        ]
        assert usages == [
            Usage(input_tokens=10, cached_tokens=0, output_tokens=2),
            Usage(input_tokens=11, cached_tokens=10, output_tokens=2),
            Usage(input_tokens=3, cached_tokens=2, output_tokens=2),
        ]

    async def test_messages_are_counted_by_their_bytes(self) -> None:
        backend = ScriptedBackend(text="a")
        first, second = chat("user", content="x" * 99), chat("user", "assistant", content="x" * 99)
        await answer(backend, first)
        usage = (await answer(backend, second)).usage

        size = len(first.rendered.encoded)
        assert usage is not None
        assert usage.cached_tokens == size // BYTES_PER_TOKEN
        assert usage.input_tokens is not None
        assert usage.input_tokens >= 2 * size // BYTES_PER_TOKEN

    async def test_a_warm_up_fills_it(self) -> None:
        backend = ScriptedBackend(text="a")
        root = Rendered.of_tokens(range(10), "json")

        assert await backend.prefill(TokenPrompt(rendered=root), PARAMS) == Usage(
            input_tokens=10, cached_tokens=0, output_tokens=0
        )
        usage = (await answer(backend, TokenPrompt(rendered=root.with_tokens([1])))).usage
        assert usage is not None
        assert usage.cached_tokens == 10

    async def test_a_service_without_one(self) -> None:
        backend = ScriptedBackend(text="a", remembers=0, prefills=False)
        prompt = TokenPrompt(rendered=Rendered.of_tokens([1], "json"))

        assert await backend.prefill(prompt, PARAMS) is None
        usage = (await answer(backend, prompt)).usage
        assert usage is not None
        assert usage.cached_tokens is None

    def test_it_forgets(self) -> None:
        memory = PrefixMemory("tokens", keep=2)
        for number in range(3):
            memory.keep(Rendered.of_tokens([number], None))
        cached = [memory.cached(Rendered.of_tokens([number], None)) for number in range(3)]
        assert cached == [0, 1, 1]


class TestControl:
    async def test_calls_are_kept_for_assertions(self) -> None:
        backend = ScriptedBackend(text="a b", keeps=3)
        prompt = chat("user")
        await backend.prefill(prompt, PARAMS)
        await answer(backend, prompt)
        async with aclosing(backend.generate(prompt, PARAMS)) as deltas:
            await anext(deltas)
        backend.will_fail(Fault.CUT, [Delta(text="x")])
        await generated(backend.generate(prompt, PARAMS))

        # The first of the four is not kept any more.
        assert [(each.kind, each.deltas, each.outcome) for each in backend.generations] == [
            ("generate", 3, "finished"),
            ("generate", 1, "abandoned"),
            ("generate", 1, "failed"),
        ]
        assert backend.generations[0].prompt is prompt
        assert backend.running == 0

    async def test_a_cancelled_call_is_abandoned(self) -> None:
        backend = ScriptedBackend()
        backend.will_fail(Fault.SILENT)
        async with anyio.create_task_group() as group:
            group.start_soon(generated, backend.generate(chat("user"), PARAMS))
            await backend.wait_until(lambda: backend.running == 1)
            group.cancel_scope.cancel()

        assert [each.outcome for each in backend.generations] == ["abandoned"]
        assert backend.running == 0

    async def test_a_fault_is_for_the_warm_up_that_comes_before(self) -> None:
        backend = ScriptedBackend()
        backend.will_answer([Delta(text="x", finish="stop")])
        backend.will_fail(Fault.OVERLOADED)
        prompt = chat("user")

        assert await backend.prefill(prompt, PARAMS) is not None
        assert (await answer(backend, prompt)).text == "x"
        with pytest.raises(WireError) as caught:
            await backend.prefill(prompt, PARAMS)
        assert (caught.value.status, caught.value.headers) == (503, {"retry-after": "2"})

    async def test_it_takes_what_it_says_it_takes(self) -> None:
        backend = ScriptedBackend(accepts=Accepts(kinds=frozenset({"tokens"})))
        with pytest.raises(PromptNotAccepted):
            await anext(backend.generate(chat("user"), PARAMS))
        with pytest.raises(PromptNotAccepted):
            await backend.prefill(chat("user"), PARAMS)
        assert backend.running == 0

    async def test_its_pace_is_the_clocks(self) -> None:
        clock = FakeClock()
        backend = ScriptedBackend(text="a b c", rate=10.0, clock=clock)
        times: list[float] = []

        async def listen() -> None:
            times.extend([clock.now() async for delta in backend.generate(chat("user"), PARAMS) if delta.text])

        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            while not times:
                await settle()
                await clock.advance(0.0 if math.isinf(clock.next_due) else clock.next_due - clock.now())

        assert times == pytest.approx([0.0, 0.1, 0.2])

    async def test_who_is_late_catches_up(self) -> None:
        """Else a slow consumer would slow the model down by what it took, too."""
        clock = FakeClock()
        backend = ScriptedBackend(text="a b c d", rate=10.0, clock=clock)
        deltas = backend.generate(chat("user"), PARAMS)
        await anext(deltas)
        clock.jump(1.0)
        assert "".join([delta.text async for delta in deltas]) == " b c d"

    async def test_a_long_answer_lets_others_run(self) -> None:
        backend = ScriptedBackend(text="x " * 1000)
        ran = 0
        over = False

        async def other() -> None:
            nonlocal ran
            while not over:
                ran += 1
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(other)
            await answer(backend, chat("user"))
            over = True
        assert ran > 10

    async def test_closing_is_noted(self) -> None:
        backend = ScriptedBackend()
        assert not backend.closed
        await backend.aclose()
        assert backend.closed


async def test_the_chat_renderer_and_the_model_agree() -> None:
    """Without this the model would not see the tool outputs that the renderer writes."""
    renderer = ChatRenderer()
    backend = ScriptedBackend(text="ok")
    state = renderer.begin(RenderSettings(), None)
    state = renderer.extend(state, [b'{"type":"message","role":"user","content":"hi"}'])
    tools = msgspec.json.encode([WEATHER])
    (call,) = (await answer(backend, ChatPrompt(rendered=state, tools=tools))).calls
    made = {"type": "function_call", "call_id": call[0], "name": call[1], "arguments": call[2]}
    output = {"type": "function_call_output", "call_id": call[0], "output": "rain"}
    state = renderer.extend(state, [msgspec.json.encode(made), msgspec.json.encode(output)])

    assert (await answer(backend, ChatPrompt(rendered=state, tools=tools))).text == "ok"
