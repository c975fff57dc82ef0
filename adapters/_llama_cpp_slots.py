"""Which slot of a llama.cpp server serves which conversation."""

from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager


class Slots:
    """Gives each conversation a slot of its own as long as there are enough; then that of the one unused for longest.

    Args:
        count: Slots that the server has; 0 to leave all choices to it.
    """

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        self._of: OrderedDict[str, int] = OrderedDict()
        self._busy: set[int] = set()

    @contextmanager
    def held(self, session: str | None) -> Generator[int | None]:
        """Give the slot of a conversation; None where the server is to choose, as for one whose slot is at work."""
        slot = None if session is None else self._find(session)
        if slot is None:
            yield None
            return
        self._busy.add(slot)
        try:
            yield slot
        finally:
            self._busy.discard(slot)

    def _find(self, session: str) -> int | None:
        if session not in self._of:
            slot = self._free.pop() if self._free else self._take_over()
            if slot is None:
                return None
            self._of[session] = slot
        self._of.move_to_end(session)
        slot = self._of[session]
        return None if slot in self._busy else slot

    def _take_over(self) -> int | None:
        for session, slot in self._of.items():
            if slot not in self._busy:
                del self._of[session]
                return slot
        return None
