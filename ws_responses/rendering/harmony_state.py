"""How a harmony conversation grows, and what it leaves out: reasoning that a final message has made obsolete.

Three rules, by the renderer's ``analysis``:

``library``      what ``auto_drop_analysis`` of openai-harmony does: while the assistant's last message is a final one, reasoning
                 before the *first* final message of the conversation is left out. A call after it brings that reasoning back.
``until_final``  the harmony guide: a final message ends a turn, and the reasoning before it is left out for good.
``keep``         nothing is left out.

What was rendered is never rendered again. By the first rule a conversation goes back and forth between two beginnings, which
is a detour of :class:`Rendered`; by the second it is cut back to the first reasoning since the last final message, and goes on
from there with the ids that remain.
"""

from array import array
from collections.abc import Iterable, Sequence
from sys import getsizeof
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from ws_responses.rendering.rendered import Rendered

AnalysisRule: TypeAlias = Literal["library", "until_final", "keep"]
"""When reasoning is left out: see the module."""

CallKey: TypeAlias = str | int
"""Names an open call: its ``call_id``; a number, if it was sampled and its id is not known here."""

_NOTES_BYTES: Final = 104
_INT_BYTES: Final = 32


class Notes(Struct, frozen=True, gc=False):
    """What the renderer remembers of a conversation, with each link.

    Attributes:
        analysis: Where reasoning begins and ends among the link's own ids, in turns.
        first: Place of the first reasoning that a final message may still make obsolete; -1 if there is none.
        had_final: There has been a final message.
        ends_final: The assistant's last message is a final one.
        calls: Open calls: key and wire name.
    """

    analysis: tuple[int, ...] = ()
    first: int = -1
    had_final: bool = False
    ends_final: bool = False
    calls: tuple[tuple[CallKey, str], ...] = ()

    def __sizeof__(self) -> int:
        """Bytes, with what hangs on it: a client may open calls without end."""
        size = _NOTES_BYTES
        if self.analysis:
            size += getsizeof(self.analysis) + _INT_BYTES * len(self.analysis)
        if self.calls:
            size += getsizeof(self.calls)
            size += sum(getsizeof(call) + getsizeof(call[0]) + getsizeof(call[1]) for call in self.calls)
        return size


_NO_NOTES: Final = Notes()


def notes_of(state: Rendered) -> Notes:
    """Return the notes of a state; there are none where it was cut."""
    notes: Any = state.memo
    return notes if isinstance(notes, Notes) else _NO_NOTES


class Addition:
    """Messages on their way into a conversation.

    Args:
        notes: Of the state that they are added to.

    Attributes:
        ids: Their tokens.
        analysis: Where reasoning begins and ends in ``ids``, in turns.
        first_final: Where the first final message begins; -1 if there is none.
        last_final: Where the last one begins.
        ends_final: Whether the assistant's last message is a final one.
    """

    __slots__ = ("_calls", "_known_calls", "analysis", "ends_final", "first_final", "ids", "last_final")

    def __init__(self, notes: Notes) -> None:
        self.ids: list[int] = []
        self.analysis: list[int] = []
        self.first_final = self.last_final = -1
        self.ends_final = notes.ends_final
        self._known_calls = notes.calls
        self._calls: dict[CallKey, str] | None = None

    def add(self, header: Iterable[int], content: Iterable[int], end: int) -> int:
        """Add a message; return where it begins."""
        begin = len(self.ids)
        self.ids += header
        self.ids += content
        self.ids.append(end)
        return begin

    def mark_assistant(self, begin: int, end: int, channel: str | None) -> None:
        """Note that the ids from ``begin`` to ``end`` are a message of the assistant."""
        self.ends_final = channel == "final"
        if channel == "analysis":
            self.analysis += (begin, end)
        elif channel == "final":
            self.last_final = begin
            if self.first_final < 0:
                self.first_final = begin

    def open_call(self, key: str, name: str) -> None:
        """Note a call that waits for its output."""
        self._open[key] = name

    def open_sampled(self, names: Iterable[str]) -> None:
        """Note the calls of an answer; older ones that were sampled wait no more."""
        calls: dict[CallKey, str] = {key: name for key, name in self._open.items() if isinstance(key, str)}
        calls.update(enumerate(names))
        self._calls = calls

    def close_call(self, key: str) -> str | None:
        """Return the wire name of the tool that an output is of; None if no call waits for it.

        An output whose id is not known is that of the oldest call that was sampled.
        """
        calls = self._open
        if key in calls:
            return calls.pop(key)
        oldest = next((one for one in calls if isinstance(one, int)), None)
        return None if oldest is None else calls.pop(oldest)

    @property
    def _open(self) -> dict[CallKey, str]:
        if self._calls is None:
            self._calls = dict(self._known_calls)
        return self._calls

    @property
    def calls(self) -> tuple[tuple[CallKey, str], ...]:
        """Open calls after these messages; the same object as before, if nothing has changed."""
        return self._known_calls if self._calls is None else tuple(self._calls.items())


def grow(state: Rendered, addition: Addition, rule: AnalysisRule) -> Rendered:
    """Return the state after these messages."""
    if not addition.ids:
        return state
    if rule == "library":
        return _with_two_beginnings(state, addition)
    if rule == "until_final":
        return _cut_back(state, addition)
    return state.with_tokens(addition.ids, _notes(state, addition))


def _notes(state: Rendered, addition: Addition, analysis: Sequence[int] = (), first: int = -1) -> Notes:
    return Notes(
        analysis=tuple(analysis),
        first=first,
        had_final=notes_of(state).had_final or addition.first_final >= 0,
        ends_final=addition.ends_final,
        calls=addition.calls,
    )


def _first(state: Rendered, analysis: Sequence[int]) -> int:
    """Return the place of the first reasoning: noted with the state, or among what is added."""
    first = notes_of(state).first
    return state.place + analysis[0] if first < 0 and analysis else first


def _with_two_beginnings(state: Rendered, addition: Addition) -> Rendered:
    if notes_of(state).had_final:
        return state.with_tokens(addition.ids, _notes(state, addition), takes_detour=addition.ends_final)
    if addition.first_final < 0:
        notes = _notes(state, addition, addition.analysis, _first(state, addition.analysis))
        return state.with_tokens(addition.ids, notes)
    whole = state.with_tokens(addition.ids, _notes(state, addition))
    obsolete = [place for place in addition.analysis if place <= addition.first_final]
    first = _first(state, obsolete)
    if first < 0:
        return whole
    instead = _without_reasoning(state, first).with_tokens(_remaining(addition.ids, obsolete))
    return whole.with_detour(instead, takes_detour=addition.ends_final)


def _cut_back(state: Rendered, addition: Addition) -> Rendered:
    if addition.last_final < 0:
        notes = _notes(state, addition, addition.analysis, _first(state, addition.analysis))
        return state.with_tokens(addition.ids, notes)
    obsolete = [place for place in addition.analysis if place <= addition.last_final]
    first = _first(state, obsolete)
    base = state if first < 0 else _without_reasoning(state, first)
    ids = _remaining(addition.ids, obsolete)
    moved = len(ids) - len(addition.ids)
    analysis = [place + moved for place in addition.analysis[len(obsolete) :]]
    return base.with_tokens(ids, _notes(state, addition, analysis, base.place + analysis[0] if analysis else -1))


def _without_reasoning(state: Rendered, first: int) -> Rendered:
    """Return a state without its reasoning: cut back to a place, and continued by the same links where they had none."""
    if first >= state.place:
        return state
    behind: list[Rendered] = []
    for link in state.links():
        if link.place <= first:
            break
        behind.append(link)
    result = state.cut(first)
    for link in reversed(behind):
        analysis = notes_of(link).analysis
        begin = max(0, first - link.place + len(link.own_ids))
        untouched = not analysis and not begin
        result = link.behind(result) if untouched else result.with_tokens(_remaining(link.own_ids, analysis, begin))
    return result


def _remaining(ids: "list[int] | array[int]", analysis: Sequence[int], begin: int = 0) -> list[int]:
    """Return ids from a place on, without reasoning."""
    kept: list[int] = []
    for start, end in zip(analysis[::2], analysis[1::2], strict=True):
        kept += ids[begin:start]
        begin = end
    kept += ids[begin:]
    return kept
