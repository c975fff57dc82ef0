"""What an agent's loop says: tool calls and what tools give back, about four bytes to the token, as in code."""

import random
from typing import Any, Final

ARGUMENTS: Final = (
    '{"command":["bash","-lc","rg --line-number --hidden needle src tests docs"],"workdir":"/work","timeout_ms":60000}'
)
"""Arguments of a call of the shell tool."""

SHELL: Final[dict[str, Any]] = {
    "type": "function",
    "name": "shell",
    "description": "Run a command in the sandbox and return what it prints. Prefer rg to grep. Set the working folder.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}, "description": "The command to run."},
            "workdir": {"type": "string", "description": "The folder to run it in."},
            "timeout_ms": {"type": "number", "description": "After this many milliseconds it is ended."},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
}
"""The tool."""

_WORDS: Final = (
    "self state node parent delta items render token resolve cache key value index limit size event handler session "
    "registry request response settings budget parse encode decode check find path name"
)
_LINES: Final = 8_192


def _listing() -> str:
    """Return lines as a search in source code prints them."""
    draw, words = random.Random(7), _WORDS.split()
    return "\n".join(
        f"src/{draw.choice(words)}/{draw.choice(words)}.py:{draw.randrange(1, 900)}:    "
        f"{draw.choice(words)} = {draw.choice(words)}.{draw.choice(words)}({draw.choice(words)}, {draw.choice(words)})"
        for _ in range(_LINES)
    )


class ToolOutputs:
    """Gives the outputs of a tool, each another one."""

    def __init__(self) -> None:
        self._text = _listing()
        self._at = 0

    def next(self, size: int) -> str:
        """Return the next ``size`` characters."""
        if self._at + size > len(self._text):
            self._at = 0
        begin, self._at = self._at, self._at + size
        return self._text[begin : self._at]
