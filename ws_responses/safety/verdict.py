"""What classifiers are given and what they answer, and the state that a chain carries for them."""

from collections.abc import Awaitable, Callable
from sys import getsizeof
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from ws_responses.errors import InvalidRequest, UpstreamError, WireError
from ws_responses.protocol.withheld import withheld

Action = Literal["allow", "flag", "block"]
"""A flagged text passes, and the flag is carried on and told to settlement."""

Stage = Literal["input", "output"]

Kind = Literal["text", "refusal", "reasoning", "arguments", "tool_output", "setting", "other"]
"""What a piece is: of a message, a model's refusal or reasoning, arguments of a call, what a tool gave, a member of the request
beside its input (``instructions``, ``tools``), or text in an item that we do not know."""

Carried: TypeAlias = "bool | int | float | str | bytes | tuple[Carried, ...] | None"
"""What a classifier may carry from turn to turn: immutable, and of a size that can be counted."""

MAX_CARRIED_BYTES: Final = 65536
"""Largest state of one classifier: it is kept for each response of a chain."""

MAX_CATEGORIES: Final = 64
"""Most categories of one verdict; moderation services have about a dozen."""

MAX_CATEGORY_CHARS: Final = 128
"""Longest name of a category."""

MAX_FLAGS: Final = 32
"""Most flags that a chain carries; the oldest stay."""

_STATE_BYTES: Final = 320
"""A :class:`SafetyState` and its tuples beside what they hold; measured on 64-bit CPython."""


class Piece(Struct, frozen=True, kw_only=True, gc=False):
    """A text to be judged, and where it comes from.

    Attributes:
        text: The text, not judged before.
        before: What comes right before it and was judged before: its own beginning if it goes on, else the end of the
            conversation with a line end. Empty where the piece before it in the same delta is what precedes it.
        kind: See :data:`Kind`.
        role: Of the message; "tool" for outputs of tools, "assistant" for calls and reasoning; None if it has none.
        item: Type of the item; None for a member of the request.
        path: Where it stands: ``input[2].content[0].text``, ``instructions``, ``output[0].content[0]``.
        open: More of the same text may come.
    """

    text: str
    before: str = ""
    kind: Kind = "text"
    role: str | None = None
    item: str | None = None
    path: str = ""
    open: bool = False

    __repr__ = withheld


class About(Struct, frozen=True, kw_only=True):
    """Whose text it is.

    Attributes:
        turn_id: Our id of the turn.
        tenant: Who owns the chain.
        principal_id: Who is at the other end, as ``authorize`` said.
        model: As the request named it.
    """

    turn_id: str
    tenant: str
    principal_id: str | None = None
    model: str | None = None


class SafetyInput(Struct, frozen=True, kw_only=True):
    """What is judged in one go: the new text of a turn's input, or a window of the output.

    Attributes:
        stage: "input" or "output".
        pieces: In order; never empty.
        about: Whose it is.
        final: Nothing more comes of this stage in this turn.
    """

    stage: Stage
    pieces: tuple[Piece, ...]
    about: About
    final: bool = True

    __repr__ = withheld

    @property
    def text(self) -> str:
        """All pieces with what comes before them, in lines."""
        return "\n".join(piece.before + piece.text for piece in self.pieces)

    @property
    def new_text(self) -> str:
        """All pieces without what comes before them, in lines."""
        return "\n".join(piece.text for piece in self.pieces)


class Verdict(Struct, frozen=True, kw_only=True):
    """What a classifier answers.

    Attributes:
        action: What is to happen.
        state: What it wants to be given with the next delta of the chain.
        categories: Why, in its own names; for the operator, never told the client.
    """

    action: Action = "allow"
    state: Carried = None
    categories: tuple[str, ...] = ()


@runtime_checkable
class Classifier(Protocol):
    """Judges text.

    It may also have ``name: str`` (by which flags, logs and its carried state know it), ``quick: bool`` (it never waits for
    anything: it is asked before the others, which are not asked if it blocks) and ``version: str`` (what of it decides; verdicts that
    a store holds of another version count for nothing).
    """

    async def classify(self, delta: SafetyInput, state: Carried, /) -> Verdict:
        """Judge a delta.

        Args:
            delta: The new text.
            state: What the verdict before on this chain carried; None at first.
        """
        ...


Classify = Callable[[SafetyInput, Carried], Awaitable[Verdict] | Verdict]
"""The same as a function. One that is not ``async`` runs in a worker thread: right for a model that computes."""


class SafetyState(Struct, frozen=True, kw_only=True):
    """What a chain carries of its judgements; immutable, kept with the node.

    Attributes:
        tail: The end of the text judged so far.
        settings: Digests of the request's members that were judged, by name.
        carried: States of the classifiers, by name.
        flags: ``classifier:category`` of what was flagged.
    """

    tail: str = ""
    settings: tuple[tuple[str, bytes], ...] = ()
    carried: tuple[tuple[str, Carried], ...] = ()
    flags: tuple[str, ...] = ()

    __repr__ = withheld

    @property
    def size(self) -> int:
        """Bytes of memory, for who must pay for them."""
        size = _STATE_BYTES + getsizeof(self.tail) + sum(map(getsizeof, self.flags))
        size += sum(getsizeof(digest) for _, digest in self.settings)
        return size + sum(carried_bytes(value) for _, value in self.carried)

    def carried_of(self, name: str) -> Carried:
        """Return the state of a classifier; None if it has none."""
        return next((value for known, value in self.carried if known == name), None)


class Judgement(Struct, frozen=True, kw_only=True):
    """The verdicts of all classifiers on one delta.

    Attributes:
        action: "block" if one of them blocked, else "flag" if one flagged.
        state: The state to go on with; that of before where it is blocked.
        categories: ``classifier:category`` of what was flagged or blocked.
        failed: Names of the classifiers that failed or were late.
        unavailable: It is blocked because one of these fails closed.
    """

    action: Action
    state: SafetyState
    categories: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    unavailable: bool = False

    __repr__ = withheld

    @property
    def blocked(self) -> bool:
        """Whether the text must not pass."""
        return self.action == "block"

    def error(self) -> WireError:
        """Return what the client of a blocked input is told."""
        return SafetyUnavailable() if self.unavailable else ContentBlocked()


def merged(first: Judgement | None, second: Judgement) -> Judgement:
    """Return two judgements of one turn as one: the stricter action, all reasons, the later state."""
    if first is None:
        return second
    strict = first if _STRICTNESS[first.action] > _STRICTNESS[second.action] else second
    return Judgement(
        action=strict.action,
        state=second.state,
        categories=flags_with(first.categories, second.categories),
        failed=tuple(dict.fromkeys(first.failed + second.failed)),
        unavailable=first.unavailable or second.unavailable,
    )


_STRICTNESS: Final = {"allow": 0, "flag": 1, "block": 2}


class ContentBlocked(InvalidRequest):
    """The input was judged to break the service's rules; the code is OpenAI's for flagged prompts."""

    code = "invalid_prompt"

    def __init__(self) -> None:
        super().__init__("Invalid prompt: the input was judged to break this service's usage policy.", param="input")


class TooManyTexts(InvalidRequest):
    """The input has more strings than are read one by one: an array of millions would take the time of all connections."""

    code = "too_many_texts"

    def __init__(self, limit: int, param: str) -> None:
        super().__init__(f"The input has more than {limit} texts.", param=param)


class SafetyUnavailable(WireError):
    """A classifier that fails closed could not judge."""

    status = 503
    code = "safety_unavailable"

    def __init__(self) -> None:
        super().__init__("The content could not be checked. Try again.", headers={"retry-after": "1"})


class OutputTooLarge(UpstreamError):
    """The output exceeds what may be held or remembered for judging it."""

    code = "output_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"The output exceeds the {limit} bytes that can be held until it is judged.")


class NonsenseVerdict(ValueError):
    """A classifier answered something that is no verdict: it counts as failed."""


def checked(verdict: object) -> Verdict:
    """Return what a classifier answered, if it makes sense.

    Raises:
        NonsenseVerdict: It does not.
    """
    if not isinstance(verdict, Verdict):
        raise NonsenseVerdict(f"a classifier must return a Verdict, not {type(verdict).__name__}")
    action: object = verdict.action
    categories: Any = verdict.categories  # msgspec does not check what code of the operator puts in
    if action not in ("allow", "flag", "block"):
        raise NonsenseVerdict("the action of a verdict must be 'allow', 'flag' or 'block'")
    if type(categories) is not tuple or len(verdict.categories) > MAX_CATEGORIES:
        raise NonsenseVerdict(f"the categories of a verdict must be a tuple of at most {MAX_CATEGORIES}")
    if not all(type(name) is str and len(name) <= MAX_CATEGORY_CHARS for name in verdict.categories):
        raise NonsenseVerdict(f"a category must be a string of at most {MAX_CATEGORY_CHARS} characters")
    if carried_bytes(verdict.state) > MAX_CARRIED_BYTES:
        raise NonsenseVerdict(f"the state of a verdict must have at most {MAX_CARRIED_BYTES} bytes")
    return verdict


def carried_bytes(state: object) -> int:
    """Return the bytes of memory of a classifier's state; beyond the bound at most a little more than that is counted.

    Raises:
        NonsenseVerdict: It is not immutable.
    """
    size = 0
    rest: list[Any] = [state]
    while rest and size <= MAX_CARRIED_BYTES:
        value: Any = rest.pop()
        size += getsizeof(value)
        if isinstance(value, tuple):
            rest += value
        elif value is not None and type(value) not in (bool, int, float, str, bytes):
            raise NonsenseVerdict(f"the state of a verdict must not hold a {type(value).__name__}")
    return size


def flags_with(flags: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    """Return flags and those that are new, as many as are carried."""
    new = tuple(dict.fromkeys(flag for flag in more if flag not in flags))
    return (flags + new)[:MAX_FLAGS] if new else flags
