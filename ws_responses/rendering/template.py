"""Any model by its own chat template (Jinja): the fallback where no renderer of a family fits.

A template may look at the whole conversation, so each turn renders all of the text, which is cheap. Encoding it is not: only
what comes behind the last control token that nothing before has changed is encoded. Where a template changes what is older
(Qwen 3 drops earlier thoughts), the conversation goes back to there (a rewind).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

from ws_responses.rendering import chatml_texts as words
from ws_responses.rendering.chat_messages import ChatMessage, MessageWriter, Stage
from ws_responses.rendering.formats import read_format
from ws_responses.rendering.jinja_text import ChatTemplate, ControlTokens
from ws_responses.rendering.marked import MarkedEncoder, Piece, behind, behind_last_control, joined
from ws_responses.rendering.rendered import Form, Rendered
from ws_responses.rendering.renderer import (
    Answer,
    CannotRender,
    OutputParser,
    RenderSettings,
    ToolChoice,
    ToolSet,
)
from ws_responses.rendering.tagged_text import THINK_OPEN, Begun, TagParser, TextSource
from ws_responses.rendering.template_messages import REASONING, in_template_form, message_of, system_text
from ws_responses.rendering.template_state import (
    Frame,
    Notes,
    answers_of,
    append,
    border_link,
    digest_of,
    messages_of,
    notes_of,
    with_answer,
)
from ws_responses.rendering.tokenizer import Tokenizer, decode_text
from ws_responses.rendering.tool_schemas import call_schema, callable_tools, function_of

MakeParser: TypeAlias = Callable[[ToolSet | None, TextSource, Begun], OutputParser]
"""Makes the parser of an answer; :class:`~ws_responses.rendering.tagged_text.TagParser` is one."""


class TemplateRenderer:
    """Renders by a chat template.

    Sampled ids stay as they were sampled as long as the template writes the answer as the model did; else the answer is encoded
    as the template writes it (thoughts dropped, calls spelled in another way), and the model's cache is good up to there only.

    Args:
        tokenizer: The model's vocabulary.
        template: The template's source.
        specials: Control tokens that it writes. Only these become control tokens, and never out of content.
        stops: Those of them that end an answer.
        variables: Further variables of the template, ``bos_token`` and ``eos_token`` among them.
        today: What ``strftime_now`` tells the template; a service that changes it begins all conversations anew.
        make_parser: Makes the parsers of answers; the default reads ``<think>`` and ``<tool_call>``.
        forced_call: How a call begins that the model must make, its JSON following; None if it cannot be forced.

    Attributes:
        name: Names template, options and vocabulary.

    Raises:
        ConfigurationError: ``jinja2`` is missing, or the template has an error.
        UnknownToken: The vocabulary lacks a token.
    """

    produces: Literal["tokens"] = "tokens"

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str,
        *,
        specials: Sequence[str],
        stops: Sequence[str],
        variables: Mapping[str, Any] | None = None,
        today: date | None = None,
        make_parser: MakeParser = TagParser,
        forced_call: str | None = words.CALL_BEGIN,
    ) -> None:
        known = variables or {}
        self._tokenizer = tokenizer
        self._template = ChatTemplate(template, known, today)
        self._controls = ControlTokens(tokenizer, specials)
        self._encoder = MarkedEncoder(tokenizer, words.TAGS)
        self._stop_ids = tuple(tokenizer.special(stop) for stop in stops)
        self._control_ids = frozenset(self._controls.ids.values())
        self._make_parser = make_parser
        self._forced_call = forced_call
        options = repr((template, specials, stops, known, today, forced_call))
        self.name = f"template:{tokenizer.name}:{blake2b(options.encode(), digest_size=8).hexdigest()}"

    def begin(self, settings: RenderSettings, form: Form) -> Rendered:
        """Return a conversation without items: its text begins with the first one, since templates refuse empty ones.

        Raises:
            CannotRender: The format has no form here.
        """
        variables: dict[str, Any] = {"tools": None}
        if settings.tools is not None and settings.tools.tools:
            escape = self._controls.escape
            variables["tools"] = [
                {"type": "function", "function": escape(function_of(tool))} for tool in settings.tools.tools
            ]
        if settings.reasoning_effort is not None:
            variables["reasoning_effort"] = settings.reasoning_effort
            variables["enable_thinking"] = settings.reasoning_effort != "none"
        system = system_text(settings)
        messages = [self._in_form({"role": "system", "content": system})] if system else []
        frame = Frame(settings.tools, variables)
        notes = Notes(frame, messages, 0, stage=None, border=0, digest=digest_of(""), is_root=True)
        return Rendered.of_tokens((), form, notes)

    def extend(self, state: Rendered, items: Iterable[bytes]) -> Rendered:
        """Return the state after these items.

        Raises:
            CannotRender: An item has no form, or the template refuses.
        """
        writer = MessageWriter(
            notes_of(state).stage, reasoning_field=REASONING, developer_role="system", text_only=True
        )
        writer.write(items)
        if not writer.messages and writer.continued is None:
            return state
        messages = messages_of(state)
        unchanged = len(messages)
        if writer.continued is not None:
            unchanged -= 1
            writer.continued = self._in_form(writer.continued)
            messages.append(writer.continue_message(messages.pop()))
        messages += map(self._in_form, writer.messages)
        return self._onto(state, messages, unchanged, writer.stage)

    def answer(self, state: Rendered, choice: ToolChoice, settings: RenderSettings) -> Answer:
        """Return how an answer is sampled after ``state``.

        Raises:
            CannotRender: The choice cannot be held to, or the template refuses.
        """
        tools = callable_tools(choice, settings.tools)
        text = self._text(state, messages_of(state), answer=True)
        link, pieces, _ = self._place(state, text)
        begun = _begun(text)
        prefill, schema = "", None
        if choice.mode == "required":
            if self._forced_call is None:
                raise CannotRender("The model cannot be made to call a tool.", param="tool_choice")
            prefill, schema = self._forced_call, call_schema(tools)
        elif settings.response_format is not None and not tools:
            schema = read_format(settings.response_format).json_schema
        if schema is not None and begun == "reasoning":
            prefill, begun = words.THINK_END + prefill, "text"
        ids = self._encoder.encode(self._encoder.marked(prefill))
        return Answer(
            prompt=link.with_tokens(self._encoder.encode(pieces) + ids),
            parser=self._parser(settings.tools if tools else None, "call" if choice.mode == "required" else begun),
            prefill=tuple(ids),
            stop_ids=self._stop_ids,
            schema=schema,
        )

    def answered(self, state: Rendered, sampled_ids: Sequence[int]) -> Rendered:
        """Return the state after an answer. What the template makes of it shows with the next turn.

        Raises:
            CannotRender: The template refuses.
        """
        ids = list(sampled_ids)
        while ids and ids[-1] in self._stop_ids:
            ids.pop()
        messages = messages_of(state)
        prompt = self._text(state, messages, answer=True)
        link, pieces, _ = self._place(state, prompt)
        message = self._in_form(self._message(state, ids, _begun(prompt)))
        return with_answer(link, self._encoder.encode(pieces) + ids, [*messages, message])

    # -- parts -------------------------------------------------------------------------------------------------------

    def _text(self, state: Rendered, messages: Sequence[ChatMessage], *, answer: bool) -> str:
        return self._template.text(messages, notes_of(state).frame.variables, answer=answer)

    def _onto(self, state: Rendered, messages: Sequence[ChatMessage], unchanged: int, stage: Stage) -> Rendered:
        text = self._text(state, messages, answer=False)
        link, pieces, border = self._place(state, text)
        at = behind_last_control(pieces)
        return append(
            link,
            self._encoder.encode(pieces[:at]),
            self._encoder.encode(pieces[at:]),
            messages=messages,
            unchanged=unchanged,
            stage=stage,
            text=text,
            border=border,
        )

    def _place(self, state: Rendered, text: str) -> tuple[Rendered, list[Piece], int]:
        """Return the link from which a text goes on, the text's pieces behind it, and where its last control token ends."""
        link = border_link(state, text)
        pieces, border = self._controls.pieces(text, notes_of(link).border)
        answers = answers_of(state)
        if not answers or answers[-1].before is not link:
            return link, pieces, border
        # The template may have written the answers as they were sampled: then their ids stand.
        for number, answer in enumerate(answers):
            own = [token for each in reversed(answers[number:]) for token in each.own_ids]
            rest = behind(pieces, self._as_pieces(own))
            if rest is not None:
                return answer, rest, border
        return link, pieces, border

    def _parser(self, tools: ToolSet | None, begun: Begun) -> OutputParser:
        return self._make_parser(tools, TextSource(self._tokenizer, self._encoder.tags, self._stop_ids), begun)

    def _message(self, state: Rendered, ids: Sequence[int], begun: Begun) -> ChatMessage:
        """Return an answer as the message that it is in a history."""
        tools = notes_of(state).frame.tools
        parser = self._parser(tools, begun)
        return message_of([*parser.feed(ids, ""), *parser.end()], tools)

    def _as_pieces(self, ids: Iterable[int]) -> list[Piece]:
        """Return ids as the pieces that a text of them has."""
        pieces: list[Piece] = []
        run: list[int] = []
        for token in ids:
            if token in self._control_ids:
                pieces += (decode_text(self._tokenizer, run), token)
                run = []
            else:
                run.append(token)
        return joined([*pieces, decode_text(self._tokenizer, run)])

    def _in_form(self, message: ChatMessage) -> ChatMessage:
        return in_template_form(message, self._controls.escape, objects=self._template.takes_objects)


def _begun(prompt: str) -> Begun:
    return "reasoning" if prompt.rstrip().endswith(THINK_OPEN) else "text"
