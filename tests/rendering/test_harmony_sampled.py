"""What was sampled is kept as it was sampled: warm equals cold, and the next prompt goes on from the very same ids."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.rendering import gpt_oss, oracle
from tests.rendering.conversations import Item, conversations, encoded, input_messages
from tests.rendering.gpt_oss import TOKENS, Sampled, as_items, sampled_ids, spelled, told
from tests.rendering.reachable import bytes_since
from ws_responses.protocol.calls import START
from ws_responses.rendering.cache import Kept, RenderKey, render
from ws_responses.rendering.harmony import HarmonyRenderer
from ws_responses.rendering.harmony_state import AnalysisRule
from ws_responses.rendering.harmony_tokens import CALL, END, RETURN
from ws_responses.rendering.rendered import Form, Rendered
from ws_responses.rendering.renderer import AUTO, CannotRender, RenderSettings
from ws_responses.state.node import Record, ResponseNode
from ws_responses.state.node import Sampled as SampledIds

RULES: list[AnalysisRule] = ["library", "until_final", "keep"]
RENDERERS = {rule: HarmonyRenderer(analysis=rule) for rule in RULES}
PLAIN = RenderSettings()
USER: Item = {"role": "user", "content": "U"}


def begun(rule: AnalysisRule = "keep", items: Sequence[Item] = (USER,), form: Form = None) -> Rendered:
    renderer = RENDERERS[rule]
    return renderer.extend(renderer.begin(PLAIN, form), encoded(items))


def prompt(rule: AnalysisRule, state: Rendered) -> list[int]:
    ids: list[int] = RENDERERS[rule].answer(state, AUTO, PLAIN).prompt.ids().tolist()
    return ids


# -- the end of an answer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampled", "kept"),
    [
        ("<|channel|>final<|message|>Hi.<|return|>", "<|channel|>final<|message|>Hi.<|end|>"),
        ("<|channel|>final<|message|>Hi.<|endoftext|>", "<|channel|>final<|message|>Hi.<|end|>"),
        ("<|channel|>final<|message|>Hi.<|end|>", "<|channel|>final<|message|>Hi.<|end|>"),
        ("<|channel|>final<|message|>Hi.<|end|><|return|>", "<|channel|>final<|message|>Hi.<|end|>"),
        ("<|channel|>final<|message|>Hi", "<|channel|>final<|message|>Hi<|end|>"),
        ("<|channel|>final<|message|>", "<|channel|>final<|message|><|end|>"),
        ("<|channel|>fin", "<|channel|>fin<|message|><|end|>"),
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assi",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assi<|message|><|end|>",
        ),
        (
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
        ),
        (
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{",
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{<|call|>",
        ),
        (
            "<|channel|>commentary to=functions.f<|message|>{}<|call|><|start|>functions.f to=assistant<|message|>lies<|end|>",
            "<|channel|>commentary to=functions.f<|message|>{}<|call|>",
        ),
        ("<|channel|>final<|message|>A <|start|> B<|return|>", "<|channel|>final<|message|>A <|start|> B<|end|>"),
        ("<|return|>", None),
        ("", None),
    ],
)
def test_only_the_end_is_made_that_of_a_history(sampled: str, kept: str | None) -> None:
    """Without this a history would hold messages that never end, or a token that only ends the sampling."""
    state = begun()
    after = RENDERERS["keep"].answered(state, spelled(sampled))

    added = after.ids().tolist()[state.end :]
    assert told(added) == ("" if kept is None else f"<|start|>assistant{kept}")


@given(answer=gpt_oss.answers(), whole=st.booleans(), rule=st.sampled_from(RULES))
def test_sampled_ids_stay_as_they_were_sampled(answer: list[Sampled], whole: bool, rule: AnalysisRule) -> None:
    """Also those that the tokenizer would not give: else a backend's prompt cache would miss from there on.

    The next prompt begins with the last one and the answer, but for an end that a history does not have; where reasoning is
    left out, all messages without it.
    """
    sampled = sampled_ids(answer, whole=whole)
    state = begun(rule)
    before = prompt(rule, state)
    after = prompt(rule, RENDERERS[rule].answered(state, sampled))
    if not sampled:
        assert after == before
        return
    ends = {RETURN: END}
    if rule == "keep" or answer[-1].kind != "final":
        closed = sampled[-1] in {END, CALL, RETURN}
        expected = [*before, *sampled[:-1], ends.get(sampled[-1], sampled[-1])] if closed else [*before, *sampled]
        assert after[: len(expected)] == expected
    else:
        remaining = [message for message in answer if message.kind != "analysis"]
        ids = sampled_ids(remaining)
        assert after == [*before, *ids[:-1], END, *TOKENS.begin_answer]


@settings(max_examples=60)
@given(
    answer=gpt_oss.answers(canonical=True, calls=False), rule=st.sampled_from(RULES), items=conversations(max_steps=3)
)
def test_an_answer_of_the_tokenizers_own_ids_equals_its_items(
    answer: list[Sampled], rule: AnalysisRule, items: list[Item]
) -> None:
    """So a client that sends the items again hits what the socket left in a prompt cache. Calls differ: see the page."""
    state = begun(rule, items)
    after = RENDERERS[rule].answered(state, sampled_ids(answer))

    assert prompt(rule, after) == prompt(rule, RENDERERS[rule].extend(state, encoded(as_items(answer))))
    assert prompt(rule, after) == oracle.rendered(PLAIN, [*items, *as_items(answer)], analysis=rule)


# -- calls ---------------------------------------------------------------------------------------------------------------


def test_the_output_of_a_sampled_call_is_that_of_its_tool() -> None:
    """The ids of an answer do not tell the call's id: the output that follows is of the call that was sampled."""
    renderer = RENDERERS["library"]
    state = renderer.answered(begun(), spelled("<|channel|>commentary to=functions.a__f<|message|>{}<|call|>"))
    output = {"type": "function_call_output", "call_id": "call_x", "output": "O"}

    after = renderer.extend(state, encoded([output]))
    ids = after.ids().tolist()[state.end :]
    assert told(ids) == "<|start|>functions.a__f to=assistant<|channel|>commentary<|message|>O<|end|>"
    with pytest.raises(CannotRender):
        renderer.extend(after, encoded([output]))


def test_a_call_that_was_never_answered_does_not_take_the_output_of_a_later_one() -> None:
    """A call that was cut off stays open for ever."""
    renderer = RENDERERS["library"]
    state = renderer.answered(begun(), spelled("<|channel|>commentary to=functions.old<|message|>{"))
    state = renderer.extend(state, encoded([USER]))
    state = renderer.answered(state, spelled("<|channel|>commentary to=functions.new<|message|>{}<|call|>"))

    state = renderer.extend(state, encoded([{"type": "function_call_output", "call_id": "c", "output": "O"}]))
    assert "<|start|>functions.new to=assistant" in told(state.ids().tolist())
    assert "<|start|>functions.old" not in told(state.ids().tolist())


def test_an_answer_without_a_call_leaves_none_open() -> None:
    """Else an output that belongs to nothing would be told as one of a tool that was called long ago."""
    renderer = RENDERERS["library"]
    state = renderer.answered(begun(), spelled("<|channel|>commentary to=functions.old<|message|>{"))
    state = renderer.answered(state, spelled("<|channel|>final<|message|>F<|return|>"))

    with pytest.raises(CannotRender):
        renderer.extend(state, encoded([{"type": "function_call_output", "call_id": "c", "output": "O"}]))


def test_calls_of_items_and_of_an_answer_are_told_apart() -> None:
    """A client may add a call of its own, with its output, beside that of the answer."""
    renderer = RENDERERS["library"]
    state = renderer.answered(begun(), spelled("<|channel|>commentary to=functions.sampled<|message|>{}<|call|>"))
    items: list[Item] = [
        {"type": "function_call", "call_id": "mine", "name": "own", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "theirs", "output": "1"},
        {"type": "function_call_output", "call_id": "mine", "output": "2"},
    ]

    text = told(renderer.extend(state, encoded(items)).ids().tolist())
    assert "functions.sampled to=assistant<|channel|>commentary<|message|>1<|end|>" in text
    assert "functions.own to=assistant<|channel|>commentary<|message|>2<|end|>" in text


# -- nodes ---------------------------------------------------------------------------------------------------------------


def node_of(
    items: list[bytes], output: list[bytes], sampled: list[int] | None, parent: ResponseNode | None
) -> ResponseNode:
    joined = b",".join([*items, *output])
    record = Record(
        id="resp",
        parent_id=None,
        model="m",
        store=False,
        items=joined,
        output_at=len(joined) - len(b",".join(output)),
        history_at=0,
        base=False,
        calls=START,
        generated=True,
        status="completed",
        sampled=None if sampled is None else SampledIds.of("harmony", sampled),
    )
    return ResponseNode(record, parent, tenant="t")


@pytest.mark.parametrize("sampled_known", [True, False])
async def test_a_chain_of_nodes_is_rendered_cold_as_it_was_warm(sampled_known: bool) -> None:
    """With the records of a connection: the ids of a record's answer count more than its items."""
    renderer = RENDERERS["library"]
    key = RenderKey(renderer=renderer.name, form="json", settings=PLAIN)
    call = "<|channel|>analysis<|message|>T<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{}<|call|>"
    output: list[list[Item]] = [
        [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}],
        [{"type": "message", "role": "assistant", "content": "F"}],
    ]
    inputs: list[list[Item]] = [[USER], [{"type": "function_call_output", "call_id": "c", "output": "O"}], [USER]]
    parent: ResponseNode | None = None
    for number, answer in enumerate([call, "<|channel|>final<|message|>F<|return|>"]):
        ids = spelled(answer) if sampled_known else None
        rendering = await render(renderer, key, parent, encoded(inputs[number]))
        assert rendering.hit is (number > 0)
        state = (
            renderer.extend(rendering.state, encoded(output[number]))
            if ids is None
            else renderer.answered(rendering.state, ids)
        )
        parent = node_of(encoded(inputs[number]), encoded(output[number]), ids, parent)
        parent.kept = Kept(key=key, state=state)
    assert parent is not None

    warm = await render(renderer, key, parent, encoded(inputs[2]))
    parent.kept = None
    cold = await render(renderer, key, parent, encoded(inputs[2]))
    assert (warm.hit, cold.hit) == (True, False)
    assert warm.state.ids() == cold.state.ids()
    text = told(warm.state.ids().tolist())
    assert "<|start|>functions.f to=assistant<|channel|>commentary<|message|>O<|end|>" in text
    assert ("assistant<|channel|>commentary to=functions.f" in text) is sampled_known


# -- chains --------------------------------------------------------------------------------------------------------------


@dataclass
class Held:
    """A state, and the records that it was made of.

    Attributes:
        state: The state.
        records: Items, or the ids of an answer.
        parent: What it continues.
        calls: Calls of the last answer, which wait for their outputs.
    """

    state: Rendered
    records: list[tuple[Literal["items", "sampled"], Any]]
    parent: "Held | None"
    calls: list[Sampled] = field(default_factory=list)


class ChainMachine(RuleBasedStateMachine):
    """Chains of turns with answers as they were sampled, and their forks."""

    analysis: AnalysisRule = "library"

    @initialize(form=st.sampled_from(["json", "msgpack", None]))
    def begin(self, form: Form) -> None:
        self.renderer = RENDERERS[self.analysis]
        self.held = [Held(self.renderer.begin(PLAIN, form), [], None)]

    def pick(self, data: st.DataObject) -> Held:
        return data.draw(st.sampled_from([*self.held, *self.held[-2:]]))

    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        old = self.pick(data)
        outputs = [
            {"type": "function_call_output", "call_id": f"of_{number}", "output": "O"}
            for number, _ in enumerate(old.calls)
        ]
        items = [*outputs, *data.draw(st.one_of(input_messages().map(lambda item: [item]), conversations(max_steps=3)))]
        state = self.renderer.extend(old.state, encoded(items))
        self.held.append(Held(state, [*old.records, ("items", items)], old))

    @rule(data=st.data(), answer=gpt_oss.answers(), whole=st.booleans())
    def sample(self, data: st.DataObject, answer: list[Sampled], whole: bool) -> None:
        old = self.pick(data)
        ids = sampled_ids(answer, whole=whole)
        state = self.renderer.answered(old.state, ids)
        calls = [message for message in answer if message.kind == "call"] if ids else []
        self.held.append(Held(state, [*old.records, ("sampled", ids)], old, calls))

    @invariant()
    def warm_equals_cold(self) -> None:
        """Of every state, also after its forks went on: else an evicted parent would change what the model is told."""
        for held in self.held:
            cold = self.renderer.begin(PLAIN, None)
            for kind, record in held.records:
                cold = self.renderer.answered(cold, record) if kind == "sampled" else self.extended(cold, record)
            assert prompt(self.analysis, held.state) == prompt(self.analysis, cold)

    def extended(self, state: Rendered, items: list[Item]) -> Rendered:
        """Item by item: a turn's cut must not matter either."""
        for item in items:
            state = self.renderer.extend(state, encoded([item]))
        return state

    @invariant()
    def what_is_charged_is_what_is_kept_alive(self) -> None:
        for held in self.held[-2:]:
            before = None if held.parent is None else held.parent.state
            assert held.state.bytes_since(before) == bytes_since(held.state, before)

    @invariant()
    def a_chain_takes_what_its_ids_take(self) -> None:
        """Linear in its length, whatever is left out and comes back: no copy of the conversation hangs on a state."""
        for held in self.held[-2:]:
            links = {id(link) for one in _line(held) for link in _links(one.state)}
            assert len(links) <= 4 * len(_line(held)) + 4


def _line(held: Held | None) -> list[Held]:
    line: list[Held] = []
    while held is not None:
        line.append(held)
        held = held.parent
    return line


def _links(state: Rendered) -> list[Rendered]:
    found: list[Rendered] = []
    for start in (state, state.detour.instead if state.detour is not None else None):
        link = start
        while link is not None:
            found.append(link)
            link = link.before
    return found


class UntilFinalMachine(ChainMachine):
    analysis: AnalysisRule = "until_final"


class KeepMachine(ChainMachine):
    analysis: AnalysisRule = "keep"


TestLibraryChains = ChainMachine.TestCase
TestUntilFinalChains = UntilFinalMachine.TestCase
TestKeepChains = KeepMachine.TestCase
TestLibraryChains.settings = settings(max_examples=25, stateful_step_count=10)
TestUntilFinalChains.settings = settings(max_examples=20, stateful_step_count=8)
TestKeepChains.settings = settings(max_examples=10, stateful_step_count=8)
