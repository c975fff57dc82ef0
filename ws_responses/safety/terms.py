"""A classifier of words: terms and bounded patterns, in time linear in the text."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final, NamedTuple, cast

import msgspec
from anyio.lowlevel import checkpoint

from ws_responses.errors import ConfigurationError, excerpt
from ws_responses.safety.patterns import any_of, checked_cost
from ws_responses.safety.text import squeezed
from ws_responses.safety.verdict import MAX_CATEGORIES, MAX_CATEGORY_CHARS, Action, Carried, SafetyInput, Verdict

MAX_TERM_CHARS: Final = 128
"""Longest term."""

_SLICE_CHARS: Final = 65536
"""Text that is searched before others may run."""

_HANGUL_PARTS: Final = frozenset(map(chr, range(0x1100, 0x1200)))

Terms = Mapping[str, Iterable[str]] | Iterable[str]
"""Terms by category; without categories they are all of one."""

_Named = dict[str, list[str]]


class _Search(NamedTuple):
    """All terms of one category.

    Attributes:
        action: What a match means.
        category: Its name.
        pattern: Matches at each place where a term begins.
        width: Characters of the longest match.
    """

    action: Action
    category: str
    pattern: re.Pattern[str]
    width: int


class TermClassifier:
    """Finds terms and patterns.

    Text is compared without regard to case, to width and other compatibility forms (NFKC), to how much white space there is, and
    to characters that are not seen. A term that begins or ends with a letter or a digit is found as a whole word; terms in
    scripts without spaces between words are found anywhere. Letters that only look alike are not the same.

    Args:
        block: Terms that block.
        flag: Terms that are flagged.
        block_patterns: Regular expressions that block, matched against the text as described: in lower case, with single spaces.
            Only those whose cost has a bound: no ``*``, ``+`` or ``{3,}``, no reference to a group, at most 512 characters.
        flag_patterns: The same for flags.
        name: Names it in flags and logs.

    Raises:
        ConfigurationError: A term is empty or too long, a pattern is none or may take too long, or there is nothing to find.
    """

    quick: Final = True

    def __init__(
        self,
        block: Terms = (),
        *,
        flag: Terms = (),
        block_patterns: Terms = (),
        flag_patterns: Terms = (),
        name: str = "terms",
    ) -> None:
        self.name = name
        blocked, flagged = _checked_terms("block", block), _checked_terms("flag", flag)
        patterns = {"block": _by_category("block", block_patterns), "flag": _by_category("flag", flag_patterns)}
        self._searches = _searches("block", blocked, patterns["block"]) + _searches("flag", flagged, patterns["flag"])
        if not self._searches:
            raise ConfigurationError("a TermClassifier needs a term or a pattern")
        if len(self._searches) > MAX_CATEGORIES:
            raise ConfigurationError(f"a TermClassifier takes at most {MAX_CATEGORIES} categories")
        self.version = _digest([blocked, flagged, patterns])
        # One look for all of them first: most texts hold none.
        every = [term for listed in (blocked, flagged) for group in listed.values() for term in group]
        given = [pattern for listed in patterns.values() for group in listed.values() for pattern in group]
        self._any = re.compile(
            "|".join([*filter(None, [_term_pattern(every)]), *(f"(?:{pattern})" for pattern in given)])
        )
        self._width = max(search.width for search in self._searches)

    @property
    def longest(self) -> int:
        """Characters of the longest match: an overlap of as many finds everything that lies across two windows."""
        return self._width

    async def classify(self, delta: SafetyInput, state: Carried = None, /) -> Verdict:
        """Judge a delta; what lies wholly in the overlap was judged before."""
        del state
        text = await _normalised_in_slices(delta.text)
        if not await self._finds_any(text):
            return Verdict()
        before = [normalised(piece.before) for piece in delta.pieces if piece.before]
        found: dict[Action, list[str]] = {"block": [], "flag": []}
        for search in self._searches:
            known = sum([await _count(search, old) for old in before])
            if await _count(search, text, up_to=known + 1) > known:
                found[search.action].append(search.category)
        action: Action = "block" if found["block"] else "flag" if found["flag"] else "allow"
        return Verdict(action=action, categories=tuple(dict.fromkeys(found["block"] or found["flag"])))

    async def _finds_any(self, text: str) -> bool:
        for at in range(0, len(text), _SLICE_CHARS):
            if at:
                await checkpoint()
            # One character more on each side, for what a match looks at beside itself.
            if self._any.search(text, at, at + _SLICE_CHARS + self._width + 1) is not None:
                return True
        return False


def _digest(what: object) -> str:
    """Return what is the same for the same terms, in whatever process."""
    return blake2b(msgspec.msgpack.encode(what, order="sorted"), digest_size=16).hexdigest()


def normalised(text: str) -> str:
    """Return text as terms are compared: NFKC, case folded, single spaces, nothing invisible."""
    if text.isascii():
        return squeezed(text).lower()
    return squeezed(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()))


async def _normalised_in_slices(text: str) -> str:
    """Return the same as :func:`normalised`; of a long text others may run between its parts."""
    if len(text) <= _SLICE_CHARS:
        return normalised(text)
    parts: list[str] = []
    at = 0
    while at < len(text):
        end = _border(text, at + _SLICE_CHARS)
        part = normalised(text[at:end])
        if parts and part.startswith(" ") and parts[-1].endswith(" "):
            part = part[1:]
        if part:
            parts.append(part)
        at = end
        await checkpoint()
    return "".join(parts)


def _border(text: str, at: int) -> int:
    """Return a place from some place on where a text can be cut: what comes behind it does not change what comes before it."""
    while at < len(text) and not _stands_alone(text[at]):
        at += 1
    return min(at, len(text))


def _stands_alone(character: str) -> bool:
    """Whether a character never becomes one with what is before it, as marks and the parts of Hangul syllables do."""
    if character.isascii():
        return True
    for form in (unicodedata.normalize("NFKD", character), normalised(character)):
        if form[:1] and (unicodedata.category(form[0]).startswith("M") or form[0] in _HANGUL_PARTS):
            return False
    return True


async def _count(search: _Search, text: str, *, up_to: int | None = None) -> int:
    """Return the number of places where a term begins; of a long text others may run between its parts.

    Args:
        search: What to find.
        text: Where.
        up_to: Enough of them.
    """
    count = 0
    for at in range(0, len(text), _SLICE_CHARS):
        if at:
            await checkpoint()
        until = at + _SLICE_CHARS
        for found in search.pattern.finditer(text, at, until + search.width + 1):
            if found.start() >= until:
                break
            count += 1
            if count == up_to:
                return count
    return count


def _searches(action: Action, terms: _Named, patterns: _Named) -> list[_Search]:
    found: list[_Search] = []
    for category in dict.fromkeys([*terms, *patterns]):
        listed, given = terms.get(category, []), patterns.get(category, [])
        if listed or given:
            pattern = "|".join([*filter(None, [_term_pattern(listed)]), *(f"(?:{each})" for each in given)])
            width = max(*map(len, listed), *(checked_cost(each).width for each in given), 0)
            found.append(_Search(action, category, re.compile(f"(?=({pattern}))"), width))
    return found


def _by_category(action: str, terms: Terms) -> _Named:
    if isinstance(terms, str):
        raise ConfigurationError("terms must be a sequence of strings, not one string")
    if isinstance(terms, Mapping):
        by_name = cast("Mapping[str, Iterable[str]]", terms)
        named = {name: list(by_name[name]) for name in by_name}
    else:
        named = {action: list(terms)}
    for name in named:
        if not name or len(name) > MAX_CATEGORY_CHARS:
            raise ConfigurationError(
                f"a category has 1 to {MAX_CATEGORY_CHARS} characters, unlike {excerpt(name, 64)!r}"
            )
    return named


def _checked_terms(action: str, terms: Terms) -> _Named:
    return {name: [_checked(term) for term in listed] for name, listed in _by_category(action, terms).items()}


def _checked(term: str) -> str:
    text = normalised(term).strip()
    if not text or len(text) > MAX_TERM_CHARS:
        raise ConfigurationError(f"a term has 1 to {MAX_TERM_CHARS} characters, unlike {excerpt(term, 64)!r}")
    return text


def _term_pattern(terms: list[str]) -> str:
    groups: dict[tuple[bool, bool], list[str]] = {}
    for term in terms:
        groups.setdefault((_is_word(term[0]), _is_word(term[-1])), []).append(term)
    return "|".join(
        (r"(?<!\w)" if begins else "") + f"(?:{any_of(group)})" + (r"(?!\w)" if ends else "")
        for (begins, ends), group in groups.items()
    )


def _is_word(character: str) -> bool:
    """Whether a word is written with a space beside this character: letters with case, and digits; not han, kana, thai."""
    return unicodedata.category(character) in ("Lu", "Ll", "Lt", "Nd", "Nl")
