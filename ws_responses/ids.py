"""The ids that a process gives."""

import os
import secrets
from itertools import count


class Ids:
    """Draws ids of responses, connections, turns and steers."""

    def __init__(self) -> None:
        self._turns = count(1)
        self._random = ""
        self._random_at = 0
        self._turn_prefix = f"turn_{secrets.token_hex(6)}_"

    def new(self, kind: str) -> str:
        """Return an unguessable id."""
        if self._random_at == len(self._random):
            # One system call for many ids.
            self._random, self._random_at = os.urandom(2048).hex(), 0
        self._random_at += 32
        return f"{kind}_{self._random[self._random_at - 32 : self._random_at]}"

    def new_turn(self) -> str:
        """Return an id of a turn, unique over processes."""
        return f"{self._turn_prefix}{next(self._turns)}"

    def new_steer(self) -> str:
        """Return an unguessable id of a steer."""
        return self.new("steer")
