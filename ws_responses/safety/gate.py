"""What of an answer may leave: events in, events out, without I/O.

An event leaves when all text up to and with it has been judged, in order; so an event without text waits only behind one that
has some. Text is judged in windows; the next one is collected while one is being judged. What a block leaves behind is closed
by an event that holds just what was sent.
"""

from collections import deque
from typing import Any, Final

from msgspec import Struct

from ws_responses.protocol import events
from ws_responses.protocol.withheld import withheld
from ws_responses.safety.options import Output
from ws_responses.safety.output import Heard, Place, Said, hear
from ws_responses.safety.sent import SentOutput
from ws_responses.safety.text import GrowingText, split_word, tail_of, unescaped
from ws_responses.safety.verdict import About, Judgement, OutputTooLarge, Piece, SafetyInput, SafetyState

Payload = bytes | str
"""An event as the upstream gave it (encoded JSON), or as JSON text that lacks nothing (``Emit.delta``)."""

_EVENT_BYTES: Final = 512
"""Counted for a held event beside its bytes: the objects that are read from it."""

_BEGINNING: Final = events.LIFECYCLE - events.TERMINAL
_ENDS: Final = events.TERMINAL | {events.ERROR}


class GateOptions(Struct, frozen=True, kw_only=True):
    """How much is judged in one go, and how much may wait for it; see :class:`~ws_responses.safety.Safety`."""

    output: Output
    window_chars: int
    hold_back_chars: int
    overlap_chars: int
    max_held_bytes: int
    max_output_bytes: int


class _Held(Struct, frozen=True, gc=False):
    payload: Payload
    heard: Heard
    end: int

    __repr__ = withheld


class _Part:
    """One text of the output, as far as it has come.

    Attributes:
        about: What it is, as its first event told.
        said: All of it.
        new: What has not been judged, each with its place among all texts.
        before: The end of what has been judged.
        started: Something of it has been judged.
        ended: Nothing more of it comes.
    """

    __slots__ = ("about", "before", "ended", "new", "said", "started")

    def __init__(self, about: Said) -> None:
        self.about = about
        self.said = GrowingText()
        self.new: list[tuple[int, str]] = []
        self.before = ""
        self.started = False
        self.ended = False

    def cut(self, *, whole: bool) -> str:
        """Take what is to be judged now; the beginning of a word at its end stays, to be judged with the rest of it.

        Args:
            whole: Let nothing stay.
        """
        text = "".join(piece for _, piece in self.new)
        start, rest = self.new[-1][0] + len(self.new[-1][1]), ""
        if not whole:
            text, rest = split_word(text, is_json=self.about.is_json)
        missing = len(rest)
        for begin, piece in reversed(self.new):
            if not missing:
                break
            start = begin + max(0, len(piece) - missing)
            missing = max(0, missing - len(piece))
        self.new = [(start, rest)] if rest else []
        return text


class OutputGate:
    """The gate of one turn.

    Call :meth:`take` with each event, :meth:`window` for what is to be judged, then :meth:`passed` or :meth:`block`; after each
    of these, :meth:`leaving` gives what may be sent now. Call :meth:`finish` when the upstream has ended.

    Args:
        options: The numbers.
        about: Whose output it is.
        state: What the chain carries; None while the input is still being judged (see :meth:`open`).

    Attributes:
        complete: An event that ends the turn has been taken.
        blocked: Nothing leaves any more.
        held_bytes: What is held.
    """

    def __init__(self, options: GateOptions, about: About, state: SafetyState | None) -> None:
        self._options = options
        self._about = about
        self._state = state
        self._held: deque[_Held] = deque()
        self._parts: dict[Place, _Part] = {}
        self._waiting: dict[Place, _Part] = {}
        self._sent = SentOutput()
        self._fresh_chars = 0
        self._taken = self._taken_bytes = 0
        self._may_leave = 0
        self._window_end: int | None = None
        self._window_ends_part = False
        self._due = False
        self._finished = False
        self.complete = False
        self._usage: Any = None
        self.held_bytes = 0
        self.blocked = False

    # -- what goes in ------------------------------------------------------------------------------------------------

    def take(self, payload: Payload) -> None:
        """Take one event of the upstream.

        Raises:
            OutputTooLarge: The output is more than can be remembered, or held until it is judged as a whole.
            UpstreamError: The event cannot be read, and so not be judged.
        """
        if self.blocked:
            return
        judges = self._options.output != "off"
        heard = hear(payload) if judges else Heard("", None)
        for said in heard.said:
            self._add(said, ends=said.ends or (said.whole and heard.ends_part))
        if heard.ends_part and self._waiting:
            self._due = True
        if heard.type in _ENDS:
            self._finished = self.complete = True
            self._usage = None if heard.response is None else heard.response.get("usage")
        end = self._taken
        if self._options.output == "whole" and heard.type not in _BEGINNING:
            end += 1  # nothing of it leaves before the last verdict, whether it has text or not
        self._held.append(_Held(payload, heard, end))
        self.held_bytes += len(payload) + _EVENT_BYTES
        if self._options.output == "whole" and self.full and not self._finished:
            raise OutputTooLarge(self._options.max_held_bytes)

    def _add(self, said: Said, *, ends: bool) -> None:
        part = self._parts.get(said.place)
        if part is None:
            part = self._parts[said.place] = _Part(said)
        text = said.text
        if said.whole:
            text = _new_in(part, text)
        elif text:
            part.said.add(text)
        part.ended |= ends
        if not text:
            return
        part.new.append((self._taken, text))
        self._waiting[said.place] = part
        self._taken += len(text)
        self._fresh_chars += len(text)
        self._taken_bytes += len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if self._taken_bytes > self._options.max_output_bytes:
            raise OutputTooLarge(self._options.max_output_bytes)

    def open(self, state: SafetyState) -> None:
        """Go on: the input has passed."""
        self._state = state

    def finish(self) -> None:
        """Note that the upstream has ended: what waits is judged, whether it fills a window or not."""
        self._finished = True

    # -- what is judged ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> SafetyState | None:
        """What the chain carries after all that has passed."""
        return self._state

    @property
    def full(self) -> bool:
        """Whether the upstream is to be paused."""
        return self.held_bytes > self._options.max_held_bytes

    def is_due(self) -> bool:
        """Whether :meth:`window` has something to judge."""
        if self._state is None or self._window_end is not None or not self._waiting or self.blocked:
            return False
        if self._finished:
            return True
        if self._options.output == "whole":
            return False
        return self._due or self.full or self._fresh_chars >= self._options.window_chars

    def window(self) -> SafetyInput | None:
        """Return what is to be judged now; None if nothing is, or a window is being judged."""
        if not self.is_due() or self._state is None:
            return None
        pieces: list[Piece] = []
        waiting, self._waiting = self._waiting, {}
        end = self._taken
        for place, part in waiting.items():
            piece = self._piece(place, part, first=not pieces)
            if piece.text:
                pieces.append(piece)
            if part.new:
                self._waiting[place] = part
                end = min(end, part.new[0][0])
        self._window_end = end
        self._window_ends_part = not any(piece.open for piece in pieces)
        self._fresh_chars = 0
        self._due = False
        if not pieces:
            self._window_end = None  # no more than the beginning of a word
            return None
        return SafetyInput(stage="output", pieces=tuple(pieces), about=self._about, final=self._finished)

    def _piece(self, place: Place, part: _Part, *, first: bool) -> Piece:
        assert self._state is not None
        about = part.about
        is_open = not (part.ended or self._finished)
        text = part.cut(whole=not is_open or self.full)
        if about.is_json:
            text = unescaped(text)
        before = part.before
        if not part.started:
            before = self._state.tail + "\n" if first and self._state.tail else ""
        if text:
            part.started = True
            part.before = tail_of(part.before + text, self._options.overlap_chars)
        return Piece(
            text=text,
            before=before,
            kind=about.kind,
            role="tool" if about.kind == "tool_output" else "assistant",
            item=about.item_type,
            path=str(place),
            open=is_open,
        )

    def passed(self, judgement: Judgement) -> None:
        """Take the verdict on the window: it passes.

        Args:
            judgement: Not a block.
        """
        assert self._window_end is not None
        self._state = judgement.state
        held_back = 0 if self._window_ends_part else self._options.hold_back_chars
        self._may_leave = max(self._may_leave, self._window_end - held_back)
        self._window_end = None

    def block(self) -> bytes:
        """Take the verdict on the window: nothing of it leaves, and nothing after it.

        Returns:
            The closing event, for what was sent.
        """
        self.blocked = True
        # A usage is known only if the whole answer had come.
        usage = self._usage
        self.drop()
        return self._sent.closing(usage)

    def drop(self) -> None:
        """Give up what is held: nobody listens any more."""
        self._held.clear()
        self._parts.clear()
        self._waiting.clear()
        self.held_bytes = 0

    # -- what goes out -----------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nothing is held and nothing is being judged."""
        return not self._held and self._window_end is None

    @property
    def transparent(self) -> bool:
        """Whether events pass as they come, from now on."""
        return self._options.output == "off" and self._state is not None and not self._held

    def leaving(self) -> Payload | None:
        """Return the next event that may leave, None if there is none; call it until then."""
        if not self._held or self._state is None:
            return None
        held = self._held[0]
        if held.end > self._may_leave and not self._all_passed():
            return None
        self._held.popleft()
        self.held_bytes -= len(held.payload) + _EVENT_BYTES
        self._sent.note(held.heard, held.payload)
        return held.payload

    def _all_passed(self) -> bool:
        """Whether nothing more is to be judged before what is held may leave."""
        if self._waiting or self._window_end is not None:
            return False
        # What is held back waits for a next window; a paused upstream would never give it.
        return self._finished or (self.full and self._options.output == "windows")


def _new_in(part: _Part, whole: str) -> str:
    """Return what of all the text of a part has not been said before."""
    known = str(part.said)
    part.said.become(whole)
    return whole.removeprefix(known)
