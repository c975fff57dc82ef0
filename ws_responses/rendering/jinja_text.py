"""Conversations as text by a model's own chat template (Jinja), cut at the control tokens that the template wrote.

Content cannot forge a control token: what looks like one in it is broken up before the template sees it, and put together
again when the text has been cut.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Final, cast

from ws_responses.errors import ConfigurationError
from ws_responses.extras import Extra
from ws_responses.rendering.marked import Piece
from ws_responses.rendering.renderer import CannotRender
from ws_responses.rendering.tokenizer import Tokenizer

_BREAK: Final = "\ufdd0"
_OWN: Final = "\ufdd1"
"""Noncharacters: put between the characters of what looks like a control token, and before such characters of the content."""

_RESERVED: Final = re.compile(f"[{_BREAK}{_OWN}]")
_ESCAPED: Final = re.compile(f"{_BREAK}|{_OWN}([01])")


_SIGN: Final = re.compile(r"\W")
_SHORTEST: Final = 2
"""Characters of a control token: a break must fit between them."""


class ControlTokens:
    """The control tokens that a template writes.

    Args:
        tokenizer: The vocabulary.
        texts: Of the tokens.

    Attributes:
        ids: By text.

    Raises:
        UnknownToken: The vocabulary has none of this text.
    """

    __slots__ = ("_beginnings", "_endings", "_pattern", "ids")

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
        if not texts or min(map(len, texts)) < _SHORTEST:
            raise ConfigurationError(
                "specials must name the control tokens that the template writes, of two characters or more"
            )
        self.ids = {text: tokenizer.special(text) for text in texts}
        longest_first = sorted(texts, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        # Two texts may come next to each other in a template: parts of tokens at their ends are broken off as well, and so
        # are texts that lie within a token (not plain words: templates compare those).
        self._beginnings = tuple({text[:cut] for text in texts for cut in range(1, len(text))})
        self._endings = tuple({text[cut:] for text in texts for cut in range(1, len(text))})

    def escape(self, value: Any) -> Any:
        """Return a JSON value whose texts hold nothing that could become a control token."""
        if isinstance(value, str):
            return self._escape_text(value)
        if isinstance(value, Mapping):
            members = cast("Mapping[str, Any]", value)
            return {self.escape(name): self.escape(member) for name, member in members.items()}
        if isinstance(value, list):
            return [self.escape(entry) for entry in cast("Sequence[Any]", value)]
        return value

    def _escape_text(self, text: str) -> str:
        text = self._pattern.sub(_broken, _RESERVED.sub(_kept, text))
        if text.startswith(self._endings) or (_SIGN.search(text) and any(text in token for token in self.ids)):
            text = _BREAK + text
        return text + _BREAK if text.endswith(self._beginnings) else text

    def pieces(self, text: str, begin: int = 0) -> tuple[list[Piece], int]:
        """Return the pieces of a template's text, and where its last control token ends (``begin`` if there is none).

        Args:
            text: As the template wrote it.
            begin: Where the pieces begin.
        """
        pieces: list[Piece] = []
        at = begin
        for match in self._pattern.finditer(text, begin):
            _add_text(pieces, text[at : match.start()])
            pieces.append(self.ids[match[0]])
            at = match.end()
        _add_text(pieces, text[at:])
        return pieces, at


def _broken(match: re.Match[str]) -> str:
    return f"{match[0][0]}{_BREAK}{match[0][1:]}"


def _kept(match: re.Match[str]) -> str:
    return f"{_OWN}{'01'[match[0] == _OWN]}"


def _add_text(pieces: list[Piece], text: str) -> None:
    text = _ESCAPED.sub(_unescaped, text)
    if text:
        pieces.append(text)


def _unescaped(match: re.Match[str]) -> str:
    return {None: "", "0": _BREAK, "1": _OWN}[match[1]]


class ChatTemplate:
    """A chat template as model repositories have it (``chat_template`` of ``tokenizer_config.json``).

    Runs in Jinja's sandbox, with what ``transformers`` offers to templates. The clock stands still, so that the same messages
    give the same text.

    Args:
        source: The template.
        variables: Further variables, ``bos_token`` and ``eos_token`` among them.
        today: What ``strftime_now`` tells; None for templates that do not ask, or can do without.

    Attributes:
        takes_objects: The arguments of calls are objects to it; else they are JSON text.

    Raises:
        ConfigurationError: ``jinja2`` is missing, or the template has an error.
    """

    __slots__ = ("_errors", "_template", "_variables", "takes_objects")

    def __init__(self, source: str, variables: Mapping[str, Any], today: date | None) -> None:
        with Extra("templates"):
            from jinja2 import TemplateError  # noqa: PLC0415 - an optional package
            from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

        def refuse(message: str) -> None:
            raise TemplateError(message)

        # Prompts are no HTML: nothing is escaped.
        environment: Any = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = refuse
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ConfigurationError(f"the chat template has an error: {error}") from None
        self._errors = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
        self._variables = dict(variables)
        if today is not None:
            self._variables["strftime_now"] = today.strftime
        self.takes_objects = self._asks_for_objects()

    def text(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], *, answer: bool) -> str:
        """Return the text of a conversation.

        Args:
            messages: Of chat completions, arguments of calls decoded.
            variables: Of this conversation.
            answer: With the beginning of an answer behind it.

        Raises:
            CannotRender: The template refuses.
        """
        known = {**self._variables, **variables, "messages": messages, "add_generation_prompt": answer}
        try:
            text: str = self._template.render(known)
        except self._errors as error:
            raise CannotRender(f"The model's chat template refuses the conversation: {error}") from None
        return text

    def _asks_for_objects(self) -> bool:
        """Try out how the template writes a call: some add texts, some take an object apart."""
        try:
            return "{'path'" not in self.text(_conversation({"path": "a"}), {"tools": None}, answer=False)
        except CannotRender:
            pass
        try:
            self.text(_conversation('{"path": "a"}'), {"tools": None}, answer=False)
        except CannotRender:
            return True
        return False


def _conversation(arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "call00000", "type": "function", "function": {"name": "find", "arguments": arguments}}
    return [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00000", "content": "There."},
    ]


def _to_json(value: Any, indent: int | None = None, *, ensure_ascii: bool = False) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)
