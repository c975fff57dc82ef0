"""Decode server-sent events, without any I/O.

Only the data of an event matters here: the JSON inside names its own type, and
nothing on this path reconnects, so `event:`, `id:` and `retry:` are read over.

The input stays bytes from end to end. A line end is CR, LF or CRLF and nothing
else; `splitlines()` would also break at U+0085, U+2028, VT and FF, all of which
may stand raw inside a JSON string. Staying in bytes also makes it irrelevant
where a chunk cuts a code point.
"""

from typing import NoReturn

from ws_responses.errors import EventTooLarge

_BOM = b"\xef\xbb\xbf"
# Numbers, since `10 in chunk` takes a tenth of the time of `b"\n" in chunk`.
_LF = 0x0A
_CR = 0x0D
# Each such line costs a copy of the rest; the bound keeps a strange chunk cheap.
_MAX_LINES_BEFORE_DATA = 3


def single_event(chunk: bytes) -> bytes | None:
    """Return the data of a chunk which is exactly one event in the usual form.

    The usual form is: up to three `event:` or `id:` lines, one `data:` line, one blank
    line; all of them ending in LF, or all in CRLF. Most apps send one such
    chunk per event, which makes this the hot path.

    The function knows neither what came before nor any limit. Use it only while
    `SSEDecoder.pending` is 0 and for chunks within the limit of an event.

    Args:
        chunk: One body chunk. Anything but plain `bytes` gives None.

    Returns:
        The data, or None if the chunk has to go through `SSEDecoder.feed`.
    """
    if type(chunk) is not bytes:
        return None
    if _CR in chunk:
        return _single_crlf_event(chunk)
    if chunk[-2:] != b"\n\n":
        return None
    more = _MAX_LINES_BEFORE_DATA
    while (head := chunk[:6]) != b"data: ":
        if not more or (head != b"event:" and head[:3] != b"id:"):
            return _bare_data(chunk[:-2])
        more -= 1
        _, _, chunk = chunk.partition(b"\n")
    data = chunk[6:-2]
    # A line end within means a further line, or a further event.
    return None if _LF in data else data


def usual_events(chunk: bytes) -> list[bytes] | None:
    """Return the data of a chunk which is whole events in the form that services send: one `data:` line each, ending in LF.

    As for `single_event`, nothing may be pending, and the chunk must be within the limit of an event.

    Returns:
        The data of each, or None if the chunk has to go through `SSEDecoder.feed`.
    """
    if chunk[-2:] != b"\n\n" or _CR in chunk:
        return None
    lines = chunk[:-2].split(b"\n\n")
    events = [line[6:] for line in lines if line[:6] == b"data: "]
    # A line end within means a further line.
    return events if len(events) == len(lines) and chunk.count(b"\n") == 2 * len(lines) else None


def _single_crlf_event(chunk: bytes) -> bytes | None:
    if chunk[-4:] != b"\r\n\r\n":
        return None
    more = _MAX_LINES_BEFORE_DATA
    while (head := chunk[:6]) != b"data: ":
        if not more or (head != b"event:" and head[:3] != b"id:"):
            return _bare_data(chunk[:-4])
        more -= 1
        line, _, chunk = chunk.partition(b"\r\n")
        # A lone CR or LF is a line end as well: leave mixtures to the decoder.
        if _CR in line or _LF in line:
            return None
    data = chunk[6:-4]
    return None if _LF in data or _CR in data else data


def _bare_data(line: bytes) -> bytes | None:
    """Read a line which has no space after `data:`."""
    if line[:5] != b"data:" or _LF in line or _CR in line:
        return None
    return line[5:]


class SSEDecoder:
    """Turn the chunks of one event stream into the data of its events.

    Where the chunks are cut never changes the events, nor which event is the
    first one found to be too large.

    Args:
        max_event_bytes: Bound on what is held for one event: the data read so
            far plus the line being read. It holds for every line, also for
            comments and unknown fields.
    """

    __slots__ = ("_at_start", "_data", "_limit", "_line", "_overflowed", "_skip_lf")

    def __init__(self, *, max_event_bytes: int) -> None:
        self._limit = max_event_bytes
        # The unfinished line, without any part of a line end.
        self._line = bytearray()
        # The data lines of the unfinished event, an LF after each of them. An
        # empty data line thus differs from no data line. One buffer rather than
        # a list of lines: objects for tiny lines would cost far more than the
        # bytes which the limit counts.
        self._data = bytearray()
        self._at_start = True
        self._skip_lf = False
        self._overflowed = False

    @property
    def pending(self) -> int:
        """Number of bytes held for an unfinished event; not 0 once an event was too large."""
        # After an overflow, what looks like a whole event may be the rest of an
        # endless line: it must not go past the decoder by `single_event`.
        return 1 if self._overflowed else len(self._data) + len(self._line)

    def feed(self, chunk: bytes | bytearray | memoryview) -> list[bytes]:
        """Take the next chunk and return the data of the events it completes.

        Args:
            chunk: Part of the body, cut anywhere. It is not referred to later.

        Returns:
            One `bytes` per event, in order. Events without data are left out.

        Raises:
            EventTooLarge: An event is above the limit. If the same chunk has
                completed events before it, those are returned first, and the
                next call raises. The decoder is of no further use then.
        """
        text = chunk if type(chunk) is bytes else bytes(chunk)
        events: list[bytes] = []
        try:
            self._check_overflow()
            if text:
                self._read(self._with_lf_only(text), events)
        except EventTooLarge:
            if not events:
                raise
        return events

    def end(self) -> list[bytes]:
        """Take the end of the body and return the data of an unfinished event.

        The specification drops an event which lacks its final blank line. Many
        apps leave that line out, so here such an event counts.

        Returns:
            The data of the last event, or nothing.

        Raises:
            EventTooLarge: As for `feed`.
        """
        self._check_overflow()
        events: list[bytes] = []
        if self._line:
            self._finish_line(b"", events)
        self._dispatch(events)
        return events

    def _with_lf_only(self, text: bytes) -> bytes:
        """Replace each line end by LF, also one that is cut between two chunks."""
        # A CR at the end of a chunk ends its line at once; waiting for a
        # possible LF would hold back a finished event.
        if self._skip_lf and text.startswith(b"\n"):
            text = text[1:]
            self._skip_lf = False
            if not text:
                return text
        self._skip_lf = text.endswith(b"\r")
        if _CR in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return text

    def _read(self, text: bytes, events: list[bytes]) -> None:
        start = 0
        find = text.find
        if self._line or self._at_start:
            end = find(b"\n")
            if end >= 0:
                self._finish_line(text[:end], events)
                start = end + 1
        while (end := find(b"\n", start)) >= 0:
            if end == start:
                self._dispatch(events)
            else:
                if end - start > self._limit - len(self._data):
                    self._overflow()
                head = text[start : start + 6]
                if head == b"data: " and not self._data and text[end + 1 : end + 2] == b"\n":
                    # The usual event has one data line: no detour by the buffer.
                    events.append(text[start + 6 : end])
                    end += 1
                elif head[:4] == b"data":
                    self._take_field(bytearray(text[start:end]))
            start = end + 1
        self._extend_line(text[start:])

    def _extend_line(self, part: bytes) -> None:
        if len(self._data) + len(self._line) + len(part) > self._limit:
            self._overflow()
        self._line += part

    def _finish_line(self, rest: bytes, events: list[bytes]) -> None:
        self._extend_line(rest)
        line = self._line
        self._line = bytearray()
        if self._at_start:
            self._at_start = False
            if line.startswith(_BOM):
                del line[: len(_BOM)]
        if line:
            self._take_field(line)
        else:
            self._dispatch(events)

    def _take_field(self, line: bytearray) -> None:
        if line.startswith(b"data:"):
            # Cutting off the front of a bytearray moves no bytes.
            del line[: 6 if line.startswith(b" ", 5) else 5]
        elif len(line) == 4 and line.startswith(b"data"):
            line.clear()
        else:
            return
        line += b"\n"
        if self._data:
            self._data += line
        else:
            self._data = line

    def _dispatch(self, events: list[bytes]) -> None:
        if self._data:
            self._data.pop()
            events.append(bytes(self._data))
            self._data = bytearray()

    def _overflow(self) -> NoReturn:
        self._overflowed = True
        self._line = bytearray()
        self._data = bytearray()
        raise EventTooLarge(self._limit)

    def _check_overflow(self) -> None:
        if self._overflowed:
            raise EventTooLarge(self._limit)
