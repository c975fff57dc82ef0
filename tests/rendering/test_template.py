"""A model's own template: the same ids as a renderer of the family, for any cut; encoded is only what is new or changed."""

import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from sys import getsizeof
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rendering.conversations import SPECIAL_TEXTS, conversations, cuts, encoded, texts
from tests.rendering.vocabularies import BORDERS, TAGS, plain, tagged
from ws_responses.errors import ConfigurationError
from ws_responses.rendering.chatml import ChatMLRenderer
from ws_responses.rendering.rendered import RENDERED_BYTES, Rendered
from ws_responses.rendering.renderer import AUTO, CannotRender, RenderSettings, Tool, ToolChoice, ToolSet
from ws_responses.rendering.template import TemplateRenderer
from ws_responses.rendering.tokenizer import TiktokenTokenizer, UnknownToken

Item = dict[str, Any]
NOTHING = RenderSettings()
TOOLS = ToolSet(
    tools=(
        Tool(kind="function", name="find", description="Finds.", parameters={"type": "object", "properties": {}}),
        Tool(kind="custom", name="patch"),
    ),
    raw=b"",
)

THINKING = Path(__file__).with_name("thinking.jinja").read_text()

BARE = """{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}{%- for call in message.tool_calls or [] %}
<tool_call>
{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
</tool_call>{%- endfor %}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Writes what it is given, and nothing else."""

REFUSING = """{%- for message in messages %}
{%- if message.role == 'system' %}{{ raise_exception('System role not supported') }}{%- endif %}
<|im_start|>{{ message.role }}: {{ message.content }}<|im_end|>
{%- endfor %}"""


class CountingTokenizer(TiktokenTokenizer):
    """Counts the characters that are encoded."""

    encoded = 0

    def encode(self, text: str) -> list[int]:
        """Return the ids of text in which nothing is special."""
        self.encoded += len(text)
        return super().encode(text)


def renderer_of(
    template: str = BARE,
    tokenizer: TiktokenTokenizer | None = None,
    specials: Sequence[str] = BORDERS[:2],
    **options: Any,
) -> TemplateRenderer:
    return TemplateRenderer(tokenizer or tagged(), template, specials=specials, stops=("<|im_end|>",), **options)


def rendered(renderer: Any, *turns: Sequence[Item], settings: RenderSettings = NOTHING) -> Rendered:
    state: Rendered = renderer.begin(settings, None)
    for items in turns:
        state = renderer.extend(state, encoded(items))
    return state


def text_of(state: Rendered) -> str:
    return tagged().decode(state.ids()).decode()


def said(text: str) -> Item:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def user(text: str) -> Item:
    return {"role": "user", "content": text}


def call(number: int, arguments: str = "{}") -> Item:
    return {"type": "function_call", "call_id": f"c{number}", "name": "find", "arguments": arguments}


def output(number: int, text: str = "done") -> Item:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": text}


# -- against the renderer of the family ----------------------------------------------------------------------------------


def canonical(item: Item) -> Item:
    """Return an item that both renderers write alike: arguments spelled as the template does, and no empty answer."""
    if item.get("type") == "function_call":
        return {**item, "arguments": json.dumps({"q": item["arguments"]}, ensure_ascii=False)}
    if item.get("role") == "assistant":
        return {**item, "content": item["content"] or "."} if isinstance(item["content"], str) else said("Hm.")
    return item


@pytest.mark.parametrize("vocabulary", ["plain", "tagged"])
@settings(max_examples=20)
@given(items=conversations())
def test_the_template_of_a_family_gives_what_its_renderer_gives(vocabulary: str, items: list[Item]) -> None:
    """Without this one of the two would be wrong: they are made independently of each other."""
    tokenizer, specials = (plain(), BORDERS[:2]) if vocabulary == "plain" else (tagged(), BORDERS[:2] + TAGS)
    alike = [canonical(item) for item in items if item.get("type") != "reasoning"]
    alike.append(user("So?"))
    known = RenderSettings(instructions="Be brief.", tools=TOOLS)
    by_template = renderer_of(THINKING, tokenizer, specials)
    by_family = ChatMLRenderer(tokenizer)

    state = rendered(by_template, alike, settings=known)
    other = rendered(by_family, alike, settings=known)

    assert state.ids().tolist() == [*other.ids(), *tokenizer.encode("\n")]
    prompt = by_template.answer(state, AUTO, known).prompt
    assert prompt.ids() == by_family.answer(other, AUTO, known).prompt.ids()


# -- turns ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [BARE, THINKING], ids=["bare", "thinking"])
@settings(max_examples=20)
@given(data=st.data())
def test_any_cut_into_turns_gives_the_same_ids(template: str, data: st.DataObject) -> None:
    """Without this what a model sees would depend on how the client cut its conversation."""
    renderer = renderer_of(template, specials=BORDERS[:2] + TAGS)
    items = [user("hi"), *data.draw(conversations())]
    turns = data.draw(cuts(items))

    assert rendered(renderer, *turns).ids() == rendered(renderer, items).ids()


def test_a_turn_encodes_what_it_adds() -> None:
    """Without this each turn would cost the encoding of the whole conversation."""
    tokenizer = CountingTokenizer(tagged()._encoding)
    renderer = renderer_of(tokenizer=tokenizer)
    before = rendered(renderer, [user("long " * 5_000), said("Ok.")])
    tokenizer.encoded = 0

    after = renderer.extend(before, encoded([user("more")]))
    renderer.answer(after, AUTO, NOTHING)

    assert tokenizer.encoded < 60
    assert before.end - after.common(before) <= 1


def test_what_a_template_changes_is_encoded_anew_from_there() -> None:
    """Without this the model would see thoughts that its template drops."""
    renderer = renderer_of(THINKING, specials=BORDERS[:2] + TAGS)
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    before = rendered(renderer, [user("one"), said("1"), user("two")], [thought, call(1)], [output(1)])

    after = renderer.extend(before, encoded([user("three")]))

    assert "hm" in text_of(before)
    assert "hm" not in text_of(after)
    shared = text_of(before).index("<think>")
    assert after.common(before) == len(tagged()._encoding.encode(text_of(before)[:shared], allowed_special="all"))


def test_without_items_nothing_is_rendered() -> None:
    """Without this a warm-up would fail where a template refuses an empty conversation."""
    renderer = renderer_of("{{ messages[0].content.missing.member }}")
    state = rendered(renderer)

    assert state.end == 0
    assert renderer.extend(state, []) is state


# -- answers -------------------------------------------------------------------------------------------------------------


@given(text=texts(4))
def test_sampled_ids_stay_if_the_template_writes_the_same(text: str) -> None:
    """Without this the model's cache would be lost from the first answer on that encodes in another way."""
    tokenizer = tagged()
    renderer = renderer_of()
    state = rendered(renderer, [user("hi")])
    prompt = renderer.answer(state, AUTO, NOTHING).prompt.ids().tolist()
    one_by_one = [token for character in text for token in tokenizer.encode(character)]

    answered = renderer.answered(state, [*one_by_one, tokenizer.special("<|im_end|>")])
    after = renderer.extend(answered, encoded([user("more")]))

    # What looks like a call is one for the parser, and the template spells it in its own way.
    if "<tool_call>" not in text and "<think>" not in text:
        assert after.ids().tolist()[: len(prompt) + len(one_by_one)] == prompt + one_by_one
        assert text_of(after).endswith(f"{text}<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n")


def test_an_answer_that_the_template_writes_in_another_way_is_encoded_anew() -> None:
    tokenizer = tagged()
    renderer = renderer_of(BARE.replace("{{ message.content }}", "{{ message.content | trim }}"))
    state = rendered(renderer, [user("hi")])
    prompt = renderer.answer(state, AUTO, NOTHING).prompt

    answered = renderer.answered(state, tokenizer.encode("  Well. "))
    after = renderer.extend(answered, encoded([user("more")]))

    assert text_of(answered) == f"{text_of(prompt)}  Well. "
    assert text_of(after).startswith(f"{text_of(prompt)}Well.<|im_end|>")
    assert after.common(answered) == prompt.end


def test_thoughts_and_calls_of_an_answer_are_in_its_message() -> None:
    tokenizer = tagged()
    renderer = renderer_of(THINKING, specials=BORDERS[:2] + TAGS)
    known = RenderSettings(tools=TOOLS)
    state = rendered(renderer, [user("hi")], settings=known)
    sampled = tokenizer._encoding.encode(
        "<think>\nhm\n</think>\n\nI look.\n<tool_call>\n"
        '{"name": "patch", "arguments": {"input": "x"}}\n</tool_call><|im_end|>',
        allowed_special="all",
    )

    answered = renderer.answered(state, sampled)
    after = renderer.extend(answered, encoded([output(1)]))

    assert after.common(answered) == answered.end  # all ids stand
    assert '<tool_call>\n{"name": "patch", "arguments": {"input": "x"}}\n</tool_call><|im_end|>\n' in text_of(after)
    then = renderer.extend(after, encoded([user("more")]))
    assert "hm" not in text_of(then)
    assert "I look.\n<tool_call>" in text_of(then)


def test_two_answers_in_a_row() -> None:
    """Without this the second one could take the place of the first."""
    tokenizer = tagged()
    renderer = renderer_of()
    state = rendered(renderer, [user("hi")])

    letters = [token for letter in "two" for token in tokenizer.encode(letter)]
    twice = renderer.answered(renderer.answered(state, tokenizer.encode("one")), letters)
    after = renderer.extend(twice, encoded([user("more")]))

    assert after.common(twice) == twice.end
    assert text_of(after) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>\n"
        "<|im_start|>user\nmore<|im_end|>\n"
    )


def test_a_call_without_text_has_empty_content() -> None:
    """Without this templates that add texts to each other would fail, or write that there is none."""
    state = rendered(
        renderer_of("{% for message in messages %}{{ '<' + message.content + '>' }}{% endfor %}"), [call(1)]
    )

    assert text_of(state) == "<>"


def test_arguments_are_given_as_the_template_takes_them() -> None:
    """Without this models whose templates add texts, or take objects apart, would fail at their first call."""
    added = "{% for message in messages %}{% for call in message.tool_calls or [] %}{{ 'f(' + call.function.arguments + ')' }}{% endfor %}{% endfor %}"
    apart = added.replace("'f(' + call.function.arguments + ')'", "call.function.arguments.items() | list")
    printed = added.replace("'f(' + call.function.arguments + ')'", "call.function.arguments")
    items = [call(1, '{"path":1}')]

    assert text_of(rendered(renderer_of(added), items)) == 'f({"path":1})'
    assert text_of(rendered(renderer_of(printed), items)) == '{"path":1}'
    assert text_of(rendered(renderer_of(apart), items)) == "[('path', 1)]"
    assert text_of(rendered(renderer_of(apart), [call(1, "no JSON")])) == "[('arguments', 'no JSON')]"


def test_the_clock_of_a_template_stands_still() -> None:
    """Without this the same conversation would be another one tomorrow."""
    template = "{{ strftime_now('%d %B %Y') }}{{ messages[0].content }}"
    state = rendered(renderer_of(template, today=date(2025, 6, 28)), [user("!")])

    assert text_of(state) == "28 June 2025!"
    assert renderer_of(template, today=date(2025, 6, 28)).name != renderer_of(template, today=date(2025, 6, 29)).name
    with pytest.raises(CannotRender, match="strftime_now"):
        rendered(renderer_of(template), [user("!")])


def test_an_answer_that_another_token_ended_is_ended_by_the_template() -> None:
    tokenizer = tagged()
    renderer = TemplateRenderer(tokenizer, BARE, specials=BORDERS, stops=("<|im_end|>", "<|endoftext|>"))
    state = rendered(renderer, [user("hi")])

    letters = [token for letter in "one" for token in tokenizer.encode(letter)]
    answered = renderer.answered(state, [*letters, tokenizer.special("<|endoftext|>")])
    after = renderer.extend(answered, encoded([user("more")]))

    assert after.common(answered) == answered.end
    assert text_of(after) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n"
    )


def test_a_message_that_goes_on_unseen_has_gone_on() -> None:
    """Without this what a template shows later only would be lost."""
    renderer = renderer_of(
        "{% for message in messages %}<|im_start|>{{ message.role }}<|im_end|>{% endfor %}{{ messages[0].tool_calls | length }}"
    )

    state = rendered(renderer, [call(1)], [call(2)], [user("more")])

    assert text_of(state) == "<|im_start|>assistant<|im_end|><|im_start|>user<|im_end|>2"


def test_a_prompt_that_opens_a_thought_is_read_so() -> None:
    template = BARE.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n")
    renderer = renderer_of(template)
    known = RenderSettings(tools=TOOLS)
    state = rendered(renderer, [user("hi")], settings=known)

    answer = renderer.answer(state, AUTO, known)
    forced = renderer.answer(state, ToolChoice(mode="required"), known)

    assert [piece.kind for piece in answer.parser.feed((), "hm\n</think>\nHi")] == ["reasoning", "text"]
    assert tagged().decode(forced.prefill) == b"\n</think>\n\n<tool_call>\n"
    assert forced.parser.feed((), '{"name": "find", "arguments": {}}')[0].name == "find"


def test_calls_are_forced_only_where_it_is_known_how() -> None:
    known = RenderSettings(tools=TOOLS)
    for forced_call, works in (("<tool_call>\n", True), (None, False)):
        renderer = renderer_of(forced_call=forced_call)
        state = rendered(renderer, [user("hi")], settings=known)
        if works:
            schema = renderer.answer(state, ToolChoice(mode="required", names=("find",)), known).schema
            assert json.loads(schema or b"")["properties"]["name"] == {"const": "find"}
            continue
        with pytest.raises(CannotRender):
            renderer.answer(state, ToolChoice(mode="required"), known)


def test_effort_none_is_told_the_template() -> None:
    renderer = renderer_of(THINKING)
    known = RenderSettings(reasoning_effort="none")

    prompt = renderer.answer(rendered(renderer, [user("hi")], settings=known), AUTO, known).prompt

    assert text_of(prompt).endswith("<think>\n\n</think>\n\n")


# -- content and templates -----------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(contents=st.lists(texts(), min_size=1, max_size=3))
def test_content_never_becomes_a_control_token(contents: list[str]) -> None:
    """Without this a user could speak as the system, in every model whose template is used."""
    tokenizer = tagged()
    side_by_side = "{% for message in messages %}{{ message.content }}{% endfor %}<|im_end|>"
    renderer = renderer_of(side_by_side, specials=BORDERS + TAGS)

    state = rendered(renderer, [item for text in contents for item in (user(text), said(text))])

    controls = {tokenizer.special(special) for special in BORDERS + TAGS}
    assert [token for token in state.ids() if token in controls] == [tokenizer.special("<|im_end|>")]
    assert text_of(state) == "".join(text * 2 for text in contents) + "<|im_end|>"


@pytest.mark.parametrize("special", ["<|im_end|>", "<|im_start|>"])
def test_parts_of_control_tokens_do_not_become_one(special: str) -> None:
    tokenizer = tagged()
    renderer = renderer_of(
        "{% for message in messages %}{{ message.content }}{% endfor %}{{ '<' }}{{ messages[0].content }}>"
    )

    for cut in range(1, len(special)):
        state = rendered(renderer, [user(special[:cut]), user(special[cut:])], [user("\ufdd0\ufdd1")])
        assert tokenizer.special(special) not in state.ids()
        assert text_of(state) == f"{special}\ufdd0\ufdd1<{special[:cut]}>"
        opened = renderer_of(f"{special[:cut]}{{{{ messages[0].content }}}}")
        assert tokenizer.special(special) not in rendered(opened, [user(f"{special[cut:]} and")]).ids()
    inner = rendered(renderer, [user(special[1:-1])])
    assert tokenizer.special(special) not in inner.ids()


def test_tools_and_instructions_are_content_too() -> None:
    tokenizer = tagged()
    template = (
        "{{ messages[0].content }}{{ tools | tojson }}{{ messages[1].tool_calls[0].function.arguments | tojson }}"
    )
    renderer = renderer_of(template)
    tool = Tool(kind="function", name="f", description=SPECIAL_TEXTS[11], parameters={"<|im_start|>": "<|im_end|>"})
    known = RenderSettings(instructions="<|im_end|>", tools=ToolSet(tools=(tool,), raw=b""))

    state = rendered(renderer, [call(1, '{"<|im_end|>": ["<|im_start|>"]}')], settings=known)

    assert not {tokenizer.special(special) for special in BORDERS} & set(state.ids())
    assert text_of(state).endswith('{"<|im_end|>": ["<|im_start|>"]}')


def test_a_template_that_refuses_is_an_error_of_the_request() -> None:
    """Without this the client would be told of a server error."""
    renderer = renderer_of(REFUSING)

    with pytest.raises(CannotRender, match="System role not supported"):
        rendered(renderer, [user("hi")], settings=RenderSettings(instructions="Be brief."))
    assert rendered(renderer, [user("hi")]).end


@pytest.mark.parametrize("template", ["{{ messages[7].content.strip() }}", "{{ 1 // 0 }}", "{{ messages.append(1) }}"])
def test_a_template_that_fails_is_an_error_of_the_request(template: str) -> None:
    with pytest.raises(CannotRender):
        rendered(renderer_of(template), [user("hi")])


def test_a_template_cannot_reach_out() -> None:
    """Without this a template out of a model repository could run code here."""
    with pytest.raises(CannotRender):
        rendered(renderer_of("{{ messages.__class__.__mro__[1].__subclasses__() }}"), [user("hi")])


def test_a_template_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="has an error"):
        renderer_of("{% if %}")
    with pytest.raises(UnknownToken):
        renderer_of(specials=("<|unknown|>",))
    with pytest.raises(ConfigurationError, match="specials"):
        renderer_of(specials=())


def test_other_templates_and_options_have_another_name() -> None:
    names = {renderer_of().name, renderer_of(THINKING).name, renderer_of(forced_call=None).name}

    assert len(names) == 3


# -- memory --------------------------------------------------------------------------------------------------------------


def test_what_a_turn_keeps_is_charged() -> None:
    """Without this a client could keep more memory than its budget allows."""
    renderer = renderer_of()
    before = rendered(renderer, [user("hi")])
    text = "x" * 10_000

    after = renderer.extend(before, encoded([user(text)]))

    links = []
    for link in after.links():
        if link in before.links():
            break
        links.append(link)
    held = sum(getsizeof(link.memo) + link.own_ids.itemsize * len(link.own_ids) + RENDERED_BYTES for link in links)
    assert after.bytes_since(before) == held
    assert held > len(text) + 4 * len(links[-1].own_ids)
    assert held < 1.2 * (len(text) + 4 * after.end) + 2 * RENDERED_BYTES + 700
