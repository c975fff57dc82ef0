"""Text in items: what of a conversation can be read, and by that be judged.

Every string of an item is text unless its member is known to hold something else: an unknown item type, or an unknown
member of a known one, must be no way past the classifiers.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec
from msgspec import Raw

from ws_responses.errors import InvalidRequest
from ws_responses.protocol.items import OUTPUTS
from ws_responses.safety.verdict import Kind

_decode = msgspec.json.Decoder().decode

MOST_LEVELS: Final = 128
"""Of lists and objects within each other: the place of a text is as long as it is deep, and there may be tens of thousands of texts."""

NOT_TEXT: Final = frozenset(
    {
        # what names and classifies
        "type",
        "id",
        "call_id",
        "item_id",
        "response_id",
        "approval_request_id",
        "container_id",
        "file_id",
        "status",
        "role",
        "phase",
        "object",
        "name",
        "namespace",
        "server_label",
        "execution",
        "detail",
        "format",
        "stream_id",
        # pictures, files, ciphers, padding
        "image_url",
        "file_data",
        "partial_image_b64",
        "encrypted_content",
        "signature",
        "obfuscation",
    }
)
"""Members whose value is not judged if it is a string. (Deeper values are: a schema may describe a property of that name.)"""

REPEATED: Final = frozenset({"logprobs", "annotations", "annotation"})
"""Members that repeat the text, or point at its sources: not judged, whatever they hold."""

_BLOBS: Final = frozenset({("input_audio", "data"), ("audio", "data"), ("image_url", "url")})
"""The same for a member of a member."""

_RESULT_OF_IMAGE: Final = ("image_generation_call", "result")

_SPACES: Final = re.compile(r"\s{2,}|[^\S ]")
_ASCII_SPACES: Final = "\t\n\r\x0b\x0c\x1c\x1d\x1e\x1f"
_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]"
)
_ESCAPE: Final = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_CUT_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_CUT_ESCAPE_CHARS: Final = 5
_HIGH_HALF: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_HIGH_HALF_CHARS: Final = 6
_WORD: Final = re.compile(r"\w+\Z")
_JSON_WORD: Final = re.compile(r"[\w\\]+\Z")
_LONGEST_WORD: Final = 64
_PIECES_OF_A_BLOCK: Final = 256
_SHORT: Final = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def as_list(value: Any) -> list[Any]:
    """Return an array, an empty one for anything else."""
    return list(cast("Iterable[Any]", value)) if isinstance(value, list) else []


def as_object(value: Any) -> dict[str, Any] | None:
    """Return an object, None for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


_Path: TypeAlias = tuple[str | int, ...]


class GrowingText:
    """A text that comes in pieces: kept in few strings, because a string takes fifty bytes beside its characters."""

    __slots__ = ("_blocks", "_fresh")

    def __init__(self) -> None:
        self._blocks: list[str] = []
        self._fresh: list[str] = []

    def __str__(self) -> str:
        return "".join((*self._blocks, *self._fresh))

    def add(self, piece: str) -> None:
        """Add what comes next."""
        self._fresh.append(piece)
        if len(self._fresh) == _PIECES_OF_A_BLOCK:
            self._blocks.append("".join(self._fresh))
            self._fresh.clear()

    def become(self, text: str) -> None:
        """Be this text, whatever it was."""
        self._blocks[:] = [text]
        self._fresh.clear()


class Leaf(NamedTuple):
    """A string inside of a JSON value.

    Attributes:
        path: Members and indexes that lead to it.
        text: The string.
    """

    path: tuple[str | int, ...]
    text: str


class TooDeep(ValueError):
    """A value has more than :data:`MOST_LEVELS` levels."""


def leaves(value: Any, item_type: str | None = None) -> Iterator[Leaf]:
    """Yield the strings of a decoded JSON value that are text, in their order.

    Args:
        value: The value.
        item_type: Its type if it is an item.

    Raises:
        TooDeep: It is nested too deeply.
    """
    # Nothing is made of what has not been asked for: whoever counts them may stop.
    open_values: list[Iterator[tuple[_Path, Any]]] = [iter([((), value)])]
    while open_values:
        for path, at in open_values[-1]:
            if isinstance(at, str):
                if at and not _is_no_text(path, item_type):
                    yield Leaf(path, at)
            elif isinstance(at, (list, dict)):
                if len(open_values) > MOST_LEVELS:
                    raise TooDeep
                open_values.append(_inside(path, at))
                break
        else:
            open_values.pop()


def _inside(path: _Path, value: Any) -> Iterator[tuple[_Path, Any]]:
    """Yield what is in an array or object, with its path."""
    members = as_object(value)
    if members is None:
        return (((*path, index), each) for index, each in enumerate(as_list(value)))
    return (((*path, name), each) for name, each in members.items() if name not in REPEATED)


def _is_no_text(path: tuple[str | int, ...], item_type: str | None) -> bool:
    if not path:
        return False
    return path[-1] in NOT_TEXT or path[-2:] in _BLOBS or (item_type, *path) == _RESULT_OF_IMAGE


def decode_item(item: bytes | Raw, path: str) -> Any:
    """Return an item, decoded.

    Raises:
        InvalidRequest: It holds what only a decoder of all of it sees: a number beyond all ranges, half of a character.
    """
    try:
        return _decode(item)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest(
            "This item cannot be read: a number is out of range, or half of a character is missing.", param=path
        ) from None


def kind_of(item_type: str | None, path: tuple[str | int, ...]) -> Kind:
    """Return what a text is, by the type of its item and its place in it."""
    if item_type in (None, "message"):
        return "refusal" if path and path[-1] == "refusal" else "text"
    if item_type == "reasoning":
        return "reasoning"
    if item_type in OUTPUTS or item_type.endswith("_output"):
        return "tool_output"
    if not item_type.endswith("_call"):
        return "other"
    return "tool_output" if path and path[0] in ("output", "outputs", "results", "error") else "arguments"


def role_of(item_type: str | None, role: object) -> str | None:
    """Return whose text it is."""
    if isinstance(role, str):
        return role
    kind = kind_of(item_type, ())
    return {"tool_output": "tool", "arguments": "assistant", "reasoning": "assistant"}.get(kind)


def is_json_text(item_type: str | None, path: tuple[str | int, ...]) -> bool:
    """Whether a text is itself JSON that a model wrote, so that escapes in it stand for what a tool will read."""
    return path == ("arguments",) and item_type in (None, "function_call", "mcp_call", "mcp_approval_request")


def dotted(path: tuple[str | int, ...]) -> str:
    """Return a path as errors name it, beginning with a dot or a bracket."""
    return "".join(f"[{step}]" if type(step) is int else f".{step}" for step in path)


def unescaped(text: str) -> str:
    """Return JSON text with the characters that its escapes stand for."""
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(lambda match: _SHORT[match[2]] if match[2] else chr(int(match[1], 16)), text)
    # Two escapes may be the halves of one character; a half alone is none.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def split_escape(text: str) -> tuple[str, str]:
    """Return JSON text up to an escape that is cut off at its end, and the beginning of that escape.

    The first half of a character that takes two escapes is cut off as well.
    """
    end = len(text)
    cut = _CUT_ESCAPE.search(text, max(0, end - _CUT_ESCAPE_CHARS))
    if cut is not None and not _is_escaped(text, cut.start()):
        end = cut.start()
    half = _HIGH_HALF.search(text[:end], max(0, end - _HIGH_HALF_CHARS)) if end >= _HIGH_HALF_CHARS else None
    if half is not None and not _is_escaped(text, half.start()):
        end = half.start()
    return text[:end], text[end:]


def split_word(text: str, *, is_json: bool = False) -> tuple[str, str]:
    """Return text up to a word that may go on at its end, and the beginning of that word.

    A window must not end in a word: half of it may mean something else. A word that is longer than any is cut all the same.

    Args:
        text: The text.
        is_json: It is JSON, in which the characters of an escape belong together.
    """
    word = (_JSON_WORD if is_json else _WORD).search(text, max(0, len(text) - _LONGEST_WORD))
    if word is not None and len(text) - word.start() < _LONGEST_WORD:
        return text[: word.start()], text[word.start() :]
    return split_escape(text) if is_json else (text, "")


def _is_escaped(text: str, at: int) -> bool:
    """Whether the backslash at a place belongs to the one before it."""
    before = len(text[:at]) - len(text[:at].rstrip("\\"))
    return before % 2 == 1


def squeezed(text: str) -> str:
    """Return text with one space for each run of white space, and without characters that nobody sees.

    What is carried from window to window is a number of characters; it must not be used up by these.
    """
    if not text.isascii():
        return _SPACES.sub(" ", _INVISIBLE.sub("", text))
    # Half a dozen searches for a byte take a twentieth of the time of a regular expression.
    for space in _ASCII_SPACES:
        if space in text:
            text = text.replace(space, " ")
    while "  " in text:
        text = text.replace("  ", " ")
    return text


def tail_of(text: str, chars: int) -> str:
    """Return the end of a text, squeezed: what the classifiers get as the overlap with what comes next."""
    if not chars:
        return ""
    near = text[-8 * chars :]
    tail = squeezed(near)
    if len(tail) < chars and len(near) < len(text):
        tail = squeezed(text)
    return tail[-chars:]
