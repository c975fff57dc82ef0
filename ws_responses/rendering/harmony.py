"""The ``harmony`` renderer: the format of the gpt-oss models, as token ids.

Messages are written over :mod:`tiktoken`, piece by piece at control tokens, and equal what openai-harmony writes for the same
conversation, token for token. What was sampled stays as it was sampled.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, get_args

import msgspec

from ws_responses.errors import ConfigurationError, excerpt
from ws_responses.rendering.harmony_items import add_item
from ws_responses.rendering.harmony_output import HarmonyParser
from ws_responses.rendering.harmony_prompt import developer_text, system_text
from ws_responses.rendering.harmony_sampled import add_sampled
from ws_responses.rendering.harmony_state import Addition, AnalysisRule, grow, notes_of
from ws_responses.rendering.harmony_tokens import END, STOPS, HarmonyTokens
from ws_responses.rendering.items import read_items
from ws_responses.rendering.rendered import Form, Rendered
from ws_responses.rendering.renderer import Answer, CannotRender, RenderSettings, Tool, ToolChoice
from ws_responses.rendering.vocabulary import load_encoding

KNOWLEDGE_CUTOFF: Final = "2024-06"
"""Of the gpt-oss models (harmony guide)."""


class HarmonyRenderer:
    """Renders conversations for gpt-oss models.

    Args:
        current_date: What the model is told of the date, as ISO 8601; None tells it nothing. It is part of every prompt's
            beginning, so a service that changes it begins all conversations anew.
        knowledge_cutoff: What the model is told of its training.
        analysis: When reasoning is left out: see :mod:`ws_responses.rendering.harmony_state`. ``"until_final"`` keeps more
            of a service's prompt cache than ``"library"``, ``"keep"`` keeps all of it.

    Raises:
        ConfigurationError: ``analysis`` is none of its values, or the packages of the extra ``tokens`` are missing.
    """

    produces: Literal["tokens"] = "tokens"

    def __init__(
        self,
        *,
        current_date: str | None = None,
        knowledge_cutoff: str = KNOWLEDGE_CUTOFF,
        analysis: AnalysisRule = "library",
    ) -> None:
        if analysis not in get_args(AnalysisRule):
            raise ConfigurationError(f"analysis must be one of {get_args(AnalysisRule)}, not {analysis!r}")
        self._tokens = HarmonyTokens(load_encoding("o200k_harmony"))
        self._current_date = current_date
        self._knowledge_cutoff = knowledge_cutoff
        self._analysis: AnalysisRule = analysis
        # What changes the tokens is part of the name: a state must not go on under another rule or date.
        own = {"current_date": current_date, "knowledge_cutoff": knowledge_cutoff, "analysis": analysis}
        usual = {"current_date": None, "knowledge_cutoff": KNOWLEDGE_CUTOFF, "analysis": "library"}
        told = [f"{option}={value}" for option, value in own.items() if value != usual[option]]
        self.name = f"harmony({','.join(told)})" if told else "harmony"

    def begin(self, settings: RenderSettings, form: Form) -> Rendered:
        """Return the system message, and the developer message if there is anything to say.

        Raises:
            CannotRender: The reasoning effort, a tool or the response format has no form here.
        """
        tokens = self._tokens
        system = system_text(settings, knowledge_cutoff=self._knowledge_cutoff, current_date=self._current_date)
        ids = [*tokens.system, *tokens.encode(system), END]
        if developer := developer_text(settings):
            ids += [*tokens.developer, *tokens.encode(developer), END]
        return Rendered.of_tokens(ids, form)

    def extend(self, state: Rendered, items: Iterable[bytes]) -> Rendered:
        """Return the state after these items (encoded JSON).

        Raises:
            CannotRender: An item has no form here; ``index`` tells which.
        """
        addition = Addition(notes_of(state))
        for index, item in read_items(items):
            add_item(addition, item, index, self._tokens)
        return grow(state, addition, self._analysis)

    def answer(self, state: Rendered, choice: ToolChoice, settings: RenderSettings) -> Answer:
        """Return how an answer is sampled after ``state``.

        One tool that must be called is forced: the answer begins with the header of its call, and the schema of its arguments
        is to be followed. Of several tools one must be called: the answer begins with the address of tools, and the model goes
        on with a name; one that is not allowed is refused by the parser. A forced call comes without reasoning. That no tool
        be called (``none``) cannot be held to: the model still sees them.

        Raises:
            CannotRender: A tool must be called, but there is none, or not this one.
        """
        offered = {tool.wire_name: tool for tool in (settings.tools.tools if settings.tools is not None else ())}
        prefill, schema = self._forced(offered, choice) if choice.mode == "required" else ((), None)
        return Answer(
            prompt=state.with_tokens([*self._tokens.begin_answer, *prefill]),
            prefill=prefill,
            stop_ids=STOPS,
            schema=schema,
            parser=HarmonyParser(self._tokens, prefill, offered=offered, allowed=choice.names),
        )

    def answered(self, state: Rendered, sampled_ids: Sequence[int]) -> Rendered:
        """Return the state after an answer was sampled; nothing of it is encoded again.

        Args:
            state: The one that ``answer`` was asked with.
            sampled_ids: ``prefill`` and what was sampled after it.
        """
        addition = Addition(notes_of(state))
        add_sampled(addition, sampled_ids, self._tokens)
        return grow(state, addition, self._analysis)

    def _forced(self, offered: dict[str, Tool], choice: ToolChoice) -> tuple[tuple[int, ...], bytes | None]:
        """Return the beginning of an answer that must be a call, and the schema of what follows."""
        names = list(offered) if choice.names is None else [*choice.names]
        unknown = [name for name in names if name not in offered]
        if unknown:
            raise CannotRender(f"The tool '{excerpt(unknown[0])}' is not among 'tools'.", param="tool_choice")
        if not names:
            raise CannotRender("A tool must be called, but there is none.", param="tool_choice")
        if len(names) > 1:
            return tuple(self._tokens.sampled_some_call()), None
        tool = offered[names[0]]
        json = tool.kind == "function"
        prefill = tuple(self._tokens.sampled_call(tool.wire_name, json=json))
        return prefill, _encode_schema(tool.parameters) if json else None


def _encode_schema(parameters: Any) -> bytes:
    return msgspec.json.encode({"type": "object"} if parameters is None else parameters)
