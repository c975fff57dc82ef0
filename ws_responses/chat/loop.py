"""Lines in, turns out: what a person at a terminal, or a script, says to the model."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ws_responses.chat.conversation import Conversation
from ws_responses.chat.display import Display

HELP: Final = "/new begins a new conversation, /quit or Ctrl-D ends, Ctrl-C stops an answer"

ReadLine = Callable[[str], str | None]
"""Shows a prompt, if there is somebody to see it, and returns a line, or None at the end of the input."""

_INTERRUPTED: Final = 130
"""What shells return for a command that Ctrl-C has ended."""


class Chat:
    """Reads lines and has each answered.

    Args:
        conversation: Answers.
        display: Shows remarks.
        read_line: Gives the lines.
        interactive: A person is there: Ctrl-C stops an answer, not the program, and failures were seen.
    """

    def __init__(self, conversation: Conversation, display: Display, read_line: ReadLine, *, interactive: bool) -> None:
        self._conversation = conversation
        self._display = display
        self._read_line = read_line
        self._interactive = interactive
        self._failed = False
        self._over = False

    def run(self) -> int:
        """Talk until the input ends; return the exit code."""
        if not self._conversation.connect():
            return 1
        if self._interactive:
            self._display.note(f"[{HELP}]")
        try:
            while not self._over:
                try:
                    self._take_line()
                except KeyboardInterrupt:
                    if not self._interactive:
                        return _INTERRUPTED
                    self._display.end_line()
        finally:
            self._conversation.close()
        return int(self._failed and not self._interactive)

    def _take_line(self) -> None:
        line = self._line("> ")
        if line == "/new":
            self._conversation.new()
            self._display.note("[a new conversation begins]")
        elif line == "/help":
            self._display.note(f"[{HELP}]")
        elif line:
            self._say(line)

    def _line(self, prompt: str) -> str | None:
        """Return a line; None if there will be no more, or none was wanted."""
        line = self._read_line(prompt)
        if line is None or line.strip() == "/quit":
            self._over = True
            return None
        return line.strip()

    def _say(self, text: str) -> None:
        outcome = self._conversation.turn([{"type": "message", "role": "user", "content": text}])
        try:
            while outcome.calls:
                answers = self._answers(outcome.calls)
                if answers is None:
                    break
                outcome = self._conversation.turn(answers, is_answer=True)
        finally:
            if outcome.calls:
                # The next turn would have to answer them.
                self._conversation.new()
                self._display.note("[calls stay without an answer: a new conversation begins]")
        self._failed |= not outcome.ok

    def _answers(self, calls: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]] | None:
        """Ask for the output of each call; None if one cannot be given here, or is not."""
        self._display.note("[nothing is run here: type what each call gives, on one line]")
        answers: list[Mapping[str, Any]] = []
        for call in calls:
            make = _ANSWERS.get(str(call.get("type")))
            if make is None:
                self._display.note(f"[a {call.get('type')} cannot be answered by a line of text]")
                return None
            line = self._line(f"{call.get('name')}> ")
            if line is None or line == "/new":
                return None
            answers.append(make(call, line))
        return answers


def _function_output(call: Mapping[str, Any], line: str) -> Mapping[str, Any]:
    return {"type": f"{call['type']}_output", "call_id": call.get("call_id"), "output": line}


def _approval(call: Mapping[str, Any], line: str) -> Mapping[str, Any]:
    approve = line.lower() in {"y", "yes"}
    return {"type": "mcp_approval_response", "approval_request_id": call.get("id"), "approve": approve}


_ANSWERS: Final = {
    "function_call": _function_output,
    "custom_tool_call": _function_output,
    "mcp_approval_request": _approval,
}


def read_line(prompt: str) -> str | None:
    """Read a line from standard input, with what the terminal offers for editing it."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        try:
            return input(prompt)
        except EOFError:
            return None
    if sys.stdin.isatty():
        sys.stderr.write(prompt)
        sys.stderr.flush()
    return sys.stdin.readline() or None
