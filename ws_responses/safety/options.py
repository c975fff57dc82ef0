"""What an operator asks of the safety room: which classifiers, when, and what is held until they have spoken."""

from collections.abc import Sequence
from inspect import iscoroutinefunction
from math import isfinite
from typing import Any, Final, Literal, cast, get_args

from ws_responses.errors import ConfigurationError
from ws_responses.safety.verdict import Classifier, Classify, Stage

Mode = Literal["before", "beside"]
"""The input is judged before inference begins, or beside it with all output held until the verdict."""

Output = Literal["windows", "whole", "off"]
"""The output is judged window by window, as a whole when it is complete, or not at all."""

Fail = Literal["closed", "open"]
"""What a failure of a classifier means: a block, or nothing."""

MEMBERS: Final = ("instructions", "prompt", "text", "tools")
"""Members of a request, beside its input, whose text reaches the model."""

MIB: Final = 1 << 20

MAX_TEXTS: Final = 65_536
"""Strings of one input: reading one takes some microseconds, in which no other connection moves."""


class Screen:
    """One classifier and how it is used.

    Args:
        classifier: Judges; an object with ``classify``, or a function. One that is not ``async`` runs in a worker thread.
        name: Names it in flags and logs, and its state on the chain; by default its own ``name``, or that of its type.
        time_limit_s: After that it has failed. It must be shorter than the patience of the clients.
        fail: "closed" blocks what it could not judge, "open" lets it pass unjudged (told to the log).
        stages: What it judges.
        quick: It never waits: it is asked before the others. By default its own ``quick``.

    Raises:
        ConfigurationError: An option is wrong.
    """

    __slots__ = ("classify", "fail", "in_thread", "name", "quick", "stages", "time_limit_s", "version")

    def __init__(
        self,
        classifier: Classifier | Classify,
        *,
        name: str | None = None,
        time_limit_s: float = 5.0,
        fail: Fail = "closed",
        stages: Sequence[Stage] = ("input", "output"),
        quick: bool | None = None,
    ) -> None:
        classify = classifier.classify if isinstance(classifier, Classifier) else classifier
        if not callable(classify):
            raise ConfigurationError(
                f"a classifier must be a function or have 'classify', not {type(classifier).__name__}"
            )
        if fail not in get_args(Fail):
            raise ConfigurationError(f"fail must be 'closed' or 'open', not {fail!r}")
        if not stages or not set(stages) <= set(get_args(Stage)):
            raise ConfigurationError(f"stages must name 'input', 'output' or both, not {stages!r}")
        if not (isfinite(time_limit_s) and time_limit_s > 0):
            raise ConfigurationError(f"time_limit_s must be a positive number of seconds, not {time_limit_s!r}")
        self.classify: Classify = classify
        self.in_thread = not _is_async(classify)
        self.name = name or _own_name(classifier)
        self.version = str(getattr(classifier, "version", ""))
        self.time_limit_s = time_limit_s
        self.fail: Fail = fail
        self.stages = frozenset(stages)
        self.quick = bool(getattr(classifier, "quick", False)) if quick is None else quick
        if self.quick and self.in_thread:
            raise ConfigurationError(f"{self.name}: what runs in a thread waits for it, and is not quick")


def _own_name(classifier: object) -> str:
    name = getattr(classifier, "name", None) or getattr(classifier, "__name__", None)
    return name if isinstance(name, str) else type(classifier).__name__


def _is_async(function: Any) -> bool:
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


class Safety:
    """Judges what is new in each turn, and what is answered.

    Args:
        classifiers: All are asked at once; the first block wins. Each name must be its own.
        mode: See :data:`Mode`. With "beside" a block cancels the app, whose side effects cannot be undone.
        output: See :data:`Output`.
        window_chars: Text that is judged in one go; more if more has come while the window before was judged. A window also
            ends with its part, so that a finished text never waits for the next one.
        hold_back_chars: Text at the end of a window that passed which waits for the next window: what is found across two
            windows has not begun to leave then, if it is no longer than this.
        overlap_chars: What classifiers are given of the text before a delta.
        members: Members of the request, beside its input, that are judged when they change.
        max_held_bytes: Events held until their verdict; beyond it the upstream is paused, or fails with ``output="whole"``.
        max_texts: Most strings in the input of one turn; more are refused (``too_many_texts``).
        max_output_bytes: Bound on the text of one response, all of which is remembered until its end.
        max_threads: Classifiers that may run in threads at a time; one that hangs keeps its thread.
        continue_blocked: Whether a response whose output was blocked can be continued: the conversation then goes on from what
            was sent of it. By default its id is not found.

    Raises:
        ConfigurationError: An option is wrong.
    """

    def __init__(
        self,
        *classifiers: Classifier | Classify | Screen,
        mode: Mode = "before",
        output: Output = "windows",
        window_chars: int = 256,
        hold_back_chars: int = 0,
        overlap_chars: int = 256,
        members: Sequence[str] = MEMBERS,
        max_held_bytes: int = MIB,
        max_texts: int = MAX_TEXTS,
        max_output_bytes: int = 64 * MIB,
        max_threads: int = 4,
        continue_blocked: bool = False,
    ) -> None:
        self.screens = tuple(each if isinstance(each, Screen) else Screen(each) for each in classifiers)
        names = [screen.name for screen in self.screens]
        if not names:
            raise ConfigurationError("safety needs a classifier")
        if len(set(names)) < len(names):
            raise ConfigurationError(f"classifiers must have different names, not {', '.join(names)}")
        if mode not in get_args(Mode):
            raise ConfigurationError(f"mode must be 'before' or 'beside', not {mode!r}")
        if output not in get_args(Output):
            raise ConfigurationError(f"output must be 'windows', 'whole' or 'off', not {output!r}")
        if isinstance(cast("object", members), str):
            raise ConfigurationError("members must be a sequence of names, not a string")
        if hold_back_chars > overlap_chars:
            raise ConfigurationError("hold_back_chars must not exceed overlap_chars")
        counts = {
            "window_chars": (window_chars, 1),
            "hold_back_chars": (hold_back_chars, 0),
            "overlap_chars": (overlap_chars, 0),
            "max_held_bytes": (max_held_bytes, 1),
            "max_texts": (max_texts, 1),
            "max_output_bytes": (max_output_bytes, 1),
            "max_threads": (max_threads, 1),
        }
        for name, (value, least) in counts.items():
            if type(value) is not int or value < least:
                raise ConfigurationError(f"{name} must be a whole number of at least {least}, not {value!r}")
        self.mode: Mode = mode
        self.output: Output = output if any("output" in screen.stages for screen in self.screens) else "off"
        self.window_chars = window_chars
        self.hold_back_chars = hold_back_chars
        self.overlap_chars = overlap_chars
        self.members = tuple(members)
        self.max_held_bytes = max_held_bytes
        self.max_texts = max_texts
        self.max_output_bytes = max_output_bytes
        self.max_threads = max_threads
        self.continue_blocked = continue_blocked
